"""The fake Vertex AI runs compiled pipelines with the features of Slipway's; their commands run on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler

from slipway.components.cloud.connection import Connection
from tests.fakes.google import NUMBER, PROJECT, REGION, FakeGoogle
from tests.fakes.mount import Mount
from tests.fakes.ready import BUCKET, RUNNER
from tests.fakes.vertex.processes import Processes
from tests.fidelity import kfp_pipelines as pipelines

pytestmark = pytest.mark.slow
ENDED = ("PIPELINE_STATE_SUCCEEDED", "PIPELINE_STATE_FAILED")
WHY = "The DAG failed because some tasks failed. The failed tasks are: [fail]."
JOB = f"projects/{NUMBER}/locations/{REGION}/pipelineJobs/one"
RUNS: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (pipelines.types, {}, {"join": '["a", 5, 2, true, ["x", 1], {"k": [1.5, false]}]'}),
    (
        pipelines.types,
        {"one": "b", "number": 6, "flag": False},
        {"join": '["b", 6, 2, false, ["x", 1], {"k": [1.5, false]}]'},
    ),
    (
        pipelines.optionals,
        {"given": "g"},
        {"optional": "None None True", "optional-2": "g 3 False", "optional-3": "None None True"},
    ),
    (pipelines.artifacts, {}, {"write": None, "read": "abc 3 made"}),
    (
        pipelines.conditions,
        {},
        {
            "text": "yes",
            "condition-1": None,
            "text-2": "taken",
            "condition-2": "NOT_TRIGGERED",
            "condition-3": "NOT_TRIGGERED",
        },
    ),
    (pipelines.exits, {}, {"status": f"FAILED exit-handler-1 9 {WHY}", "fail": "FAILED", "exit-handler-1": "FAILED"}),
    (pipelines.ignored, {}, {"fail": "FAILED", "text": "NOT_TRIGGERED", "optional": "None 1 False"}),
    (pipelines.retried, {"marker": "/gcs/marker"}, {"flaky": "second", "fail": "FAILED"}),
    (pipelines.resources, {}, {"variable": "blue"}),
    (pipelines.named, {}, {"placeholders": f"one {JOB} True placeholders True gs://{BUCKET}/p/x"}),
]


def compiled(pipeline: Any, folder: Path) -> dict[str, Any]:
    compiler.Compiler().compile(pipeline, str(folder / "spec.yaml"))
    return dict(next(yaml.safe_load_all((folder / "spec.yaml").read_text())))


def run(google: FakeGoogle, specification: dict[str, Any], parameters: dict[str, Any]) -> Any:
    """Run a pipeline to its end; return the job."""
    client = Connection(PROJECT, REGION, google.endpoints).pipelines
    job = client.create_pipeline_job(
        parent=f"projects/{PROJECT}/locations/{REGION}",
        pipeline_job_id="one",
        pipeline_job={
            "display_name": "one",
            "pipeline_spec": specification,
            "service_account": RUNNER,
            "runtime_config": {"gcs_output_directory": f"gs://{BUCKET}/p", "parameter_values": parameters},
        },
    )
    while job.state.name not in ENDED:
        job = client.get_pipeline_job(name=job.name)
    return job


@pytest.fixture
def processes(ready_google: FakeGoogle, tmp_path: Path) -> Processes:
    made = Processes(Mount(ready_google.storage, tmp_path / "gcs"))
    (tmp_path / "gcs").mkdir()
    ready_google.region.pipelines.containers = made
    return made


@pytest.mark.parametrize(("pipeline", "parameters", "expected"), RUNS, ids=lambda one: getattr(one, "name", ""))
def test_a_pipeline_runs_as_compiled(
    ready_google: FakeGoogle,
    processes: Processes,
    tmp_path: Path,
    pipeline: Any,
    parameters: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    """`expected` is each task's output `Output` or `result`, or its state if it did not succeed; None: any.

    Source (read): pipeline_spec.proto, and kfp's compiler and executor (2.17); see the table's pipelines.
    """
    job = run(ready_google, compiled(pipeline, tmp_path), parameters)
    found = {}
    for task in job.job_detail.task_details:
        values = dict(task.execution.metadata or {})
        outputs = [str(values[f"output:{name}"]) for name in ("Output", "result") if f"output:{name}" in values]
        done = task.state.name == "SUCCEEDED"
        found[task.task_name] = (outputs or [None])[0] if done else task.state.name
    shown = {name: value if expected.get(name, "") is not None else None for name, value in found.items()}
    assert shown == expected, job.error.message
    failed = "FAILED" in expected.values()
    assert job.state.name == ("PIPELINE_STATE_FAILED" if failed else "PIPELINE_STATE_SUCCEEDED")


def test_a_failed_task_is_retried(ready_google: FakeGoogle, processes: Processes, tmp_path: Path) -> None:
    """`set_retry(2)` allows three tries, of which each has a job of its own.

    Source (read): PipelineTaskSpec.RetryPolicy.max_retry_count in pipeline_spec.proto.
    """
    run(ready_google, compiled(pipelines.retried, tmp_path), {"marker": "/gcs/marker"})
    assert len(processes.started) == 2 + 3
    assert len(ready_google.region.jobs.jobs) == 2 + 3


def test_limits_choose_the_machine_of_a_step(ready_google: FakeGoogle, processes: Processes, tmp_path: Path) -> None:
    """The smallest e2 or n1 machine with the CPUs and memory of the limits.

    Source (reported): tensorflow/tfx#3194; see slipway/pipelines/hardware/quotas.py.
    """
    run(ready_google, compiled(pipelines.resources, tmp_path), {})
    (job,) = ready_google.region.jobs.jobs.values()
    assert job.job_spec.worker_pool_specs[0].machine_spec.machine_type == "e2-standard-8"


@pytest.mark.parametrize(
    ("pipeline", "features"),
    [
        (pipelines.loop, "loops"),
        (pipelines.collected, "loops"),
        (pipelines.choice, "conditions other than the equality with a text, outputs of a pipeline"),
        (pipelines.numbers, "conditions other than the equality with a text"),
        (pipelines.imported, "executors of the kind importer"),
        (pipelines.accelerated, "accelerators of a step"),
        (pipelines.nested, "outputs of a pipeline"),
        (pipelines.containers, "the placeholders Concat and IfPresent"),
    ],
)
def test_a_feature_that_the_fake_does_not_run_is_named(
    ready_google: FakeGoogle, tmp_path: Path, pipeline: Any, features: str
) -> None:
    """The service runs them; the fake refuses them at creation, rather than run them wrongly.

    Source (read): none; a rule of the fake.
    """
    with pytest.raises(Exception, match=f"The fake Vertex AI does not run: .*{features}"):
        run(ready_google, compiled(pipeline, tmp_path), {})
    assert not ready_google.region.pipelines.jobs
