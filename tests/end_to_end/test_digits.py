"""The digits configuration, run twice with the command line, and the files and output of both runs."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slipway.pipelines.cleaning.users import Users
from slipway.trainer.engines.quick_import import import_tensorflow
from tests.end_to_end.workspace import QUICK_PROGRAM, FinishedRun, Workspace, steps


@pytest.fixture(scope="module")
def workspace(finished: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return finished.copy(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="module")
def second(workspace: Workspace) -> subprocess.CompletedProcess[str]:
    """A run beside the finished one's data set and champion."""
    return workspace.slipway("run", "--require-promotion")


def test_the_first_run_registers_a_champion(finished):
    assert finished.returncode == 0, finished.stdout + finished.stderr
    record = finished.record
    assert record["status"] == "succeeded"
    assert {step["status"] for step in record["steps"]} == {"succeeded"}
    assert not any(step["reused"] for step in record["steps"])
    assert record["metrics"]["accuracy"] >= 0.97
    assert record["verdict"]["decision"] == "promote"
    assert record["error"] is None
    version = Path(record["model"])
    assert version == finished.path / "models" / "digits" / "1"
    assert (finished.path / "models" / "digits" / "champion").read_text().strip() == "1"
    metadata = json.loads((version / "metadata.json").read_text())
    assert metadata["run_id"] == record["run_id"]
    examples = steps(record)["prepare_data"]["outputs"]["examples"]
    seen = json.loads((version / "model.json").read_text())["files"]["seen.u64"]
    assert seen[0] == 8 * (examples["train"] + examples["validation"])
    (user,) = Users(finished.path / "datasets", Path("/")).others()
    assert (user.project, user.running) == (str(finished.path), set())
    assert user.data_sets == {steps(record)["prepare_data"]["outputs"]["fingerprint"]}
    report = Path(record["report"]).read_text()
    assert f"{record['metrics']['accuracy']:.4f}"[:5] in report
    assert f"registered as <strong>{version.parent.name}/{version.name}</strong>" in report
    assert "<script src" not in report


def test_every_output_of_every_step_exists(finished):
    for name in ("config.yaml", "spec.yaml", "run.json", "report.html", "events.jsonl"):
        assert (finished.folder / name).stat().st_size > 0
    for step in finished.record["steps"]:
        assert (finished.folder / "logs" / f"{step['name']}.log").is_file()
        for value in step["outputs"].values():
            if isinstance(value, str) and value.startswith("/"):
                assert Path(value).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="steps are forks on Linux only")
def test_tensorflow_is_imported_once_for_train_and_evaluate(finished):
    """Beside the first steps."""
    logs = {name: (finished.folder / "logs" / f"{name}.log").read_text() for name in ("pipeline", "train", "evaluate")}
    assert {name for name, log in logs.items() if "absl::InitializeLog" in log} == {"pipeline"}


def test_no_temporary_files_are_left(finished):
    assert finished.left == []


def test_a_run_on_this_machine_connects_to_no_other(finished):
    """docs/security.md says so; neither Slipway nor a library of its steps reports its use."""
    assert finished.connections.count("started") > len(finished.record["steps"])
    assert [line for line in finished.connections if line != "started"] == []


def test_one_line_per_step_without_start_up_messages(finished):
    lines = [line for line in finished.stdout.splitlines() if line.startswith("✓")]
    assert [line.split()[1] for line in lines] == [
        "prepare_data",
        "plan_training",
        "train",
        "evaluate",
        "register_model",
    ]
    assert finished.stderr == ""
    table = [line for line in finished.stdout.splitlines() if line.strip().replace(".", "").replace(" ", "").isdigit()]
    slow = [
        line for line in finished.stdout.splitlines() if line.startswith("…")
    ]  # what took seconds on a busy machine
    assert len(finished.stdout.splitlines()) - len(table) - len(slow) < 20
    assert 2 <= len(table) <= 12  # of 30 epochs


def test_slow_phases_are_announced(finished):
    events = map(json.loads, (finished.folder / "events.jsonl").read_text().splitlines())
    phases = {(event["step"], event["text"]) for event in events if event["event"] == "phase"}
    assert phases >= {
        ("prepare_data", "listing digits"),
        ("train", "running 1 replica"),
        ("train", "loading TensorFlow"),
        ("train", "building the network"),
        ("train", "compiling the training step"),
        ("train", "exporting the model"),
        ("evaluate", "loading TensorFlow"),
        ("evaluate", "writing the report"),
    }


def test_a_second_run_reuses_the_data_and_does_not_replace_the_champion(finished, workspace, second):
    """`--require-promotion` is satisfied: the champion has the same weights."""
    assert second.returncode == 0, second.stdout + second.stderr
    assert "accuracy 1.0000 (baseline" in second.stdout
    assert ": unchanged" in second.stdout
    assert "verdict  unchanged. " in second.stdout
    record = workspace.record()
    assert record["status"] == "succeeded"
    assert steps(record)["prepare_data"]["reused"]
    assert "(reused)" in second.stdout
    assert steps(record)["train"]["outputs"]["weights_checksum"] == _weights(finished.record)
    assert record["verdict"]["decision"] == "unchanged"
    assert steps(record)["register_model"]["status"] == "skipped"
    assert (workspace.path / "models" / "digits" / "champion").read_text().strip() == "1"


def _weights(record: dict[str, Any]) -> str:
    return steps(record)["train"]["outputs"]["weights_checksum"]


def test_status_list_logs_and_explain(workspace, second):
    assert "prepare_data" in workspace.slipway("status").stdout
    assert workspace.record() == json.loads(workspace.call("status", "--json").stdout)
    listed = json.loads(workspace.call("list", "--json").stdout)
    assert {record["run_id"] for record in listed} == {path.name for path in workspace.runs()}
    assert listed[0] == workspace.record()
    raw = workspace.call("logs", "--step", "train", "--raw").stdout
    assert raw == workspace.log("train")
    assert "executor output file" in raw
    timings = json.loads(workspace.call("status", "--timings", "--json").stdout)
    assert {"prepare_data", "train", "evaluate"} < {row["step"] for row in timings}
    record = workspace.record()
    assert sum(row["seconds"] for row in timings) >= record["seconds"] - 0.1
    shown = workspace.call("logs", "--step", "train").stdout
    assert "weights checksum" in shown
    assert not re.search(r"absl|oneDNN|cuda|cuInit|executor output", shown)
    assert "has not failed" in workspace.call("explain").stdout


def test_two_runs_at_once_share_the_data_and_agree_on_one_champion(tmp_path):
    space = Workspace(tmp_path)
    (tmp_path / "program.py").write_text(QUICK_PROGRAM)
    program = ("--set", "model=null", "--set", "train={module: program}", "--set", "evaluate.gate.minimum=0")
    both = [space.start("run", *program) for _ in range(2)]
    ends = [(process.communicate(timeout=240), process.returncode) for process in both]
    assert [code for _, code in ends] == [0, 0], ends
    assert len(space.runs()) == 2
    assert len(list((tmp_path / "datasets/digits").glob("[!.]*"))) == 1
    records = [space.record(path.name) for path in space.runs()]
    assert {Path(record["model"]).name for record in records if record["model"]} == {"1", "2"}
    champion = (tmp_path / "models/digits/champion").read_text().strip()
    assert champion == "1", "the second was measured against no champion, so it does not take the first one's place"


def test_the_registered_model_classifies_a_png(finished):
    """tests/trainer/test_training.py loads one in a process without Slipway."""
    from PIL import Image
    from sklearn.datasets import load_digits

    import_tensorflow(keras=False)
    import tensorflow as tf

    digits = load_digits()
    png = io.BytesIO()
    Image.fromarray((digits.images[0] * 255 / 16).astype("uint8"), "L").save(png, "png")
    model = tf.saved_model.load(finished.path / "models/digits/1")
    answer = model.signatures["serving_default"](image_bytes=tf.constant([png.getvalue()]))
    assert answer["label"][0].numpy().decode() == str(digits.target[0])
    assert float(tf.reduce_sum(answer["probabilities"])) == pytest.approx(1, abs=1e-4)
    examples = json.loads((finished.path / "models/digits/1/examples.json").read_text())
    assert len(examples["values"]) == 4, "what the trained network predicts, for the comparison with the served model"


def test_the_training_split_has_not_drifted_from_the_held_out_ones(workspace):
    data = next(workspace.path.glob("datasets/digits/*/manifest.json")).parent
    result = workspace.slipway("drift", "digits", str(data), "--split", "train")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "no drift: 1,438 examples, compared with 359; rate of false alarms 0.01" in result.stdout
