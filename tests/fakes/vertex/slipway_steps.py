"""Outputs of Slipway's steps without running them; only the plan is computed, and BACKGROUND is run for real."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from google.cloud import aiplatform_v1 as vertex

from slipway.components.inputs import read
from slipway.components.plan_training.plan import plan_training
from slipway.core import manifest
from slipway.core.manifest import Manifest, Shard, Split
from slipway.core.values import whole_numbers
from slipway.trainer.config import ModelSettings, TrainSettings

EXAMPLES = 60_000
SHARDS = 64


def outputs_of(task: str, inputs: Mapping[str, Any], artifacts: Mapping[str, vertex.Artifact]) -> dict[str, Any]:
    """Return a step's output parameters by task name."""
    if task == "plan-training":
        values = whole_numbers(dict(inputs))
        data = artifacts["dataset"].uri
        plan = plan_training(
            pools=values["pools"],
            devices=int(inputs["devices"]),
            manifest=_manifest() if data.startswith("gs://") else manifest.read(Path(data)),
            data=data,
            model=read(ModelSettings, "model", inputs["model"], values),
            train=read(TrainSettings, "train", inputs["train"], values),
            image=inputs["image"],
            hosts=int(inputs["hosts"]),
            metric=inputs.get("metric", ""),
        )
        return {"Output": plan.worker_pool_specs}
    if task == "check-drift":
        return {"Output": "drift"}
    if task == "evaluate":
        return {"Output": "promote"}
    if task == "collect-model":
        return {"Output": f"{inputs['output']}/model"}
    return {}


def artifacts_of(task: str, root: str, outputs: Mapping[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return a step's output artifacts by name: URI and metadata."""
    place = f"{root}/{task}"
    if task == "prepare-data":
        return {"dataset": ("gs://bucket/datasets/digits/0", {"examples": {"train": EXAMPLES, "test": 10_000}})}
    if task == "check-drift":
        decision = outputs["Output"]
        return {"page": (f"{place}/page", {"decision": decision, "reason": f"{decision}, says the script"})}
    if task == "collect-model":
        return {
            "model": (outputs["Output"], {"engine": "tensorflow"}),
            "metrics": (f"{place}/metrics", {"loss": 0.0612, "accuracy": 0.9812}),
        }
    if task == "evaluate":
        return {
            "metrics": (f"{place}/metrics", {"loss": 0.0594, "accuracy": 0.9833}),
            "report": (f"{place}/report", {"decision": outputs["Output"], "reasons": "There is no champion yet."}),
        }
    if task == "register-version":
        name = "projects/123456789012/locations/europe-west4/models/digits@1"
        uri = f"https://europe-west4-aiplatform.googleapis.com/v1/{name}"
        return {"registered": (uri, {"resourceName": name, "champion": True})}
    return {}


def best_of(job: vertex.HyperparameterTuningJob) -> tuple[str, dict[str, Any]]:
    """Return URI and metadata of the model that the step collects of a search."""
    trials = [trial for trial in job.trials if trial.state == vertex.Trial.State.SUCCEEDED]
    best = max(trials, key=lambda trial: trial.final_measurement.metrics[0].value)
    uri = f"{job.trial_job_spec.base_output_directory.output_uri_prefix}/{best.id}/model"
    values = {one.parameter_id: one.value for one in best.parameters}
    return uri, {"engine": "tensorflow", "trial": best.id, "parameters": json.dumps(values)}


def notify(inputs: dict[str, Any], _: Mapping[str, vertex.Artifact]) -> dict[str, Any]:
    """Run the exit task notify for real, by kfp's executor: it converts the final status for the function."""
    from kfp.dsl.executor import Executor

    from slipway.components.notify.component import notify as component

    with tempfile.TemporaryDirectory() as folder:
        outputs = {"outputFile": f"{folder}/outputs.json"}
        Executor({"inputs": {"parameterValues": inputs}, "outputs": outputs}, component.python_func).execute()
    return {}


def deploy(inputs: dict[str, Any], artifacts: Mapping[str, vertex.Artifact]) -> dict[str, Any]:
    """Run the step deploy for real; return its output."""
    from slipway.components.deploy.component import deploy_model

    return {"Output": deploy_model.python_func(**inputs, registered=artifacts["registered"])}


# Tasks that call the service themselves, by name.
BACKGROUND: Mapping[str, Callable[[dict[str, Any], Mapping[str, vertex.Artifact]], dict[str, Any]]] = {
    "notify": notify,
    "deploy-model": deploy,
}


def _manifest() -> Manifest:
    """A prepared data set of MNIST's size, with enough shards for any job here."""
    classes = [str(digit) for digit in range(10)]
    each = EXAMPLES // SHARDS

    def split(name: str, shards: int) -> Split:
        made = [Shard(file=f"{name}-{number:05d}", examples=each, bytes=1, sha256="0" * 64) for number in range(shards)]
        return Split(examples=each * shards, classes=dict.fromkeys(classes, each * shards // 10), shards=made)

    return Manifest(
        name="digits",
        fingerprint="0" * 64,
        source="digits",
        settings={},
        classes=classes,
        image_size=(28, 28),
        channels=1,
        resize=False,
        encodings=["png"],
        splits={"train": split("train", SHARDS), "validation": split("validation", 1)},
    )
