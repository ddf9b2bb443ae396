"""When the training loop completes checkpoints with sharded arrays, of which another process writes a part."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.trainer.checkpoint.parts import Parts
from slipway.trainer.checkpoint.store import Checkpoints
from slipway.trainer.engines.base import Measured, State
from tests.trainer.test_loop import CountingEngine, Run, saved_steps

pytestmark = pytest.mark.usefixtures("tensorflow")


class ShardedEngine(CountingEngine):
    """Of another process, the values that it sends to `agree`: whether it still writes, and whether it failed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.pointed = folder, dict[int, str]()
        self.others_write_until, self.others_fail_at, self.saving = 0, 0, 0

    def state(self) -> State:
        self.saving = self.weight
        return {"weight": Parts.held((1,), {(0,): np.array([self.weight])})}

    def evaluate(self, data: Any) -> Measured:
        self.pointed[self.weight] = (self.folder / "checkpoints" / "latest").read_text()
        return super().evaluate(data)

    def agree(self, values: Sequence[float]) -> list[float]:
        fails = float(self.saving > 0 and self.saving == self.others_fail_at)
        if len(values) == 6:
            *mine, writes, failed, waited = values
            return [*mine, max(writes, float(self.weight < self.others_write_until)), max(failed, fails), waited]
        assert len(values) == 1
        return [max(values[0], fails)] if values == [0.0] else list(values)


def settings(make_job: Any) -> Any:
    checkpoint = {"every_steps": 10, "every_seconds": None, "keep": 100}
    return make_job(Path("x"), steps=40, steps_per_epoch=20, steps_per_call=5, checkpoint=checkpoint)


def test_one_is_complete_before_the_validation_and_at_the_end(tmp_path: Path, make_job: Any) -> None:
    engine = ShardedEngine(tmp_path)
    Run(settings(make_job), tmp_path, engine).train()
    assert engine.pointed == {20: "step-00000020", 40: "step-00000040"}
    assert saved_steps(tmp_path) == [10, 20, 30, 40]
    newest = Checkpoints(tmp_path / "checkpoints", 3).newest()
    assert newest is not None
    assert newest.step == np.asarray(newest.state["weight"]) == 40


def test_one_is_completed_once_the_others_have_written(tmp_path: Path, make_job: Any) -> None:
    engine = ShardedEngine(tmp_path)
    engine.others_write_until = 15
    latest: dict[int, bool] = {}

    def look() -> None:
        for thread in threading.enumerate():
            if thread.name == "saver":  # this process has written its part
                thread.join()
        latest[engine.weight] = (tmp_path / "checkpoints" / "latest").exists()

    engine.on_call = look
    Run(settings(make_job), tmp_path, engine).train()
    assert (latest[15], latest[20]) == (False, True)


def test_one_that_another_process_could_not_write_is_given_up(
    tmp_path: Path, make_job: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ShardedEngine(tmp_path)
    engine.others_fail_at = 20
    Run(settings(make_job), tmp_path, engine).train()
    assert engine.pointed[20] == "step-00000010"
    assert saved_steps(tmp_path) == [10, 30, 40]
    assert "at step 20: another process could not write its part" in caplog.text
