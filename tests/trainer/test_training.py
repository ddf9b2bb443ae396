"""Complete runs of `python -m trainer`: one or two replicas, stopped, killed, resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from slipway.core.cores import available_cores
from slipway.trainer.checkpoint.store import Checkpoints
from tests.fakes.mount import Mount, open_for_writing
from tests.trainer.conftest import NETWORKS

if TYPE_CHECKING:
    from tests.fakes.google import FakeGoogle

# Long enough to be stopped midway; 150 steps per epoch, so that step 200 is not at the end of one.
LONG = {"steps": 1800, "steps_per_epoch": 150, "batch": 4, "builder": "sample_networks:dropout"}
SAVING = {"checkpoint": {"every_steps": 200, "every_seconds": None}}


def history(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "model" / "metrics.jsonl").read_text().splitlines()]


def without_clock(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    clock = ("time", "steps_per_second", "examples_per_second", "examples_per_second_per_device", "waiting_for_input",
             "mfu")  # fmt: skip
    return [{name: value for name, value in line.items() if name not in clock} for line in lines]


@pytest.fixture(scope="module")
def undisturbed(tiny: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Any:
    """A finished run: its output folder and how it ended."""
    conftest = request.config.pluginmanager.get_plugin(str(Path(__file__).with_name("conftest.py")))
    root = tmp_path_factory.mktemp("undisturbed")
    events = root / "events.jsonl"
    worker = conftest.Workers().start(conftest.job(tiny, **LONG), root, SLIPWAY_EVENTS=str(events))
    return root, worker.wait()


def test_a_run_learns_and_leaves_a_whole_model_folder(undisturbed: Any, tiny: Path) -> None:
    root, end = undisturbed
    assert end.status == 0, end.errors
    record = json.loads((root / "model" / "model.json").read_text())
    assert record["weights_checksum"] == end.checksum
    assert record["classes"] == ["left", "right", "both"]
    assert (record["image_size"], record["channels"], record["steps"]) == ([8, 8], 1, 1800)
    assert {path.name for path in (root / "model").iterdir()} >= {
        "saved_model.pb",
        "variables",
        "model.keras",
        "model.json",
        "metrics.jsonl",
    }
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == []
    lines = history(root)
    validation = [line for line in lines if line["kind"] == "validation"]
    assert [line["step"] for line in validation] == list(range(150, 1801, 150))
    assert validation[-1]["accuracy"] == 1.0
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(15, 1801, 15))
    assert all(np.isfinite(line["loss"]) for line in lines)


def test_its_progress_can_be_watched(undisturbed: Any) -> None:
    root, _ = undisturbed
    events = [json.loads(line) for line in (root / "events.jsonl").read_text().splitlines()]
    told = [event["text"] for event in events if event["event"] == "message"]
    assert told[0].split()[:2] == ["epoch", "step"]  # the table at the end
    (end,) = [number for number, text in enumerate(told) if text.startswith("the training took ")]
    assert told[end - 1].split()[1] == "1,800"
    phases = list(dict.fromkeys(event["text"] for event in events if event["event"] == "phase"))
    assert phases[:3] == ["checking the shards", "loading TensorFlow", "building the network"]
    training = ["compiling the training step", "validating", "saving the last checkpoint", "exporting the model"]
    assert [phase for phase in phases if not phase.startswith("decoding")][3:] == training
    events = [event for event in events if event.get("unit") == "steps"]
    assert {(event["event"], event["total"], event["unit"]) for event in events} == {("progress", 1800, "steps")}
    done = [event["done"] for event in events]
    assert done == sorted(done)
    assert done[-1] == 1800
    assert set(events[-1]["values"]) == {"loss", "accuracy", "steps_per_second"}


def test_stopped_then_lost_with_its_machine_it_ends_with_the_same_weights_and_history(
    undisturbed: Any, tiny: Path, tmp_path: Path, workers: Any, make_job: Any, ready_google: FakeGoogle
) -> None:
    """In the end, it resumes elsewhere from what is in the bucket."""
    from tests.fakes.ready import BUCKET

    config = make_job(tiny, **LONG, **SAVING)
    mount = Mount(ready_google.storage, tmp_path / "mounted")
    root = mount.folder / BUCKET
    first = workers.start(config, root)
    first.wait_for_checkpoint(150)
    first.process.send_signal(signal.SIGTERM)
    assert first.wait().status == 143
    saved = int((root / "checkpoints" / "latest").read_text().removeprefix("step-"))
    assert 150 <= saved < 1800
    assert not (root / "model").exists()

    second = workers.start(config, root)
    second.wait_for_checkpoint(saved + 300)
    _stop_between_segments(second)
    mount.copy_to(tmp_path, BUCKET)  # without the files that are open
    second.process.kill()
    assert second.wait().status == -signal.SIGKILL
    assert not (tmp_path / "model").exists()

    _resumes_as_undisturbed(workers.start(config, tmp_path), undisturbed)


def _resumes_as_undisturbed(worker: Any, undisturbed: Any) -> None:
    """Wait for a resumed worker, and compare its weights and history with those of the undisturbed run."""
    end = worker.wait()
    assert end.status == 0, end.errors
    assert "resuming from the checkpoint at step" in end.output
    root, whole = undisturbed
    assert end.checksum == whole.checksum
    assert without_clock(history(worker.root)) == without_clock(history(root))


def _stop_between_segments(worker: Any) -> None:
    """Stop a worker while it has no log open: the mount has no earlier version of an open file, unlike a bucket."""
    while True:
        worker.process.send_signal(signal.SIGSTOP)
        logs = [path.stat() for path in (worker.root / "logs").rglob("*")]
        if not open_for_writing() & {(status.st_dev, status.st_ino) for status in logs}:
            return
        worker.process.send_signal(signal.SIGCONT)
        time.sleep(0.1)


def test_a_finished_run_only_exports_what_is_missing(undisturbed: Any, tiny: Path, workers: Any, make_job: Any) -> None:
    root, whole = undisturbed
    written = (root / "model" / "model.json").stat().st_mtime_ns
    again = workers.start(make_job(tiny, **LONG), root).wait()
    assert (again.status, again.checksum) == (0, whole.checksum)
    assert "finished already" in again.output
    assert "epoch" not in again.output, "it neither trains nor validates"
    assert (root / "model" / "model.json").stat().st_mtime_ns == written
    (root / "model" / "model.json").unlink()
    again = workers.start(make_job(tiny, **LONG), root).wait()
    assert again.checksum == whole.checksum
    assert "model written" in again.output
    assert (root / "model" / "model.json").exists()
    assert len(history(root)) == 132


def test_a_replica_whose_peer_is_killed_ends_and_asks_for_another_try(
    tiny: Path, tmp_path: Path, workers: Any, make_job: Any
) -> None:
    """tests/chaos covers the restart that follows."""
    saving = {"checkpoint": {"every_steps": 10, "every_seconds": None}}
    config = make_job(tiny, steps=200_000, steps_per_epoch=75, replicas=2, **saving)
    chief, other = workers.start_two(config, tmp_path)
    chief.wait_for_checkpoint(1)
    other.process.kill()
    lost = chief.wait()
    assert lost.status == 138
    assert "another replica is lost" in lost.output or "; this replica cannot continue alone" in lost.output
    assert "Traceback" not in lost.errors


def test_two_replicas_leave_the_same_steps_out_and_end_early_together(
    tiny: Path, tmp_path: Path, workers: Any, make_job: Any
) -> None:
    """Gradients overflow in float16 for a heavily weighted class, possibly on one replica only."""
    config = make_job(
        tiny, steps=7500, steps_per_epoch=75, replicas=2, precision="mixed_float16", class_weights={"left": 200.0},
        monitor="accuracy", export="best", early_stop={"patience": 1},
    )  # fmt: skip
    events = tmp_path / "events.jsonl"
    started = workers.start_two(config, tmp_path, SLIPWAY_EVENTS=str(events))
    chief, other = (worker.wait() for worker in started)
    assert (chief.status, other.status) == (0, 0), chief.errors + other.errors
    assert chief.checksum == other.checksum
    assert f"cores of this process: {max(1, available_cores() // 2)}," in chief.output
    phases = [event["text"] for event in map(json.loads, events.read_text().splitlines()) if event["event"] == "phase"]
    assert phases.count("loading TensorFlow") == phases.count("waiting for all 2 replicas") == 1  # the chief's only
    validations = {line["step"]: line["accuracy"] for line in history(tmp_path) if line["kind"] == "validation"}
    best = max(validations, key=lambda step: (validations[step], -step))
    model = json.loads((tmp_path / "model" / "model.json").read_text())
    assert model["weights_step"] == best == model["steps"] - 75
    assert all(f"stopping early at step {model['steps']} of 7500" in end.output for end in (chief, other))

    last = Checkpoints(tmp_path / "checkpoints", keep=3).newest()
    assert last is not None
    values = {name.rpartition("/")[2]: array for name, array in last.state.items()}
    skipped = np.log2(2.0**15 / values["scale"])
    assert skipped >= 1, "nothing has overflowed"
    assert values["iteration"] == last.step - skipped
    assert values["finite_steps"] <= last.step - skipped


@pytest.mark.usefixtures("networks")
def test_a_killed_replica_ends_a_sum_through_shared_memory(
    tiny: Path, tmp_path: Path, workers: Any, make_job: Any
) -> None:
    config = make_job(
        tiny, steps=20_000, steps_per_epoch=1000, replicas=2, builder="sample_networks:killed_in_a_sum"
    )  # fmt: skip
    chief, _ = workers.start_two(config, tmp_path)
    end = chief.wait()
    assert end.status == 138, end
    assert "cannot continue alone: the process of rank 1 has ended" in end.output
    assert "Traceback" not in end.output + end.errors


@pytest.mark.usefixtures("networks")
def test_gradients_summed_through_shared_memory_are_those_summed_through_the_network(
    tiny: Path, tmp_path: Path, workers: Any, make_job: Any
) -> None:
    config = make_job(
        tiny, steps=150, steps_per_epoch=75, replicas=2, builder="sample_networks:normalized", clip_norm=0.2,
        precision="mixed_float16",
    )  # fmt: skip
    checksums = set()
    for value, line in (("0", "SLIPWAY_SHARED_SUMS=0"), ("1", "the replicas sum gradients through shared memory")):
        ends = [worker.wait() for worker in workers.start_two(config, tmp_path / value, SLIPWAY_SHARED_SUMS=value)]
        assert [end.status for end in ends] == [0, 0], ends
        assert all(line in end.output for end in ends)
        checksums |= {end.checksum for end in ends}
    assert len(checksums) == 1


@pytest.mark.usefixtures("networks")
@pytest.mark.parametrize(
    "settings",
    [
        # Clipping must use the gradient over both devices; loss scaling has a separate code path.
        {"precision": "mixed_float16", "clip_norm": 0.2, "accumulation": 2, "class_weights": {"left": 2.0}},
        {"builder": "sample_networks:normalized", "batch": 30},
    ],
)
def test_two_virtual_devices_train_as_one_would(
    tiny: Path, tmp_path: Path, workers: Any, make_job: Any, settings: dict[str, Any]
) -> None:
    config = make_job(tiny, steps=100, steps_per_epoch=10, **settings)  # a log point each step
    two = workers.start(config, tmp_path, SLIPWAY_VIRTUAL_DEVICES="2")

    from slipway.core import manifest
    from slipway.trainer.data import inputs
    from slipway.trainer.data.assignment import ShardAssignment
    from slipway.trainer.distributed import cluster
    from slipway.trainer.engines import base

    one = base.load("tensorflow")
    one.open(cluster.read({}))
    one.build(config, manifest.read(tiny))
    assignment = ShardAssignment(tiny, manifest.read(tiny), 0, 1)
    batch = config.train.batch_size
    losses = one.run(
        inputs.training(assignment, batch, 10, config.train.seed), 0, np.full(100, 0.01, np.float32)
    ).losses

    end = two.wait()
    assert end.status == 0, end.errors
    assert "MirroredStrategy, 2 x CPU" in end.output
    found = [line["loss"] for line in history(tmp_path) if line["kind"] == "train"]
    np.testing.assert_allclose(found, losses, rtol=2e-2 if "precision" in settings else 1e-3, atol=1e-5)
    state = Checkpoints(tmp_path / "checkpoints", keep=3).newest().state
    for name, array in one.state().items():
        if "moving" in name:
            np.testing.assert_allclose(state[name], array, rtol=1e-3, atol=1e-5)


CLEAN_PROCESS = """
import json, sys
sys.modules |= dict.fromkeys(["googleapiclient", "matplotlib", "pandas", "scipy", "sklearn"])  # a faster import
import tensorflow as tf
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
images = [open(path, "rb").read() for path in sys.argv[2:]]
result = serve(image_bytes=tf.constant(images))
print(json.dumps({name: value.numpy().tolist() for name, value in result.items()}, default=bytes.decode))
print(json.dumps([name for name in sys.modules if name.startswith("slipway")]))
"""


def test_plain_tensorflow_serves_the_model_from_an_images_bytes(
    undisturbed: Any, tmp_path: Path, make_image: Any, encoded: Any
) -> None:
    root, _ = undisturbed
    contents = {
        "left.png": encoded(make_image(0, 7001)),
        "both.png": encoded(make_image(2, 7002)),
        "right_of_another_size.png": encoded(make_image(1, 7003, (20, 30))),
        "left.jpg": encoded(make_image(0, 7004, (16, 16)), "jpeg"),
        "both_in_color.png": encoded(np.repeat(make_image(2, 7005)[:, :, None], 3, axis=2)),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    run = subprocess.run(
        [sys.executable, "-I", "-c", CLEAN_PROCESS, str(root / "model"), *contents],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    served, ours = (json.loads(line) for line in run.stdout.splitlines())
    assert ours == []
    assert served["label"] == ["left", "both", "right", "left", "both"]
    assert served["classes"] == [["left", "right", "both"]] * 5
    np.testing.assert_allclose(np.sum(served["probabilities"], axis=1), 1.0, rtol=1e-5)
    assert np.argmax(served["probabilities"], axis=1).tolist() == [0, 2, 1, 0, 2]


def test_a_users_mistake_is_one_screen_and_one_line(tiny: Path, tmp_path: Path, workers: Any, make_job: Any) -> None:
    raising = workers.start(make_job(tiny, steps=2, steps_per_epoch=75, builder="sample_networks:raises"), tmp_path)
    missing = workers.start(make_job(tmp_path / "none", steps=2, steps_per_epoch=75), tmp_path)
    end = missing.wait()
    assert end.status == 1
    assert "Traceback" not in end.errors
    assert "no complete data set" in end.user_error["message"]
    end = raising.wait()
    assert end.status == 1
    assert end.user_error["setting"] == "model.builder"
    # Only the traceback of the user's code is shown; it is also in the machine-readable error.
    screen = end.errors.partition("slipway-error: ")[0]
    assert 'return {}["no such layer"]' in screen
    assert screen.count("Traceback") == 1
    assert end.user_error["traceback"] in screen
    assert "KeyError" in end.user_error["message"]


def test_a_library_that_waits_for_a_lost_connection_does_not_keep_a_finished_replica(
    tiny: Path, tmp_path: Path, workers: Any, make_job: Any
) -> None:
    hanging = """
import sys, time
from sample_networks import dense as build
from slipway.trainer.engines.tensorflow.engine import TensorFlowEngine
TensorFlowEngine.close = lambda *_: time.sleep(600)
for name in ("__main__", "slipway.trainer.__main__"):
    vars(sys.modules.get(name, sys))["CLOSE_SECONDS"] = 1
"""
    (tmp_path / "hanging.py").write_text(hanging)
    job = make_job(tiny, steps=2, steps_per_epoch=75, builder="hanging:build")
    end = workers.start(job, tmp_path, PYTHONPATH=f"{NETWORKS}:{tmp_path}").wait()
    assert end.status == 0
    assert (tmp_path / "model" / "model.json").is_file()


def test_too_little_memory_is_told_on_one_screen_with_what_fits(
    tiny: Path, tmp_path: Path, workers: Any, make_job: Any
) -> None:
    config = make_job(tiny, steps=2, steps_per_epoch=75, builder="sample_networks:greedy", arguments={"examples": 3})
    end = workers.start(config, tmp_path).wait()
    assert end.status == 1
    assert "Traceback" not in end.errors
    assert "A step of 8 examples does not fit in a device's memory: OOM when allocating" in end.user_error["message"]
    assert end.user_error["nearest"] == "3"
    assert "train.accumulation=4 " in end.user_error["fix"]


def test_it_ends_early_and_exports_the_best_weights(tiny: Path, tmp_path: Path, workers: Any, make_job: Any) -> None:
    config = make_job(
        tiny, steps=750, steps_per_epoch=75, monitor="accuracy", export="best", early_stop={"patience": 1},
        class_weights="balanced", profile_steps=2, xla="auto",
    )  # fmt: skip
    end = workers.start(config, tmp_path).wait()
    assert end.status == 0, end.errors
    model = json.loads((tmp_path / "model" / "model.json").read_text())
    validations = {line["step"]: line["accuracy"] for line in history(tmp_path) if line["kind"] == "validation"}
    best = max(validations, key=lambda step: (validations[step], -step))
    assert model["weights_step"] == best == model["steps"] - 75
    assert model["planned_steps"] == 750
    assert "stopping early at step" in end.output
    assert any(line.endswith("exported") and f" {best} " in line for line in end.output.splitlines())
    assert list((tmp_path / "logs").glob("plugins/profile/*/*.xplane.pb"))
