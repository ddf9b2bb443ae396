"""The step register_model on Vertex AI as functions for pipelines; see `slipway.steps`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from slipway.components.register_model.vertex import component
from slipway.components.tasks import Place, add

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask

    from slipway.components.tasks import Artifact, Text


def find_champion(connection: Mapping[str, object], model_name: Text, *, image: Place = "") -> PipelineTask:
    """Find the champion in Vertex AI Model Registry. Outputs: `uri` (gs://) and `version`; "" if there is none yet.

    Args:
        connection: `project`, `region` and optionally `endpoints` (host by service).
        model_name: The model's name in the registry.
        image: The container image of the task.
    """
    return add(component.find_champion, image, place=json.dumps(connection), model_name=model_name)


def register_version(
    model: Artifact,
    metrics: Artifact,
    verdict: Text,
    *,
    connection: Mapping[str, object],
    model_name: str,
    container: Mapping[str, object],
    run_id: Text,
    job: Text,
    labels: Mapping[str, str] | None = None,
    encryption_key: str | None = None,
    champion: Text = "none",
    image: Place = "",
) -> PipelineTask:
    """Register a promoted model as the champion in Vertex AI Model Registry. Output: `registered`.

    Args:
        model: The trained model.
        metrics: The metrics of `evaluate`.
        verdict: The verdict of `evaluate`; must be "promote".
        connection: As for `find_champion`.
        model_name: The model's name in the registry.
        container: The container that serves the model, with the fields of Vertex AI's ModelContainerSpec: `image_uri`;
            `command`, `ports`, `predict_route`, `health_route` and `env`, if the image needs them.
        run_id: The run that trained it; each run is registered once.
        job: The pipeline job's resource name, such as `dsl.PIPELINE_JOB_RESOURCE_NAME_PLACEHOLDER`.
        labels: The model's labels.
        encryption_key: The Cloud KMS key that encrypts the model.
        champion: The version that `evaluate` compared with; "" if there was none, "none" to skip the comparison.
        image: The container image of the task.
    """
    candidate = {
        "model": model_name,
        "container": dict(container),
        "labels": dict(labels or {}),
        "encryption_key": encryption_key,
    }
    return add(
        component.register_version,
        image,
        place=json.dumps(connection),
        candidate=json.dumps(candidate),
        run_id=run_id,
        job=job,
        verdict=verdict,
        champion=champion,
        model=model,
        metrics=metrics,
    )
