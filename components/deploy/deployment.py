"""The deployment of a registered version, in the pipeline's step."""

from __future__ import annotations

import logging

from slipway.components.cloud.connection import Connection
from slipway.components.deploy.rollout import Outcome, roll_out
from slipway.components.deploy.service import Endpoints
from slipway.components.deploy.settings import Deployment
from slipway.core import events
from slipway.core.errors import UserError
from slipway.core.values import JsonObject

logger = logging.getLogger(__name__)


def deploy_registered(connection: Connection, deployment: Deployment, registered: JsonObject) -> Outcome | None:
    """Roll out the version that `register_version` has registered; None if it is not the champion.

    Args:
        connection: The connection to the endpoint's project and region.
        deployment: The endpoint.
        registered: The metadata of the registered version.

    Raises:
        UserError: A check failed, and the previous model has all traffic again.
    """
    if not registered["champion"]:
        _say("The version is not the champion, so it is not deployed.")
        return None
    endpoints = Endpoints(connection)
    version = endpoints.version(deployment.model, str(registered["resourceName"]).rpartition("@")[2])
    outcome = roll_out(endpoints, deployment, version, _say)
    if outcome.status == "rolled back":
        raise UserError(
            f"{outcome.version} was withdrawn from {deployment.name}: {outcome.reason}",
            fix="slipway endpoints show; the version stays registered",
        )
    return outcome


def _say(line: str) -> None:
    logger.info(line)
    events.message(line)
