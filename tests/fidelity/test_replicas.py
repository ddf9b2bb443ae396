"""The trainer can read the environment that the fake Vertex AI sets for a replica."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime
from typing import cast

import pytest
from google.cloud import aiplatform_v1 as vertex

from slipway.core import paths
from slipway.core.paths import output_paths
from slipway.trainer.distributed.cluster import read
from tests.fakes.containers import End
from tests.fakes.logging import Log
from tests.fakes.vertex.containers import Containers
from tests.fakes.vertex.replicas import Replicas, environment_of, replicas_of
from tests.fakes.vertex.work import Ended
from tests.fakes.world import Project, World


def job(*counts: int, output: str = "gs://bucket/runs/one") -> vertex.CustomJob:
    pools = [{"replica_count": count} if count else {} for count in counts]
    return vertex.CustomJob(
        name="projects/1/locations/europe-west4/customJobs/77",
        job_spec={"worker_pool_specs": pools, "base_output_directory": {"output_uri_prefix": output}},
    )


@pytest.mark.parametrize("counts", [(1,), (1, 1), (1, 3)])
def test_every_replica_gets_the_same_cluster_and_its_own_place(counts: tuple[int, ...]):
    """Source (read): https://cloud.google.com/vertex-ai/docs/training/distributed-training (CLUSTER_SPEC)."""
    made = job(*counts)
    replicas = replicas_of(made)
    found = [read(environment_of(made, replica, replicas)) for replica in replicas]
    assert [cluster.rank for cluster in found] == list(range(sum(counts)))
    assert {cluster.world_size for cluster in found} == {sum(counts)}
    if len(replicas) > 1:
        assert [task.address for task in found[0].tasks] == [replica.address for replica in replicas]


def test_only_several_replicas_get_tf_config_and_an_evaluator_is_not_in_it():
    """Source (read): https://cloud.google.com/vertex-ai/docs/training/distributed-training (TF_CONFIG)."""
    alone = job(1)
    assert "TF_CONFIG" not in environment_of(alone, replicas_of(alone)[0], replicas_of(alone))
    made = job(1, 0, 0, 1)
    replicas = replicas_of(made)
    told = json.loads(environment_of(made, replicas[1], replicas)["TF_CONFIG"])
    assert (told["task"]["type"], list(told["cluster"])) == ("evaluator", ["chief"])
    assert "workerpool3" in json.loads(environment_of(made, replicas[0], replicas)["CLUSTER_SPEC"])["cluster"]


def test_folders_are_named_where_there_is_an_output_directory(monkeypatch):
    """AIP_MODEL_DIR, AIP_CHECKPOINT_DIR and AIP_TENSORBOARD_LOG_DIR need base_output_directory.

    Source (read): CustomJobSpec.base_output_directory in custom_job.proto.
    """
    monkeypatch.setattr(paths, "is_mounted", lambda path: True)
    made = job(1)
    told = environment_of(made, replicas_of(made)[0], replicas_of(made))
    assert str(output_paths(told).checkpoints) == "/gcs/bucket/runs/one/checkpoints"
    bare = job(1, output="")
    assert not [
        name for name in environment_of(bare, replicas_of(bare)[0], replicas_of(bare)) if name.startswith("AIP")
    ]


class Ending:
    """A container that ended at `second` by the engine's clock; `wait` returns when `noticed` is set."""

    def __init__(self, second: int, code: int, noticed: threading.Event) -> None:
        self._end = End(datetime(2026, 1, 1, second=second, tzinfo=UTC), code)
        self._noticed = noticed

    def ended(self) -> bool:
        return True

    def wait(self) -> End:
        assert self._noticed.wait(timeout=180)
        return self._end

    def stop(self) -> None:
        self._noticed.set()


class Endings:
    """Containers of a job: the worker ends first, but the end of the chief is noticed first."""

    def __init__(self) -> None:
        at_once, late = threading.Event(), threading.Event()
        at_once.set()
        threading.Timer(0.2, late.set).start()
        self._containers = {"workerpool0-0": Ending(2, 7, at_once), "workerpool1-0": Ending(1, 3, late)}

    def start(self, *arguments: object, replica: str, **options: object) -> Ending:
        return self._containers[replica]


def test_the_replica_that_ended_first_is_the_one_that_is_blamed():
    """The service acts on the first failure by time. Source (read): not documented, assumed."""
    replicas = Replicas(cast("Containers", Endings()))
    replicas.start(job(1, 1))
    ended = end_of(replicas)
    assert ended.failure is not None
    assert (ended.failure.replica, ended.failure.status) == ("workerpool1-0", 3)


def end_of(replicas: Replicas) -> Ended:
    deadline = time.monotonic() + 60
    while (ended := replicas.look()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended is not None
    return ended


LOST = -1


class Attempt:
    """A container that ends with `code` by itself, or runs until it is stopped (143) or killed (137)."""

    def __init__(self, code: int | None) -> None:
        self._code = code
        self._over = threading.Event()
        if code is not None:
            self._over.set()

    def ended(self) -> bool:
        return self._over.is_set()

    def wait(self) -> End:
        assert self._over.wait(timeout=180)
        assert self._code is not None
        return End(datetime.now(UTC), self._code)

    def stop(self) -> None:
        self._end(143)

    def kill(self) -> None:
        self._end(137)

    def _end(self, code: int) -> None:
        if not self._over.is_set():
            self._code = code
            self._over.set()


class Attempts:
    """Each replica's attempts in order: how each ends, LOST for a lost machine, None to run until it is stopped.

    `started` are the names of the replicas in the order of their starts.
    """

    def __init__(self, **codes: list[int | None]) -> None:
        self._codes = {name.replace("_", "-"): list(each) for name, each in codes.items()}
        self.started: list[str] = []
        world = World()
        world.projects["one"] = Project("one", 1, set())
        self.log = Log(world)
        self.replicas = Replicas(cast("Containers", self))

    def start(self, *arguments: object, replica: str, **options: object) -> Attempt:
        self.started.append(replica)
        code = self._codes[replica].pop(0)
        if code == LOST:
            threading.Timer(0.05, self.replicas.lose, [replica]).start()
        return Attempt(None if code == LOST else code)

    def end(self, made: vertex.CustomJob, **scheduling: bool) -> Ended:
        for name, value in scheduling.items():
            setattr(made.job_spec.scheduling, name, value)
        self.replicas.start(made)
        return end_of(self.replicas)


TOGETHER = {"restart_job_on_worker_restart": True}


@pytest.mark.parametrize("code", [1, 2, 75, 137, 138, 143, 255])
def test_an_exit_code_that_is_not_transient_ends_the_job_for_good(code: int):
    """A user code exception shuts down all workers, also with exit codes of 128 and more.

    Source (read): "Understand the serverless training service", table of common errors
    (https://cloud.google.com/vertex-ai/docs/training/understanding-training-service#common-errors).
    """
    attempts = Attempts(workerpool0_0=[None], workerpool1_0=[code])
    failure = attempts.end(job(1, 1), **TOGETHER).failure
    assert failure is not None
    assert (failure.replica, failure.status) == ("workerpool1-0", code)
    assert attempts.started == ["workerpool0-0", "workerpool1-0"]


@pytest.mark.parametrize("code", [6, 134, 11, 139])
def test_a_job_is_retried_three_times_after_a_transient_exit_code(code: int):
    """After SIGABRT (6, 134 in custom containers) and SIGSEGV (11, 139) the job is restarted up to three times.

    Source (read): "Understand the serverless training service", table of common errors, row "User code exception"
    (https://cloud.google.com/vertex-ai/docs/training/understanding-training-service#common-errors).
    """
    enough = Attempts(workerpool0_0=[None, None, None, 0], workerpool1_0=[code, code, code, None])
    assert enough.end(job(1, 1)).failure is None
    assert enough.started == ["workerpool0-0", "workerpool1-0"] * 4
    failure = Attempts(workerpool0_0=[None] * 4, workerpool1_0=[code] * 4).end(job(1, 1)).failure
    assert failure is not None
    assert (failure.replica, failure.status) == ("workerpool1-0", code)


def test_a_worker_is_restarted_five_times_and_then_the_job_is_retried():
    """A worker whose machine is lost is restarted with the same host name, at most five times; then the job is retried.

    Source (read): "Understand the serverless training service", section "Restart workers during the training job"
    (https://cloud.google.com/vertex-ai/docs/training/understanding-training-service#restart_workers).
    """
    attempts = Attempts(workerpool0_0=[None, 0], workerpool1_0=[LOST] * 6 + [None])
    assert attempts.end(job(1, 1)).failure is None
    assert attempts.started == ["workerpool0-0"] + ["workerpool1-0"] * 6 + ["workerpool0-0", "workerpool1-0"]


def test_all_workers_restart_together_if_the_job_asks_for_it():
    """restart_job_on_worker_restart "restarts the entire CustomJob if a worker gets restarted".

    Source (read): google/cloud/aiplatform/v1/custom_job.proto, Scheduling.restart_job_on_worker_restart.
    """
    attempts = Attempts(workerpool0_0=[None, 0], workerpool1_0=[LOST, None])
    assert attempts.end(job(1, 1), **TOGETHER).failure is None
    assert attempts.started == ["workerpool0-0", "workerpool1-0"] * 2


def test_with_disable_retries_no_job_is_retried_and_a_lost_worker_restarts_alone():
    """disable_retries, "if true, overrides restart_job_on_worker_restart to false".

    Source (read): google/cloud/aiplatform/v1/custom_job.proto, Scheduling.disable_retries.
    """
    failure = Attempts(workerpool0_0=[None], workerpool1_0=[134]).end(job(1, 1), disable_retries=True).failure
    assert failure is not None
    assert failure.status == 134
    alone = Attempts(workerpool0_0=[None], workerpool1_0=[LOST, 3])
    assert alone.end(job(1, 1), disable_retries=True, **TOGETHER).failure is not None
    assert alone.started == ["workerpool0-0", "workerpool1-0", "workerpool1-0"]


def test_the_job_succeeds_when_its_primary_replica_does():
    """A job completes when its primary replica exits with 0; the service then shuts down all other workers.

    Source (read): "Understand the serverless training service", section "Successfully completing a job"
    (https://cloud.google.com/vertex-ai/docs/training/understanding-training-service#successful_completion).
    """
    attempts = Attempts(workerpool0_0=[0], workerpool1_0=[None])
    assert attempts.end(job(1, 1)).failure is None
