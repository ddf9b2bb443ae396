"""The request of a queued resource: its name, its container with the data set, and its body."""

from __future__ import annotations

import contextlib
import hashlib
import json
from datetime import datetime

from slipway.components.cloud.retries import paced
from slipway.components.train.tpu.bucket import BucketFolder
from slipway.components.train.tpu.lease import Holder
from slipway.components.train.tpu.service import OWNER_LABEL, POLL_SECONDS, PREFIX, RUN_LABEL, owner
from slipway.components.train.tpu.settings import TpuRequest
from slipway.components.train.tpu.startup import Startup
from slipway.components.worker_pools import Container
from slipway.core.paths import DATA_VARIABLE
from slipway.core.values import JsonObject

# The runs' folder in the bucket, and the lease in a run's folder.
RUNS, LEASE = "runs", "lease"
LONGEST_NAME = 63
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def name_of(run_id: str, attempt: int) -> str:
    """Return the name of a run's queued resource; a long run id is shortened to what distinguishes it."""
    name = f"{PREFIX}{run_id}-{attempt}"
    if len(name) <= LONGEST_NAME:
        return name
    ending = f"-{hashlib.sha256(run_id.encode()).hexdigest()[:8]}-{attempt}"
    return f"{PREFIX}{run_id}"[: LONGEST_NAME - len(ending)] + ending


def reading(container: Container, uri: str) -> Container:
    """Return a container that reads the data set at `uri`: in the trainer's configuration, or in the variable."""
    arguments = list(container.get("args", []))
    if "--config" in arguments:
        place = arguments.index("--config") + 1
        with contextlib.suppress(ValueError):  # another program's
            arguments[place] = json.dumps({**json.loads(arguments[place]), "data": uri})
    variables = [
        {"name": variable["name"], "value": uri if variable["name"] == DATA_VARIABLE else variable["value"]}
        for variable in container.get("env", [])
    ]
    return {**container, "args": arguments, "env": variables}


def body_of(
    request: TpuRequest, run_id: str, folder: BucketFolder, holder: Holder, container: Container, created: datetime
) -> JsonObject:
    """Return the body of a request: a QueuedResource with one node.

    The tiers `spot` and `guaranteed` exclude each other; a reservation is of the guaranteed tier. The container has the
    variables of a custom job's: https://cloud.google.com/vertex-ai/docs/training/code-requirements.

    Args:
        request: What to request.
        run_id: The run.
        folder: Its folder in the bucket.
        holder: The name, zone and number of the request.
        container: What the hosts run.
        created: The time, as the storage service has it.
    """
    settings, connection = request.settings, folder.connection
    startup = Startup(
        project=settings.project,
        zone=holder.zone,
        name=holder.holder,
        attempt=holder.attempt,
        bucket=folder.bucket,
        folder=folder.path,
        lease=f"{folder.path}/{LEASE}",
        lease_seconds=round(60 * settings.lease),
        max_seconds=round(3600 * settings.max_hours),
        deadline=round(created.timestamp() + 3600 * (settings.valid_for + settings.max_hours)),
        poll_seconds=paced(POLL_SECONDS),
        container=container,
        environment={
            "AIP_MODEL_DIR": folder.below("model").uri,
            "AIP_CHECKPOINT_DIR": folder.below("checkpoints").uri,
            "AIP_TENSORBOARD_LOG_DIR": folder.below("logs").uri,
            "PYTHONUNBUFFERED": "1",
        },
        addresses={name: connection.endpoint(name) for name in ("tpu", "storage")},
    )
    network = {"network": settings.network, "subnetwork": settings.subnetwork}
    node: JsonObject = {
        **request.accelerator,
        "runtimeVersion": request.runtime_version,
        "labels": {**settings.labels, RUN_LABEL: run_id, OWNER_LABEL: owner()},
        "metadata": {"startup-script": startup.script()},
        "networkConfig": {
            **{key: value for key, value in network.items() if value},
            "enableExternalIps": settings.external_ips,
        },
        "serviceAccount": {"email": settings.service_account, "scope": [SCOPE]},
    }
    parent = f"projects/{settings.project}/locations/{holder.zone}"
    body: JsonObject = {
        "tpu": {"nodeSpec": [{"parent": parent, "nodeId": holder.holder, "node": node}]},
        "queueingPolicy": {"validUntilDuration": f"{round(3600 * settings.valid_for)}s"},
    }
    if request.spot:
        body["spot"] = {}
    elif settings.guaranteed or settings.reservation:
        body["guaranteed"] = {}
    if settings.reservation:
        body["reservationName"] = settings.reservation
    return body
