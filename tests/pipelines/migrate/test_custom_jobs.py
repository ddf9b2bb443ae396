"""Jobs as people have them today: custom jobs, TFX's arguments, other spellings, built-in algorithms, learners."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, load
from slipway.pipelines.migrate.migration import Migration, from_arguments, migrate

IMAGE = "us-central1-docker.pkg.dev/my-project/r/train:1"
POOL = {
    "machineSpec": {"machineType": "g2-standard-8", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1},
    "replicaCount": 1,
    "containerSpec": {"imageUri": IMAGE, "args": ["--model_name=m"]},
}
TUNED = {
    "goal": "MINIMIZE",
    "hyperparameterMetricTag": "val_mae",
    "maxTrials": 4,
    "params": [{"parameterName": "lr", "type": "DOUBLE", "minValue": 0.001, "maxValue": 0.1}],
}
MACHINE = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", "region": "us-central1"}
BODIES: dict[str, Any] = {
    "a pool that is no list": {"workerPoolSpecs": POOL},
    "a custom job": {
        "displayName": "train-it",
        "jobSpec": {"workerPoolSpecs": [POOL, {**POOL, "replicaCount": 3}], "serviceAccount": "r@p.example.com"},
        "labels": {"my_team": "a_b"},
    },
    "Python's names": {"display_name": "x", "job_spec": {"worker_pool_specs": [
        {"machine_spec": {"machine_type": "n1-standard-4"}, "container_spec": {"image_uri": IMAGE}}]}},
    "TFX": {
        "project": "my-project", "region": "us-central1", "masterType": "n1-standard-16", "scaleTier": "CUSTOM",
        "masterConfig": {"imageUri": IMAGE, "acceleratorConfig": {"count": 1, "type": "NVIDIA_TESLA_T4"}},
    },
    "snake case": {"job_id": "a", "training_input": {
        "scale_tier": "CUSTOM", "master_type": "n1-standard-4", "python_module": "trainer.task"}},
    "a search": {"trainingInput": {**MACHINE, "pythonModule": "trainer.task", "hyperparameters": TUNED}},
    "a module with a hyphen": {"trainingInput": {**MACHINE, "pythonModule": "my-trainer.task"}},
    "a search of Vertex AI": {
        "displayName": "search",
        "studySpec": {
            "metrics": [{"metricId": "val_mae", "goal": "MINIMIZE"}],
            "parameters": [
                {"parameterId": "lr", "scaleType": "UNIT_LOG_SCALE",
                 "doubleValueSpec": {"minValue": 0.001, "maxValue": 1}},
                {"parameterId": "units", "discreteValueSpec": {"values": [64, 128]}},
                {"parameterId": "depth", "integerValueSpec": {"minValue": 1, "maxValue": 4}},
                {"parameterId": "kind", "categoricalValueSpec": {"values": ["a", "b"]}},
            ],
        },
        "maxTrialCount": 8, "parallelTrialCount": 2,
        "trialJobSpec": {
            "workerPoolSpecs": [{**POOL, "containerSpec": {"imageUri": IMAGE, "env": [{"name": "A", "value": "b"}]}}],
            "scheduling": {"strategy": "SPOT", "timeout": "7200s", "restartJobOnWorkerRestart": True},
            "tensorboard": "projects/p/locations/l/tensorboards/1",
        },
    },
    "actors and a learner": {"trainingInput": {
        **MACHINE, "masterType": "standard_p100", "masterConfig": {"imageUri": IMAGE}, "workerType": "standard",
        "workerCount": 32}},
    "a built-in algorithm": {"trainingInput": {
        **MACHINE, "masterConfig": {"imageUri": "gcr.io/cloud-ml-algos/image_classification:latest"}}},
}  # fmt: skip


def migrated(body: str) -> Migration:
    return migrate(json.dumps(BODIES[body]), source="job.json")


def config_of(migration: Migration, folder: Path, *changes: str) -> RunConfig:
    path = folder / "migrated.yaml"
    path.write_text(migration.yaml)
    return load(path, changes)


@pytest.mark.slow
@pytest.mark.parametrize("body", BODIES)
def test_every_file_that_is_written_compiles_for_vertex_ai(body: str, tmp_path: Path) -> None:
    from slipway.pipelines.platforms.vertex.images import Images
    from slipway.pipelines.platforms.vertex.submission import compile_pipeline

    image = "us-docker.pkg.dev/p/r/i@sha256:" + "0" * 64
    config = config_of(migrated(body), tmp_path, f"vertex.image={image}", f"vertex.serving_image={image}")
    compile_pipeline(config, Images.one(image), tmp_path / "spec.yaml")
    tasks = next(yaml.safe_load_all((tmp_path / "spec.yaml").read_text()))["root"]["dag"]["tasks"]
    assert "custom-training-job" in json.dumps(tasks)


@pytest.mark.parametrize(
    ("body", "hardware"),
    [
        ("a pool that is no list", "l4x1@g2-standard-8"),
        ("a custom job", "l4x1@g2-standard-8*4"),
        ("Python's names", "cpu@n1-standard-4"),
        ("TFX", "t4x1@n1-standard-16"),
        ("snake case", "cpu@n1-standard-4"),
        ("actors and a learner", "t4x1@n1-standard-8"),
        ("a search of Vertex AI", "l4x1@g2-standard-8+spot+timeout=2h+restart"),
    ],
)
def test_the_hardware_is_that_of_the_job(body: str, hardware: str) -> None:
    assert str(RunConfig.model_validate(migrated(body).configuration).training_hardware) in (
        hardware,
        hardware.split("@")[0],
    )


def test_a_custom_job_keeps_its_name_account_labels_and_arguments(tmp_path: Path) -> None:
    config = config_of(migrated("a custom job"), tmp_path)
    assert (config.name, config.train.image, config.train.arguments) == ("train-it", IMAGE, ("--model_name=m",))
    assert config.vertex is not None
    assert (config.vertex.service_account, config.vertex.labels) == ("r@p.example.com", {"my_team": "a_b"})
    assert "AI Platform" not in migrated("a custom job").yaml


def test_gcloud_creates_custom_jobs(tmp_path: Path) -> None:
    command = (
        "gcloud ai custom-jobs create --region=europe-west4 --display-name=it --project my-project "
        "--args=--epochs=3,--lr=0.1 "
        f"--worker-pool-spec=machine-type=n1-standard-8,replica-count=1,container-image-uri={IMAGE} "
        "--worker-pool-spec=machine-type=n1-standard-8,replica-count=2,container-image-uri=x:1"
    )
    config = config_of(from_arguments(command.split()), tmp_path)
    assert (config.name, config.train.image, config.train.arguments) == ("it", IMAGE, ("--epochs=3", "--lr=0.1"))
    assert config.vertex is not None
    assert (config.vertex.region, config.vertex.project, config.training_hardware.replicas) == (
        "europe-west4",
        "my-project",
        3,
    )
    with pytest.raises(UserError, match="There is no flag"):
        from_arguments([*command.split(), "--foo=1"])


def test_a_search_of_vertex_ai_keeps_its_study() -> None:
    tune = migrated("a search of Vertex AI").configuration["tune"]
    assert isinstance(tune, dict)
    assert (tune["metric"], tune["direction"], tune["trials"], tune["parallel"]) == ("val_mae", "minimize", 8, 2)
    assert tune["parameters"] == {
        "--lr": {"low": 0.001, "high": 1.0, "scale": "log"},
        "--units": {"choices": [64, 128]},
        "--depth": {"low": 1, "high": 4},
        "--kind": {"choices": ["a", "b"]},
    }
    with pytest.raises(UserError, match="no metrics or no parameters"):
        body = {**BODIES["a search of Vertex AI"], "studySpec": {"metrics": [{"metricId": "a"}]}}
        migrate(json.dumps(body), source="job.json")


def test_values_of_a_custom_job_without_a_setting_are_named(tmp_path: Path) -> None:
    dropped = migrated("a search of Vertex AI").dropped
    assert [text.partition(":")[0] for text in dropped] == [
        "trialJobSpec.workerPoolSpecs[0].containerSpec.env",
        "trialJobSpec.tensorboard",
    ]
    assert not migrated("a custom job").dropped
    search = json.loads(json.dumps(BODIES["a search of Vertex AI"]))
    search["studySpec"] |= {"measurementSelectionType": "BEST_MEASUREMENT", "medianAutomatedStoppingSpec": {}}
    search["studySpec"]["metrics"].append({"metricId": "loss"})
    search["studySpec"]["parameters"][3]["conditionalParameterSpecs"] = [{}]
    dropped = [text.partition(":")[0] for text in migrate(json.dumps(search), source="job.json").dropped]
    assert dropped[:3] == [
        "studySpec.metrics[1]",
        "studySpec.measurementSelectionType",
        "studySpec.parameters[3].conditionalParameterSpecs",
    ]
    body = {"workerPoolSpecs": [POOL], "scheduling": {"strategy": "CHEAP"}, "persistentResourceId": "r", "state": "X"}
    migration = migrate(json.dumps(body), source="job.json")
    assert "persistentResourceId: no setting has it" in migration.dropped
    assert any(text.startswith("scheduling.strategy CHEAP: known are") for text in migration.dropped)
    assert len(migration.dropped) == 2
    refused = {"workerPoolSpecs": [{**POOL, "machineSpec": {"machineType": "n1-standard-4"}}]}
    migration = migrate(json.dumps({**refused, "scheduling": {"strategy": "FLEX_START"}}), source="job.json")
    assert any("FLEX_START is dropped" in text for text in migration.decisions)


def test_gcloud_reads_the_file_of_a_job(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(BODIES["a search of Vertex AI"]))
    migration = from_arguments(f"gcloud ai hp-tuning-jobs create --config={file} --max-trial-count=3".split())
    tune = migration.configuration["tune"]
    assert isinstance(tune, dict)
    assert (tune["trials"], tune["parallel"]) == (3, 2)
    script = "gcloud ai custom-jobs create --worker-pool-spec=machine-type=n1-standard-4,script=trainer/task.py"
    train = from_arguments(script.split()).configuration["train"]
    assert isinstance(train, dict)
    assert train["module"] == "trainer.task"


def test_python_that_is_printed_runs_and_the_gate_has_the_metric_of_the_search(tmp_path: Path) -> None:
    migration = migrated("a search")
    text = " ".join(migration.decisions)
    (call,) = re.findall(r"slipway\.training\.report\(.*?\}\)", text)
    keywords = ast.literal_eval(ast.unparse(ast.parse(call.replace("value", "0.5")).body[0].value.keywords[-1].value))
    assert keywords == {"val_mae": 0.5}
    gate = config_of(migration, tmp_path).evaluate.gate
    assert (gate.metric, gate.direction) == ("val_mae", "minimize")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"maxTrials": "four"}, "hyperparameters.maxTrials is not a whole number"),
        ({"params": [{**TUNED["params"][0], "scaleType": "UNIT_LOG"}]}, "unknown scaleType UNIT_LOG"),
    ],
)
def test_a_search_that_cannot_be_read_is_refused(change: dict[str, Any], message: str) -> None:
    body = {"trainingInput": {**MACHINE, "pythonModule": "trainer.task", "hyperparameters": {**TUNED, **change}}}
    with pytest.raises(UserError, match=message):
        migrate(json.dumps(body), source="job.json")


def test_what_has_no_equivalent_is_a_decision() -> None:
    assert "the workers are dropped" in " ".join(migrated("actors and a learner").decisions)
    algorithm = migrated("a built-in algorithm")
    assert "whose code is not available" in " ".join(algorithm.decisions)
    assert "image" not in algorithm.configuration["train"]  # type: ignore[operator]
    assert migrated("a module with a hyphen").configuration["train"] == {"command": ["python", "-m", "my-trainer.task"]}
    with pytest.raises(UserError, match="replicaCount is not a whole number"):
        migrate(json.dumps({"workerPoolSpecs": [{**POOL, "replicaCount": "two"}]}), source="job.json")
