"""slipway.training, as a custom training program uses it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from slipway import training
from slipway.core.errors import UserError
from tests.trainer.conftest import CLASSES, DataSets, class_image, encode
from tests.trainer.metrics.test_history import scalars


def on_replica(pool: int) -> str:
    cluster = {"workerpool0": ["10.0.0.2:2222"], "workerpool1": ["10.0.0.3:2222"]}
    return json.dumps({"cluster": cluster, "task": {"type": f"workerpool{pool}", "index": 0}})


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a run's chief; returns the run's folder."""
    for name, folder in (("MODEL", "model"), ("CHECKPOINT", "checkpoints"), ("TENSORBOARD_LOG", "logs")):
        monkeypatch.setenv(f"AIP_{name}_DIR", str(tmp_path / folder))
    monkeypatch.setenv("CLUSTER_SPEC", on_replica(0))
    monkeypatch.setenv("SLIPWAY_EVENTS", str(tmp_path / "events"))
    for name in ("TF_CONFIG", "SLIPWAY_DATA", "SLIPWAY_HOSTS"):
        monkeypatch.delenv(name, raising=False)
    start_again(monkeypatch)
    return tmp_path


def start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget everything, as a new process does."""
    monkeypatch.setattr(training, "_program", training._Program())


def history(run: Path) -> list[tuple[str, int]]:
    training._save_history()
    lines = map(json.loads, (run / "model" / "metrics.jsonl").read_text().splitlines())
    return [(line["kind"], line["step"]) for line in lines]


def test_importing_it_loads_no_framework():
    code = "import sys; from slipway import training; print({'tensorflow', 'keras', 'kfp', 'numpy'} & {*sys.modules})"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "set()"


def test_the_cluster_names_this_process_and_all_addresses(monkeypatch):
    assert training.cluster().is_chief
    monkeypatch.setenv("CLUSTER_SPEC", on_replica(1))
    found = training.cluster()
    assert (found.rank, found.world_size, found.is_chief) == (1, 2, False)
    assert found.addresses == ("10.0.0.2:2222", "10.0.0.3:2222")


def test_the_data_are_a_prepared_set_a_uri_or_none(tmp_path, monkeypatch):
    assert training.data() is None
    DataSets().write(tmp_path / "set", train=[3, 2])
    monkeypatch.setenv("SLIPWAY_DATA", str(tmp_path / "set"))
    data = training.data()
    assert data.manifest.classes == CLASSES
    assert [path.exists() for path in data.files("train")] == [True, True]
    with pytest.raises(UserError, match="no split 'test'"):
        data.files("test")
    monkeypatch.setenv("SLIPWAY_DATA", "gs://bucket/table")
    assert (training.data().path, training.data().manifest) == (Path("/gcs/bucket/table"), None)
    monkeypatch.setenv("SLIPWAY_DATA", "bq://project.dataset.table")
    assert training.data() == training.Data("bq://project.dataset.table", None, None)
    with pytest.raises(UserError, match="no data set that Slipway has prepared"):
        training.data().files("train")


@pytest.mark.usefixtures("tensorflow")
def test_reports_are_the_progress_the_history_and_tensorboards_scalars(run):
    training.report(50, total=100, epoch=0.5, rmse=np.float32(0.5), r2=math.nan)
    training.report(100, rmse=0.25)
    training.report(100, kind="validation", rmse=0.75)
    training.finish({"rmse": np.float64(0.75)})
    lines = [json.loads(line) for line in (run / "model" / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["time"]
    assert lines == [
        {"kind": "train", "step": 50, "epoch": 0.5, "rmse": 0.5, "r2": None},
        {"kind": "train", "step": 100, "rmse": 0.25},
        {"kind": "validation", "step": 100, "rmse": 0.75},
    ]
    assert ("rmse", 100, 0.25) in scalars(run / "logs", "train")
    assert scalars(run / "logs", "validation") == [("rmse", 100, 0.75)]
    shown = [json.loads(line) for line in (run / "events").read_text().splitlines()]
    assert [(event["done"], event["total"]) for event in shown] == [(50, 100), (100, 100)]
    assert json.loads((run / "model" / "metrics.json").read_text()) == {"rmse": 0.75}


@pytest.mark.usefixtures("tensorflow")
@pytest.mark.parametrize(("kind", "kept"), [("train", [("train", 10)]), ("validation", [("train", 10), ("train", 20)])])
def test_a_restarted_program_rewrites_the_history_from_its_first_report_on(run, monkeypatch, kind, kept):
    for step in (10, 20, 30):
        training.report(step, loss=1 / step)
        if step > 10:
            training.report(step, kind="validation", loss=1 / step)
    training._program.metrics.close()
    start_again(monkeypatch)
    training.report(20, kind=kind, loss=0.5)
    assert history(run) == [*kept, (kind, 20)]


def test_another_replica_reports_nothing_and_waits_for_the_chief_to_finish(run, monkeypatch):
    monkeypatch.setenv("CLUSTER_SPEC", on_replica(1))
    training.report(1, loss=0.5)
    assert not (run / "logs").exists()
    waiting = threading.Thread(target=training.finish, args=({"loss": 0.5},), daemon=True)
    waiting.start()
    time.sleep(0.3)
    assert waiting.is_alive()
    (run / "checkpoints" / "finished").touch()
    waiting.join(timeout=180)
    assert not waiting.is_alive()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: training.finish({"accuracy": math.nan}), "The metric accuracy is nan"),
        (lambda: training.finish({"accuracy": "high"}), "The metric accuracy is not a number"),
        (lambda: training.report(1, kind="test", loss=1.0), "no kind of metrics 'test'"),
        (lambda: training.report(1, loss=np.zeros(2)), "The metric loss is not a number"),
        (lambda: training.report(1, time=1.0), "cannot be called time"),
        (lambda: training.export(None), "no data set that Slipway has prepared"),
    ],
)
def test_wrong_use_is_one_screen(run, call, told):
    with pytest.raises(UserError, match=told):
        call()
    assert not (run / "model" / "metrics.json").exists()


def program(body: str) -> subprocess.CompletedProcess[str]:
    code = f"import os, signal, time\nfrom slipway import training\n{body}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_an_error_of_the_users_is_shown_without_a_traceback():
    ended = program("training.finish({'auc': float('inf')})")
    assert ended.returncode == 1
    assert ended.stderr.startswith("The metric auc is inf")
    assert "Traceback" not in ended.stderr
    assert "Traceback" in program("1 / 0").stderr


STOPPING = "signal.raise_signal(signal.SIGTERM); print(training.should_stop(), flush=True); training.stop()"


def test_sigterm_asks_the_program_to_stop_and_stopping_asks_vertex_ai_for_another_try(monkeypatch):
    ended = program(f"print(training.should_stop()); {STOPPING}")
    assert ended.stdout == "False\nTrue\nasked to stop: ended by the program\n"
    assert ended.returncode == 134
    monkeypatch.setenv("SLIPWAY_LOCAL_CLUSTER", "1")
    assert program(f"training.should_stop(); {STOPPING}").returncode == 143
    assert program(STOPPING).stdout == ""  # a program that never asks ends at once
    assert program("training.stop()").stdout == "another replica was asked to stop: ended by the program\n"


@pytest.mark.usefixtures("tensorflow")
@pytest.mark.parametrize("options", [{}, {"from_logits": False, "scale": 1}], ids=["logits", "probabilities of pixels"])
def test_a_keras_model_is_exported_with_the_serving_signature(run, monkeypatch, options):
    import keras
    import tensorflow as tf

    DataSets().write(run / "set", train=[6])
    monkeypatch.setenv("SLIPWAY_DATA", str(run / "set"))
    shape = training.data().manifest.image_shape
    layers = keras.layers
    head = [layers.Softmax()] if options else []
    first = [layers.Rescaling(1 / 255)] if options else []
    model = keras.Sequential(
        [keras.Input(shape), *first, layers.Flatten(), layers.BatchNormalization(), layers.Dropout(0.5),
         layers.Dense(len(CLASSES)), *head]
    )  # fmt: skip
    pixels = np.stack([class_image(label, 0) for label in range(3)])[..., np.newaxis]
    expected = model(pixels if options else pixels / 255, training=False)
    training.export(model, **options)
    served = tf.saved_model.load(str(run / "model")).signatures["serving_default"]
    result = served(image_bytes=tf.constant([encode(image[..., 0]) for image in pixels]))
    found = result["probabilities"].numpy()
    np.testing.assert_allclose(found, expected if options else keras.ops.softmax(expected), atol=1e-6)
    assert [name.decode() for name in result["classes"][0].numpy()] == CLASSES
    record = json.loads((run / "model" / "model.json").read_text())
    assert (record["engine"], record["classes"], record["resize_mode"]) == ("tensorflow", CLASSES, "stretch")
    again = keras.models.load_model(run / "model" / "model.keras")
    np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])
    with pytest.raises(UserError, match=r"returns \[batch, 7\]; the data set has 3 classes"):
        training.export(keras.Sequential([keras.Input(shape), layers.Flatten(), layers.Dense(7)]))
    assert (run / "model" / "saved_model.pb").exists()  # the earlier model is kept
