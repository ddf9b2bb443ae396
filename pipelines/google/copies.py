"""Folders in Google's buckets, such as the models of runs in the cloud, copied to this machine on request."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.core import formatting
from slipway.core.buckets import SCHEME
from slipway.core.errors import UserError
from slipway.core.paths import in_project
from slipway.pipelines.options import DEFAULT_CONFIGURATION
from slipway.pipelines.terminal import error_console

if TYPE_CHECKING:
    from slipway.components.cloud.connection import Connection

THREADS = 8
CHUNK = 1 << 20
READ = "storage.objects.get"


def connection_of(configuration: Path | None) -> Connection:
    """Return the connection by which buckets are read: that of a configuration, by default of slipway.yaml.

    Raises:
        UserError: It has no section for Google Cloud.
    """
    from slipway.components.cloud.settings import CloudSettings
    from slipway.pipelines.config.config import load

    file = configuration or in_project(Path(DEFAULT_CONFIGURATION))
    config = load(file) if file.is_file() else None
    section = config and config.section(CloudSettings)
    if not section:
        raise UserError(
            "Reading a bucket needs a project on Google Cloud, and there is no section vertex or tpu.",
            setting="vertex",
            value=None,
            fix=f"cd to the project whose {DEFAULT_CONFIGURATION} has one, or gcloud storage cp -r URI FOLDER",
        )
    return section.connection


def copy(uri: str, target: Path, configuration: Path | None, say: Callable[[str], None]) -> None:
    """Copy a folder or file of a bucket to this machine; see `slipway.pipelines.runs.copies.Folders`."""
    from slipway.components.cloud.refusals import refusing

    connection = connection_of(configuration)
    with refusing(connection, f"read {uri}", READ):
        files = _files(connection, uri, target)
        if not files:
            raise UserError(
                f"There are no files in {uri}.", value=uri, fix=f"gcloud storage ls {uri.rpartition('/')[0]}"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        missing = [(blob, path) for blob, path in files if not _is_copied(blob, path)]
        size = sum(blob.size for blob, _ in missing)
        if missing:
            say(f"copying {formatting.size(size)} in {len(missing)} file{'s' * (len(missing) > 1)} from {uri}")
        if (free := shutil.disk_usage(target.parent).free) < size:
            raise UserError(
                f"{target} has {formatting.size(free)} of free space; {uri} has {formatting.size(size)}.",
                fix="free disk space",
            )
        with _progress(size) as advance, ThreadPoolExecutor(THREADS) as pool:
            for done in pool.map(_download, *zip(*missing, strict=True)) if missing else ():
                advance(done)
    kept = {path for _, path in files}
    for path in [path for path in target.rglob("*") if path.is_file() and path not in kept]:
        path.unlink()


def names_in(uri: str, configuration: Path | None) -> list[str]:
    """Return the names of the objects in a folder of a bucket, relative to it; see `copy` for errors."""
    from slipway.components.cloud.refusals import refusing

    connection = connection_of(configuration)
    with refusing(connection, f"read {uri}", "storage.objects.list"):
        return [path.as_posix() for _, path in _files(connection, uri, Path())]


def _files(connection: Connection, uri: str, target: Path) -> list[tuple[Any, Path]]:
    """Return the objects below a prefix, and their paths in `target`."""
    from slipway.components.cloud.retries import retried

    bucket, _, prefix = uri.removeprefix(SCHEME).rstrip("/").partition("/")
    blobs = retried(lambda: list(connection.storage.list_blobs(bucket, prefix=prefix)))
    names = {blob.name: blob for blob in blobs if not blob.name.endswith("/")}
    if prefix in names:
        return [(names[prefix], target)]
    folder = prefix and f"{prefix}/"
    files = [(blob, target / name.removeprefix(folder)) for name, blob in names.items() if name.startswith(folder)]
    if outside := [blob.name for blob, path in files if ".." in path.parts]:
        raise UserError(f"The name of the object {outside[0]} leads out of {uri}.", fix="rename the object")
    return files


def _is_copied(blob: Any, path: Path) -> bool:
    import base64

    import google_crc32c

    if not path.is_file() or path.stat().st_size != blob.size:
        return False
    checksum = google_crc32c.Checksum()
    with path.open("rb") as file:
        for _ in checksum.consume(file, CHUNK):
            pass
    return str(blob.crc32c) == base64.b64encode(checksum.digest()).decode()


def _download(blob: Any, path: Path) -> int:
    from slipway.components.cloud.retries import retried

    path.parent.mkdir(parents=True, exist_ok=True)
    retried(lambda: blob.download_to_filename(str(path)))  # the client verifies the checksum
    return int(blob.size)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show the bytes that were copied in a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(bar_width=16), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=error_console, transient=True, disable=not error_console.is_interactive
    ) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.advance(task, done)
