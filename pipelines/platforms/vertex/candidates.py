"""Hardware and regions of a run in the order in which they are tried, and the move from one region to another."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.refusals import refusing
from slipway.components.cloud.retries import existing, retried
from slipway.components.prepare_data.publishing.remembered import RUN_FILE
from slipway.core.manifest import FILE_NAME as MANIFEST
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.hardware.prices import vertex_bill
from slipway.pipelines.platforms.vertex.settings import vertex_of

if TYPE_CHECKING:
    from slipway.pipelines.images.images import Say
    from slipway.pipelines.runs.record import RunRecord

# Objects copied at the same time: the service copies them, so more do not use more of this machine.
AT_ONCE = 8


def candidates(config: RunConfig) -> tuple[RunConfig, ...]:
    """Return the configuration for each hardware in each region, in the order in which they are tried."""
    if config.is_chosen:
        return (config,)
    settings = vertex_of(config)
    regions = [settings.in_region(name) for name in (settings.region, *settings.regions)]
    configurations = [config.on(hardware, vertex=region) for hardware in config.hardware for region in regions]
    if settings.order == "cheapest":
        configurations.sort(key=_price)
    return tuple(configurations)


def title_of(config: RunConfig) -> str:
    """Return a candidate's hardware and region."""
    return f"{config.training_hardware} in {vertex_of(config).region}"


def batch_change(before: RunConfig, after: RunConfig) -> str | None:
    """Return what becomes of the batch if the number of devices differs between two candidates, else None."""
    size, (old, new) = before.train.batch_size, (_devices(before), _devices(after))
    if before.train.program is not None or old == new:
        return None
    return f"the batch is {size} examples as before: {size // new} per device on {new}, not {size // old} on {old}"


def bring(earlier: RunRecord, listed: Sequence[RunConfig], config: RunConfig, say: Say) -> None:
    """Copy what an earlier try of a run left in another region to the bucket of the candidate `config`.

    Args:
        earlier: The record of the try; nothing is copied if the run was in the candidate's region already.
        listed: All candidates.
        config: The candidate on which the run continues.
        say: Receives what is copied, and what becomes of the batch.

    Raises:
        UserError: A bucket refuses the access.
    """
    last = earlier.refused[-1].title if earlier.refused else None
    before = next((candidate for candidate in listed if title_of(candidate) == last), None)
    if before is None:  # it was not refused, or the candidate is no longer listed
        return
    if change := batch_change(before, config):
        say(change)
    if earlier.job is None or f"/locations/{vertex_of(config).region}/" not in earlier.job:
        carry(earlier.run_id, before, config, say)


def carry(run_id: str, before: RunConfig, after: RunConfig, say: Say) -> None:
    """Copy what a run has so far to the bucket of the candidate on which it continues.

    These are its prepared data set, unless the bucket has it, and its output directory with the checkpoints. Objects
    that are already the same are skipped, so an interrupted copy is continued by a repeated one.

    Raises:
        UserError: A bucket refuses the access.
    """
    here, there = vertex_of(before), vertex_of(after)
    if here.bucket == there.bucket:
        return
    connection, folder = there.connection, f"runs/{run_id}"
    with refusing(connection, f"copy the run from {here.bucket} to {there.bucket}", "storage.objects.create"):
        data = _read(connection, here.bucket, f"{folder}/{RUN_FILE}")
        uri = str(json.loads(data)["uri"]) if data else ""
        if uri.startswith(f"{here.bucket}/"):  # not in a store of its own
            path = uri.removeprefix(f"{here.bucket}/")
            if _read(connection, there.bucket, f"{path}/{MANIFEST}") is None:
                say(f"copying the data set {uri} to {there.bucket}")
                # The manifest last: a data set without one is incomplete.
                _copy(connection, here.bucket, there.bucket, path, lambda name: not name.endswith(f"/{MANIFEST}"))
                _copy(connection, here.bucket, there.bucket, path, lambda name: name.endswith(f"/{MANIFEST}"))
            uri = f"{there.bucket}/{path}"
        copied = _copy(connection, here.bucket, there.bucket, folder, lambda name: not name.endswith(f"/{RUN_FILE}"))
        if copied:
            say(f"copied {copied} files of the run, with its checkpoints, from {here.bucket} to {there.bucket}")
        if uri:
            blob = _blob(connection, there.bucket, f"{folder}/{RUN_FILE}")
            retried(lambda: blob.upload_from_string(json.dumps({"uri": uri})))


def _price(config: RunConfig) -> float:
    """Return a candidate's price per hour; candidates without a known one come last."""
    price = vertex_bill(config.training_hardware, vertex_of(config).region).per_hour
    return math.inf if price is None else price


def _devices(config: RunConfig) -> int:
    hardware = config.training_hardware
    return hardware.hosts * max(1, hardware.accelerators_per_host)


def _copy(connection: Connection, source: str, target: str, path: str, chosen: Callable[[str], bool]) -> int:
    """Copy the objects below `path` whose names are chosen; return how many the target did not have."""
    there = {blob.name: blob.crc32c for blob in _listed(connection, target, path)}
    missing = [blob for blob in _listed(connection, source, path) if there.get(blob.name) != blob.crc32c]
    missing = [blob for blob in missing if chosen(blob.name)]

    def copy(blob: Any) -> None:
        token = None
        while True:  # the service copies a large object in several calls
            token, _, _ = retried(lambda token=token: _blob(connection, target, blob.name).rewrite(blob, token=token))  # type: ignore[misc]
            if token is None:
                return

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(copy, missing))
    return len(missing)


def _listed(connection: Connection, bucket: str, path: str) -> list[Any]:
    name = bucket.removeprefix("gs://")
    return retried(lambda: list(connection.storage.list_blobs(name, prefix=f"{path}/")))


def _read(connection: Connection, bucket: str, name: str) -> bytes | None:
    return existing(lambda: bytes(_blob(connection, bucket, name).download_as_bytes()))


def _blob(connection: Connection, bucket: str, name: str) -> Any:
    return connection.storage.bucket(bucket.removeprefix("gs://")).blob(name)
