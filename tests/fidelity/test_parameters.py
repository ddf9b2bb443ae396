"""Rules for the parameters of pipelines, with Google's and Kubeflow's clients."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import Client, compiler, dsl

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import status_of
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.kubeflow import FakeKubeflow
from tests.fakes.ready import BUCKET, RUNNER, vertex_settings


@dsl.component(base_image="python:3.11")
def show(rate: float, count: int, name: str, fields: dict):
    print(rate, count, name, fields)


@dsl.pipeline(name="parameters")
def pipeline(name: str, rate: float = 0.1, count: int = 3, loud: bool = False):
    show(rate=rate, count=count, name=name, fields={"name": name, "loud": loud})


@pytest.fixture
def run(ready_google: FakeGoogle, tmp_path: Path) -> Any:
    """Create a job of the pipeline on Vertex AI; return the inputs of its task when it has ended."""
    compiler.Compiler().compile(pipeline, str(tmp_path / "spec.yaml"))
    image = vertex_settings(ready_google)["image"]
    specification = yaml.safe_load((tmp_path / "spec.yaml").read_text().replace("python:3.11", image))

    def created(**values: Any) -> dict[str, Any]:
        client = Connection(PROJECT, REGION, ready_google.endpoints).pipelines
        config = {"gcs_output_directory": f"gs://{BUCKET}/p", "parameter_values": values}
        job = {"display_name": "p", "pipeline_spec": specification, "service_account": RUNNER, "runtime_config": config}
        made = client.create_pipeline_job(
            parent=f"projects/{PROJECT}/locations/{REGION}", pipeline_job=job, pipeline_job_id="p"
        )
        [task] = ready_google.region.pipelines.run_to_end(made.name).job_detail.task_details
        inputs = {name.removeprefix("input:"): value for name, value in task.execution.metadata.items()}
        assert client.get_pipeline_job(name=made.name).state.name == "PIPELINE_STATE_SUCCEEDED"
        return inputs

    return created


def refused(call: Any, sentence: str, **values: Any) -> None:
    with pytest.raises(Exception, match=re.escape(sentence)) as error:
        call(**values)
    assert status_of(error.value) == 400


def test_a_parameters_value_replaces_its_default(run: Any) -> None:
    """A value in parameter_values takes the place of the default in the spec, and reaches the task with its type.

    Source (read): proto of PipelineJob.RuntimeConfig, parameter_values ("passed into PipelineJob.pipeline_spec to
    replace the placeholders at runtime"); pipeline_spec.proto, ComponentInputsSpec.ParameterSpec.default_value.
    """
    inputs = run(name="first", rate=0.25)
    assert (inputs["rate"], inputs["count"], inputs["name"]) == (0.25, 3.0, "first")


def test_a_parameter_that_is_not_defined_is_refused(run: Any) -> None:
    """A name that is no input of the pipeline is refused.

    Source (read): PipelineRuntimeConfigBuilder of google-cloud-aiplatform refuses it before sending ("is not found in
    the pipeline job input definitions").
    """
    refused(run, "other is not defined in the pipeline", name="first", other=1)


def test_a_parameter_without_a_default_needs_a_value(run: Any) -> None:
    """An input that is not optional and has no default must be given.

    Source (read): pipeline_spec.proto, ComponentInputsSpec.ParameterSpec.is_optional ("Whether this input parameter is
    optional or not", required otherwise).
    """
    refused(run, "name is required and has no value", rate=0.5)


@pytest.mark.parametrize("values", [{"rate": "0.5"}, {"count": True}, {"name": 5}, {"loud": 1}, {"rate": None}])
def test_a_value_has_the_type_of_its_parameter(run: Any, values: dict[str, Any]) -> None:
    """A number is not accepted as text, nor text, a truth value or null as a number.

    Source (read): pipeline_spec.proto, ParameterType.ParameterTypeEnum; validatePipelineJobInputs in the API server of
    Kubeflow Pipelines (backend/src/apiserver/template/v2_template.go) for the same spec.
    """
    refused(run, "value of the wrong type", **{"name": "first", **values})


def test_a_placeholder_inside_a_constant_mapping_is_text(run: Any) -> None:
    """What KFP compiles for a parameter inside a mapping or list does not become its value.

    Source (reported): reported in kubeflow/pipelines issues 11504 (worker_pool_specs on Vertex AI) and 12040 (lists and
    mappings).
    """
    assert "{{$.inputs.parameters[" in run(name="first")["fields"]["name"]


@pytest.fixture
def kubeflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubeflow]:
    with FakeKubeflow() as server:
        yield server


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"name": "first", "rate": "0.5"}, "input parameter rate requires type double or integer"),
        ({"name": "first", "loud": 1}, "input parameter loud requires type bool"),
        ({"name": 5}, "input parameter name requires type string"),
        ({"rate": 0.5}, "parameter name is not optional, yet has neither default value nor user provided value"),
        ({"name": "first", "other": 1}, "parameter(s) provided are not required by pipeline: other"),
    ],
)
def test_kubeflow_checks_the_names_and_types_of_parameters(
    kubeflow: FakeKubeflow, tmp_path: Path, values: dict[str, Any], sentence: str
) -> None:
    """Unknown and missing parameters, and values of another type, are refused when a run is created.

    Source (read): validatePipelineJobInputs in Kubeflow Pipelines, backend/src/apiserver/template/v2_template.go, and
    tests.
    """
    compiler.Compiler().compile(pipeline, str(tmp_path / "spec.yaml"))
    client = Client(host=kubeflow.host)
    with pytest.raises(Exception, match=re.escape(sentence)):
        client.create_run_from_pipeline_package(str(tmp_path / "spec.yaml"), arguments=values, run_name="r")
    assert not kubeflow.runs
    client.create_run_from_pipeline_package(str(tmp_path / "spec.yaml"), arguments={"name": "first"}, run_name="r")
    assert len(kubeflow.runs) == 1
