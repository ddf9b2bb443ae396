"""A short chaos test, and tests of its plan and checks; `make chaos` is the long one."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest

from slipway.components.train.restarts import Restart
from slipway.trainer.checkpoint.store import Checkpoint, Checkpoints
from tests.chaos.chaos import (
    Chaos,
    Ended,
    Struck,
    _differences,
    _lost_checkpoints,
    _repeated_ends,
    plan_strikes,
    run,
)


@pytest.mark.long
@pytest.mark.timeout(900)  # half a minute on an idle machine
def test_a_job_killed_a_few_times_ends_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int(os.environ.get("SLIPWAY_SEED") or random.randrange(2**31))
    print(f"seed {seed}")
    result = run(Chaos(seed, processes=2, kills=3, steps=200), tmp_path)
    assert result.problems == []
    assert len(result.killed) == 3
    assert len(result.restarts) >= result.strikes


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_is_complete_reproducible_and_executable(seed: int) -> None:
    chaos = Chaos(seed, kills=20)
    strikes = plan_strikes(chaos)
    assert strikes == plan_strikes(chaos)
    assert sum(len(strike.victims) for strike in strikes) == 20
    assert all(len({rank for rank, _ in strike.victims}) == len(strike.victims) for strike in strikes)
    parts = [strike.part for strike in strikes if strike.when == "training"]
    assert parts == sorted(parts), "the run cannot go back for an earlier moment"
    assert [strike.when for strike in strikes[-2:]] == ["saved", "exported"]
    assert {strike.when for strike in strikes[:-2]} == {"training", "starting"}


def test_plans_of_other_seeds_differ_and_have_both_signals() -> None:
    plans = [plan_strikes(Chaos(seed)) for seed in range(20)]
    assert len({str(plan) for plan in plans}) == 20
    signals = {number for plan in plans for strike in plan for _, number in strike.victims}
    assert signals == {signal.SIGKILL, signal.SIGTERM}


def model(folder: Path, checksum: str, losses: list[float]) -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "model.json").write_text(json.dumps({"weights_checksum": checksum}))
    lines = [json.dumps({"step": step, "loss": loss, "time": step}) for step, loss in enumerate(losses)]
    (folder / "model" / "metrics.jsonl").write_text("\n".join(lines))
    return folder


def test_different_weights_or_history_are_detected(tmp_path: Path) -> None:
    calm = model(tmp_path / "calm", "a" * 64, [1.0, 0.5])
    assert _differences(calm, model(tmp_path / "same", "a" * 64, [1.0, 0.5])) == []
    assert "weights" in _differences(calm, model(tmp_path / "weights", "b" * 64, [1.0, 0.5]))[0]
    assert "history" in _differences(calm, model(tmp_path / "history", "a" * 64, [1.0]))[0]


def struck(*seen: tuple[int, int]) -> list[Struck]:
    return [Struck(restarts, step, None) for restarts, step in seen]


def restarted(*steps: int) -> list[Restart]:
    return [Restart("workerpool0-0", "was killed by SIGKILL", "", step, 0.0) for step in steps]


def log(*steps: int) -> str:
    restart = "workerpool0-0 was killed by SIGKILL: all start again from the checkpoint of step 0 in 0 s (restart 1)\n"
    return restart.join(f"[workerpool0-0] resuming from the checkpoint at step {step} of 30\n" for step in steps)


@pytest.mark.parametrize(
    ("text", "restarts", "seen", "problem"),
    [
        (log(0, 10, 30), restarted(10, 30), struck((0, 5), (1, 30)), None),
        (log(0, 10, 20), restarted(10, 30), struck((0, 5)), "went on from step 20, and 30 had been saved"),
        (log(0, 20, 10), restarted(20, 10), struck((1, 10)), "one went back"),
        (log(0, 10, 30), restarted(10, 30), struck((1, 20)), None),
        (
            log(0, 10, 30),
            restarted(10, 30),
            struck((0, 20), (1, 30)),
            "step 20 had been saved before a kill",
        ),
        (log(0, 10), restarted(10, 30), [], "tells of 1 restarts"),
        (log(0) + "the checkpoint of step 20 is damaged", restarted(), [], "damaged"),
    ],
)
def test_a_lost_checkpoint_is_detected(
    tmp_path: Path, text: str, restarts: list[Restart], seen: list[Struck], problem: str | None
) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=3)
    checkpoints.save(Checkpoint(30, {"weights": np.ones(1)}, {}))
    found = _lost_checkpoints(tmp_path, Ended(text, restarts, 1.0), seen, steps=30)
    assert (problem is None and found == []) or (problem is not None and any(problem in each for each in found)), found
    assert any("last checkpoint" in each for each in _lost_checkpoints(tmp_path, Ended("", [], 1.0), [], steps=40))


def test_a_repeated_end_is_detected(tmp_path: Path) -> None:
    folder = model(tmp_path, "a" * 64, [1.0]) / "model"
    exported = [*struck((0, 10)), Struck(1, 30, (folder / "model.json").stat())]
    before = log(0, 10) + "[workerpool0-0] epoch 1.00\n[workerpool0-0] model written to model\n"
    restart = log(0, 0).splitlines(keepends=True)[1]
    assert _repeated_ends(tmp_path, Ended(before, [], 1.0), struck((0, 10))) == []
    assert _repeated_ends(tmp_path, Ended(before + restart + "finished already", [], 1.0), exported) == []
    repeated = _repeated_ends(tmp_path, Ended(before + restart + before, [], 1.0), exported)
    assert len(repeated) == 2
    (folder / "model.json").write_text("{}")
    assert _repeated_ends(tmp_path, Ended(before, [], 1.0), exported) == ["the model was written again"]
