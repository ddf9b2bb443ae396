"""A run that is killed anywhere, any number of times, ends with the same weights, history and validations."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import slipway.trainer.checkpoint.store
from slipway.core import manifest as manifests
from slipway.trainer.checkpoint.resume import identity, resume
from slipway.trainer.checkpoint.store import Checkpoints
from slipway.trainer.config import JobConfig
from slipway.trainer.data.assignment import ShardAssignment
from slipway.trainer.distributed import cluster as clusters
from slipway.trainer.distributed.signals import StopRequest
from slipway.trainer.engines.base import Measured, State, StepMetrics, Work

pytestmark = pytest.mark.usefixtures("tensorflow", "networks")

CLOCK = ("time", "steps_per_second", "examples_per_second", "examples_per_second_per_device", "waiting_for_input",
         "mfu")  # fmt: skip


class Killed(BaseException):
    """Simulates kill -9: no code handles it."""


class Fuse:
    """Raises Killed at the `left`-th moment from now; a moment is any operation before which a kill may happen."""

    def __init__(self, left: int | None) -> None:
        self.left = left

    def moment(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed


class ChainEngine:
    """An engine whose weight depends on all steps and draws, their order, and the number of validations."""

    def __init__(self, fuse: Fuse) -> None:
        self.fuse = fuse
        self.weight, self.draws = 1, 7

    def work(self) -> Work:
        return Work("CPU", 1, "float32", lambda: None)

    def run(self, _data: Any, step: int, rates: Any) -> StepMetrics:
        losses = []
        for number in range(step, step + len(rates)):
            self.draws = (self.draws * 1103515245 + 12345) % 2**31
            self.weight = (self.weight * 31 + number + self.draws) % 2**61
            losses.append(self.weight / 2**61)
        self.fuse.moment()
        return StepMetrics(np.array(losses), np.array(losses) / 2)

    def evaluate(self, _data: Any) -> Measured:
        self.fuse.moment()
        return Measured(self.weight / 2**61, (self.weight % 1000) / 1000, 10)

    def agree(self, values: Sequence[float]) -> list[float]:
        self.fuse.moment()
        return list(values)

    def state(self) -> State:
        return {"weight": np.array(self.weight), "draws": np.array(self.draws)}

    def begin(self, _step: int) -> None:
        pass

    def load_state(self, state: State) -> None:
        self.weight, self.draws = int(state["weight"]), int(state["draws"])


def try_to_train(config: JobConfig, root: Path, engine: Any, data: tuple[Any, Any]) -> list[dict[str, Any]]:
    """Run one process of a run in `root`; return its history without times and rates."""
    from slipway.trainer.loop import Trainer
    from slipway.trainer.metrics.history import Metrics

    cluster, origin = clusters.read({}), identity(config, "fingerprint")
    checkpoints = Checkpoints(root / "checkpoints", config.train.checkpoint.keep)
    progress = resume(checkpoints, cluster, engine, origin, config.plan.steps)
    metrics = Metrics(root / "logs", progress.step)
    training, validation = data
    Trainer(
        job=config, cluster=cluster, engine=engine, training_data=training, validation_data=validation,
        checkpoints=checkpoints, identity=origin, metrics=metrics, stop=StopRequest(), progress=progress,
    ).train()  # fmt: skip
    metrics.close()
    lines = [json.loads(line) for line in metrics.path.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in CLOCK} for line in lines]


CHECKPOINT = {"every_steps": 6, "every_seconds": None, "keep": 2}


@settings(
    max_examples=settings().max_examples // 3,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    kills=st.lists(st.integers(0, 40), max_size=5),
    steps=st.integers(20, 45),
    steps_per_epoch=st.integers(5, 50),
    steps_per_call=st.integers(1, 9),
)
def test_wherever_it_is_killed(
    kills: list[int], steps: int, steps_per_epoch: int, steps_per_call: int, make_job: Any
) -> None:
    config = make_job(
        Path("x"), steps=steps, steps_per_epoch=steps_per_epoch, steps_per_call=steps_per_call, checkpoint=CHECKPOINT
    )
    replace_file = slipway.trainer.checkpoint.store.replace_file
    anything = (object(), object())
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        calm = ChainEngine(Fuse(None))
        history = try_to_train(config, Path(folder) / "calm", calm, anything)
        for kill in [*kills, None]:
            fuse = Fuse(kill)
            engine = ChainEngine(fuse)

            def replace(path: Path, content: bytes, fuse: Fuse = fuse) -> None:
                fuse.moment()
                replace_file(path, content)
                fuse.moment()

            patch.setattr(slipway.trainer.checkpoint.store, "replace_file", replace)
            try:
                found = try_to_train(config, Path(folder) / "killed", engine, anything)
            except Killed:
                continue
            assert (engine.weight, found) == (calm.weight, history)


@pytest.mark.parametrize(
    ("budget", "augment"),
    [
        (0, {"flip": True, "shift": 2, "brightness": 0.1, "contrast": 0.2, "crop": 0.2, "rotation": 10, "erase": 0.3}),
        (10**9, {"mixup": 0.4}),
    ],
    ids=["streamed", "in memory"],
)
def test_the_tensorflow_engine_with_dropout_shuffling_and_augmentation(
    tiny: Path, tmp_path: Path, make_job: Any, budget: int, augment: dict[str, Any]
) -> None:
    from slipway.trainer.data import inputs
    from slipway.trainer.engines import base

    seed = random.randrange(2**31)
    print(f"seed {seed}")
    chance = random.Random(seed)
    config = make_job(
        tiny, steps=60, steps_per_epoch=25, builder="sample_networks:dropout", steps_per_call=4,
        augment=augment, checkpoint=CHECKPOINT,
    )  # fmt: skip
    assignment = ShardAssignment(tiny, manifests.read(tiny), 0, 1)

    def train(root: Path, fuse: Fuse) -> tuple[str, list[dict[str, Any]]]:
        engine = base.load("tensorflow")
        engine.open(clusters.read({}))
        engine.build(config, assignment.manifest)
        run = engine.run

        def run_and_maybe_die(*arguments: Any) -> StepMetrics:
            fuse.moment()
            return run(*arguments)

        engine.run = run_and_maybe_die  # type: ignore[method-assign]
        training = inputs.training(assignment, 8, 25, config.train.seed, budget=budget)
        history = try_to_train(config, root, engine, (training, inputs.evaluation(assignment, "validation", 8)))
        return engine.weights_checksum(), history

    calm = train(tmp_path / "calm", Fuse(None))
    with pytest.raises(Killed):
        train(tmp_path / "killed", Fuse(chance.randrange(1, 11)))
    assert train(tmp_path / "killed", Fuse(None)) == calm
