"""A short form of the chaos of TPUs, and tests of its checks; `python -m tests.chaos.tpus` is the long one."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.chaos.tpus import KINDS, _left, _lost_steps, _two_at_once, plan_strikes, run
from tests.end_to_end.workspace import wait_for
from tests.fakes.google import PROJECT, FakeGoogle
from tests.fakes.ready import make_ready
from tests.fidelity.test_tpu_api import Tpus


@pytest.mark.long
@pytest.mark.timeout(600)  # half a minute on an idle machine
def test_kills_of_target_tpu_leave_no_tpu(tmp_path: Path) -> None:
    seed = int(os.environ.get("SLIPWAY_SEED") or random.randrange(2**31))
    print(f"seed {seed}")
    result = run(seed, kills=4, folder=tmp_path)
    assert result.problems == []
    assert sum(result.struck[kind] for kind in KINDS) == 4
    assert result.failed_calls > 0


def test_a_plan_for_queued_tpus_is_reproducible_and_has_all_kinds() -> None:
    assert plan_strikes(7, 30) == plan_strikes(7, 30) != plan_strikes(8, 30)
    assert {strike.kind for strike in plan_strikes(7, 30)} == set(KINDS)


def test_two_queued_resources_at_once_are_detected() -> None:
    first = [("a", "CREATING"), ("a", "ACTIVE"), ("a", "DELETING")]
    assert _two_at_once([*first, ("a", ""), ("b", "CREATING")]) == []
    assert _two_at_once([*first, ("b", "CREATING"), ("a", "")]) == ["two at once: a, b"]


def test_a_queued_resource_and_a_host_that_are_left_are_detected(google: FakeGoogle) -> None:
    make_ready(google)
    assert _left(google) == []
    tpus = Tpus(google)
    tpus.run("sleep 60")
    wait_for(google.tpu.machines.processes)  # the resource is active a moment before its host runs anything
    resource, *processes = _left(google)
    assert resource == f"projects/{PROJECT}/locations/europe-west4-b/queuedResources/tpu-1 is left: ACTIVE"
    assert processes
    assert all(each.startswith("process ") for each in processes)


def test_a_step_that_target_tpu_loses_is_detected(tmp_path: Path) -> None:
    log = tmp_path / "launcher.log"
    log.write_text("from step 0\nfrom step 12\n")
    assert _lost_steps(tmp_path) == ["the model is not in the run's folder"]
    model = tmp_path / "chaos" / "train" / "model" / "model.json"
    model.parent.mkdir(parents=True)
    model.write_text("12")
    assert _lost_steps(tmp_path) == []
    log.write_text("from step 0\nfrom step 12\nfrom step 3\n")
    assert _lost_steps(tmp_path) == ["step 3 after step 12"]
