"""The request of a queued resource: its name, its container with the data set, its start-up script and its body."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from slipway.components.cloud.retries import paced
from slipway.components.cloud.rules import LEASE
from slipway.components.train.tpu.bucket import BucketFolder
from slipway.components.train.tpu.lease import Holder
from slipway.components.train.tpu.service import OWNER_LABEL, POLL_SECONDS, PREFIX, RUN_LABEL, owner
from slipway.components.train.tpu.settings import TpuRequest, TpuSettings
from slipway.components.worker_pools import Container
from slipway.core.exit_codes import UNAVAILABLE
from slipway.core.paths import DATA_VARIABLE
from slipway.core.values import JsonObject

# The runs' folder in the bucket, and the lease in a run's folder.
DATA = "data"
# Where the hosts write, below the run's folder in the bucket: the lines of a log in parts that are named by their time
# in nanoseconds, HOSTS/TRY-HOST/TIME.log, and the exit code of the container, HOSTS/TRY-HOST.exit.
HOSTS = "hosts"
SCRIPT = Path(__file__).with_name("startup.sh")
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
        position = arguments.index("--config") + 1
        with contextlib.suppress(ValueError):  # another program's
            arguments[position] = json.dumps({**json.loads(arguments[position]), "data": uri})
    variables = [
        {"name": variable["name"], "value": uri if variable["name"] == DATA_VARIABLE else variable["value"]}
        for variable in container.get("env", [])
    ]
    return {**container, "args": arguments, "env": variables}


def body_of(
    request: TpuRequest, run_id: str, folder: BucketFolder, holder: Holder, container: Container, created: datetime
) -> JsonObject:
    """Return the body of a request: a QueuedResource with one node.

    The tiers `spot` and `guaranteed` exclude each other; a reservation is of the guaranteed tier.

    Args:
        request: What to request.
        run_id: The run.
        folder: Its folder in the bucket.
        holder: The name, zone and number of the request.
        container: What the hosts run.
        created: The time, as the storage service has it.
    """
    settings = request.settings
    network = {"network": settings.network, "subnetwork": settings.subnetwork}
    node: JsonObject = {
        **request.accelerator,
        "runtimeVersion": request.runtime_version,
        "labels": {**settings.labels, RUN_LABEL: run_id, OWNER_LABEL: owner()},
        "metadata": {"startup-script": startup_script(settings, folder, holder, container, created)},
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


def startup_script(
    settings: TpuSettings, folder: BucketFolder, holder: Holder, container: Container, created: datetime
) -> str:
    """Return the start-up script of the hosts: the variables of one request, followed by `startup.sh`.

    Compute Engine runs it as root at every start of a machine
    (https://docs.cloud.google.com/compute/docs/instances/startup-scripts/linux). The container has the variables of a
    custom job's: https://cloud.google.com/vertex-ai/docs/training/code-requirements.
    """
    values = {
        "PROJECT": settings.project,
        "ZONE": holder.zone,
        "NAME": holder.holder,
        "TRY": holder.attempt,
        "BUCKET": folder.bucket,
        "FOLDER": folder.path,
        "LEASE": quote(f"{folder.path}/{LEASE}", safe=""),
        "LEASE_SECONDS": round(60 * settings.lease),
        "MAX_SECONDS": round(3600 * settings.max_hours),  # of a host
        # The time (seconds since the epoch) at which the hosts delete the TPU in any case.
        "DEADLINE": round(created.timestamp() + 3600 * (settings.valid_for + settings.max_hours)),
        "POLL_SECONDS": paced(POLL_SECONDS),
        "UNAVAILABLE": UNAVAILABLE,
        "IMAGE": container["image_uri"],
        "TPU_API": f"https://{folder.connection.endpoint('tpu')}",
        "STORAGE_API": f"https://{folder.connection.endpoint('storage')}",
    }
    variables = {
        "AIP_MODEL_DIR": folder.below("model").uri,
        "AIP_CHECKPOINT_DIR": folder.below("checkpoints").uri,
        "AIP_TENSORBOARD_LOG_DIR": folder.below("logs").uri,
        "PYTHONUNBUFFERED": "1",
        **{variable["name"]: variable["value"] for variable in container.get("env", [])},
    }
    command = container.get("command", [])
    options = [f"--env={name}={value}" for name, value in variables.items()]
    options += [f"--entrypoint={command[0]}"] if command else []
    arrays = {"OPTIONS": options, "ARGUMENTS": [*command[1:], *container.get("args", [])]}
    lines = [f"{name}={shlex.quote(str(value))}" for name, value in values.items()]
    lines += [f"{name}=({shlex.join(array)})" for name, array in arrays.items()]
    return "\n".join(["#!/bin/bash", *lines, SCRIPT.read_text()])
