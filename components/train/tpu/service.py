"""Queued resources of the Cloud TPU API v2: create, read, list and delete, each safe to repeat.

Source: the API's discovery document, `tpu.v2.json` of google-api-python-client, and
https://docs.cloud.google.com/tpu/docs/queued-resources.
"""

from __future__ import annotations

import getpass
import platform
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.operations import finished
from slipway.components.cloud.refusals import is_absent, refusal, refusing
from slipway.components.cloud.retries import existing, is_conflict, paced, pages, retried
from slipway.core.errors import UserError
from slipway.core.values import JsonObject

# Labels of the node in a request of Slipway's, and the beginning of its name.
RUN_LABEL, OWNER_LABEL = "slipway-run", "slipway-owner"
PREFIX = "slipway-"
# Neither becomes ready any more: the request failed or expired, or its capacity was taken back.
FAILED, SUSPENDED = "FAILED", ("SUSPENDING", "SUSPENDED")
# Queued resources have no permissions of their own: their calls need those of nodes.
CREATE, DELETE, GET, LIST = (f"tpu.nodes.{verb}" for verb in ("create", "delete", "get", "list"))
CREATE_SECONDS = 120.0
DELETE_SECONDS = 1200.0
# Pause between two requests to the service; for a running TPU also at its lease and its log.
POLL_SECONDS = 5.0


@dataclass(frozen=True)
class QueuedResource:
    """A queued resource as the service describes it; `error` is why it failed, "" if it did not."""

    name: str
    zone: str
    state: str
    created: str
    accelerator: str
    spot: bool
    labels: Mapping[str, str]
    error: str

    @property
    def run_id(self) -> str:
        """The run that requested it."""
        return self.labels.get(RUN_LABEL, "")

    @property
    def owner(self) -> str:
        """The user and machine that requested it."""
        return self.labels.get(OWNER_LABEL, "")

    @property
    def is_expired(self) -> bool:
        """Whether it failed or expired, or was preempted: it holds no TPU, but counts against the quota."""
        return self.state == FAILED or self.state in SUSPENDED


def owner() -> str:
    """Return the label of this user on this machine."""
    return re.sub(r"[^a-z0-9_-]+", "-", f"{getpass.getuser()}-{platform.node()}".lower())[:63]


def create(connection: Connection, zone: str, name: str, body: JsonObject) -> None:
    """Request a queued resource; one that an earlier call created, whose answer was lost, is found again by its name.

    Raises:
        UserError: The service refuses the request, or another run has the name.
    """
    action = f"request the TPU {name} in {zone}"
    api = _api(connection)
    request = api.queuedResources().create(parent=_parent(connection, zone), queuedResourceId=name, body=body)
    try:
        operation = retried(request.execute)
    except Exception as error:
        if not is_conflict(error):
            raise refusal(error, connection, action, CREATE) from error
        existing = get(connection, zone, name)
        if existing is not None and existing.labels != body["tpu"]["nodeSpec"][0]["node"]["labels"]:
            raise UserError(f"Could not {action}: another run has a queued resource of that name.") from None
        return
    finished(operation, lambda started: api.operations().get(name=started).execute(), action, CREATE_SECONDS)


def get(connection: Connection, zone: str, name: str) -> QueuedResource | None:
    """Return a queued resource, or None if there is none of that name.

    Raises:
        UserError: It cannot be read.
    """
    request = _api(connection).queuedResources().get(name=f"{_parent(connection, zone)}/queuedResources/{name}")
    with refusing(connection, f"read the queued resource {name} in {zone}", GET):
        entry = existing(request.execute)
    return None if entry is None else _read(entry)


def listed(connection: Connection, zones: list[str]) -> Iterator[QueuedResource]:
    """Yield the queued resources in the zones that Slipway requested.

    Raises:
        UserError: They cannot be listed.
    """
    resources = _api(connection).queuedResources()
    for zone in zones:
        with refusing(connection, f"list the queued resources in {zone}", LIST):
            every = [page.get("queuedResources", ()) for page in pages(resources, parent=_parent(connection, zone))]
        queued = [_read(entry) for entries in every for entry in entries]
        yield from (resource for resource in queued if RUN_LABEL in resource.labels)


def delete(connection: Connection, zone: str, name: str, seconds: float = DELETE_SECONDS) -> None:
    """Delete a queued resource with its TPU, in whatever state it is, and wait until it no longer exists.

    Raises:
        UserError: It cannot be deleted, or still exists after `seconds`.
    """
    request_delete(connection, zone, name)
    until = time.monotonic() + seconds
    while (left := get(connection, zone, name)) is not None:
        if time.monotonic() > until:
            raise UserError(
                f"The TPU {name} in {zone} still exists {seconds:.0f} s after its deletion was requested; its state is "
                f"{left.state}.",
                fix=f"slipway runs tpu delete {name}",
            )
        if left.state != "DELETING":
            request_delete(connection, zone, name)
        time.sleep(paced(POLL_SECONDS))


def request_delete(connection: Connection, zone: str, name: str) -> None:
    """Request the deletion of a queued resource and its TPU; the service then deletes them without other calls.

    Raises:
        UserError: The service refuses it.
    """
    # Without force, only a request that holds no TPU is deleted.
    request = (
        _api(connection)
        .queuedResources()
        .delete(name=f"{_parent(connection, zone)}/queuedResources/{name}", force=True)
    )
    try:
        retried(request.execute)
    except Exception as error:
        if is_absent(error) or is_conflict(error):
            return
        # A resource that changes its state, or is being deleted, refuses with FAILED_PRECONDITION: HTTP status 400.
        if b"FAILED_PRECONDITION" not in getattr(error, "content", b""):
            raise refusal(error, connection, f"delete the TPU {name} in {zone}", DELETE) from error


def node_state(connection: Connection, zone: str, name: str) -> str:
    """Return the state of the TPU that a queued resource has, "" if there is none or the service does not say.

    Raises:
        UserError: It cannot be read.
    """
    request = _api(connection).nodes().get(name=f"{_parent(connection, zone)}/nodes/{name}")
    with refusing(connection, f"read the TPU {name} in {zone}", GET):
        node = existing(request.execute)
    return str(node.get("state", "")) if node else ""


def failure(status: JsonObject) -> str:
    """Return the text of a google.rpc.Status, "" if there is none."""
    return str(status.get("message") or status or "").strip().rstrip(".")


def _read(entry: JsonObject) -> QueuedResource:
    node = entry.get("tpu", {}).get("nodeSpec", [{}])[0].get("node", {})
    form = node.get("acceleratorConfig", {})
    state = entry.get("state", {})
    name = str(entry["name"])
    return QueuedResource(
        name=name.rpartition("/")[2],
        zone=name.split("/")[3],
        state=str(state.get("state", "STATE_UNSPECIFIED")),
        created=str(entry.get("createTime", "")),
        accelerator=str(node.get("acceleratorType") or f"{form.get('type')} {form.get('topology')}"),
        spot="spot" in entry,
        labels=node.get("labels", {}),
        error=failure(state.get("failedData", {}).get("error", {})),
    )


def _parent(connection: Connection, zone: str) -> str:
    return f"projects/{connection.project}/locations/{zone}"


def _api(connection: Connection) -> Any:
    return connection.api("tpu", "v2").projects().locations()
