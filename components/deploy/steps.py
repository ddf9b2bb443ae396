"""The step deploy as a function for pipelines; see `slipway.steps`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from slipway.components.deploy import component
from slipway.components.tasks import Place, add

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask

    from slipway.components.deploy.settings import Deployment
    from slipway.components.tasks import Artifact


def deploy_model(
    registered: Artifact,
    *,
    connection: Mapping[str, object],
    deployment: Deployment,
    image: Place = "",
) -> PipelineTask:
    """Deploy a registered champion to an endpoint on Vertex AI, step by step. Output: `Output`, the version's name.

    Args:
        registered: The version of `register_version`; one that is not the champion is not deployed.
        connection: As for `find_champion`.
        deployment: The endpoint, as `slipway.pipelines.platforms.vertex.endpoints.files` reads it from its file.
        image: The container image of the task.
    """
    return add(
        component.deploy_model,
        image,
        place=json.dumps(connection),
        deployment=deployment.model_dump_json(),
        registered=registered,
    )
