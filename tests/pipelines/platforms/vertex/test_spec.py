"""The spec that `slipway config compile --target vertex` writes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from slipway.components.plan_training.plan import plan_training
from slipway.pipelines.cli.app import app
from slipway.pipelines.config.config import validate
from slipway.pipelines.hardware import parse
from slipway.pipelines.platforms.base import CheckWarning, Context
from slipway.pipelines.platforms.table import PLATFORMS
from slipway.trainer.config import TrainSettings

IMAGE = "europe-west4-docker.pkg.dev/p/slipway/trainer@sha256:" + "0" * 64
VERTEX = {
    "project": "p",
    "region": "europe-west4",
    "bucket": "gs://p-slipway",
    "image": IMAGE,
    "serving_image": "europe-docker.pkg.dev/p/serving@sha256:" + "1" * 64,
    "service_account": "runner@p.iam.gserviceaccount.com",
}


def compiled(folder: Path, hardware: str, *options: str) -> dict[str, Any]:
    values = yaml.safe_load(Path("configs/digits.yaml").read_text()) | {"vertex": VERTEX}
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    place = folder / "spec.yaml"
    told = ["-c", str(folder / "run.yaml"), "--target", "vertex", "--hardware", hardware, "-o", str(place), *options]
    result = CliRunner().invoke(app, ["config", "compile", *told])
    assert result.exit_code == 0, result.output
    return yaml.safe_load(place.read_text())


@pytest.fixture(scope="module")
def specification(tmp_path_factory) -> dict[str, Any]:
    return compiled(tmp_path_factory.mktemp("spec"), "cpu*4")


def executors(specification: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the executors by component name."""
    found = specification["deploymentSpec"]["executors"]
    return {
        name: found[component["executorLabel"]]
        for name, component in specification["components"].items()
        if "executorLabel" in component
    }


@pytest.mark.parametrize(
    ("hardware", "fix"),
    [("h100x2*2", "--hardware 'h100x2*2+spot', or +flex"), ("h100x2+flex", None), ("h100x8", None), ("l4x1", None)],
)
def test_a_machine_that_compute_engine_offers_in_some_ways_only_is_doubtful(hardware: str, fix: str | None) -> None:
    values = yaml.safe_load(Path("configs/digits.yaml").read_text()) | {"vertex": VERTEX, "hardware": hardware}
    context = Context(validate(values, "the test"), PLATFORMS["vertex"], False, Path.cwd())
    if fix is None:
        PLATFORMS["vertex"].check_hardware(context)
        return
    with pytest.raises(CheckWarning, match="a3-highgpu-2g only as SPOT or FLEX_START") as doubt:
        PLATFORMS["vertex"].check_hardware(context)
    assert doubt.value.fix == fix


def test_it_is_a_pipeline_spec_that_vertex_reads(specification):
    from google.protobuf import json_format
    from kfp.pipeline_spec.pipeline_spec_pb2 import ParameterType, PipelineSpec

    message = json_format.ParseDict(specification, PipelineSpec())
    assert message.pipeline_info.name == "digits"
    types = {
        name: ParameterType.ParameterTypeEnum.Name(parameter.parameter_type)
        for name, parameter in message.root.input_definitions.parameters.items()
    }
    assert types == {
        "data_source": "STRING",
        "epochs": "NUMBER_DOUBLE",
        "batch_size": "NUMBER_INTEGER",
        "learning_rate": "NUMBER_DOUBLE",
        "seed": "NUMBER_INTEGER",
        "gate_minimum": "NUMBER_DOUBLE",
    }


def test_train_is_a_custom_job_fed_by_the_plan(specification):
    command = executors(specification)["comp-custom-training-job"]["container"]
    assert command["command"][-1] == "google_cloud_pipeline_components.container.v1.custom_job.launcher"
    inputs = specification["root"]["dag"]["tasks"]["custom-training-job"]["inputs"]["parameters"]
    assert inputs["worker_pool_specs"]["taskOutputParameter"] == {
        "producerTask": "plan-training",
        "outputParameterKey": "Output",
    }
    assert specification["components"]["comp-plan-training"]["outputDefinitions"]["parameters"]["Output"] == {
        "parameterType": "LIST"
    }
    assert inputs["location"]["runtimeValue"]["constant"] == "europe-west4"
    assert inputs["base_output_directory"]["runtimeValue"]["constant"].startswith(
        "gs://p-slipway/runs/{{$.pipeline_job_name}}"
    )


def test_the_pools_are_the_hardwares(specification):
    inputs = specification["root"]["dag"]["tasks"]["plan-training"]["inputs"]["parameters"]
    pools = inputs["pools"]["runtimeValue"]["constant"]
    assert [pool["replica_count"] for pool in pools] == [1, 3]


@pytest.mark.parametrize(("engine", "readers"), [("pytorch", 8), ("tensorflow", 2)])
def test_the_data_set_has_a_shard_for_each_process_that_reads_it(tmp_path, engine, readers):
    made = compiled(tmp_path, "l4x4*2", "--set", f"train.engine={engine}")
    told = made["root"]["dag"]["tasks"]["prepare-data"]["inputs"]["parameters"]
    assert told["replicas"]["runtimeValue"]["constant"] == readers


def test_the_hosts_of_a_tpu_slice_read_and_restart_as_replicas_do(tmp_path):
    made = compiled(tmp_path, "tpu-v6e-4x4", "--set", "train.engine=jax")
    tasks = made["root"]["dag"]["tasks"]
    told = {name: task["inputs"]["parameters"] for name, task in tasks.items() if "parameters" in task["inputs"]}

    def constant(task: str, name: str) -> Any:
        return told[task][name]["runtimeValue"]["constant"]

    assert (constant("plan-training", "hosts"), constant("plan-training", "devices")) == (4, 16)
    assert constant("prepare-data", "replicas") == 4
    assert constant("custom-training-job", "restart_job_on_worker_restart") is True


def test_our_steps_run_in_the_configured_image(specification):
    ours = {name: executor for name, executor in executors(specification).items() if "custom-training" not in name}
    images = {executor["container"]["image"] for name, executor in ours.items() if "container" in executor}
    assert images == {IMAGE}


def test_the_model_is_registered_only_on_promote_in_the_runs_region(specification):
    condition = next(
        task for name, task in specification["root"]["dag"]["tasks"].items() if name.startswith("condition")
    )
    assert "== 'promote'" in condition["triggerPolicy"]["condition"]
    inner = next(c for name, c in specification["components"].items() if name.startswith("comp-condition"))
    inputs = inner["dag"]["tasks"]["register-version"]["inputs"]["parameters"]
    place = json.loads(inputs["place"]["runtimeValue"]["constant"])
    assert (place["project"], place["region"]) == ("p", "europe-west4")
    assert inputs["champion"] == {"componentInputParameter": "pipelinechannel--find-champion-version"}
    assert specification["components"]["comp-register-version"]["outputDefinitions"]["artifacts"]["registered"][
        "artifactType"
    ] == {"schemaTitle": "google.VertexModel", "schemaVersion": "0.0.1"}


def test_steps_are_retried_and_training_is_not(specification):
    tried = {
        name: task.get("retryPolicy", {}).get("maxRetryCount", 0)
        for name, task in specification["root"]["dag"]["tasks"].items()
    }
    assert tried["custom-training-job"] == 0
    assert tried["prepare-data"] == tried["evaluate"] == 1


def test_a_steps_resources_are_limits_of_the_task_that_does_its_work(tmp_path):
    told = ["--set", "vertex.steps.prepare_data.memory=64G", "--set", "vertex.steps.evaluate={cpu: 8, memory: 30Gi}"]
    found = executors(compiled(tmp_path, "cpu", *told))
    resources = {
        name: found[name]["container"]["resources"] for name in found if "resources" in found[name]["container"]
    }
    assert resources == {
        "comp-prepare-data": {"memoryLimit": 64.0, "resourceMemoryLimit": "64G"},
        "comp-evaluate": {
            "cpuLimit": 8.0,
            "resourceCpuLimit": "8",
            "memoryLimit": 33.0,
            "resourceMemoryLimit": "33G",
        },
    }


def test_a_step_on_a_larger_disk_is_a_custom_job_as_the_runs_account(tmp_path):
    key = "projects/p/locations/europe-west4/keyRings/r/cryptoKeys/k"
    told = ["--set", "vertex.steps.prepare_data={memory: 64G, disk: 500G}", "--set", f"vertex.encryption_key={key}"]
    made = compiled(tmp_path, "cpu", *told)
    found = made["components"]["comp-prepare-data"]
    given = {name: value.get("defaultValue") for name, value in found["inputDefinitions"]["parameters"].items()}
    (pool,) = given["worker_pool_specs"]
    assert pool["machine_spec"] == {"machine_type": "e2-highmem-8"}
    assert pool["disk_spec"] == {"boot_disk_type": "pd-ssd", "boot_disk_size_gb": 500}
    assert pool["container_spec"]["image_uri"] == IMAGE
    assert (given["service_account"], given["encryption_spec_key_name"]) == (VERTEX["service_account"], key)
    assert set(found["outputDefinitions"]["artifacts"]) == {"dataset", "statistics"}
    container = executors(made)["comp-prepare-data"]["container"]
    assert container["command"][-1] == "google_cloud_pipeline_components.container.v1.custom_job.launcher"
    assert "resources" not in container
    # Every placeholder of the launcher's payload has a value.
    tasks = made["root"]["dag"]["tasks"]
    passed = {name for name, value in given.items() if value is not None}
    passed |= set(tasks["prepare-data"]["inputs"]["parameters"])
    assert set(re.findall(r"inputs\.parameters\['(\w+)'\]", json.dumps(container["args"]))) <= passed
    assert "setup-access" in tasks["prepare-data"]["dependentTasks"]
    assert tasks["prepare-data"]["retryPolicy"]["maxRetryCount"] == 1


def test_a_configuration_without_a_vertex_section_is_refused(tmp_path):
    output = tmp_path / "spec.yaml"
    result = CliRunner().invoke(
        app, ["config", "compile", "-c", "configs/digits.yaml", "--target", "vertex", "-o", str(output)]
    )
    assert result.exit_code == 2
    assert "vertex" in result.stderr
    assert not output.exists()


@pytest.mark.slow
def test_only_searches_import_the_library_of_vertex_ai() -> None:
    """Its import takes several seconds of a core."""
    code = "import sys, slipway.pipelines.platforms.vertex.steps; print('google.cloud.aiplatform' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_dataflow_runs_in_the_runs_project_as_its_account(tmp_path):
    from slipway.pipelines.config.config import validate
    from slipway.pipelines.platforms.vertex.images import Images
    from slipway.pipelines.platforms.vertex.steps import VertexSteps

    vertex = {**VERTEX, "labels": {"team": "vision"}, "endpoints": {"dataflow": "dataflow.p.internal"}}
    values = yaml.safe_load(Path("configs/digits.yaml").read_text()) | {"vertex": vertex}
    values["data"]["beam"] = {"runner": "DataflowRunner", "options": {"region": "europe-west1"}}
    config = validate(values, "the test")
    beam = VertexSteps(config.vertex, Images.one(IMAGE), trained=False).data(config.data).beam
    assert beam.options == {
        "project": "p",
        "region": "europe-west1",
        "temp_location": "gs://p-slipway/dataflow",
        "labels": ["team=vision"],
        "service_account_email": "runner@p.iam.gserviceaccount.com",
        "dataflow_endpoint": "https://dataflow.p.internal",
    }
    values["data"]["beam"] = {"runner": "DirectRunner"}
    config = validate(values, "the test")
    assert VertexSteps(config.vertex, Images.one(IMAGE), trained=False).data(config.data).beam.options == {}


@pytest.mark.parametrize(("data", "parameter"), [(None, set()), ({"uri": "gs://rows/2026"}, {"data_uri"})])
def test_a_program_with_its_own_data_and_image_has_no_step_that_prepares_or_builds(
    tmp_path: Path, data: dict[str, str] | None, parameter: set[str]
) -> None:
    own = f"europe-docker.pkg.dev/p/own/torch@sha256:{'2' * 64}"
    values = {"name": "own", "train": {"image": own, "arguments": ["--lr", "0.1"]}, "vertex": VERTEX}
    gate = {"gate": {"metric": "rmse", "maximum": 3}}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({**values, "data": data, "evaluate": gate}))
    place = tmp_path / "spec.yaml"
    told = ["-c", str(tmp_path / "own.yaml"), "--target", "vertex", "--hardware", "h100x8*2", "-o", str(place)]
    result = CliRunner().invoke(app, ["config", "compile", *told])
    assert result.exit_code == 0, result.output
    specification = yaml.safe_load(place.read_text())
    tasks = specification["root"]["dag"]["tasks"]
    assert not {"prepare-data", "build-image"} & set(tasks)
    assert set(specification["root"]["inputDefinitions"]["parameters"]) == {"argument_lr", "gate_maximum"} | parameter
    given = tasks["plan-training"]["inputs"]
    assert "artifacts" not in given
    assert ("componentInputParameter" in given["parameters"]["uri"]) == bool(parameter)
    evaluated = tasks["evaluate"]["inputs"]
    assert set(evaluated["artifacts"]) == {"model"}
    train = TrainSettings.model_validate(values["train"])
    pools = parse("h100x8*2").worker_pools()
    planned = plan_training(pools, 8, None, "gs://rows/2026" if data else "", None, train, IMAGE)
    assert planned.worker_pool_specs[1]["container_spec"] == {
        "image_uri": own,
        "args": ["--lr", "0.1"],
        "env": [
            *([{"name": "SLIPWAY_DATA", "value": "gs://rows/2026"}] if data else []),
            {"name": "SLIPWAY_ACCELERATORS", "value": "gpu:8"},
        ],
    }
