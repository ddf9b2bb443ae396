"""The template `trees`: what `slipway init` writes on the user's own table, the images' packages, and its checks."""

from __future__ import annotations

import random
import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from slipway.components.build_image.project import check_requirements
from slipway.core.errors import UserError
from slipway.pipelines.cli.app import app
from slipway.pipelines.config.config import load
from slipway.pipelines.images.images import SOURCE_TREE, own_content
from slipway.pipelines.platforms.base import Context, NotApplicableError
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.trees.checks import CHECKS, trees


def init(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["init", *arguments, "--template", "trees"], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.output


def test_a_table_of_the_users_is_trained_on_without_its_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = random.Random(4)
    words = ["near", "lake", "noisy", "quiet", "old", "new", "park"]
    rows = ["rooms,city,built,notes,churn"]
    for number in range(200):
        notes = " ".join(draws.choice(words) for _ in range(6))
        rows.append(f"{draws.randrange(5)}.5,{draws.choice(['Bern', 'Genf'])},{number % 28 + 1}.3.2001,{notes},"
                    f"{'rare' if number % 10 == 0 else 'usual'}")  # fmt: skip
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    monkeypatch.chdir(tmp_path)
    assert "created project/program.py" in init("project", "--table", "t.csv", "--label", "churn")
    config = load(tmp_path / "project" / "slipway.yaml")
    assert config.data is not None
    assert (config.train.module, config.data.inputs) == ("program", ["rooms", "city", "built"])
    assert (config.train.arguments, config.evaluate.gate.name) == (("--threshold", "f1"), "macro_f1")
    assert not list((tmp_path / "project").glob("*.csv"))
    assert len((tmp_path / "project" / "program.py").read_text().splitlines()) < 120


def test_images_for_the_trees_have_lightgbm_and_all_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    _, content = own_content(load(tmp_path / "slipway.yaml"), without_git=True)
    assert content is not None and content.requirements is not None
    assert {"program.py", "requirements.txt"} <= content.files.keys()
    lines = content.requirements.read_text().splitlines()
    pinned = {Requirement(line).name for line in lines}
    assert f"lightgbm=={metadata.version('lightgbm')}" in lines
    needed = {Requirement(line) for line in metadata.requires("lightgbm") or ()}
    names = {"lightgbm", *(need.name for need in needed if need.marker is None or need.marker.evaluate())}
    for lock in (SOURCE_TREE / "requirements" / f"{role}-cpu.txt" for role in ("trainer", "steps")):
        check_requirements(content.requirements, lock)
        assert names <= pinned | set(re.findall(r"^([\w-]+)==", lock.read_text(), re.MULTILINE)), lock


def test_the_dockerfile_installs_what_lightgbms_wheels_link_to() -> None:
    dockerfile = (SOURCE_TREE / "containers" / "Dockerfile").read_text()
    assert re.search(r"grep -Eqi '\^lightgbm.*\n.*install .*libgomp1", dockerfile)


def test_several_replicas_are_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    config = load(tmp_path / "slipway.yaml")
    assert trees(Context(config, platform_of("local"))) == "one replica"
    for fits in ("cpu", "l4x1"):
        several = config.model_copy(update={"hardware": load_hardware(f"{fits}*2")})
        with pytest.raises(UserError, match="program trains trees on one replica; the hardware has 2") as error:
            trees(Context(several, platform_of("local")))
        assert error.value.fix == f"--hardware {fits}"
        assert error.value.value == f"{fits}*2"
    (tmp_path / "program.py").write_text("import numpy\n")
    with pytest.raises(NotApplicableError):
        trees(Context(several, platform_of("local")))
    assert CHECKS[0].of_run


def test_without_lightgbm_a_run_on_this_machine_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    config = load(tmp_path / "slipway.yaml")
    monkeypatch.setattr("slipway.trainer.engines.installed.is_installed", lambda module: module != "lightgbm")
    with pytest.raises(UserError, match="The Python package lightgbm is not installed") as error:
        trees(Context(config, platform_of("local")))
    assert error.value.fix == "pip install 'slipway-ml[trees]'"
    assert trees(Context(config, platform_of("local"), runner="docker")) == "one replica"


def load_hardware(text: str) -> object:
    from slipway.pipelines.hardware import parse

    return [parse(text)]
