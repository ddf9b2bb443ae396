"""The command line: help, completion, defaults, and resuming runs."""

from __future__ import annotations

import copy
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click
import pytest
import typer
import yaml
from typer.testing import CliRunner

from slipway import extensions
from slipway.pipelines.cli import app as app_module
from slipway.pipelines.cli.app import LazyCommand, LazyCommands, app
from slipway.pipelines.cli.start import Outcome
from slipway.pipelines.config.config import load
from slipway.pipelines.hardware import compiled
from slipway.pipelines.platforms.local import launch
from slipway.pipelines.runs import continuing, progress
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.record import ErrorRecord, RunFolder, RunRecord, StepRecord
from slipway.pipelines.terminal import Terminal
from slipway.trainer.engines import installed

DIGITS = Path("configs/digits.yaml").absolute()


def invoke(*arguments: str, **environment: str):
    return CliRunner().invoke(app, list(arguments), prog_name="slipway", env=environment)


COMMANDS = tuple(LazyCommands().commands.values())


TOP = (
    *("init", "run", "rehearse", "tune", "status", "list", "logs", "explain", "compare", "cancel", "predict", "batch"),
    *("serve", "drift", "doctor", "hardware", "migrate", "setup", "schedule", "endpoints", "deploy", "data", "config"),
    "runs",
    "mcp",
    "publish",
)
IN_GROUPS = {
    "runs": ("reproduce", "diagnose", "bill", "open", "track", "clean", "verify", "tpu"),
    "config": ("compile", "build", "prices"),
    "endpoints": ("rollback",),
}


def commands(group: Iterable[click.Command] = COMMANDS, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield the commands that are no groups, with their paths."""
    for row in group:
        command = getattr(row, "loaded", row)
        if isinstance(command, click.Group):
            yield from commands(command.commands.values(), f"{path}{row.name} ")
        else:
            yield f"{path}{row.name}", command


def rows(group: Iterable[LazyCommand] = COMMANDS, path: str = "slipway") -> Iterator[tuple[str, LazyCommand]]:
    """Yield the rows of commands and groups, with their paths."""
    for row in group:
        yield f"{path} {row.name}", row
        yield from rows(row.members.values(), f"{path} {row.name}")


ROWS = dict(rows())


@pytest.mark.extension
def test_at_most_24_commands_stand_at_the_top():
    assert {row.name for row in COMMANDS} == {*TOP}
    assert len([row for row in COMMANDS if not row.extra]) <= 24
    assert {row.name: {*row.members} for row in COMMANDS if row.members} == {
        name: {*members} for name, members in IN_GROUPS.items()
    }


@pytest.mark.parametrize("present", [True, False])
def test_a_command_of_an_extra_is_listed_once_its_packages_are_installed(
    present: bool, monkeypatch: pytest.MonkeyPatch
):
    row = extensions.Command("Train", "table", "slipway.pipelines.cli.start:run", "Train a table.", extra="notebook")
    monkeypatch.setattr(app_module, "COMMANDS", (*app_module.COMMANDS, row))
    monkeypatch.setattr(installed, "is_installed", lambda module: present or module != "pandas")
    monkeypatch.setattr(typer.testing, "_get_command", typer.main.get_command)
    assert ("Train a table." in invoke("--help").output) is present
    result = invoke("table", "--help")
    assert (result.exit_code == 0) is present
    assert ("pip install 'slipway-ml[notebook]'" in str(result.exception)) is not present


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, names in IN_GROUPS.items() for name in names])
@pytest.mark.extension
def test_the_name_of_a_command_alone_is_refused_with_its_group(group: str, name: str):
    result = invoke(name, "--apply", COLUMNS="200")
    assert result.exit_code == 2
    assert f"No such command '{name}'. Did you mean 'slipway {group} {name}'?" in result.output
    error = json.loads(invoke(name, "--json").stdout)["error"]
    assert error["nearest"] == f"slipway {group} {name}"


@pytest.mark.parametrize(
    ("words", "closest"),
    [(("claen",), "slipway runs clean"), (("runs", "claen"), "clean"), (("rehears",), "rehearse")],
)
@pytest.mark.extension("clean")
def test_a_misspelled_command_is_refused_with_the_closest(words: tuple[str, ...], closest: str):
    result = invoke(*words, COLUMNS="200")
    assert (result.exit_code, f"Did you mean '{closest}'?" in result.output) == (2, True)


def test_a_group_exists_only_if_it_has_commands(monkeypatch: pytest.MonkeyPatch):
    alone = [row for row in app_module.COMMANDS if row.group != "runs"]
    monkeypatch.setattr(app_module, "COMMANDS", alone)
    monkeypatch.setattr(extensions, "installed", lambda: ())
    assert "runs" not in LazyCommands().commands
    monkeypatch.setattr(app_module, "COMMANDS", [row for row in alone if row.name != "config"])
    without = LazyCommands()
    assert not without.commands.keys() & {"config", "compile"}
    assert not without.paths.keys() & {"config", "compile"}


@pytest.mark.parametrize("arguments", [(), ("schedule",), ("runs",), ("runs", "tpu")])
@pytest.mark.extension("vertex", "tpu")
def test_no_command_shows_the_help(arguments):
    result = invoke(*arguments)
    assert result.exit_code == 0
    assert result.output.strip() == invoke(*arguments, "--help").output.strip()
    assert "Usage: slipway" in result.output


def test_help_lists_the_commands_in_groups_with_examples():
    shown = invoke("--help", COLUMNS="80").output
    panels = {"Train", "Use models", "Follow runs", "Prepare"}
    assert {row.rich_help_panel for row in COMMANDS} == panels
    for title in (*panels, "Examples"):
        assert title in shown
    assert "what is done with existing runs now and then is in `runs`" in " ".join(shown.split())
    assert invoke("--version").output == f"slipway {version('slipway-ml')}\n"


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=[name for name, _ in commands()])
def test_every_help_page_fits_80_columns_and_describes_all(name: str, command: click.Command):
    page = invoke(*name.split(), "--help", COLUMNS="80").output
    assert "…" not in page
    assert max(map(len, page.splitlines())) <= 80
    words = page.replace("│", " ").split()
    for parameter in command.params:
        if not isinstance(parameter, click.Argument):
            assert parameter.opts[0] in {part for word in words for part in word.split(",")}
        assert parameter.help, parameter.name
        assert " ".join(parameter.help.split()[:2]) in " ".join(words)
    groups = ("schedule ", "endpoints ", "runs tpu ")
    is_in_group = name.startswith(groups) and name != "endpoints rollback"
    assert is_in_group or f"Examples slipway {name}" in " ".join(words)


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_the_list_has_the_first_paragraph_of_the_help_of_each_command(row: LazyCommand):
    assert row.help == row.loaded.help.partition("\n\n")[0]


def test_examples_parse():
    """Every example names options that exist."""
    for path, row in ROWS.items():
        for line in row.examples:
            assert line.startswith(path)
            command, words = row.loaded, line.removeprefix(path).partition(" -- ")[0].split()
            while isinstance(command, click.Group):
                command = command.commands[words.pop(0)]
                command = getattr(command, "loaded", command)
            known = {option for parameter in command.params for option in parameter.opts}
            assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known, line


@pytest.mark.extension("clean", "tpu")
def test_the_shell_completes_commands_and_runs(tmp_path: Path):
    (tmp_path / "runs/digits-1").mkdir(parents=True)
    for words, expected in (
        ("slipway reh", "rehearse"),
        ("slipway ru", "run runs"),
        ("slipway runs cl", "clean"),
        ("slipway runs open di", "digits-1"),
        ("slipway runs tpu del", "delete"),
        ("slipway config comp", "compile"),
        ("slipway runs verify --js", "--json"),
        ("slipway logs di", "digits-1"),
        ("slipway run --res", "--resume"),
    ):
        done = subprocess.run(
            [Path(sys.executable).with_name("slipway")],
            env={
                **os.environ,
                "_SLIPWAY_COMPLETE": "complete_bash",
                "COMP_WORDS": words,
                "COMP_CWORD": str(words.count(" ")),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.stdout.split() == expected.split(), done.stderr


def test_commands_with_a_target_have_one_default():
    """Except setup, for nothing has to be set up here, and build, whose images are those of the section's platform."""
    defaults = {
        parameter.default
        for name, command in commands()
        if name not in ("setup", "config build")
        for parameter in command.params
        if parameter.name == "target"
    }
    assert defaults == {"local"}


def test_compile_writes_the_local_spec_of_a_configuration_given_as_an_argument(tmp_path: Path):
    result = invoke("config", "compile", str(DIGITS), "-o", str(tmp_path / "spec.yaml"))
    assert result.exit_code == 0, result.output
    assert "digits for local on cpu" in result.output.replace("\n", " ")
    assert "exec-train" in yaml.safe_load((tmp_path / "spec.yaml").read_text())["deploymentSpec"]["executors"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "train.epochs=3"), "--set train.epochs=3"),
        (("run", "--set", "train.epochs", "3"), "--set train.epochs=VALUE"),
        (("run", "a.yaml", "-c", "b.yaml"), "remove a.yaml or -c b.yaml"),
        (("run", "nosuch.yaml"), "nosuch.yaml does not exist"),
    ],
)
def test_an_argument_that_is_not_a_configuration(arguments, words):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run that failed."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(DIGITS, tmp_path)
    folder = runs.create(load(Path("digits.yaml")))
    record = launch.new_record(folder, load(Path("digits.yaml")))
    record.status, record.champion = "failed", "none"
    folder.write(record)
    return folder


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> list:
    """The runs that would have been started."""
    seen: list = []

    def run(folder, config, record, watcher, seconds):
        seen.append((config, copy.deepcopy(record)))
        record.status = "succeeded"
        return record

    monkeypatch.setattr(launch, "run", run)
    return seen


@pytest.mark.parametrize(
    "setting",
    [
        "evaluate.gate.minimum=0.5", "register.model=other", "train.restarts.at_most=1", "evaluate={}",
        "train.export=last",
    ],
)  # fmt: skip
def test_a_resumed_run_accepts_settings_that_do_not_affect_the_weights(failed: RunFolder, resumed: list, setting: str):
    result = invoke("run", "--resume", "latest", "--set", setting)
    assert result.exit_code == 0, result.output
    [(config, record)] = resumed
    assert config == load(Path("digits.yaml"), [setting]) == load(failed.configuration_file)
    assert record.champion is None


def test_a_run_that_succeeded_continues_only_with_a_change(failed: RunFolder, resumed: list):
    record = failed.read()
    record.status = "succeeded"
    failed.write(record)
    assert "has already succeeded" in invoke("run", "--resume", "latest").stderr
    assert invoke("run", "--resume", "latest", "--set", "evaluate.gate.minimum=0.1").exit_code == 0
    assert len(resumed) == 1


@pytest.mark.parametrize(
    ("decision", "option", "code"),
    [
        ("reject", None, 0),
        ("reject", "--require-promotion", 3),
        ("not comparable", "--require-promotion", 3),
        ("unchanged", "--require-promotion", 0),
        ("promote", "--require-promotion", 0),
    ],
)
def test_a_model_that_is_not_promoted_fails_the_command_only_where_asked(
    failed: RunFolder, monkeypatch: pytest.MonkeyPatch, decision: str, option: str | None, code: int
):
    def run(folder, config, record, watcher, seconds):
        record.status = "succeeded"
        record.step("evaluate").outputs = {"verdict": {"decision": decision, "reasons": ["why"]}}
        return record

    monkeypatch.setattr(launch, "run", run)
    done = invoke("run", "--resume", "latest", *filter(None, [option]))
    assert done.exit_code == code
    assert f"verdict  {decision}. why" in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--set", "train.batch_size=8"), "config.yaml --set train.batch_size=8"),
        (("--set", "train={restarts: {at_most: 1}}"), "checkpoints"),
        (("--hardware", "cpu*2"), "--hardware 'cpu*2'"),
        (("-c", "digits.yaml"), "uses its stored configuration"),
        (("--set", "evaluate.gate.minimum=.inf"), "finite"),
    ],
)
def test_a_resumed_run_refuses_other_settings(failed: RunFolder, resumed: list, options: tuple[str, ...], words: str):
    before = failed.configuration_file.read_bytes()
    result = invoke("run", "--resume", "latest", *options)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not resumed
    assert failed.configuration_file.read_bytes() == before


@pytest.mark.parametrize(
    ("fix", "command"),
    [
        (None, "slipway run --resume RUN"),
        ("correct build in nets.py", "slipway run --resume RUN"),
        ("--set evaluate.champion=none", "slipway run --resume RUN --set evaluate.champion=none"),
        ("--set train.batch_size=9, or 12", "slipway run -c runs/RUN/config.yaml --set train.batch_size=9"),
        ("--set 'data.image_size=[8, 8]'.", "slipway run -c runs/RUN/config.yaml --set 'data.image_size=[8, 8]'"),
        (
            "--set 'data.image_size=[8, 8]' --set data.skip_corrupt=0.04; or --set data.damaged=warn",
            "slipway run -c runs/RUN/config.yaml --set 'data.image_size=[8, 8]' --set data.skip_corrupt=0.04",
        ),
        (
            "--set evaluate.gate.metric=eval_bleu --set evaluate.gate.direction=maximize (or minimize)",
            "slipway run --resume RUN --set evaluate.gate.metric=eval_bleu --set evaluate.gate.direction=maximize",
        ),
        (
            "--set train.schedule.milestones='[{epochs: 30}]'",
            "slipway run -c runs/RUN/config.yaml --set train.schedule.milestones='[{epochs: 30}]'",
        ),
        ("train it again: slipway run, without --resume", "slipway run -c runs/RUN/config.yaml"),
        ("--hardware 'cpu*2' is larger", "slipway run -c runs/RUN/config.yaml --hardware 'cpu*2'"),
    ],
)
def test_the_next_command_changes_the_configuration_where_the_fix_does(fix: str | None, command: str):
    record = RunRecord(
        run_id="RUN",
        name="digits",
        platform="local",
        hardware="cpu",
        created=datetime.now(UTC),
        steps=[StepRecord(name="train", status="failed")],
        error=ErrorRecord(step="train", message="No.", fix=fix),
    )
    assert continuing.next_command(record) == command
    elsewhere = replace(record, platform="vertex")
    assert continuing.next_command(elsewhere) == command.replace("config.yaml", "config.yaml --target vertex")
    rehearsed = replace(record, rehearsal=20)
    assert continuing.next_command(rehearsed) == command.replace("run -c", "rehearse -c")
    record.error.setting = "model.builder"
    assert continuing.next_command(record) == command
    record.error.setting = "data.image_size"  # --resume would use the stored configuration
    assert continuing.next_command(record) == (command if "--" in (fix or "") else None)
    record.error.setting = "train.class_weights.cat"
    assert continuing.next_command(record) == (command if "--" in (fix or "") else None)


INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == "slipway.pipelines.cli.app":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from slipway.pipelines.__main__ import main
main()
"""


def test_an_interrupt_during_the_imports_ends_the_command_without_a_traceback():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_the_line_of_an_evaluation_has_the_baseline_of_its_metric() -> None:
    outputs = {"metric": "accuracy", "metrics": {"accuracy": 0.9425}, "verdict": {"decision": "reject"}}
    step = StepRecord(name="evaluate", status="succeeded", outputs={**outputs, "baseline_metrics": {"accuracy": 0.944}})
    assert progress.step_line(step, judged=True).endswith("accuracy 0.9425 (baseline 0.9440): reject")
    step.outputs["baseline_metrics"] = {}
    assert progress.step_line(step, judged=True).endswith("accuracy 0.9425: reject")


def test_with_json_a_run_on_this_machine_ends_with_its_record_on_stdout(failed: RunFolder, resumed: list):
    result = invoke("run", "--resume", "latest", "--json")
    record = json.loads(result.stdout)
    assert (result.exit_code, record["run_id"], record["status"]) == (0, failed.run_id, "succeeded")


def test_a_rehearsal_compiles_the_step_for_its_data_and_says_that_this_takes_time(
    failed: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(compiled, "missing", lambda _hardware, _engine: None)
    monkeypatch.setattr(compiled, "job_of", lambda _model, train, data: (train.engine, data.name))
    monkeypatch.setattr(compiled, "compiled", lambda _hardware, job: job)
    monkeypatch.setattr(compiled, "sentences", lambda _hardware, job, answer: [f"{job == answer} {answer}"])
    config, record = load(failed.configuration_file, hardware="tpu-v5e-2x4"), failed.read()
    record.step("prepare_data").outputs["dataset"] = "datasets/digits"
    shown = Terminal(file=io.StringIO(), width=120)
    assert Outcome(shown, as_json=False)._compiled(config, record) == ["True ('tensorflow', 'digits')"]
    assert shown.file.getvalue() == "compiling the step for TPU v5e with 8 chips, up to a minute\n"
