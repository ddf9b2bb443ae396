"""The Python API in a real kernel: a run of the digits, its results, its model, interrupts and restarts."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from slipway.pipelines.platforms.local.platform import LocalPlatform
from slipway.pipelines.runs.record import RunFolder
from tests.kernel import PROJECT, Cell, Kernel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
CONFIGURATION = """
name: digits
data: {source: digits}
model: {builder: slipway.trainer.models.digits:build}
train: {epochs: 3, batch_size: 64}
evaluate: {gate: {metric: accuracy, minimum: 0.5}}
"""
PROGRAM = """
name: program
train: {module: mine}
evaluate: {gate: {metric: accuracy, minimum: 0.5}, champion: none}
"""
MODULE = """
import json, os, sys, time
from pathlib import Path
if sys.argv[1:] == ["wait"]:
    time.sleep(600)
(Path(os.environ["AIP_MODEL_DIR"]) / "metrics.json").write_text(json.dumps({"accuracy": float(sys.argv[1])}))
"""
# Long enough that a test can interrupt it.
LONG = 'settings={"train.epochs": 2000}'


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a project")
    (folder / "slipway.yaml").write_text(CONFIGURATION)
    (folder / "program.yaml").write_text(PROGRAM)
    (folder / "mine.py").write_text(MODULE)
    (folder / "notebooks").mkdir()
    return folder


@pytest.fixture(scope="module")
def kernel(project: Path) -> Iterator[Kernel]:
    with Kernel(project) as started:
        started.execute("import shlex, slipway, sys")
        started.execute("COMMAND = [sys.executable, '-m', 'slipway', 'run', '--set', 'train.epochs=2000']")
        yield started


@pytest.fixture(scope="module")
def first(kernel: Kernel) -> Cell:
    """The cell that ran the pipeline."""
    return kernel.execute("run = slipway.run(); run", timeout=240)


def value(kernel: Kernel, expression: str) -> object:
    """Return what an expression of JSON's types is in the kernel."""
    cell = kernel.execute(f"import json; print(json.dumps({expression}))", timeout=120)
    assert cell.error is None, cell.error
    return json.loads(cell.text.splitlines()[-1])


def latest(project: Path) -> RunFolder:
    return RunFolder((project / "runs" / "latest").resolve())


def test_a_run_is_shown_in_one_display(first: Cell) -> None:
    assert first.error is None, first.error
    assert len(first.of("display_data")) == 1
    updates = first.of("update_display_data")
    times = [message.seconds for message in updates]
    assert all(later - earlier > 0.4 for earlier, later in itertools.pairwise(times[:-1]))
    final = first.displays[-1]
    assert "✓ register_model" in final["text/plain"]
    assert "<td" in final["text/html"]
    assert "accuracy" in first.of("execute_result")[0].content["data"]["text/html"]
    assert "\r" not in first.text


def test_results_are_values_and_tables(kernel: Kernel, first: Cell) -> None:
    assert value(kernel, "[run.status, run.verdict, run.settings['train.epochs'], run.platform]") == [
        "succeeded", "promote", 3, "local"
    ]  # fmt: skip
    accuracy = value(kernel, "run.metrics['accuracy']")
    assert isinstance(accuracy, float)
    assert value(kernel, "int(run.confusion.to_numpy().trace()) / int(run.confusion.to_numpy().sum())") == accuracy
    assert value(kernel, "sorted(run.history.kind.unique())") == ["train", "validation"]
    assert (
        value(kernel, "run.history.query('kind == \"validation\"').step.max()".replace("max()", "max().item()")) == 66
    )


def test_the_report_is_shown_in_a_frame_of_its_own(kernel: Kernel, first: Cell) -> None:
    shown = kernel.execute("run.report").of("execute_result")[0].content["data"]["text/html"]
    assert shown.startswith("<iframe sandbox=")
    assert "<style>" not in shown


def test_the_champion_predicts_arrays_images_bytes_and_paths(kernel: Kernel, first: Cell) -> None:
    kernel.execute("""
import io, numpy as np
from PIL import Image
from sklearn.datasets import load_digits
pixels = (load_digits().images[:5] * 15.9375).round().astype("uint8")
truth = load_digits().target[:5]
model = slipway.model("digits")
files = []
for number, each in enumerate(pixels):
    Image.fromarray(each).save(f"{number}.png"); files.append(f"{number}.png")
""")
    forms = (
        "pixels",
        "list(pixels)",
        "[Image.fromarray(x) for x in pixels]",
        "files",
        "[open(f, 'rb').read() for f in files]",
    )
    answers = [value(kernel, f"model.predict({form}).label.tolist()") for form in forms]
    assert all(each == answers[0] for each in answers), answers
    assert sum(a == str(t) for a, t in zip(answers[0], value(kernel, "truth.tolist()"), strict=True)) >= 4
    assert value(kernel, "len(model.predict(pixels[0]))") == 1
    assert value(kernel, "abs(float(model.predict(pixels).drop(columns='label').sum(axis=1).iloc[0]) - 1) < 1e-5")
    assert "UserError: The image is an array of float64" in str(kernel.execute("model.predict(pixels / 255)").error)


LIGHT = """
import gc, logging, os, sys
from unittest import mock
import numpy as np
import slipway

started = []


def start(folder, lock, streams):
    started.append(os.dup(streams[0]))
    return os.getpid()


run = slipway.runs()[sys.argv[1]]
assert run.metrics and len(run.history) and len(run.confusion)
with mock.patch("slipway.pipelines.platforms.local.launch.start_process", start):
    slipway.run(wait=False)
assert started
assert not {'tensorflow', 'kfp', 'keras'} & set(sys.modules)

import tensorflow  # which sets variables
before = (gc.get_freeze_count(), list(logging.getLogger().handlers), os.environ.copy())
slipway.model("digits").predict(np.zeros((8, 8), "uint8"))
after = (gc.get_freeze_count(), list(logging.getLogger().handlers), os.environ.copy())
assert after == before, (before, after)
assert before[0] == 0
import keras
assert keras.wrappers.SKLearnClassifier
"""


def test_only_a_model_loads_tensorflow_and_it_leaves_the_process_as_it_was(
    kernel: Kernel, first: Cell, project: Path, tmp_path: Path
) -> None:
    run_id = str(value(kernel, "run.id"))
    copy = shutil.copytree(project, tmp_path / "copy", symlinks=True)
    variables = {**os.environ, "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-c", LIGHT, run_id]
    done = subprocess.run(command, cwd=copy, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_subfolder_finds_the_runs_and_models_of_the_project(kernel: Kernel, first: Cell, project: Path) -> None:
    try:
        kernel.execute("import os; os.chdir('notebooks')")
        assert value(kernel, "slipway.runs()[run.id].verdict") == "promote"
        assert value(kernel, "slipway.model('digits').version") == 1
        assert "fix" in str(kernel.execute("slipway.run()").error)
    finally:
        kernel.execute(f"os.chdir({str(project)!r})")


def test_an_error_shows_the_users_line_and_the_fix_as_a_call(kernel: Kernel) -> None:
    cell = kernel.execute('slipway.run(settings={"train.epoch": 5})')
    shown = "\n".join(cell.of("error")[0].content["traceback"])
    assert "settings={'train.epochs': 5}" in shown
    assert "--set" not in shown
    assert len(shown.splitlines()) < 12


def interrupted(kernel: Kernel, project: Path, code: str) -> tuple[Cell, RunFolder, float]:
    """Interrupt a cell once its run trains; return it, its run, and the seconds until the record was written."""
    cell = kernel.start(code)
    kernel.until(cell, lambda _: any(map(_trains, (project / "runs").glob("*-*"))), 120)
    started = time.monotonic()
    kernel.interrupt()
    folder = latest(project)
    while folder.read().status == "running" and time.monotonic() - started < LocalPlatform.stop_seconds:
        time.sleep(0.02)
    return cell, folder, time.monotonic() - started


def _trains(path: Path) -> bool:
    if not (path / "run.json").is_file():
        return False
    record = RunFolder(path).read()
    return record.status == "running" and record.step("train").status == "running"


def nothing_runs(folder: RunFolder) -> bool:
    """Return whether the run's processes end within 20 s."""
    for _ in range(200):
        lines = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
        if folder.holder() is None and not any(folder.run_id in line for line in lines):
            return True
        time.sleep(0.1)
    return False


WAYS = {
    "run": f"slipway.run({LONG})",
    "command": "!{shlex.join(COMMAND)}",
    "subprocess": "import subprocess; subprocess.run(COMMAND)",
    "resume": "stopped.resume()",
}  # fmt: skip


@pytest.mark.parametrize("way", [way if way == "run" else pytest.param(way, marks=pytest.mark.long) for way in WAYS])
def test_an_interrupted_run_is_cancelled_at_once_and_leaves_nothing(
    kernel: Kernel, first: Cell, project: Path, way: str
) -> None:
    if way == "resume":
        assert kernel.execute(f"stopped = slipway.run({LONG}, wait=False).cancel()").error is None
    cell, folder, seconds = interrupted(kernel, project, WAYS[way])
    assert folder.read().status == "cancelled"
    assert seconds < LocalPlatform.stop_seconds  # 1.5 on an idle machine
    kernel.wait(cell, 60)
    assert nothing_runs(folder)
    if way in ("run", "resume"):
        assert str(cell.error).startswith("Interrupted")
        assert [len(each.content["traceback"]) for each in cell.of("error")] == [2]
    if way != "subprocess":  # whose output is the kernel's own
        assert "to continue" in f"{cell.text}{cell.error}"


@pytest.mark.long
def test_a_restarted_kernel_finds_its_run_and_waits_for_it(project: Path) -> None:
    with Kernel(project) as other:
        other.execute('import slipway; a = slipway.run(settings={"train.epochs": 40}, wait=False)', timeout=180)
        folder = latest(project)
        other.restart()
        assert folder.read().status == "running"
        cell = other.execute('import slipway; slipway.runs()["latest"].wait().status', timeout=200)
        assert cell.result == "'succeeded'", cell.messages[-3:]
        assert folder.read().status == "succeeded"


def test_two_runs_at_once_and_one_that_is_awaited(kernel: Kernel, first: Cell, project: Path) -> None:
    code = """
import asyncio
both = [slipway.run("program.yaml", {"train.arguments": [value]}, wait=False) for value in ("0.8", "0.9")]
ended = await asyncio.gather(*both)
frame = slipway.runs().frame("train.arguments")
"""
    cell = kernel.execute(code, timeout=240)
    assert cell.error is None, cell.error
    assert value(kernel, "[each.status for each in ended]") == ["succeeded"] * 2
    assert value(kernel, "frame.loc[[each.id for each in both], 'train.arguments'].tolist()") == [["0.8"], ["0.9"]]


def test_waiting_ends_after_its_timeout_and_a_failed_run_raises(kernel: Kernel, first: Cell) -> None:
    run = 'a = slipway.run("program.yaml", {"train.arguments": ["wait"]}, wait=False); a.wait(timeout=1)'
    assert "TimeoutError" in str(kernel.execute(run).error)
    assert value(kernel, "a.status") == "running"
    assert value(kernel, "a.cancel().status") == "cancelled"
    cell = kernel.execute('slipway.run("program.yaml", {"train.arguments": ["much"]})', timeout=120)
    assert str(cell.error).startswith("RunFailed: The step train of run "), cell.error


CELL = """
import keras
from keras import layers

WIDTH = 4

def net(image_shape, classes):
    inner = [layers.Conv2D(WIDTH, 3), layers.Flatten(), layers.Dense(classes)]
    return keras.Sequential([keras.Input(image_shape), *inner])

def train():
    import json, os
    from pathlib import Path
    folder = Path(os.environ["AIP_MODEL_DIR"])
    (folder / "model.txt").write_text(f"width {WIDTH}")
    (folder / "metrics.json").write_text(json.dumps({"accuracy": 0.75}))
"""


@pytest.mark.long
def test_a_run_of_a_cells_network_is_repeated_by_the_command(kernel: Kernel, first: Cell, project: Path) -> None:
    assert kernel.execute(CELL, timeout=180).error is None
    cell = kernel.execute('own = slipway.run(settings={"evaluate.champion": "none"}, model=net)', timeout=120)
    assert cell.error is None, cell.error
    assert "net; WIDTH = 4, the value at submission" in cell.text
    run_id = str(value(kernel, "own.id"))
    command = [sys.executable, "-m", "slipway", "run", "-c", f"runs/{run_id}/config.yaml"]
    variables = {**os.environ, "PYTHONPATH": str(PROJECT)}
    subprocess.run(command, cwd=project, env=variables, check=True, capture_output=True)
    checksums = [
        RunFolder(path).read().step("train").outputs["weights_checksum"]
        for path in (project / "runs" / run_id, project / "runs" / "latest")
    ]
    assert checksums[0] == checksums[1]


@pytest.mark.long
def test_a_training_function_of_a_cell_is_a_program(kernel: Kernel, project: Path) -> None:
    (project / "own.yaml").write_text("name: own\ntrain: {}\nevaluate: {gate: {metric: accuracy, minimum: 0.5}}\n")
    assert kernel.execute(CELL, timeout=180).error is None
    assert kernel.execute('ended = slipway.run("own.yaml", program=train)', timeout=120).error is None
    assert value(kernel, "[ended.verdict, ended.metrics['accuracy']]") == ["promote", 0.75]
    assert value(kernel, "(ended.model.folder / 'model.txt').read_text()") == "width 4"


def test_each_fold_of_a_cross_validation_is_a_run_that_registers_nothing(kernel: Kernel, first: Cell) -> None:
    cell = kernel.execute('found = slipway.cross_validate(None, {"train.epochs": 1}, folds=2); found', timeout=240)
    assert cell.error is None, cell.error
    assert cell.result and cell.result.startswith("metrics over 2 folds: mean, 95% confidence interval of the mean")
    assert value(kernel, "[sum(each.metrics['examples'] for each in found.runs), len(found.runs)]") == [1797, 2]
    assert value(kernel, "[each.settings['prepare_data.fold'] for each in found.runs]") == [0, 1]
    assert value(kernel, "[each.steps['register_model'] for each in found.runs]") == ["skipped"] * 2
    accuracies = value(kernel, "[each.metrics['accuracy'] for each in found.runs]")
    assert isinstance(accuracies, list)
    assert value(kernel, "found.metrics['accuracy'].mean") == pytest.approx(sum(accuracies) / 2)
    refused = kernel.execute("slipway.cross_validate(folds=1)")
    assert "at least 2 folds" in str(refused.error) + refused.text


def test_one_step_is_run_again_as_a_new_run(kernel: Kernel, first: Cell) -> None:
    cell = kernel.execute('again = run.rerun({"evaluate.gate.minimum": 1.0}, only="evaluate")', timeout=240)
    assert cell.error is None, cell.error
    assert value(kernel, "[again.id != run.id, again.metrics == run.metrics, again.status]") == [
        True,
        True,
        "succeeded",
    ]
    assert value(kernel, "again.steps['register_model']") == "skipped"
    refused = kernel.execute('run.rerun({"train.epochs": 1}, only="evaluate")')
    assert 'rerun(from_step="train")' in str(refused.error) + refused.text
