"""Registration of a trained model and its metadata in Vertex AI's Model Registry."""

from __future__ import annotations

import json
import logging

from slipway.components.cloud.connection import Connection
from slipway.components.evaluate.gate import INTERVALS, UNCHECKED
from slipway.components.register_model.registration import NONE_ASKED, check_promoted, numeric
from slipway.components.register_model.vertex.model_registry import Candidate, ModelRegistry, RegisteredVersion
from slipway.core import events
from slipway.core.values import JsonObject

logger = logging.getLogger(__name__)


def register_in_model_registry(
    connection: Connection,
    candidate: JsonObject,
    *,
    run_id: str,
    job: str,
    verdict: str,
    champion: str,
    uri: str,
    metrics: JsonObject,
    parameters: str = "",
) -> tuple[RegisteredVersion, str | None]:
    """Register the model at `uri` in Vertex AI's Model Registry; see the component for the arguments.

    `parameters` are those of a search's best trial by name, JSON.

    Returns:
        The version, and the reason if it is not the champion.

    Raises:
        ValueError: The verdict is not "promote".
    """
    check_promoted(verdict)
    registered, note = ModelRegistry(connection).register(
        Candidate(
            run_id=run_id,
            uri=uri,
            job=job,
            metrics=numeric(metrics),
            intervals=metrics.get(INTERVALS, {}),
            note=str(metrics.get(UNCHECKED, "")),
            parameters=json.loads(parameters or "{}"),
            **candidate,
        ),
        None if champion == NONE_ASKED else champion,
    )
    if note:
        events.message(note)
        logger.warning(note)
    return registered, note
