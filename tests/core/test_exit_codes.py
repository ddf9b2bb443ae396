"""Exit statuses: their texts, which can be restarted, and who is the cause among several."""

from __future__ import annotations

import signal

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
        (138, True, "failed with exit code 138"),
        (255, True, "failed with exit code 255"),
    ],
)
def test_a_status_says_how_a_process_ended_and_whether_to_try_again(returncode: int, again: bool, text: str) -> None:
    status = exit_codes.status_of(returncode)
    assert (exit_codes.can_restart(status), exit_codes.describe(status)) == (again, text)


def test_of_several_the_one_with_its_own_error_is_the_cause_and_a_lost_peer_never() -> None:
    statuses = [exit_codes.PEER_LOST, exit_codes.STOPPED, 137, exit_codes.FAILED]
    assert sorted(statuses, key=exit_codes.innocence) == statuses[::-1]
