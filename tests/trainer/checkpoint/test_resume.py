"""Resuming from a checkpoint: only from one written by this version and with the same settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.core.errors import UserError
from slipway.trainer.checkpoint.best import Selection
from slipway.trainer.checkpoint.resume import Interval, Progress, checkpoint_of, resume
from slipway.trainer.checkpoint.store import Checkpoint, Checkpoints
from slipway.trainer.distributed import cluster as clusters

IDENTITY = {"train.seed": 0, "model.builder": "module:function"}


class OneWeight:
    """An engine whose state is one number."""

    weight = 7

    def state(self) -> dict[str, Any]:
        return {"weight": np.array(self.weight)}

    def begin(self, _step: int) -> None:
        pass

    def load_state(self, state: dict[str, Any]) -> None:
        self.weight = int(state["weight"])

    def agree(self, values: list[float]) -> list[float]:
        return values


def saved(folder: Path) -> tuple[Checkpoints, Checkpoint]:
    """Save a checkpoint at step 20."""
    engine: Any = OneWeight()
    progress = Progress(20, Interval(3, 1.5, 0.5), Interval(9, 4.5, 2.5), Selection(0.25, 10, 0.25, 1))
    checkpoint = checkpoint_of(progress, engine, IDENTITY)
    checkpoints = Checkpoints(folder, keep=3)
    checkpoints.save(checkpoint)
    return checkpoints, checkpoint


def resumed(checkpoints: Checkpoints, identity: dict[str, Any] = IDENTITY, steps: int = 30) -> tuple[Progress, int]:
    engine: Any = OneWeight()
    engine.weight = 0
    try:
        return resume(checkpoints, clusters.read({}), engine, identity, steps), engine.weight
    except UserError:
        assert engine.weight == 0, "nothing is taken over before it is refused"
        raise


def test_it_goes_on_with_everything_that_was_saved(tmp_path: Path) -> None:
    checkpoints, _ = saved(tmp_path)
    progress, weight = resumed(checkpoints)
    assert progress == Progress(20, Interval(3, 1.5, 0.5), Interval(9, 4.5, 2.5), Selection(0.25, 10, 0.25, 1))
    assert weight == 7
    assert resumed(Checkpoints(tmp_path / "empty", keep=3))[0] == Progress()


def test_a_replica_that_sees_an_earlier_pointer_follows_the_chief(tmp_path: Path) -> None:
    """On a mounted bucket, gcsfuse caches a file's attributes, on large machines without a time limit, while another
    machine replaces the file. Source: gcsfuse's docs/semantics.md, "Stat caching"."""

    class Worker(OneWeight):
        def agree(self, values: list[float]) -> list[float]:
            return [20.0]  # the chief's answer

    tasks = {"chief": ["a:2222"], "worker": ["b:2222"]}
    cluster = clusters.read({"TF_CONFIG": json.dumps({"cluster": tasks, "task": {"type": "worker", "index": 0}})})
    checkpoints, _ = saved(tmp_path)
    (tmp_path / "latest").write_text("step-00000010")
    engine: Any = Worker()
    assert resume(checkpoints, cluster, engine, IDENTITY, 30).step == 20


@pytest.mark.parametrize(
    ("part", "entries", "what"),
    [
        ("selection", None, "its selection does not have best."),
        ("selection", {"best": None, "best_step": 0, "reference": None}, "its selection does not have waited."),
        ("interval", {"steps": 0, "loss": 0.0, "metric": 0.0, "norm": 1.0}, "its interval has norm."),
        ("identity", {"train.seed": 0}, "its identity does not have model.builder."),
        ("newer", {"entry": 1}, "its newer has entry."),
    ],
)
def test_another_versions_checkpoint_is_refused(tmp_path: Path, part: str, entries: Any, what: str) -> None:
    checkpoints, checkpoint = saved(tmp_path)
    record = {**checkpoint.record, part: entries}
    if entries is None:
        del record[part]
    checkpoints.save(Checkpoint(20, checkpoint.state, record))
    with pytest.raises(UserError, match="step 20 was written by another version of Slipway") as refused:
        resumed(checkpoints)
    assert refused.value.message.endswith(what)
    assert "empty checkpoint folder" in (refused.value.fix or "")


def test_a_finished_run_is_not_taken_for_one_with_another_learning_rate(tmp_path: Path) -> None:
    engine: Any = OneWeight()
    checkpoints = Checkpoints(tmp_path, keep=3)
    identity = {**IDENTITY, "train.learning_rate": 0.1}
    checkpoints.save(checkpoint_of(Progress(20), engine, identity))
    changed = {**identity, "train.learning_rate": 0.2}
    assert resumed(checkpoints, changed, steps=30)[0].step == 20
    with pytest.raises(UserError, match=r"another train\.learning_rate: 0\.1"):
        resumed(checkpoints, changed, steps=20)
    assert resumed(checkpoints, identity, steps=20)[0].step == 20


def test_other_settings_and_a_shorter_run_are_refused(tmp_path: Path) -> None:
    checkpoints, _ = saved(tmp_path)
    with pytest.raises(UserError, match=r"another train\.seed: 0") as refused:
        resumed(checkpoints, {**IDENTITY, "train.seed": 1})
    assert (refused.value.setting, refused.value.nearest) == ("train.seed", "0")
    with pytest.raises(UserError, match="step 20, past this run's last step 10"):
        resumed(checkpoints, steps=10)
