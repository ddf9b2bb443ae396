"""The end of the step train on Vertex AI as a function for pipelines; see `slipway.steps`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from slipway.components.tasks import Place, add
from slipway.components.train.vertex import component

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask

    from slipway.components.tasks import Artifact, Text


def collect_model(
    job: Text,
    output: Text,
    dataset: Artifact | None = None,
    *,
    connection: Mapping[str, object] | None = None,
    image: Place = "",
) -> PipelineTask:
    """Publish the model of a finished custom job, or of the best trial of a search.

    Outputs: `model`, `metrics` of the validation split.

    Args:
        job: The output `gcp_resources` of CustomTrainingJobOp or HyperparameterTuningJobRunOp; "" if the job ended in
            an earlier attempt of the run.
        output: The job's base output directory, a gs:// URI.
        dataset: The prepared data set on which the model was trained, if there is one.
        connection: As for `find_champion`, if the job is a search; None for a custom job.
        image: The container image of the task.
    """
    place = json.dumps(connection) if connection else ""
    return add(component.collect_model, image, job=job, output=output, place=place, dataset=dataset)
