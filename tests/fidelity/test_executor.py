"""The fake Vertex AI runs pipelines as kfp compiles them, not only Slipway's; their commands run on this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from kfp import compiler
from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineDeploymentConfig, PipelineSpec

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
    (pipelines.structures, {}, {"join": '["", 0, 0.5, false, [1, "two", {"three": 3}], {"a": {"b": [true]}}]'}),
    (
        pipelines.optionals,
        {"given": "g"},
        {"optional": "None None True", "optional-2": "g 3 False", "optional-3": "None None True"},
    ),
    (pipelines.tuples, {}, {"several": None, "join": '["x", 7, 3.5, true, ["a", "b"], {"value": 7}]'}),
    (pipelines.texts, {}, {"text": "hello world 3", "text-2": "<hello world 3>"}),
    (
        pipelines.artifacts,
        {},
        {"write": None, "read": "abc 3 made", "copy": None, "maybe": "something", "maybe-2": "nothing"},
    ),
    (pipelines.returned, {}, {"pythonic": None, "read": "abc 1 Output"}),
    (pipelines.text, {"value": "a component is a pipeline"}, {"text": "a component is a pipeline"}),
    (pipelines.containers, {"two": "c"}, {"shell": "one= --none", "shell-2": "one=a --two c"}),
    (pipelines.nested, {}, {"read": "v+/default 10 made", "text": "v+", "middle": None, "inner": None, "write": None}),
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
    (pipelines.described, {}, {"pick": "b"}),
    (pipelines.omitted, {}, {"halfway": None, "optional": "None 1 True", "maybe": "nothing"}),
    (pipelines.measured, {}, {"measure": None}),
    (
        pipelines.handlers,
        {},
        {
            **dict.fromkeys(("exit-handler-1", "exit-handler-2", "middle", "inner", "write")),
            **{"text": "v+", "optional": "None None True"},
            "status": "SUCCEEDED exit-handler-1 None None",
            "status-2": "SUCCEEDED exit-handler-2 None None",
        },
    ),
    (pipelines.named, {}, {"placeholders": f"one {JOB} True placeholders True gs://{BUCKET}/p/x"}),
]

# How the features of kfp's pipelines are found in a compiled one, whose keys are sorted, and which pipelines have them.
FEATURES: dict[str, tuple[str, str]] = {
    "caching switched off": (r'"cachingOptions": \{\}', "resources"),
    "caching with a key": (r'"cacheKey": "', "described"),
    "components from containers": (r'"image": "(?:alpine|a/b)"', "artifacts containers"),
    "conditions": (r'"condition": "inputs', "conditions"),
    "constants with placeholders": (r'"constant": "[^"]*\{\{\$\.inputs', "texts nested handlers"),
    "defaults of the pipeline's parameters": (
        r'"root": \{"dag": .*"inputDefinitions": .*"defaultValue": ',
        "types structures tuples texts containers nested conditions",
    ),
    "descriptions": (r'"description": "', "described"),
    "environment variables": (r'"env": \[', "resources"),
    "exit handlers": (r'"taskFinalStatus": ', "exits handlers"),
    "inputs of artifacts": (r'"componentInputArtifact"|"taskOutputArtifact"', "artifacts returned nested omitted"),
    "lists and structs": (r'"(?:LIST|STRUCT)"', "types structures tuples"),
    "metrics": (r'"system\.Metrics"', "measured"),
    "names of the job and the task": (r"\{\{\$\.pipeline_(?:job|task)_", "named"),
    "nested pipelines": (r'"comp-(?!condition|exit-handler)[\w-]+": \{"dag": ', "nested omitted handlers"),
    "numbers and booleans": (
        r'"(?:NUMBER_INTEGER|NUMBER_DOUBLE|BOOLEAN)"',
        "types structures optionals tuples texts artifacts nested ignored omitted handlers",
    ),
    "optional artifacts": (
        r'"artifacts": \{"\w+": \{"artifactType": \{[^}]*\}, "isOptional": true',
        "artifacts omitted",
    ),
    "optional parameters": (
        r'"isOptional": true, "parameterType"',
        "types structures optionals tuples texts containers nested conditions exits ignored omitted handlers",
    ),
    "outputs of the pipeline": (r'"root": \{"dag": .*"outputDefinitions": ', "text measured"),
    "placeholders: Concat": (r'\{\\"Concat\\": ', "containers"),
    "placeholders: IfPresent": (r'\{\\"IfPresent\\": ', "containers"),
    "requests and limits": (r'"cpu(?:Limit|Request)"', "resources described"),
    "retries": (r'"retryPolicy": ', "retried"),
    "tasks after all upstream tasks": (r'"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"', "exits ignored handlers"),
}
# Messages and fields of pipeline_spec.proto that no pipeline above has.
NOT_RUN = {
    "loops": "ArtifactIteratorSpec ItemsSpec IteratorPolicy ParameterIteratorSpec PipelineTaskSpec.artifact_iterator "
    "PipelineTaskSpec.iterator_policy PipelineTaskSpec.parameter_iterator ArtifactSpec.is_artifact_list "
    "InputParameterSpec.parameter_expression_selector",
    "importers": "ExecutorSpec.importer ImporterSpec ValueOrRuntimeParameter.runtime_parameter "
    "ValueOrRuntimeParameter.constant_value Value",
    "dsl.OneOf": "DagOutputParameterSpec.value_from_oneof ParameterSelectorsSpec",
    "accelerators": "AcceleratorConfig ResourceSpec.accelerator",
    "Kubernetes and workspaces": "ComponentSpec.single_platform_specs KubernetesWorkspaceConfig PipelineConfig "
    "PlatformDeploymentConfig SinglePlatformSpec WorkspaceConfig",
    "for which kfp.dsl has no way": "AIPlatformCustomJobSpec ArtifactQuerySpec ArtifactSpec.custom_properties "
    "ArtifactSpec.metadata ArtifactSpec.properties ArtifactTypeSchema.instance_schema ArtifactTypeSchema.schema_uri "
    "ComponentSpec.task_config_passthroughs Exec ExecutorSpec.custom_job ExecutorSpec.resolver Lifecycle "
    "ParameterSpec.literals ParameterSpec.type PipelineContainerSpec.lifecycle ResolverSpec TaskConfigPassthrough",
}


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


@pytest.fixture(scope="module")
def specifications(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The compiled pipelines that are run, by name."""
    folder = tmp_path_factory.mktemp("compiled")
    return {pipeline.name: compiled(pipeline, folder) for pipeline, *_ in RUNS}


@pytest.mark.parametrize("feature", FEATURES)
def test_the_pipelines_that_run_have_the_features_of_kfps_own(
    specifications: dict[str, dict[str, Any]], feature: str
) -> None:
    """Each pipeline has the features that the table says, and no others.

    Source (read): the pipelines without loops and importers in kubeflow/pipelines,
    test_data/sdk_compiled_pipelines/valid.
    """
    pattern, names = FEATURES[feature]
    texts = {name: json.dumps(one, sort_keys=True) for name, one in specifications.items()}
    assert {name for name, text in texts.items() if re.search(pattern, text)} == set(names.split())


def test_the_pipelines_that_run_use_all_of_the_specification(specifications: dict[str, dict[str, Any]]) -> None:
    """A field of a compiled pipeline is run, or listed as one that is not.

    Source (read): pipeline_spec.proto of kfp-pipeline-spec.
    """
    used: set[str] = set()
    for one in specifications.values():
        used |= set(_set_fields(json_format.ParseDict(one, PipelineSpec())))
        used |= set(_set_fields(json_format.ParseDict(one["deploymentSpec"], PipelineDeploymentConfig())))
    fields = {*_fields(PipelineSpec.DESCRIPTOR, set()), *_fields(PipelineDeploymentConfig.DESCRIPTOR, set())}
    listed = {name for names in NOT_RUN.values() for name in names.split()}
    absent = {field for field in fields if listed & {field, field.partition(".")[0]}}
    assert (used & absent, fields - used - absent) == (set(), set())
    assert listed <= {*fields, *(field.partition(".")[0] for field in fields)}


def _set_fields(message: Message) -> Iterator[str]:
    """Yield the fields that a message and those in it have, as MESSAGE.FIELD."""
    for field, value in message.ListFields():
        yield f"{message.DESCRIPTOR.name}.{field.name}"
        values = value.values() if isinstance(value, Mapping) else value if field.is_repeated else [value]
        for each in values:
            if isinstance(each, Message) and each.DESCRIPTOR.file == message.DESCRIPTOR.file:
                yield from _set_fields(each)


def _fields(message: Descriptor, seen: set[str]) -> Iterator[str]:
    """Yield all fields of a message and of those in it, as MESSAGE.FIELD."""
    if message.full_name in seen:
        return
    seen.add(message.full_name)
    for field in message.fields:
        if not message.GetOptions().map_entry:
            yield f"{message.name}.{field.name}"
        if field.message_type and field.message_type.file == message.file:
            yield from _fields(field.message_type, seen)


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
        (pipelines.choice, "conditions other than the equality with a text, dsl.OneOf"),
        (pipelines.numbers, "conditions other than the equality with a text"),
        (pipelines.imported, "executors of the kind importer"),
        (pipelines.accelerated, "accelerators of a step"),
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
