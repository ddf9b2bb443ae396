"""`slipway runs bill` of real runs: one undisturbed, one with slow steps that is killed, one that is resumed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from slipway.core.errors import UserError
from slipway.pipelines.bill import bill
from slipway.pipelines.bill.seconds import IDLE, LOST, STARTING
from slipway.pipelines.runs.record import RunFolder, RunRecord, StepRecord
from slipway.pipelines.selection import selection
from slipway.pipelines.selection.selection import Row
from slipway.trainer.metrics import attempt, spent

CONFIGURATION = Path(__file__).parents[3] / "configs" / "digits.yaml"
SETTINGS = ("train.epochs=2", "evaluate.gate.minimum=0", "train.steps_per_call=1", "train.checkpoint.every_steps=10")
# Slow enough that each step is recorded; the first process is killed in a step. `calls` has a line for each call.
KILLING = """
import os
import signal
import time
from pathlib import Path

import tensorflow as tf


def slow(images, seed):
    def wait(batch):
        time.sleep(0.05)
        with Path("calls").open("a") as file:
            file.write(f"{os.getpid()}\\n")
        if Path("calls").read_text().count("\\n") == 28 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    waited = tf.py_function(wait, [images], tf.float32)
    waited.set_shape(images.shape)
    return waited
"""
STEPS = 44


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "slipway.yaml").write_text(CONFIGURATION.read_text())
    return tmp_path


def start(folder: Path, *arguments: str, settings: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    options = [part for setting in settings for part in ("--set", setting)]
    return subprocess.Popen(
        [sys.executable, "-m", "slipway", *arguments, *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(folder)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def slipway(folder: Path, *arguments: str, settings: tuple[str, ...] = ()) -> str:
    process = start(folder, *arguments, settings=settings)
    output, error = process.communicate(timeout=300)
    assert process.returncode == 0, output + error
    return output


def test_a_training_that_is_not_disturbed_has_a_bill(folder: Path) -> None:
    slipway(folder, "run", settings=SETTINGS)
    assert re.search(r"importing and building .* s .*%\n(.*\n)*together .* 100.0%", slipway(folder, "runs", "bill"))
    values = json.loads(slipway(folder, "runs", "bill", "--json"))
    rows = {row["activity"]: row for row in values["rows"]}
    assert values["named"] >= 0.95
    assert (values["lost_steps"], LOST in rows, values["dollars"]) == (0, False, None)
    assert values["seconds"] == pytest.approx(sum(row["seconds"] for row in values["rows"]), abs=0.01)
    assert rows.keys() >= {STARTING, attempt.IMPORTING, spent.COMPILING, spent.STEPS, attempt.EXPORT}


def test_the_lost_steps_of_a_killed_replica_are_those_after_the_checkpoint(folder: Path) -> None:
    (folder / "killing.py").write_text(KILLING)
    slipway(folder, "run", settings=(*SETTINGS, "train.augment.function=killing:slow"))
    values = json.loads(slipway(folder, "runs", "bill", "--json"))
    (restart,) = selection.read(RunFolder(folder / "runs" / "latest")).outputs("train")["restarts"]
    rows = {row["activity"]: row["seconds"] for row in values["rows"]}
    killed, resumed = Counter((folder / "calls").read_text().split()).values()
    besides = resumed - (STEPS - restart["step"])  # calls of a process that are no steps
    assert values["lost_steps"] == killed - besides - 1 - restart["step"] > 0
    assert 0.05 * values["lost_steps"] < rows[LOST] < 2.0  # with the validation that is repeated
    assert rows[IDLE] >= restart["waited_seconds"]
    assert values["named"] >= 0.95


def test_a_resumed_run_pays_for_both_commands_and_not_for_the_time_between(folder: Path) -> None:
    (folder / "killed").touch()
    (folder / "killing.py").write_text(KILLING)
    process = start(folder, "run", settings=(*SETTINGS, "train.augment.function=killing:slow"))
    records = folder / "runs" / "latest" / "train" / "logs" / attempt.FOLDER
    deadline = time.monotonic() + 240
    while not any('"step": 1' in file.read_text() for file in records.glob("*.json")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    time.sleep(3.0)
    slipway(folder, "run", "--resume", "latest")
    values = json.loads(slipway(folder, "runs", "bill", "--json"))
    rows = {row["activity"]: row["seconds"] for row in values["rows"]}
    logs = records.parent / bill.REPLICAS_FILE
    first, _, _, last = (json.loads(line)["time"] for line in logs.read_text().splitlines())
    assert len(list(records.glob("*.json"))) == 2
    assert values["seconds"] < last - first - 3.0
    assert values["named"] >= 0.95
    assert rows[spent.STEPS] > 0.05 * 30
    assert LOST not in rows  # it has saved the step at which it was stopped


def row(folder: Path, hardware: str, status: str = "succeeded") -> Row:
    """A run on Vertex AI whose chief trained for half an hour, of which it lost 20 minutes."""
    run = RunFolder(folder / "run")
    (run.path / attempt.FOLDER).mkdir(parents=True)
    values = {**yaml.safe_load(CONFIGURATION.read_text()), "hardware": hardware}
    values["vertex"] = {"project": "project", "bucket": "gs://bucket", "region": "us-central1"}
    run.configuration_file.write_text(yaml.safe_dump(values))
    times = {"created": 0.0, "started": 600.0, "ended": 2400.0}
    lines = [json.dumps({"event": event, "restarts": 0, "time": time}) for event, time in times.items()]
    (run.path / bill.REPLICAS_FILE).write_text("\n".join(lines))
    first = {"started": 600.0, "time": 1800.0, "activity": "steps", "resumed": 0, "step": 100, "saved": []}
    second = {"started": 1800.0, "time": 2400.0, "activity": "ending", "resumed": 0, "step": 100, "saved": []}
    for record, seconds in ((first, 1200.0), (second, 600.0)):
        (run.path / attempt.FOLDER / f"{record['started']}.json").write_text(
            json.dumps({**record, "seconds": {"steps": seconds}})
        )
    record = RunRecord(
        run_id="run",
        name="digits",
        platform="vertex",
        hardware=hardware,
        status=status,  # type: ignore[arg-type]
        created=datetime(2026, 11, 1, tzinfo=UTC),
        steps=[StepRecord(name="train", status="succeeded")],
    )
    return Row(run, record, {}, {})


def test_each_row_has_its_price_and_the_largest_saving_is_named(tmp_path: Path) -> None:
    values = bill.of_run(row(tmp_path, "l4x1+spot")).as_dict()
    assert values["unpaid_seconds"] == 600.0
    assert values["dollars"] > 0
    assert values["dollars"] == pytest.approx(sum(part["dollars"] for part in values["rows"]), abs=0.001)
    assert values["saving"]["change"] == "--set train.checkpoint.every_seconds=6"
    assert values["saving"]["seconds"] == pytest.approx(1080.0)
    text = "\n".join(bill.of_run(row(tmp_path / "text", "l4x1+spot")).lines())
    assert re.search(r"steps lost to restarts +1,200.0 s +66.7% +\$\d\.\d\d +100 steps", text)
    assert "waiting in a queue, not paid" in text
    assert re.search(r"would have saved most, about 1,080.0 s or \$0\.\d\d: --set train", text)


def test_an_unknown_price_is_said(tmp_path: Path) -> None:
    text = "\n".join(bill.of_run(row(tmp_path, "h100x8+flex")).lines())
    assert "not known" in text


def test_spot_machines_are_proposed_if_they_would_have_saved_most(tmp_path: Path) -> None:
    run = row(tmp_path, "l4x1")
    (next((run.folder.path / attempt.FOLDER).glob("600*"))).unlink()
    saving = bill.of_run(run).saving
    assert saving is not None
    assert saving.change == "--hardware 'l4x1+spot', which may be interrupted"


def test_a_run_that_has_not_trained_has_no_bill(tmp_path: Path) -> None:
    run = row(tmp_path, "l4x1", "running")
    with pytest.raises(UserError, match="Run run has no bill: it is still running"):
        bill.of_run(run)
