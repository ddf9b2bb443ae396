"""A platform is a folder and a row: one that a test adds runs, is checked and appears in help."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.pipelines.platforms.table import PLATFORMS
from tests.end_to_end.workspace import Workspace

LAB = """
import json
import os
import sys
from datetime import UTC, datetime

from slipway.core.errors import UserError
from slipway.pipelines.platforms.base import Check
from slipway.pipelines.platforms.base import RemotePlatform
from slipway.pipelines.platforms.table import PLATFORMS
from slipway.pipelines.runs import record as runs
from slipway.pipelines.table import steps_on


def power(context):
    if "NO_POWER" in os.environ:
        raise UserError("the lab has no power", fix="switch it on")
    return "on"


class Lab(RemotePlatform):
    name, title = "lab", "the lab"

    def checks(self):
        return [Check("power", power, of_run=True)]

    def check_hardware(self, context):
        return f"{context.config.training_hardware} in the lab"

    def compile_to(self, path, config, say):
        path.write_text("steps: " + " ".join(steps_on(self.name)))

    def start(self, config, say):
        folder = runs.create(config)
        record = runs.RunRecord(
            run_id=folder.run_id, name=config.name, platform=self.name, hardware=str(config.training_hardware),
            created=datetime.now(UTC), steps=[runs.StepRecord(name=name) for name in steps_on(self.name)],
        )
        folder.write(record)
        return folder, record

    def resume(self, folder, say):
        raise NotImplementedError

    def refresh(self, folder):
        record = folder.read()
        record.status = "succeeded"
        folder.write(record)
        return record

    def watch(self, folder, watcher):
        return self.refresh(folder)

    def log_lines(self, folder, step, *, follow, raw):
        yield "a line of the lab"

    def cancel(self, folder):
        raise NotImplementedError


PLATFORMS["lab"] = Lab()
from slipway.pipelines.cli.app import app
from typer.testing import CliRunner

for command in json.load(sys.stdin):
    done = CliRunner().invoke(app, command, env={"COLUMNS": "120"})
    print(json.dumps(f"{done.exit_code} {done.output}"))
"""


@pytest.mark.slow
def test_a_fifth_platform_runs_is_checked_and_appears_in_help(tmp_path: Path) -> None:
    folder = Workspace(tmp_path).path
    (folder / "slipway_lab.py").write_text(LAB)

    def results(*commands: tuple[str, ...], **environment: str) -> list[str]:
        """Return the exit code and the output of each of the commands in a process that has the platform."""
        done = subprocess.run(
            [sys.executable, "slipway_lab.py"],
            input=json.dumps(commands),
            cwd=folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    configuration = ("-c", "configs/digits.yaml", "--target", "lab")
    (refused,) = results(("run", *configuration), NO_POWER="1")
    assert refused.startswith("2 ") and "the lab has no power" in refused
    assert not (folder / "runs").exists()
    page, checks, ran, log, compiled, batch, build = results(
        ("run", "--help"),
        ("doctor", *configuration),
        ("run", *configuration),
        ("logs", "latest"),
        ("config", "compile", *configuration),
        ("batch", "digits", "--input", "x", "--output", "y", "--target", "lab"),
        ("config", "build", *configuration),
    )
    assert "kubeflow, tpu or lab" in " ".join(page.replace("│", "").split())
    assert "cpu in the lab" in checks and "power" in checks
    assert ran.startswith("0 ")
    assert "a line of the lab" in log
    assert compiled.startswith("0 ")
    assert (folder / "spec.yaml").read_text() == (
        "steps: prepare_data check_drift plan_training train evaluate register_model"
    )
    assert "there are no batch predictions on the lab" in batch
    assert "Slipway builds no image for the lab" in build


def test_nothing_outside_of_the_platforms_compares_their_names() -> None:
    for path in Path("pipelines").rglob("*.py"):
        if "platforms" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            values = {each.value for side in sides for each in ast.walk(side) if isinstance(each, ast.Constant)}
            is_kind = any(isinstance(side, ast.Attribute) and side.attr == "kind" for side in sides)  # of accelerators
            assert is_kind or not values & {*PLATFORMS}, f"{path}:{node.lineno}: {ast.unparse(node)}"
