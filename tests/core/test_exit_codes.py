"""Exit statuses: their texts, which can be restarted, and who is the cause among several."""

from __future__ import annotations

import signal
import sys

import pytest

from slipway.core import exit_codes


@pytest.mark.parametrize(
    ("returncode", "again", "text"),
    [
        (1, False, "failed with exit code 1"),
        (127, False, "failed with exit code 127"),
        (-signal.SIGKILL, True, "was killed by SIGKILL"),
        (137, True, "was killed by SIGKILL"),
        (143, True, "was stopped by SIGTERM"),
        (75, False, "failed with exit code 75"),
        (134, True, "asked for another try with exit code 134, or was killed by SIGABRT"),
        (138, True, "failed with exit code 138"),
        (255, True, "failed with exit code 255"),
    ],
)
def test_a_status_says_how_a_process_ended_and_whether_to_try_again(returncode: int, again: bool, text: str) -> None:
    status = exit_codes.status_of(returncode)
    assert (exit_codes.can_restart(status), exit_codes.describe(status)) == (again, text)


def test_of_several_the_one_with_its_own_error_is_the_cause_and_a_lost_peer_never() -> None:
    statuses = [exit_codes.PEER_LOST, exit_codes.STOPPED, 137, exit_codes.FAILED]
    assert sorted(statuses, key=exit_codes.root_cause_rank) == statuses[::-1]


SERVICE = {"CLUSTER_SPEC": "{}"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (SERVICE, True),
        ({**SERVICE, exit_codes.LOCAL_CLUSTER_VARIABLE: "1"}, False),
        ({"TF_CONFIG": "{}", "AIP_MODEL_DIR": "model"}, False),  # Kubeflow's TFJob, or a process of one device
        ({}, False),
    ],
)
def test_cluster_spec_tells_vertex_ai_from_other_platforms(environment: dict[str, str], expected: bool) -> None:
    assert exit_codes.on_vertex(environment) is expected


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (exit_codes.PEER_LOST, 134),
        (exit_codes.STOPPED, 134),
        (exit_codes.UNAVAILABLE, 134),
        (139, 139),
        (137, 137),
        (exit_codes.FAILED, 1),
        (0, 0),
    ],
)
def test_vertex_ai_receives_its_code_for_another_try_and_all_others_the_status(status: int, code: int) -> None:
    assert exit_codes.reported(status, SERVICE) == code
    assert exit_codes.reported(status, {}) == status


def test_a_replica_that_lost_another_leaves_after_the_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(exit_codes.time, "sleep", slept.append)
    monkeypatch.setattr(exit_codes.os, "_exit", sys.exit)
    monkeypatch.setenv("CLUSTER_SPEC", "{}")
    for status in (exit_codes.PEER_LOST, exit_codes.STOPPED):
        with pytest.raises(SystemExit) as left:
            exit_codes.leave(status)
        assert left.value.code == exit_codes.TRY_AGAIN
    assert slept == [exit_codes.CULPRIT_FIRST_SECONDS]
