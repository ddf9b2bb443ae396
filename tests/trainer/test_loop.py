"""The training loop on a counting engine: steps, log points, validation, checkpoints, stopping, NaN."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.core.errors import UserError
from slipway.trainer.checkpoint.best import BestWeights
from slipway.trainer.checkpoint.resume import identity, resume
from slipway.trainer.checkpoint.store import Checkpoint, Checkpoints
from slipway.trainer.config import JobConfig
from slipway.trainer.distributed import cluster as clusters
from slipway.trainer.distributed.signals import Stopped, StopRequest
from slipway.trainer.engines.base import Measured, OutOfMemory, State, StepMetrics, Work

pytestmark = pytest.mark.usefixtures("tensorflow")

# Fields that differ between runs.
CLOCK = ("time", "steps_per_second", "examples_per_second", "examples_per_second_per_device", "waiting_for_input",
         "mfu")  # fmt: skip


class CountingEngine:
    """An engine whose only weight is the number of steps; the loss of a step is 1 / (step + 1), or from `losses`."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.validated: list[int] = []
        self.weight = 0
        self.begun: list[tuple[int, int]] = []
        self.losses: dict[int, float] = {}
        self.on_call: Any = lambda: None
        self.measured: dict[int, tuple[float, float]] = {}
        self.waited: float | None = 0.0
        self.profiled: list[int] = []

    def run(self, _data: Any, step: int, rates: Any) -> StepMetrics:
        assert step == self.weight
        count = len(rates)
        self.calls.append((step, count))
        self.weight += count
        self.on_call()
        numbers = range(step, step + count)
        losses = [self.losses.get(number, 1 / (number + 1)) for number in numbers]
        return StepMetrics(np.array(losses), np.array([number / 1000 for number in numbers]), self.waited)

    @contextlib.contextmanager
    def profile(self, folder: Path) -> Iterator[None]:
        before = self.weight
        yield
        self.profiled.append(self.weight - before)

    def evaluate(self, _data: Any) -> Measured:
        self.validated.append(self.weight)
        return Measured(*self.measured.get(self.weight, (0.5, 0.75)), 10)

    def agree(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def state(self) -> State:
        return {"weight": np.array(self.weight)}

    def work(self) -> Work:
        return Work("NVIDIA H100 80GB HBM3", 4, "mixed_bfloat16", lambda: 1e12)

    def begin(self, step: int) -> None:
        self.begun.append((self.weight, step))

    def load_state(self, state: State) -> None:
        self.weight = int(state["weight"])


class Run:
    """One process of a job in `root`."""

    def __init__(self, config: JobConfig, root: Path, engine: CountingEngine) -> None:
        from slipway.trainer.loop import Trainer
        from slipway.trainer.metrics.history import Metrics

        self.engine: Any = engine
        self.checkpoints = Checkpoints(root / "checkpoints", config.train.checkpoint.keep)
        self.stop = StopRequest()
        cluster = clusters.read({})
        origin = identity(config, "fingerprint")
        self.best = BestWeights(Checkpoints(root / "checkpoints" / "best", 2), cluster, origin)
        progress = resume(self.checkpoints, cluster, self.engine, origin, config.plan.steps)
        self.metrics = Metrics(root / "logs", progress.step)
        anything: Any = object()
        self.trainer = Trainer(
            job=config, cluster=cluster, engine=self.engine, training_data=anything, validation_data=anything,
            checkpoints=self.checkpoints, identity=origin, metrics=self.metrics, stop=self.stop, progress=progress,
            best=self.best if config.train.export == "best" else None,
        )  # fmt: skip
        self.progress = progress

    def train(self) -> list[dict[str, Any]]:
        try:
            self.trainer.train()
        finally:
            self.metrics.close()
        return [json.loads(line) for line in self.metrics.path.read_text().splitlines()]


def saved_steps(root: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (root / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("steps_per_call", [1, 7, 50, 1000])
def test_the_steps_are_exact_and_calls_end_where_something_is_due(
    tmp_path: Path, make_job: Any, steps_per_call: int
) -> None:
    engine = CountingEngine()
    checkpoint = {"every_steps": 45, "every_seconds": None, "keep": 100}
    config = make_job(Path("x"), steps=230, steps_per_epoch=100, steps_per_call=steps_per_call, checkpoint=checkpoint)
    Run(config, tmp_path, engine).train()
    assert engine.weight == 230
    assert max(count for _, count in engine.calls) <= steps_per_call
    assert engine.validated == [100, 200, 230]
    assert saved_steps(tmp_path) == [45, 90, 100, 135, 180, 200, 225, 230]
    if steps_per_call == 50:
        assert engine.calls[:5] == [(0, 1), (1, 44), (45, 45), (90, 10), (100, 35)]


def test_a_call_ends_with_its_stage_and_a_checkpoint_belongs_to_the_stage_before_it(
    tmp_path: Path, make_job: Any
) -> None:
    stages = [{"steps": 7}, {"steps": 3, "learning_rate": 1e3}, {"steps": 10}]
    checkpoint = {"every_steps": 10, "every_seconds": None}
    config = make_job(
        Path("x"), steps=20, steps_per_epoch=10, stages=stages, checkpoint=checkpoint, export="best", monitor="accuracy"
    )  # fmt: skip
    engine = CountingEngine()
    engine.measured = {10: (0.5, 0.9), 20: (0.5, 0.8)}
    engine.losses = {12: float("nan")}
    run = Run(config, tmp_path, engine)
    with pytest.raises(UserError) as caught:
        run.train()
    assert caught.value.setting == "train.learning_rate"  # the third stage's own is not set
    assert engine.calls == [(0, 1), (1, 6), (7, 1), (8, 2), (10, 1), (11, 9)]
    assert engine.begun == [(7, 7), (10, 10)]

    engine = CountingEngine()
    engine.losses = {7: float("nan")}
    with pytest.raises(UserError) as caught:
        Run(config, tmp_path / "other", engine).train()
    assert (caught.value.setting, caught.value.value) == ("train.stages.1.learning_rate", 1e3)

    engine = CountingEngine()
    engine.measured = {10: (0.5, 0.9), 20: (0.5, 0.8)}
    run = Run(config, tmp_path, engine)
    assert run.progress.step == 10
    run.train()
    run.best.restore(run.engine, 10)
    assert engine.begun == [(0, 9), (10, 10), (20, 9)]


def test_log_points_and_their_means_do_not_depend_on_the_calls(tmp_path: Path, make_job: Any) -> None:
    def lines(steps_per_call: int) -> list[tuple[Any, ...]]:
        root = tmp_path / str(steps_per_call)
        config = make_job(Path("x"), steps=230, steps_per_epoch=100, steps_per_call=steps_per_call)
        history = Run(config, root, CountingEngine()).train()
        return [(line["kind"], line["step"], line["epoch"], line["loss"], line["accuracy"]) for line in history]

    assert lines(1) == lines(7) == lines(50)
    training = [line for line in lines(64) if line[0] == "train"]
    assert [line[1] for line in training] == list(range(10, 231, 10))
    assert training[1][2:] == (0.2, pytest.approx(np.mean([1 / step for step in range(11, 21)])), pytest.approx(0.0145))


def test_an_epochs_metrics_are_means_over_all_its_steps(tmp_path: Path, make_job: Any) -> None:
    """The last epoch is cut short at step 130; the run that resumes from there completes it."""

    def epochs(steps: int) -> dict[int, tuple[float, float]]:
        config = make_job(Path("x"), steps=steps, steps_per_epoch=50, steps_per_call=7)
        history = Run(config, tmp_path, CountingEngine()).train()
        return {line["step"]: (line["epoch_loss"], line["epoch_accuracy"]) for line in history if "epoch_loss" in line}

    def means(first: int, last: int) -> Any:
        losses = [1 / step for step in range(first, last + 1)]
        return pytest.approx((np.mean(losses), np.mean(range(first - 1, last)) / 1000))

    assert epochs(130) == {50: means(1, 50), 100: means(51, 100), 130: means(101, 130)}
    assert epochs(180)[150] == means(101, 150)


@pytest.mark.parametrize("killed_at", [45, 52, 100, 101])
def test_a_resumed_history_is_exact(tmp_path: Path, make_job: Any, killed_at: int) -> None:
    class KilledError(Exception):
        pass

    checkpoint = {"every_steps": 9, "every_seconds": None}
    config = make_job(Path("x"), steps=230, steps_per_epoch=100, steps_per_call=4, checkpoint=checkpoint)
    whole = Run(config, tmp_path / "whole", CountingEngine()).train()

    engine = CountingEngine()

    def kill() -> None:
        if engine.weight >= killed_at:
            raise KilledError

    engine.on_call = kill
    with pytest.raises(KilledError):
        Run(config, tmp_path / "killed", engine).train()
    resumed = CountingEngine()
    history = Run(config, tmp_path / "killed", resumed).train()
    assert 0 < resumed.calls[0][0] <= killed_at
    assert [{k: v for k, v in line.items() if k not in CLOCK} for line in history] == [
        {k: v for k, v in line.items() if k not in CLOCK} for line in whole
    ]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_names_the_very_step_and_is_not_saved(
    tmp_path: Path, make_job: Any, loss: float
) -> None:
    engine = CountingEngine()
    engine.losses = {137: loss, 140: float("nan")}  # the 138th step, in the middle of a call
    config = make_job(Path("x"), steps=230, steps_per_epoch=100, steps_per_call=50)
    with pytest.raises(UserError, match="at step 138 of 230") as caught:
        Run(config, tmp_path, engine).train()
    assert caught.value.setting == "train.learning_rate"
    assert caught.value.nearest == "0.001"
    assert saved_steps(tmp_path) == [100]


def test_asked_to_stop_it_saves_and_ends_with_143(tmp_path: Path, make_job: Any) -> None:
    engine = CountingEngine()
    config = make_job(Path("x"), steps=230, steps_per_epoch=100, steps_per_call=10)
    run = Run(config, tmp_path, engine)

    def ask() -> None:
        run.stop.requested = run.stop.requested or engine.weight >= 30

    engine.on_call = ask
    with pytest.raises(SystemExit) as caught:
        run.train()
    assert caught.value.code == 143
    assert saved_steps(tmp_path) == [engine.weight] == [31]


def test_stopped_while_it_is_measured_it_ends_at_once_and_that_very_step_is_saved(
    tmp_path: Path, make_job: Any
) -> None:
    class SlowToMeasure(CountingEngine):
        def evaluate(self, data: Any) -> Measured:
            if self.weight == 200:
                run.stop._handle(15, None)  # what SIGTERM does
                raise AssertionError("it went on measuring")
            return super().evaluate(data)

    config = make_job(Path("x"), steps=230, steps_per_epoch=100, steps_per_call=10)
    whole = Run(config, tmp_path / "whole", CountingEngine()).train()
    run = Run(config, tmp_path / "stopped", SlowToMeasure())
    with pytest.raises(SystemExit) as caught:
        run.train()
    assert caught.value.code == 143
    assert not isinstance(caught.value, Stopped), "no shutdown message is sent: the others are in the middle of it"
    assert saved_steps(tmp_path / "stopped")[-1] == 200

    resumed = CountingEngine()
    history = Run(config, tmp_path / "stopped", resumed).train()
    assert resumed.validated == [200, 230]
    assert [{k: v for k, v in line.items() if k not in CLOCK} for line in history] == [
        {k: v for k, v in line.items() if k not in CLOCK} for line in whole
    ]


def test_asked_to_stop_it_leaves_only_when_the_checkpoint_is_written_and_all_agree(
    tmp_path: Path, make_job: Any
) -> None:
    order: list[str] = []

    class Watched(CountingEngine):
        def agree(self, values: Sequence[float]) -> list[float]:
            order.append(f"agree on {len(values)} with {saved_steps(tmp_path)}")
            return super().agree(values)

    engine = Watched()
    run = Run(make_job(Path("x"), steps=230, steps_per_epoch=100), tmp_path, engine)
    run.stop.requested = True
    engine.weight = run.progress.step = 5
    with pytest.raises(Stopped):
        run.train()
    assert order[-1] == "agree on 1 with [5]"


def test_a_wall_clock_that_jumps_changes_nothing(
    tmp_path: Path, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    chance = random.Random(0)
    jumps = 0

    def jumping() -> float:
        nonlocal jumps
        jumps += 1
        return 1e9 * chance.random() - 1e6  # by decades, to before 1970 too

    monkeypatch.setattr(time, "time", jumping)
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    engine = CountingEngine()
    engine.on_call = lambda: now.__setitem__(0, now[0] + 4.0)
    checkpoint = {"every_seconds": 10, "keep": 100}
    config = make_job(Path("x"), steps=80, steps_per_epoch=1000, steps_per_call=10, checkpoint=checkpoint)
    Run(config, tmp_path, engine).train()
    assert jumps >= 3
    assert saved_steps(tmp_path) == [21, 51, 80]


def test_it_saves_when_the_seconds_are_over(tmp_path: Path, make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import slipway.trainer.loop

    now = [0.0]
    monkeypatch.setattr(slipway.trainer.loop.time, "monotonic", lambda: now[0])
    engine = CountingEngine()

    def pass_time() -> None:
        now[0] += 4.0

    engine.on_call = pass_time
    checkpoint = {"every_seconds": 10, "keep": 100}
    config = make_job(Path("x"), steps=80, steps_per_epoch=1000, steps_per_call=10, checkpoint=checkpoint)
    Run(config, tmp_path, engine).train()
    assert engine.calls[:4] == [(0, 1), (1, 10), (11, 10), (21, 10)]
    assert saved_steps(tmp_path) == [21, 51, 80]  # after 3 calls of 4 s each


def test_long_steps_shorten_the_calls(tmp_path: Path, make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import slipway.trainer.loop

    now = [0.0]
    monkeypatch.setattr(slipway.trainer.loop.time, "perf_counter", lambda: now[0])
    engine = CountingEngine()

    def pass_time() -> None:
        now[0] += 0.25 * engine.calls[-1][1]  # each step takes a quarter of a second

    engine.on_call = pass_time
    config = make_job(Path("x"), steps=100, steps_per_epoch=100, steps_per_call=10)
    Run(config, tmp_path, engine).train()
    assert [count for _, count in engine.calls[:4]] == [1, 10, 4, 4]
    assert engine.weight == 100


def test_a_save_that_failed_is_tried_again_before_the_next_one_would_be_due(
    tmp_path: Path, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import slipway.trainer.checkpoint.store
    import slipway.trainer.loop

    now = [0.0]
    monkeypatch.setattr(slipway.trainer.loop.time, "monotonic", lambda: now[0])
    write = slipway.trainer.checkpoint.store._write
    full = [True, True, False]

    def sometimes_full(folder: Path, checkpoint: Checkpoint, process: int) -> dict[str, Any]:
        if full and full.pop(0):
            raise OSError(28, "No space left on device")
        return write(folder, checkpoint, process)

    monkeypatch.setattr(slipway.trainer.checkpoint.store, "_write", sometimes_full)
    engine = CountingEngine()
    checkpoint = {"every_steps": 100, "every_seconds": None, "keep": 100}
    config = make_job(Path("x"), steps=200, steps_per_epoch=1000, steps_per_call=10, checkpoint=checkpoint)
    run = Run(config, tmp_path, engine)

    def ten_seconds() -> None:
        run.trainer.saving.wait()  # the thread's clock is this one, too
        now[0] += 10.0

    engine.on_call = ten_seconds
    run.train()
    # The disk is full at step 100 and 30 s later, but no longer 30 s after that.
    assert saved_steps(tmp_path) == [160, 200]


def test_a_full_disk_is_survived_and_tried_again(
    tmp_path: Path, make_job: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import slipway.trainer.checkpoint.store

    write = slipway.trainer.checkpoint.store._write

    def full_at_20(folder: Path, checkpoint: Checkpoint, process: int) -> dict[str, Any]:
        if checkpoint.step == 20:
            raise OSError(28, "No space left on device")
        return write(folder, checkpoint, process)

    monkeypatch.setattr(slipway.trainer.checkpoint.store, "_write", full_at_20)
    checkpoint = {"every_steps": 10, "every_seconds": None, "keep": 100}
    config = make_job(Path("x"), steps=40, steps_per_epoch=100, checkpoint=checkpoint)
    Run(config, tmp_path, CountingEngine()).train()
    assert saved_steps(tmp_path) == [10, 30, 40]
    assert "no space left" in caplog.text


@pytest.mark.parametrize(
    ("change", "setting"),
    [({"seed": 1}, "train.seed"), ({"optimizer": "sgd"}, "train.optimizer"), ({"builder": "a:b"}, "model.builder")],
)
def test_a_checkpoint_of_other_settings_is_refused(
    tmp_path: Path, make_job: Any, change: dict[str, Any], setting: str
) -> None:
    Run(make_job(Path("x"), steps=20, steps_per_epoch=10), tmp_path, CountingEngine()).train()
    with pytest.raises(UserError) as caught:
        Run(make_job(Path("x"), steps=20, steps_per_epoch=10, **change), tmp_path, CountingEngine())
    assert caught.value.setting == setting


def test_more_steps_go_on_and_fewer_are_refused(tmp_path: Path, make_job: Any) -> None:
    Run(make_job(Path("x"), steps=20, steps_per_epoch=10), tmp_path, CountingEngine()).train()
    longer = CountingEngine()
    Run(make_job(Path("x"), steps=35, steps_per_epoch=10), tmp_path, longer).train()
    assert longer.calls[0][0] == 20
    assert longer.weight == 35
    with pytest.raises(UserError, match="past this run's last step 20"):
        Run(make_job(Path("x"), steps=20, steps_per_epoch=10), tmp_path, CountingEngine())


# Validation loss and accuracy after each epoch of 10 steps.
CURVE = {10: (0.9, 0.1), 20: (0.5, 0.6), 30: (0.495, 0.5), 40: (0.6, 0.7), 50: (0.7, 0.4), 60: (0.1, 0.9)}


@pytest.mark.parametrize(
    ("settings", "ends_at", "best_step"),
    [
        ({"early_stop": {"patience": 2}}, 50, 30),  # 40 and 50 are no better than 30
        ({"early_stop": {"patience": 2, "minimum_change": 0.01}}, 40, 30),  # 30 is too little better than 20
        ({"early_stop": {"patience": 3}}, 60, 60),
        ({"early_stop": {"patience": 1}, "monitor": "accuracy"}, 30, 20),
        ({"export": "best"}, 60, 60),
    ],
)
def test_it_ends_when_validation_makes_no_progress(
    tmp_path: Path, make_job: Any, settings: dict[str, Any], ends_at: int, best_step: int
) -> None:
    engine = CountingEngine()
    engine.measured = CURVE
    run = Run(make_job(Path("x"), steps=60, steps_per_epoch=10, **settings), tmp_path, engine)
    run.train()
    assert engine.weight == ends_at
    assert run.progress.selection.best_step == best_step


@pytest.mark.parametrize("killed_at", [15, 31, 41, 49])
def test_killed_it_ends_early_and_chooses_as_it_would_have(tmp_path: Path, make_job: Any, killed_at: int) -> None:
    checkpoint = {"every_steps": 7, "every_seconds": None}
    settings = {"early_stop": {"patience": 2}, "export": "best", "checkpoint": checkpoint, "steps_per_call": 3}
    config = make_job(Path("x"), steps=60, steps_per_epoch=10, **settings)
    engine = CountingEngine()
    engine.measured = CURVE

    class KilledError(Exception):
        pass

    def kill() -> None:
        if engine.weight >= killed_at:
            raise KilledError

    engine.on_call = kill
    with pytest.raises(KilledError):
        Run(config, tmp_path, engine).train()
    engine = CountingEngine()
    engine.measured = CURVE
    run = Run(config, tmp_path, engine)
    run.train()
    assert engine.weight == 50
    assert (run.progress.selection.best, run.progress.selection.best_step) == (0.495, 30)
    run.best.restore(run.engine, 30)
    assert engine.weight == 30

    again = CountingEngine()  # a run that has ended early stays ended
    again.measured = CURVE
    Run(config, tmp_path, again).train()
    assert again.calls == []


def test_best_weights_that_could_not_be_saved_are_saved_later(
    tmp_path: Path, make_job: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import slipway.trainer.checkpoint.store

    write = slipway.trainer.checkpoint.store._write
    full = [True]

    def full_disk(folder: Path, checkpoint: Checkpoint, process: int) -> dict[str, Any]:
        if full[0] and folder.parent.name == "best":
            raise OSError(28, "No space left on device")
        return write(folder, checkpoint, process)

    monkeypatch.setattr(slipway.trainer.checkpoint.store, "_write", full_disk)
    engine = CountingEngine()
    engine.measured = {10: (0.5, 0.5), 20: (0.6, 0.5)}
    run = Run(make_job(Path("x"), steps=20, steps_per_epoch=10, export="best"), tmp_path, engine)
    run.train()
    with pytest.raises(UserError, match="best weights, of step 10, could not be saved") as refused:
        run.best.restore(run.engine, 10)
    assert "--set train.export=last" in (refused.value.fix or "")
    assert engine.weight == 20
    assert "could not save a checkpoint at step 10" in caplog.text
    full[0] = False
    run.best.restore(run.engine, 10)
    assert engine.weight == 10


@pytest.mark.parametrize("damage", ["array", "missing", "another run"])
def test_damaged_best_weights_are_not_replaced_by_the_last(tmp_path: Path, make_job: Any, damage: str) -> None:
    engine = CountingEngine()
    engine.measured = {10: (0.5, 0.5), 20: (0.6, 0.5)}
    config = make_job(Path("x"), steps=20, steps_per_epoch=10, export="best")
    run = Run(config, tmp_path, engine)
    run.train()
    best = tmp_path / "checkpoints" / "best"
    if damage == "array":
        os.truncate(best / "step-00000010" / "state.npz", 100)
    elif damage == "missing":
        shutil.rmtree(best)
    else:
        seed = make_job(Path("x"), steps=20, steps_per_epoch=10, export="best", seed=1)
        other = Run(seed, tmp_path / "other", CountingEngine())
        other.engine.measured = engine.measured
        other.train()
        shutil.rmtree(best)
        shutil.copytree(tmp_path / "other" / "checkpoints" / "best", best)
    with pytest.raises(UserError, match="best weights, of step 10, are damaged, missing or of another run") as refused:
        run.best.restore(run.engine, 10)
    assert "--set train.export=last" in (refused.value.fix or "")
    assert engine.weight == 20


@pytest.mark.parametrize(
    ("fits", "setting", "fix"),
    [
        (5, "train.batch_size", "train.accumulation=4 "),  # 16 examples per device: 4 micro-batches of 4
        (None, "train.batch_size", "train.accumulation=2,"),
        (0, "model.builder", "a smaller network"),
    ],
)
def test_too_little_memory_names_what_would_fit(
    tmp_path: Path, make_job: Any, fits: int | None, setting: str, fix: str
) -> None:
    engine = CountingEngine()

    def exhaust() -> None:
        raise OutOfMemory("OOM when allocating tensor with shape[16,64]", fits)

    engine.on_call = exhaust
    config = make_job(Path("x"), steps=20, steps_per_epoch=10, batch=64)  # on 4 devices
    with pytest.raises(UserError, match="OOM when allocating") as caught:
        Run(config, tmp_path, engine).train()
    assert caught.value.setting == setting
    assert fix in str(caught.value.fix)
    if fits:
        assert caught.value.nearest == str(fits * 4)


def test_an_epoch_reports_rates_waiting_and_mfu(
    tmp_path: Path, make_job: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import slipway.trainer.loop

    now = [0.0]
    monkeypatch.setattr(slipway.trainer.loop.time, "perf_counter", lambda: now[0])
    engine = CountingEngine()

    def pass_time() -> None:
        now[0] += 0.01 * engine.calls[-1][1]
        engine.waited = 0.0025 * engine.calls[-1][1]

    engine.on_call = pass_time
    with caplog.at_level("INFO"):
        history = Run(make_job(Path("x"), steps=40, steps_per_epoch=20, batch=64), tmp_path, engine).train()
    last = next(line for line in history if line["kind"] == "train" and line["step"] == 20)
    assert last["steps_per_second"] == pytest.approx(100)
    assert last["examples_per_second_per_device"] == pytest.approx(100 * 64 / 4)
    assert last["waiting_for_input"] == pytest.approx(0.25)
    assert last["mfu"] == pytest.approx(1e12 * 100 / (4 * 989.5e12), abs=1e-4)
    assert (
        "100.0 steps/s, 1,600 examples/s per device, waiting for input 25% of the time, 2.5% of the peak" in caplog.text
    )


@pytest.mark.parametrize("steps", [3, 25])
def test_exactly_as_many_steps_are_profiled_as_were_asked_for(tmp_path: Path, make_job: Any, steps: int) -> None:
    engine = CountingEngine()
    config = make_job(Path("x"), steps=60, steps_per_epoch=30, steps_per_call=10, profile_steps=steps)
    Run(config, tmp_path, engine).train()
    assert engine.profiled == [steps]
    assert engine.weight == 60


def test_the_learning_rate_of_each_log_point_is_in_the_history(tmp_path: Path, make_job: Any) -> None:
    config = make_job(
        Path("x"), steps=40, steps_per_epoch=40, learning_rate=0.4, schedule={"shape": "linear", "final": 0.2}
    )
    history = Run(config, tmp_path, CountingEngine()).train()
    rates = [line["learning_rate"] for line in history if line["kind"] == "train"]
    assert rates == pytest.approx([0.4 - 0.2 * (step - 1) / 40 for step in range(4, 41, 4)])


def test_the_users_function_is_called_after_each_validation_and_may_end_the_training(
    tmp_path: Path, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "epoch_ends.py").write_text(
        "def note(epoch, step, metrics, folder):\n"
        "    with open(folder / 'noted', 'a') as file:\n"
        "        print(epoch, step, metrics, file=file)\n"
        "    return step == 30\n"
        "def fails(epoch, step, metrics, folder):\n"
        "    return 1 / 0\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = make_job(Path("x"), steps=60, steps_per_epoch=10, on_epoch_end="epoch_ends:note")
    engine = CountingEngine()
    Run(config, tmp_path / "run", engine).train()
    assert engine.weight == 30
    noted = (tmp_path / "run/logs/noted").read_text().splitlines()
    assert noted == [f"{number}.0 {number}0 {{'loss': 0.5, 'accuracy': 0.75}}" for number in (1, 2, 3)]
    again = CountingEngine()  # a run that has ended stays ended
    Run(config, tmp_path / "run", again).train()
    assert again.calls == []
    failing = make_job(Path("x"), steps=60, steps_per_epoch=10, on_epoch_end="epoch_ends:fails")
    with pytest.raises(UserError, match="The function epoch_ends:fails raised ZeroDivisionError") as error:
        Run(failing, tmp_path / "other", CountingEngine()).train()
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    with pytest.raises(UserError, match=r"another train\.on_epoch_end"):
        Run(failing, tmp_path / "run", CountingEngine())
