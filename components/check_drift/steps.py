"""The step check_drift as a function for pipelines; see `slipway.steps`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipway.components.check_drift import component
from slipway.components.tasks import Place, add

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask

    from slipway.components.tasks import Artifact, Text


def check_drift(dataset: Artifact, *, champion: Text, image: Place = "") -> PipelineTask:
    """Compare a data set with that of the champion. Outputs: `Output` ("drift" or "same"), `page` (an HTML page).

    Args:
        dataset: A prepared data set, in the store that has the champion's.
        champion: Folder or gs:// URI of the registered model; "" if there is none yet.
        image: The container image of the task.
    """
    return add(component.check_drift, image, dataset=dataset, champion=champion)
