"""The restart policy: which failures are retried, how often and after what delay."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections import deque
from pathlib import Path

import psutil
import pytest

from slipway.components.step import WorkFailed
from slipway.components.train.local_cluster import run_local_cluster
from slipway.components.train.restarts import ABORTED_BY_JAX, Restarts, last_traceback
from slipway.core.errors import ERROR_PREFIX, UserError
from slipway.core.exit_codes import PEER_LOST, STOPPED, TRY_AGAIN, UNAVAILABLE, status_of
from slipway.core.memory import MemoryKills
from slipway.core.supervision import Child
from slipway.trainer.checkpoint.store import StorageUnavailable
from slipway.trainer.config import RestartSettings
from slipway.trainer.distributed.rendezvous import PEER_SECONDS_VARIABLE, ReplicasMissing, Watch

KILLED = 128 + signal.SIGKILL
TRACEBACK = ("Traceback (most recent call last):", '  File "x.py", line 1, in <module>', "KeyError: 'lost'")


class EndedWorker(Child):
    """A replica as it is when all is over."""

    status = 0

    def __init__(self, index: int, code: int, *lines: str) -> None:
        self.name, self.status, self.tail = f"workerpool1-{index}", status_of(code), deque(lines)


def restarts(folder: Path, at_most: int = 5, backoff_seconds: float = 1.0) -> Restarts:
    return Restarts(RestartSettings(at_most=at_most, backoff_seconds=backoff_seconds), folder)


@pytest.mark.parametrize(
    ("ended", "cause", "reason"),
    [
        ([(0, KILLED)], 0, "was killed by SIGKILL"),
        ([(0, STOPPED)], 0, "was stopped by SIGTERM"),
        ([(0, PEER_LOST), (1, PEER_LOST), (2, KILLED)], 2, "was killed by SIGKILL"),
        ([(0, PEER_LOST), (2, STOPPED)], 2, "was stopped by SIGTERM"),
        ([(0, PEER_LOST)], 0, "failed with exit code 138"),
        ([(0, -signal.SIGABRT)], 0, "asked for another try with exit code 134, or was killed by SIGABRT"),
        ([(0, STOPPED), (1, PEER_LOST), (2, KILLED)], 2, "was killed by SIGKILL"),  # a device of replica 2 was
        (
            [(0, STOPPED, "another replica was asked to stop: ended at step 7"), (1, STOPPED, "asked to stop: ended")],
            1,
            "was stopped by SIGTERM",
        ),
    ],
)
def test_a_kill_or_a_stop_is_restarted_and_the_one_that_was_struck_is_named(
    tmp_path: Path, ended: list[tuple], cause: int, reason: str
) -> None:
    workers = [EndedWorker(*each) for each in ended]
    restart = restarts(tmp_path).next(workers, workers)
    assert (restart.replica, restart.reason) == (f"workerpool1-{cause}", reason)


def lost(who: str, how: str, second: int) -> str:
    """The line of a replica that ends because of another one, by the trainer's own code."""
    watch = Watch({})
    watch._lose(who, how, 0.0)
    sentence = re.sub(r"since \S+", f"since 2026-11-23T10:00:{second:02d}.000+00:00", watch._sentence)
    return f"lost {sentence}; this replica cannot continue alone"


def test_the_first_sign_in_time_decides_who_is_to_blame(tmp_path: Path) -> None:
    """A frozen replica is not among those that failed, and what it says after it continues comes later."""
    one, two = "chief 0 at 127.0.0.1:5000 (rank 0)", "worker 1 at 127.0.0.1:5002 (rank 2)"
    workers = [
        EndedWorker(0, PEER_LOST, lost(two, "silent for 30 s", 7)),
        EndedWorker(1, PEER_LOST, lost(two, "silent for 30 s", 7)),
        EndedWorker(2, PEER_LOST, lost(one, "it closed its connection", 39)),
    ]
    policy = restarts(tmp_path, at_most=1)
    restart = policy.next(workers, workers[:2])
    assert (restart.replica, restart.reason) == ("workerpool1-2", "was lost (silent for 30 s)")
    assert policy.describe(restart).endswith("(restart 1 of at most 1 for this replica)")
    with pytest.raises(WorkFailed, match=r"Replica workerpool1-2 was lost .*, for the 2nd time"):
        policy.next(workers, workers[:2])


def test_a_machine_behind_a_cut_cable_accuses_the_chief_in_vain(tmp_path: Path) -> None:
    one, two = "chief 0 at 10.0.0.1:5000 (rank 0)", "worker 1 at 10.0.0.3:5000 (rank 2)"
    accused = ((two, 8), (two, 8), (one, 7))
    workers = [EndedWorker(rank, PEER_LOST, lost(who, "silent", at)) for rank, (who, at) in enumerate(accused)]
    assert restarts(tmp_path).next(workers, workers).replica == "workerpool1-2"


def test_of_two_replicas_that_accuse_each_other_of_silence_the_connection_is_named(tmp_path: Path) -> None:
    one, two = "chief 0 at 10.0.0.1:5000 (rank 0)", "worker 0 at 10.0.0.2:5000 (rank 1)"
    workers = [EndedWorker(0, PEER_LOST, lost(two, "silent", 8)), EndedWorker(1, PEER_LOST, lost(one, "silent", 7))]
    restart = restarts(tmp_path).next(workers, workers)
    assert restart.replica == "the connection of workerpool1-0 and workerpool1-1"
    workers[0] = EndedWorker(0, PEER_LOST, lost(two, "it closed its connection", 42))  # the chief was frozen
    assert restarts(tmp_path).next(workers, workers).replica == "workerpool1-0"
    workers[0] = EndedWorker(0, PEER_LOST, lost(one, "silent", 7))  # and reads what the worker says of it
    assert restarts(tmp_path).next(workers, workers).replica == "workerpool1-0"


def test_a_replica_that_jax_aborts_for_a_lost_connection_is_not_the_cause(tmp_path: Path) -> None:
    policy = restarts(tmp_path)
    abort = f"F1124 client.h:80] Terminating process because the {ABORTED_BY_JAX}."
    pair = "a connection between the replicas"
    workers = [EndedWorker(0, PEER_LOST, lost(pair, "each replica waits", 7)), EndedWorker(1, TRY_AGAIN, abort)]
    assert policy.next(workers, workers[::-1]).replica == pair
    closed = EndedWorker(0, PEER_LOST, lost("worker 0 at b:1 (rank 1)", "it closed its connection", 7))
    assert policy.next([closed, workers[1]], [closed, workers[1]]).replica == "a connection of workerpool1-1"
    other = EndedWorker(1, TRY_AGAIN, "a program's own abort")
    assert policy.next([closed, other], [closed, other]).replica == "workerpool1-1"


def test_a_kill_for_lack_of_memory_is_told_with_what_needs_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = MemoryKills()
    monkeypatch.setattr(kills, "describe", lambda: "out of memory: the limit is 1 GB")
    policy = Restarts(RestartSettings(), tmp_path, kills)
    killed, other = EndedWorker(1, KILLED), EndedWorker(0, PEER_LOST)
    assert policy.next([other, killed], [other, killed]).reason == (
        "was killed by SIGKILL, out of memory: the limit is 1 GB; "
        "a smaller train.batch_size or fewer replicas need less"
    )
    assert policy.next([other], [other]).reason == "failed with exit code 138"


def test_a_lost_connection_is_named_and_counted_and_no_replica_is(tmp_path: Path) -> None:
    pair = "the connection of worker 0 at 10.0.0.2:5000 (rank 1) and worker 1 at 10.0.0.3:5000 (rank 2)"
    workers = [EndedWorker(rank, PEER_LOST, lost(pair, "each replica waits", 7)) for rank in range(3)]
    policy = restarts(tmp_path)
    restart = policy.next(workers, workers)
    assert restart.replica == "the connection of workerpool1-1 and workerpool1-2"
    assert policy.describe(restart).endswith("(restart 1 of at most 5 for this connection)")
    killed = [*workers[:2], EndedWorker(2, KILLED)]
    assert policy.next(killed, killed).replica == "workerpool1-2", "what failed by itself is the cause"


@pytest.mark.parametrize("code", [1, 2, 127])
@pytest.mark.parametrize("others", [[], [(0, PEER_LOST)], [(0, KILLED)]])
def test_an_error_of_the_users_code_is_not_restarted(tmp_path: Path, code: int, others: list[tuple]) -> None:
    workers = [*(EndedWorker(*each) for each in others), EndedWorker(3, code, *TRACEBACK)]
    with pytest.raises(WorkFailed) as caught:
        restarts(tmp_path).next(workers, workers)
    assert caught.value.message == f"Replica workerpool1-3 failed with exit code {code}: KeyError: 'lost'."
    assert caught.value.traceback == "\n".join(TRACEBACK)


def test_a_mistake_that_any_replica_reported_is_the_reason_whoever_ended_first(tmp_path: Path) -> None:
    said = ERROR_PREFIX + json.dumps(UserError("Bad.", setting="a.b", value=3).as_dict())
    lost, mistaken = EndedWorker(0, PEER_LOST), EndedWorker(1, STOPPED, "Bad.", said)
    with pytest.raises(UserError, match=r"Bad\."):
        restarts(tmp_path).next([lost, mistaken], [lost])


def reported(index: int, status: int, error: UserError, *lines: str) -> EndedWorker:
    """A replica that has reported an error, which the trainer prints as one line for programs."""
    return EndedWorker(index, status, *lines, ERROR_PREFIX + json.dumps(error.as_dict()))


def test_storage_that_is_unavailable_is_tried_again_and_at_last_its_error_is_the_reason(tmp_path: Path) -> None:
    error = StorageUnavailable("The storage is unavailable: [Errno 5] Input/output error.", fix="check the mount")
    workers = [EndedWorker(0, PEER_LOST), reported(1, UNAVAILABLE, error, *TRACEBACK)]
    policy = restarts(tmp_path, at_most=2)
    for seconds in (1, 2):
        restart = policy.next(workers, workers)
        assert (restart.replica, restart.waited_seconds) == ("workerpool1-1", seconds)
        assert restart.reason == ("failed with exit code 75: The storage is unavailable: [Errno 5] Input/output error")
    with pytest.raises(UserError, match="The storage is unavailable") as caught:
        policy.next(workers, workers)
    assert caught.value.fix == "check the mount"


def test_a_replica_that_is_missing_and_a_programs_own_exit_code_75_are_no_reason_to_try_again(tmp_path: Path) -> None:
    missing = ReplicasMissing("Some replicas did not connect.", setting=PEER_SECONDS_VARIABLE, value=300.0)
    workers = [reported(0, UNAVAILABLE, missing)]
    with pytest.raises(UserError, match="did not connect"):
        restarts(tmp_path).next(workers, workers)
    workers = [EndedWorker(0, UNAVAILABLE, "out of tickets")]
    with pytest.raises(WorkFailed, match=r"workerpool1-0 failed with exit code 75\."):
        restarts(tmp_path).next(workers, workers)
    mistaken = reported(1, 1, UserError("Bad."))
    workers = [reported(0, UNAVAILABLE, StorageUnavailable("Away.")), mistaken]
    with pytest.raises(UserError, match=r"Bad\."):
        restarts(tmp_path).next(workers, workers)


def test_each_replica_may_be_the_cause_so_often(tmp_path: Path) -> None:
    policy = restarts(tmp_path, at_most=2)
    first, second = [EndedWorker(0, KILLED)], [EndedWorker(1, STOPPED)]
    for workers in (first, second, first, second):
        policy.next(workers, workers)
    with pytest.raises(WorkFailed, match=r"killed by SIGKILL, for the 3rd time \(train.restarts.at_most is 2\)"):
        policy.next(first, first)
    assert len(policy.done) == 4


def test_the_wait_doubles_up_to_a_minute_and_begins_anew_after_a_checkpoint(tmp_path: Path) -> None:
    policy = restarts(tmp_path, at_most=100, backoff_seconds=1.5)
    workers = [EndedWorker(0, KILLED)]
    assert [policy.next(workers, workers).waited_seconds for _ in range(8)] == [1.5, 3, 6, 12, 24, 48, 60, 60]
    (tmp_path / "latest").write_text("step-00000120")
    after = [policy.next(workers, workers) for _ in range(2)]
    assert [(restart.step, restart.waited_seconds) for restart in after] == [(120, 1.5), (120, 3)]
    assert "from the checkpoint of step 120 in 3 s (restart 10 of at most 100 for this replica)" in policy.describe(
        after[1]
    )


def test_a_program_that_has_saved_something_does_not_start_from_the_beginning(tmp_path: Path) -> None:
    policy, workers = restarts(tmp_path), [EndedWorker(0, KILLED)]
    assert "all start again from the beginning in" in policy.describe(policy.next(workers, workers))
    (tmp_path / "last.ckpt").touch()
    assert "all start again from the files in the checkpoint folder in" in policy.describe(
        policy.next(workers, workers)
    )


# Each start of a replica notes itself in a file and waits for the other's; what it then does depends on how many there
# were.
START = """
    import json, os, pathlib, signal, sys, time
    place = pathlib.Path(os.environ["AIP_MODEL_DIR"]).parent
    name = json.loads(os.environ["CLUSTER_SPEC"])["task"]["type"]
    with (place / name).open("a") as file:
        file.write("start\\n")
    starts = len((place / name).read_text().splitlines())
    others = [place / "workerpool0", place / "workerpool1"]
    while not all(file.exists() and len(file.read_text().splitlines()) >= starts for file in others):
        time.sleep(0.01)
"""


def pools(first: str, second: str) -> list[dict]:
    def pool(code: str) -> dict:
        program = textwrap.dedent(START) + textwrap.dedent(code)
        return {"machine_spec": {}, "container_spec": {"command": ["python", "-c", program]}, "replica_count": 1}

    return [pool(first), pool(second)]


def starts(place: Path) -> list[int]:
    return [len((place / name).read_text().splitlines()) for name in ("workerpool0", "workerpool1")]


def test_all_start_again_until_they_end_well_and_what_happened_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPWAY_EVENTS", str(tmp_path / "events.jsonl"))
    monkeypatch.setenv("SLIPWAY_STEP", "train")
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    (checkpoints / "latest").write_text("step-00000030")
    log = io.StringIO()
    done = run_local_cluster(
        pools("if starts <= 3: time.sleep(1000)", "if starts <= 3: os.kill(os.getpid(), [9, 15, 9][starts - 1])"),
        tmp_path,
        restarts=RestartSettings(backoff_seconds=0.01),
        log=log,
    )
    reasons = [(restart.replica, restart.reason, restart.step) for restart in done]
    killed, stopped = "was killed by SIGKILL", "was stopped by SIGTERM"
    assert reasons == [("workerpool1-0", reason, 30) for reason in (killed, stopped, killed)]
    assert starts(tmp_path) == [4, 4]
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    messages = [event["text"] for event in events if event["event"] == "message"]
    assert len(messages) == 3
    assert all(message in log.getvalue() for message in messages)
    assert messages[0].startswith("workerpool1-0 was killed by SIGKILL: all start again from the checkpoint of step 30")


def test_it_gives_up_after_as_many_as_are_allowed(tmp_path: Path) -> None:
    before = psutil.Process().children(recursive=True)  # such as the resource tracker of multiprocessing
    settings = RestartSettings(at_most=2, backoff_seconds=0.01)
    with pytest.raises(WorkFailed, match="for the 3rd time"):
        run_local_cluster(
            pools("time.sleep(1000)", "os.kill(os.getpid(), 9)"), tmp_path, restarts=settings, log=io.StringIO()
        )
    assert starts(tmp_path) == [3, 3]
    assert psutil.Process().children(recursive=True) == before


PARENT = """
import sys
from pathlib import Path
from slipway.components.step import step
from slipway.components.train.local_cluster import run_local_cluster
from slipway.trainer.config import RestartSettings
from slipway.trainer.distributed.rendezvous import Watch
code = "import os; print('ready', flush=True); os.kill(os.getpid(), 9)"
pool = {"machine_spec": {}, "container_spec": {"command": ["python", "-c", code]}, "replica_count": 1}
with step("train"):
    run_local_cluster([pool], Path(sys.argv[1]), restarts=RestartSettings(backoff_seconds=60))
"""


def test_a_stop_while_it_waits_to_start_again_ends_the_step(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    step = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert step.stdout is not None
    while "start again" not in step.stdout.readline():
        assert step.poll() is None
    step.terminate()
    assert step.wait(timeout=40) == 143  # before it would start again
    step.stdout.close()


def test_a_traceback_includes_the_lines_of_a_message_whose_bracket_is_open() -> None:
    message = ("ValueError: Cannot convert PerReplica:{", "  0: tf.Tensor(1.0),", "  1: tf.Tensor(2.0)", "}")
    assert last_traceback(["before", *TRACEBACK[:2], *message, "after"]) == [*TRACEBACK[:2], *message]
    assert last_traceback([*TRACEBACK, "after"]) == list(TRACEBACK)
    assert len(last_traceback([*TRACEBACK[:2], message[0], *["more"] * 50])) == 14
