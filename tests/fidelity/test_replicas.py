"""The trainer can read the environment that the fake Vertex AI sets for a replica."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime
from typing import cast

import pytest
from google.cloud import aiplatform_v1 as vertex

from slipway.core.paths import output_paths
from slipway.trainer.distributed.cluster import read
from tests.fakes.containers import End
from tests.fakes.vertex.containers import Containers
from tests.fakes.vertex.replicas import Replicas, environment_of, replicas_of


def job(*counts: int, output: str = "gs://bucket/runs/one") -> vertex.CustomJob:
    pools = [{"replica_count": count} if count else {} for count in counts]
    return vertex.CustomJob(
        name="projects/1/locations/europe-west4/customJobs/77",
        job_spec={"worker_pool_specs": pools, "base_output_directory": {"output_uri_prefix": output}},
    )


@pytest.mark.parametrize("counts", [(1,), (1, 1), (1, 3)])
def test_the_trainer_finds_its_place(counts: tuple[int, ...]):
    made = job(*counts)
    replicas = replicas_of(made)
    found = [read(environment_of(made, replica, replicas)) for replica in replicas]
    assert [cluster.rank for cluster in found] == list(range(sum(counts)))
    assert {cluster.world_size for cluster in found} == {sum(counts)}
    if len(replicas) > 1:
        assert [task.address for task in found[0].tasks] == [replica.address for replica in replicas]


def test_only_several_replicas_get_tf_config_and_an_evaluator_is_not_in_it():
    alone = job(1)
    assert "TF_CONFIG" not in environment_of(alone, replicas_of(alone)[0], replicas_of(alone))
    made = job(1, 0, 0, 1)
    replicas = replicas_of(made)
    told = json.loads(environment_of(made, replicas[1], replicas)["TF_CONFIG"])
    assert (told["task"]["type"], list(told["cluster"])) == ("evaluator", ["chief"])
    assert "workerpool3" in json.loads(environment_of(made, replicas[0], replicas)["CLUSTER_SPEC"])["cluster"]


def test_folders_are_named_where_there_is_an_output_directory():
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
        assert self._noticed.wait(timeout=60)
        return self._end

    def stop(self) -> None:
        self._noticed.set()


class Endings:
    """Containers of a job: the worker ends first, but the end of the chief is noticed first."""

    def __init__(self) -> None:
        at_once, late = threading.Event(), threading.Event()
        at_once.set()
        threading.Timer(0.2, late.set).start()
        self._containers = {"workerpool0-0": Ending(2, 138, at_once), "workerpool1-0": Ending(1, 3, late)}

    def start(self, *arguments: object, replica: str, **options: object) -> Ending:
        return self._containers[replica]


def test_the_replica_that_ended_first_is_the_one_that_is_blamed():
    replicas = Replicas(cast("Containers", Endings()))
    replicas.start(job(1, 1))
    deadline = time.monotonic() + 60
    while (ended := replicas.look()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended is not None
    assert ended.failure is not None
    assert (ended.failure.replica, ended.failure.status) == ("workerpool1-0", 3)
