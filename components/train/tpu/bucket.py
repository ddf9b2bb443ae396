"""Copies between a folder and a folder of the bucket. Both directions skip files that are already the same."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.refusals import refusing
from slipway.components.cloud.retries import existing, retried
from slipway.components.step import raise_if_terminated
from slipway.core import events

# Files copied at the same time; more do not raise the throughput of one machine much.
AT_ONCE = 8
SECONDS = 300
# A copy that was interrupted this short a time ago is continued.
INTERRUPTED = timedelta(days=1)


@dataclass(frozen=True)
class BucketFolder:
    """The folder `path` of `bucket` (without gs://)."""

    connection: Connection
    bucket: str
    path: str

    @property
    def uri(self) -> str:
        """Its gs:// URI."""
        return f"gs://{self.bucket}/{self.path}"

    def below(self, name: str) -> BucketFolder:
        """Return the folder `name` in it."""
        return BucketFolder(self.connection, self.bucket, f"{self.path}/{name}")

    def names(self, prefix: str = "", after: str = "") -> list[str]:
        """Return the sorted names of the files that begin with `prefix` and sort after the name `after`."""
        start = f"{self.path}/{after}" if after else None
        names = [blob.name.removeprefix(f"{self.path}/") for blob in self._listed(prefix, start)]
        return sorted(name for name in names if name > after)

    def read(self, name: str) -> bytes | None:
        """Return a file's content, or None if there is no such file."""
        with refusing(self.connection, f"read {self.uri}/{name}"):
            return existing(lambda: bytes(self._blob(name).download_as_bytes(timeout=SECONDS)))

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        with refusing(self.connection, f"write {self.uri}/{name}"):
            retried(lambda: self._blob(name).upload_from_string(content, timeout=SECONDS))

    def upload(self, folder: Path) -> None:
        """Copy the files of a folder that are not there yet, and report the progress; manifest.json comes last.

        Without it, the folder is a copy that was interrupted, or it is being deleted: only new files count as there.
        """
        listed = self._listed()
        is_whole = any(blob.name == f"{self.path}/manifest.json" for blob in listed)
        new = datetime.now(UTC) - INTERRUPTED
        there = {blob.name: blob.md5_hash for blob in listed if is_whole or blob.updated > new}
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        marked = [path for path in files if path.name == "manifest.json"]

        def copy(path: Path) -> None:
            name = path.relative_to(folder).as_posix()
            if there.get(f"{self.path}/{name}") != _md5(path):
                retried(lambda: self._blob(name).upload_from_filename(str(path), timeout=SECONDS))

        self._each(copy, [path for path in files if path not in marked], f"copying the data set to {self.uri}")
        self._each(copy, marked, "")

    def download(self, folder: Path) -> None:
        """Copy all files to a folder, each of them atomically."""

        def copy(blob: Any) -> None:
            path = folder / blob.name.removeprefix(f"{self.path}/")
            if path.is_file() and _md5(path) == blob.md5_hash:
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f".{path.name}.copy")
            retried(lambda: blob.download_to_filename(str(beside), timeout=SECONDS))
            beside.replace(path)

        blobs = [blob for blob in self._listed() if not blob.name.endswith("/")]
        self._each(copy, blobs, f"copying {self.uri}")

    def _each(self, copy: Any, things: Iterable[Any], phase: str) -> None:
        things = list(things)
        if phase and things:
            events.phase(phase)
        with refusing(self.connection, f"copy to or from {self.uri}"), ThreadPoolExecutor(AT_ONCE) as pool:
            for done, _ in enumerate(pool.map(copy, things), 1):
                if phase:
                    events.progress(done, len(things), "files")
                raise_if_terminated()

    def _blob(self, name: str) -> Any:
        return self.connection.storage.bucket(self.bucket).blob(f"{self.path}/{name}")

    def _listed(self, prefix: str = "", start: str | None = None) -> list[Any]:
        bucket = self.connection.storage
        with refusing(self.connection, f"list {self.uri}"):
            return retried(
                lambda: list(bucket.list_blobs(self.bucket, prefix=f"{self.path}/{prefix}", start_offset=start))
            )


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return base64.b64encode(hashlib.file_digest(file, "md5").digest()).decode()
