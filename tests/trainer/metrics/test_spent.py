"""Where the seconds of a training went, and what is said of it: planted causes, by a clock that the test advances."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from slipway.trainer.engines.base import Measured, Work
from slipway.trainer.metrics import spent
from tests.trainer.test_loop import CountingEngine, Run


class Clock:
    """Stands for the module time: its seconds pass where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.monotonic = time.monotonic

    def perf_counter(self) -> float:
        return self.now


class Planted(CountingEngine):
    """An engine on which a step takes a second, a validation `validating` and a state `copying` seconds."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.compiling, self.waiting, self.validating, self.copying = clock, 0.0, 0.0, 0.0, 0.0
        self.agreeing = 0.0

    def run(self, data: Any, step: int, rates: Any) -> Any:
        self.clock.now += len(rates) * (1.0 + self.waiting) + (self.compiling if step == 0 else 0.0)
        self.waited = self.waiting * len(rates)
        return super().run(data, step, rates)

    def evaluate(self, data: Any) -> Measured:
        self.clock.now += self.validating
        return super().evaluate(data)

    def state(self) -> Any:
        self.clock.now += self.copying
        return super().state()

    def agree(self, values: Any) -> Any:
        self.clock.now += self.agreeing
        return super().agree(values)


@pytest.mark.usefixtures("tensorflow")
@pytest.mark.parametrize(
    ("planted", "resize", "checkpoint", "described", "advised"),
    [
        ({"waiting": 1.0}, True, None, "waiting for input 50%, steps 49%", "--set 'data.resize={size: 8}'"),
        ({"waiting": 3.0}, False, None, "waiting for input 75%, steps 24%", "a machine with more cores"),
        ({"validating": 10.0}, False, None, "validation 50%, steps 49%", "it validates after each of 4 epochs"),
        ({"copying": 2.0}, False, 1, "checkpoints 67%, steps 32%", "--set train.checkpoint.every_steps=10"),
        ({"copying": 15.0}, False, 5.0, "checkpoints 60%, steps 39%", "--set train.checkpoint.every_seconds=50"),
        ({"copying": 15.0}, False, None, "checkpoints 60%, steps 39%", "it saves after each of 4 epochs"),
        ({"agreeing": 5.0}, False, None, "waiting for other replicas 75%, steps 24%", "the log of the slowest replica"),
        ({"compiling": 40.0}, False, None, "compiling 51%, steps 49%", "--set train.xla=false"),
        ({"waiting": 0.1}, False, None, "steps 89%, waiting for input 9%, compiling 2%", None),
    ],
)
def test_the_planted_cause_is_named_with_its_setting(
    planted: dict[str, float], resize: bool, checkpoint: float | None, described: str, advised: str | None,
    tmp_path: Path, make_job: Any, monkeypatch: pytest.MonkeyPatch, data_sets: Any,
) -> None:  # fmt: skip
    from slipway.trainer import loop
    from slipway.trainer.checkpoint import saving
    from slipway.trainer.metrics import report

    clock = Clock()
    for module in (loop, report, saving, spent):
        monkeypatch.setattr(module, "time", clock)
    every_seconds = checkpoint if isinstance(checkpoint, float) else None
    checkpoint = checkpoint if isinstance(checkpoint, int) else None
    config = make_job(
        Path("x"), steps=40, steps_per_epoch=10, steps_per_call=5, xla=True,
        checkpoint={"every_steps": checkpoint, "every_seconds": every_seconds},
    )  # fmt: skip
    engine = Planted(clock)
    for name, value in planted.items():
        setattr(engine, name, value)
    run = Run(config, tmp_path / "run", engine)
    began = clock.now
    run.train()
    manifest = data_sets.write(tmp_path / "data", train=[1], written_size=(20, 20) if resize else None)
    seconds = run.trainer.spent.by_activity()
    whole = clock.now - began
    assert sum(seconds.values()) == pytest.approx(whole)
    first, *others = spent.told(seconds, config, manifest, Work("CPU", 1, "float32", lambda: None), {}, {})
    assert first.startswith(f"the training took {whole:.1f} s: ")
    assert described in first
    if advised is None:
        assert not others
    else:
        assert advised in others[0]
        rest = whole - seconds[next(each for each in seconds if others[0].startswith(f"without {each},"))]
        assert f"it would take {rest:.1f} s" in others[0]


def test_steps_below_the_devices_speed_have_a_precision_or_batch_size(
    make_job: Any, data_sets: Any, tmp_path: Path
) -> None:
    config = make_job(Path("x"), steps=40, steps_per_epoch=10, batch=32)
    manifest = data_sets.write(tmp_path / "data", train=[1])
    seconds = {spent.STEPS: 90.0, spent.VALIDATION: 10.0}

    def told(device: str, precision: str, mfu: float | None) -> list[str]:
        last = {"mfu": mfu, "steps_per_second": 900.0}
        return spent.told(seconds, config, manifest, Work(device, 2, precision, lambda: None), last, {})[1:]

    assert "--set train.precision=mixed_bfloat16 has 2 times the peak" in told("NVIDIA A100", "float32", 0.3)[0]
    assert "they reach 1.0% of the peak" in told("NVIDIA A100", "mixed_bfloat16", 0.01)[0]
    assert "16 examples per device; try --set train.batch_size=128" in told("NVIDIA A100", "mixed_bfloat16", 0.01)[0]
    assert told("NVIDIA A100", "mixed_bfloat16", 0.4) == []
    (advice,) = told("CPU", "float32", None)
    assert "1.1 ms each with 16 examples per device" in advice and "try --set train.batch_size=128" in advice


@pytest.mark.parametrize(("rate", "devices"), [(900.0, 1), (100.0, 2), (None, 2)])
def test_larger_batches_are_not_advised_for_steps_that_compute(
    make_job: Any, data_sets: Any, tmp_path: Path, rate: float | None, devices: int
) -> None:
    config = make_job(Path("x"), steps=40, steps_per_epoch=10, batch=32)
    manifest = data_sets.write(tmp_path / "data", train=[1])
    work, last = Work("CPU", devices, "float32", lambda: None), {"steps_per_second": rate}
    assert len(spent.told({spent.STEPS: 90.0}, config, manifest, work, last, {})) == 1


def test_the_replica_that_waits_for_its_input_is_named(make_job: Any, data_sets: Any, tmp_path: Path) -> None:
    config, work = make_job(Path("x"), steps=10, steps_per_epoch=10), Work("CPU", 2, "float32", lambda: None)
    manifest = data_sets.write(tmp_path / "data", train=[1])
    seconds = {spent.STEPS: 50.0, spent.INPUT: 3.0}

    def told(*waits: float) -> str:
        names = ["chief 0", "worker 0 at b:1", "worker 1 at c:1"]
        return spent.told(seconds, config, manifest, work, {}, dict(zip(names, waits, strict=False)))[-1]

    assert told(3.0, 30.0, 4.0).startswith(
        "all waited for worker 0 at b:1, which waited 30.0 s for input, others at most 4.0 s: a machine with more cores"
    )
    assert "all waited" not in told(3.0, 30.0, 28.0) + told(30.0) + told()


def test_a_large_validation_split_is_named(make_job: Any, data_sets: Any, tmp_path: Path) -> None:
    config, work = make_job(Path("x"), steps=10, steps_per_epoch=10), Work("CPU", 1, "float32", lambda: None)
    manifest = data_sets.write(tmp_path / "data", train=[20], validation=[20])
    seconds = {spent.VALIDATION: 50.0, spent.STEPS: 50.0}
    assert "--set" not in spent.told(seconds, config, manifest, work, {}, {})[1], "the splits are the source's"
    manifest = manifest.model_copy(update={"settings": {"split": {"train": 0.4, "validation": 0.4, "test": 0.2}}})
    assert (
        "--set 'data.split={train: 0.72, validation: 0.08, test: 0.2}' validates on fewer than 20 examples for 20"
        in spent.told(seconds, config, manifest, work, {}, {})[1]
    )


def test_what_is_set_already_is_not_advised_and_nothing_is_said_of_no_time(
    make_job: Any, data_sets: Any, tmp_path: Path
) -> None:
    config, work = make_job(Path("x"), steps=10, steps_per_epoch=10), Work("CPU", 1, "float32", lambda: None)
    manifest = data_sets.write(tmp_path / "data", train=[1], written_size=(20, 20))
    resized, original = (manifest.model_copy(update={"settings": {"resize": one}}) for one in ({"size": 8}, "original"))
    seconds = {spent.INPUT: 60.0, spent.STEPS: 40.0}
    assert "data.resize" in spent.told(seconds, config, manifest, work, {}, {})[1]
    assert "data.resize" in spent.told(seconds, config, original, work, {}, {})[1]
    assert "data.resize" not in spent.told(seconds, config, resized, work, {}, {})[1]
    assert "it validates once;" in spent.told({spent.VALIDATION: 9.0}, config, manifest, work, {}, {})[1]
    assert spent.told({spent.OTHER: 0.0}, config, manifest, work, {}, {}) == []
