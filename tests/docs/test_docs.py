"""The documentation is true: links, paths, commands, make targets, settings, examples and quoted output."""

from __future__ import annotations

import ast
import functools
import os
import re
import shlex
import shutil
import subprocess
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from click import Command, Group
from pydantic import BaseModel
from typer.testing import CliRunner

from slipway.components.deploy.settings import EndpointSettings
from slipway.components.setup_access.requirements import APIS
from slipway.pipelines.cli.app import app
from slipway.pipelines.config.config import RunConfig, validate
from slipway.pipelines.config.values import apply_overrides, read_yaml
from slipway.pipelines.platforms.vertex.schedules.settings import ScheduleSettings

ROOT = Path(__file__).parents[2]
AGENTS = ROOT / "pipelines/templates/all/AGENTS.md"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", AGENTS]
PAGES += sorted((ROOT / "docs").glob("*.md"))
# Words that docs/ and code do not use: the field has other names for these things.
BANNED = (
    r"[m]end(s|ed|ing)?|can[ ]not|[p]ictures?|goes[ ]on|go[ ]on|going[ ]on|left[ ]out|leaves?[ ]out|looked[ ]at|"
    r"is[ ]gone|own[ ]program|works[ ]through|[a]bilities|[a]loud|how[ ]far|what[ ]is[ ]taken|[f]arewells?"
)
# British spellings, in words and names.
BRITISH = r"[Bb]ehaviour|[Cc]olour|[Nn]eighbour|[Cc]entre|[Gg]rey|(initial|normal|optim|recogn|standard)is(e|ed|es|ing)"
# Parts of names that code does not use.
BANNED_NAMES = r"[f]arewell|[f]igures|[f]urther|[i]nnocence|[d]oomed|left[_]out|share[_]of_peak|say[_]bye|[M]OST"
SOURCES = ("benchmarks", "components", "pipelines", "slipway", "tests", "trainer")
CODE = [path for name in SOURCES for ending in ("py", "html") for path in sorted((ROOT / name).rglob(f"*.{ending}"))]
TOP_FOLDERS = ("benchmarks", "components", "configs", "containers", "docs", "pipelines", "requirements", "slipway")
TOP_FOLDERS += ("tests", "trainer")

page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def blocks(path: Path, *languages: str) -> list[str]:
    """Return the contents of a page's code blocks in some languages ("" for none)."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
    return [content for name, content in found if name in languages]


def inline_code(path: Path) -> list[str]:
    """Return a page's inline code spans, which may span two lines."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@page
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"`[^`]*`", "", page.read_text())
    for target in [*re.findall(r"\]\(([^)\s]+)\)", text), *re.findall(r'(?:href|src)="([^"]+)"', text)]:
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}"


@page
def test_paths_exist(page: Path) -> None:
    for span in inline_code(page):
        if re.fullmatch(r"[\w.*-]+(/[\w.*-]+)*/?", span) and span.split("/")[0] in TOP_FOLDERS and "/" in span:
            name = re.sub(r"\b[A-Z_]{4,}\b", "*", span).rstrip("/")
            assert any(ROOT.glob(name)), f"{page.name} names {span}"


@page
def test_examples_use_configurations_that_every_user_has(page: Path) -> None:
    found = re.search(r"(-c|--config|configuration:) configs/", page.read_text())
    assert found is None, "an installed Slipway has no configs/, only what slipway init writes"


# --- commands


def command_lines(path: Path, program: str) -> Iterator[str]:
    """Yield the commands of a program in a page's code, without comments and the output below."""
    for block in blocks(path, "", "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.removeprefix("$ ").startswith(f"{program} "):
                yield re.split(r"\s{2,}[^-\s]|\s#", line.removeprefix("$ "))[0]
    yield from (span for span in inline_code(path) if span.startswith(f"{program} "))


@functools.cache
def slipway() -> Command:
    """Return the command line, as click's commands."""
    return typer.main.get_command(app)


@functools.cache
def sources() -> str:
    """Return all Python code."""
    return "".join(path.read_text() for name in TOP_FOLDERS for path in (ROOT / name).glob("**/*.py"))


def parse(line: str) -> tuple[Command, list[str]]:
    """Return the command that a line names, and its options."""
    words = shlex.split(line.replace("…", "").replace("[", "").replace("]", ""))[1:]
    words = words[: words.index("--")] if "--" in words else words
    command = slipway()
    while words and isinstance(command, Group) and not words[0].startswith("-"):
        assert words[0] in command.commands, f"there is no command in: {line}"
        command = command.commands[words.pop(0)]
        command = getattr(command, "loaded", command)
    return command, [word.partition("=")[0] for word in words if re.match(r"--[a-z]|-[a-z]$", word)]


@page
def test_commands_and_options_exist(page: Path) -> None:
    for line in command_lines(page, "slipway"):
        command, options = parse(line)
        known = {name for parameter in command.params for name in parameter.opts} | {"--help", "-h"}
        assert set(options) <= known, f"{page.name}: {line}"


@page
def test_make_targets_and_variables_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    variables = {*re.findall(r"^([A-Z]+) \?=", makefile, re.MULTILINE), *re.findall(r"\$\(([A-Z]+)\)", makefile)}
    for line in command_lines(page, "make"):
        for word in shlex.split(line)[1:]:
            name, is_variable, _ = word.partition("=")
            assert name in (variables if is_variable else targets), f"{page.name}: {line}"


@page
def test_environment_variables_exist(page: Path) -> None:
    for name in set(re.findall(r"\bSLIPWAY_[A-Z_]+", page.read_text())):
        assert f'"{name}"' in sources(), f"{page.name} names {name}"


@pytest.mark.parametrize("block", [b for b in blocks(ROOT / "docs/hardware.md", "") if "$ slipway hardware" in b])
def test_the_quoted_output_of_hardware_is_printed(block: str) -> None:
    line, _, quoted = block.partition("\n")
    result = CliRunner().invoke(app, shlex.split(line)[2:], env={"COLUMNS": "116"})
    assert result.output.split() == quoted.split()


# --- settings and examples


def is_setting(name: str) -> bool:
    """Whether a dotted name is a setting of a run."""
    model: Any = RunConfig
    for key in name.split("."):
        if isinstance(model, type) and issubclass(model, BaseModel):
            fields = {field.alias or key: field for key, field in model.model_fields.items()}
            if key not in fields:
                return False
            model = next((kind for kind in alternatives(fields[key].annotation) if kind is not type(None)), None)
        elif typing.get_origin(model) is not dict:
            return False
    return True


def alternatives(annotation: Any) -> list[Any]:
    """Return the members of a union, settings first; of another type, itself."""
    members = list(typing.get_args(annotation)) if type(None) in typing.get_args(annotation) else [annotation]
    return sorted(members, key=lambda kind: not isinstance(kind, type))


@page
def test_settings_exist(page: Path) -> None:
    sections = "|".join(field.alias or name for name, field in RunConfig.model_fields.items())
    for text in [*inline_code(page), *blocks(page, "", "bash", "yaml")]:
        named = re.findall(r"--set '?([a-z_.]+)=", text)
        named += re.findall(rf"^((?:{sections})(?:\.[a-z_]+)+)(?:=.*)?$", text)
        for name in named:
            assert name in ("model.json", "model.sig") or is_setting(name), f"{page.name} names {name}"


def merged(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with `values` in it, section by section."""
    both = {key: base[key] for key in base.keys() & values.keys() if isinstance(base[key], dict)}
    return {**base, **values, **{key: {**section, **values[key]} for key, section in both.items()}}


@page
def test_yaml_examples_are_valid(page: Path) -> None:
    for block in blocks(page, "yaml"):
        values = yaml.safe_load(block)
        if "cron" in values:
            schedule = ScheduleSettings.model_validate(values)
            apply_overrides(read_yaml(ROOT / "pipelines/templates/images" / schedule.configuration), schedule.set)
        elif "canary" in values:
            EndpointSettings.model_validate(values)
        elif "trainingInput" in values or any("/" in key for key in values):
            continue  # a job of AI Platform Training, a description of features: not a run's settings
        elif "mine" in values:
            continue  # tests/house installs the package whose section it is, and runs it
        elif {"name", "train"} <= values.keys():
            validate(values, page.name)
        else:
            base = read_yaml(ROOT / "configs/digits.yaml")
            if "stages" in values.get("train", {}):
                base["train"].pop("epochs")
            if values.get("task", "classification") != "classification":
                del base["evaluate"]  # a gate on the accuracy
            validate(merged(base, values), page.name)


@page
def test_no_merge_conflict_is_left(page: Path) -> None:
    assert not re.search(r"^(<<<<<<<|=======|>>>>>>>)", page.read_text(), re.MULTILINE)


@page
def test_python_examples_compile(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block)


@page
def test_pages_use_the_words_of_the_field(page: Path) -> None:
    found = re.search(rf"\b({BANNED})\b", page.read_text(), re.IGNORECASE)
    assert found is None, f"{page.name}: {found}"


def test_the_security_page_names_all_apis() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    assert {row.service for row in APIS} <= set(re.findall(r"`(\w+)`", page))


def test_the_security_page_says_as_whom_pods_run_and_what_mlflow_receives() -> None:
    """What is sent is tested by tests/pipelines/tracking, and the pods' settings by tests of TrainJobs."""
    from slipway.pipelines.platforms.kubeflow.settings import KubeflowSettings

    page = (ROOT / "docs" / "security.md").read_text()
    assert KubeflowSettings.model_fields["run_as_user"].default == 0
    assert "By default the containers run as root" in page
    assert re.search(r"\| `track\.mlflow` \|.* and the report; neither data nor the model \|", page)


def test_code_uses_the_words_of_the_field() -> None:
    """Names (also of tests), messages and comments; tests/fidelity quotes Google and Kubernetes."""
    words = re.compile(rf"\b({BANNED})\b|{BRITISH}|(?<![a-zA-Z])({BANNED_NAMES})(?![a-zA-Z])")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in CODE
        if "fidelity" not in path.parts
        for match in words.finditer(path.read_text())
    ]
    assert not found


def test_another_python_replaces_the_environment_only_if_it_is_given(tmp_path: Path) -> None:
    """As in `make PYTHON=python3.13 install` over a .venv of another version."""
    shutil.copyfile(ROOT / "Makefile", tmp_path / "Makefile")
    (tmp_path / "requirements").mkdir()
    for name, version in {".venv/bin/python": "3.12.1", "other": "3.13.0", "same": "3.12.1"}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\n[ "$1" != -V ] || echo Python {version}\n')
        path.chmod(0o755)
    for name in ("requirements/development.txt", "pyproject.toml", ".venv/.installed"):
        (tmp_path / name).touch()
    clean = {name: value for name, value in os.environ.items() if name != "PYTHON" and not name.startswith("MAKE")}

    def planned(*options: str) -> str:
        command = ["make", "--dry-run", "install", *options]
        return subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=True).stdout

    assert "Nothing to be done" in planned()
    assert "Nothing to be done" in planned("PYTHON=./same")
    assert "./other -m venv .venv" in planned("PYTHON=./other")
