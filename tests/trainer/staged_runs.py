"""Runs with stages in this process, for the tests of each engine."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from slipway.core import manifest as manifests
from slipway.trainer.checkpoint.resume import identity, resume
from slipway.trainer.checkpoint.store import Checkpoints
from slipway.trainer.config import JobConfig
from slipway.trainer.data.assignment import ShardAssignment
from slipway.trainer.distributed import cluster as clusters
from slipway.trainer.distributed.signals import StopRequest
from slipway.trainer.engines.base import Engine, State

# The head alone in steps 0 to 4, then the whole network at another rate, in the middle of an epoch.
STAGES = {
    "steps": 11,
    "steps_per_epoch": 4,
    "stages": [{"steps": 5, "trainable": ["head"]}, {"steps": 6, "learning_rate": 0.002}],
    "schedule": {"shape": "cosine"},
    "checkpoint": {"every_steps": 1, "every_seconds": None, "keep": 100},
}


def train(engine: Engine, config: JobConfig, root: Path) -> dict[int, State]:
    """Train from the newest checkpoint in `root` on; return the states before the first step and at the saved ones."""
    from slipway.trainer.data import inputs
    from slipway.trainer.loop import Trainer

    folder = Path(config.data)
    manifest = manifests.read(folder)
    engine.build(config, manifest)
    states, plan = {0: engine.state()}, config.plan
    assignment = ShardAssignment(folder, manifest, 0, 1)
    training = inputs.training(assignment, plan.batch_per_replica, plan.steps_per_epoch, config.train.seed)
    checkpoints, origin = Checkpoints(root, keep=100), identity(config, manifest.fingerprint)
    progress = resume(checkpoints, clusters.read({}), engine, origin, plan.steps)
    Trainer(
        job=config, cluster=clusters.read({}), engine=engine, training_data=training, validation_data=None,
        checkpoints=checkpoints, identity=origin, metrics=None, stop=StopRequest(), progress=progress,
    ).train()  # fmt: skip
    for step in range(1, plan.steps + 1):
        if checkpoint := checkpoints.at(step):
            states[step] = checkpoint.state
    return states


def check(engine: Engine, config: JobConfig, root: Path) -> None:
    """Check which weights each stage changes, and that a run resumes exactly in each and between them."""
    whole = train(engine, config, root / "whole")
    assert list(whole) == list(range(12))
    head = {name for name in names(whole[0]) if 3 in whole[0][name].shape}  # as many as classes
    backbone = {name for name in names(whole[0]) if "seed" not in name} - head
    assert (len(head), len(backbone) >= 8) == (2, True), names(whole[0])
    assert changed(whole[0], whole[5]) & (head | backbone) == head
    assert len(changed(whole[5], whole[11]) & backbone) >= len(backbone) - 1  # normalization cancels a bias
    assert len(whole[5]) < len(whole[6])  # the optimizer has state for the head only

    for step in (3, 5, 8):  # in the first stage, at its end, in the second
        for saved in range(1, step + 1):
            shutil.copytree(root / "whole" / f"step-{saved:08d}", root / str(step) / f"step-{saved:08d}")
        (root / str(step) / "latest").write_text(f"step-{step:08d}")
        resumed = train(engine, config, root / str(step))
        assert sorted(resumed[11]) == sorted(whole[11])
        assert changed(resumed[11], whole[11]) == set()
        assert all(np.array_equal(resumed[11][name], whole[11][name]) for name in whole[11])


def names(state: State) -> list[str]:
    """Return the names of the network's arrays."""
    return [name for name in state if name.startswith("model/")]


def changed(before: State, after: State) -> set[str]:
    """Return the names of the network's arrays that differ."""
    return {name for name in names(before) if not np.array_equal(before[name], after[name])}
