"""Old runs and prepared data sets in buckets of Google Cloud that nothing refers to.

A run is its folder `runs/RUN` and those of its pipeline jobs in `pipelines`; its `dataset.json` names its data set. The
bucket has neither locks nor folders that can be renamed. So the manifest of a data set is deleted first: a run that
looks for the data set afterwards prepares it again, and for one that has found it before, the manifest is restored.
Only the objects that were seen are deleted, by their generations, and none that was written meanwhile.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.refusals import refusing
from slipway.components.cloud.retries import NOT_FOUND, retried, status_of
from slipway.components.cloud.rules import LEASE, RUNS, label
from slipway.components.prepare_data.publishing.remembered import RUN_FILE
from slipway.core import manifest
from slipway.core.errors import UserError
from slipway.pipelines.cleaning.cleaner import Age, Cleaner, Unneeded

# The folder of the artifacts of pipeline jobs, and the names of the folders in it above those of one job.
ARTIFACTS, JOB_DEPTH = "pipelines", 3
# Fields of the objects in lists.
FIELDS = "items(name,size,updated,generation),nextPageToken"
EVER = datetime.min.replace(tzinfo=UTC)
# Requests at once.
THREADS = 16
# What was written this short a time ago may belong to a copy in progress; see `BucketFolder.upload`.
LEAST_AGE = timedelta(days=1)


@dataclass(frozen=True)
class References:
    """What refers to the runs in a bucket: their ids, the labels of these or their jobs, and URIs of files.

    `in_progress` are the runs and jobs that may use a data set without having recorded it yet.
    """

    runs: frozenset[str] = frozenset()
    uris: frozenset[str] = frozenset()
    in_progress: tuple[str, ...] = ()

    def __add__(self, other: References) -> References:
        return References(self.runs | other.runs, self.uris | other.uris, self.in_progress + other.in_progress)


@dataclass
class Folder:
    """Objects of a bucket with a common prefix: when the newest was written, their bytes, and whether they are a data
    set's.
    """

    since: datetime = EVER
    size: int = 0
    is_data_set: bool = False

    def add(self, size: int, since: datetime) -> None:
        """Count an object or another folder."""
        self.size += size
        self.since = max(self.since, since)


@dataclass
class Run(Folder):
    """A run: its prefixes, the generation of its `dataset.json` (None if it has none), and whether it has a lease."""

    prefixes: set[str] = field(default_factory=set)
    data: int | None = None
    leased: bool = False

    @property
    def is_slipways(self) -> bool:
        """Whether a run of Slipway's wrote it, and not someone else in folders of the same names."""
        roots = {prefix.partition("/")[0] for prefix in self.prefixes}
        return RUNS in roots and (self.data is not None or self.leased or ARTIFACTS in roots)


class BucketCleaner(Cleaner):
    """Deletes runs and data sets of one bucket.

    Args:
        connection: To the bucket's project.
        bucket: The bucket, without gs://.
        data: The folder of the data sets, and the number of names below it that make one.
        leased: Whether the runs are those of launchers on other machines, which hold leases; others are not touched.
        references: Returns what refers to the bucket now.
        age: Of what is deleted.

    Raises:
        UserError: The age is too short.
    """

    kinds = ("run", "data set")

    def __init__(
        self,
        connection: Connection,
        bucket: str,
        data: tuple[str, int],
        references: Callable[[], References],
        age: Age,
        *,
        leased: bool,
    ) -> None:
        if age.least < LEAST_AGE:
            raise UserError(
                "The files of the last day may be in use by a machine that cannot be seen here.",
                setting="--older-than",
                value=age.typed or f"{age.least / timedelta(hours=1):g}h",
                allowed="1d or more in a bucket",
                fix="--older-than 1d",
            )
        self.connection, self.bucket, self._leased = connection, bucket, leased
        self._root, self._depth = data
        self._references, self._before = references, age.before
        self._data_sets: dict[tuple[str, int], str] = {}  # by run and generation of its dataset.json

    def unneeded(self) -> list[Unneeded]:
        with refusing(self.connection, f"list gs://{self.bucket}"):
            every, data_sets = self._runs(), self._folders(f"{self._root}/", self._depth)
        references = self._references()
        kept = self._kept(every, references)
        unneeded = [
            Unneeded("run", self._uri(f"{RUNS}/{name}"), run.since, run.size)
            for name, run in every.items()
            if name not in kept and run.is_slipways and run.leased == self._leased
        ]
        if not references.in_progress:
            used = self._used({name: every[name].data for name in kept})
            unneeded += [
                Unneeded("data set", uri, folder.since, folder.size)
                for prefix, folder in data_sets.items()
                if folder.is_data_set
                and (uri := self._uri(prefix.rstrip("/"))) not in used
                and folder.since < self._before
            ]
        return sorted(unneeded, key=lambda entry: (entry.kind != "run", entry.since))

    def delete(self, to_delete: Iterable[Unneeded]) -> Iterator[Unneeded]:
        for unneeded in to_delete:
            if not unneeded.path.startswith(self._uri("")):
                continue
            name = unneeded.path.removeprefix(self._uri(""))
            with refusing(self.connection, f"delete {unneeded.path}", "storage.objects.delete"):
                is_deleted = self._delete_run(name) if unneeded.kind == "run" else self._delete_data_set(name)
            if is_deleted:
                yield unneeded

    def in_progress(self) -> list[str]:
        return list(self._references().in_progress)

    def _kept(self, every: dict[str, Run], references: References) -> set[str]:
        owners = {self._uri(prefix): name for name, run in every.items() for prefix in run.prefixes}
        folders = ("/".join(uri.split("/")[:depth]) + "/" for uri in references.uris for depth in (5, 6))
        runs = references.runs | {_first(job) for job in references.runs}
        kept = {name for name in every if {name, label(name)} & runs}
        kept |= {owners[folder] for folder in folders if folder in owners}
        return kept | {name for name, run in every.items() if run.since >= self._before}

    def _runs(self, begin: str = "") -> dict[str, Run]:
        """Return the runs in the bucket, by id, whose ids begin with `begin`."""
        runs: dict[str, Run] = defaultdict(Run)
        for blob in self._listed(prefix=f"{RUNS}/{begin}"):
            parts = blob.name.split("/")
            if len(parts) > 2:
                run = runs[parts[1]]
                run.add(int(blob.size or 0), blob.updated)
                run.prefixes.add(f"{RUNS}/{parts[1]}/")
                run.data = blob.generation if parts[2:] == [RUN_FILE] else run.data
                run.leased |= parts[2:] == [LEASE]
        for project in self._below(f"{ARTIFACTS}/"):
            for prefix, folder in self._folders(f"{project}{begin}", JOB_DEPTH).items():
                job = prefix.split("/")[2]
                run = runs[job if job in runs or _first(job) not in runs else _first(job)]
                run.add(folder.size, folder.since)
                run.prefixes.add(prefix)
        return dict(runs)

    def _below(self, prefix: str) -> list[str]:
        """Return the prefixes of a folder's folders."""

        def asked() -> list[str]:
            pages = self.connection.storage.list_blobs(self.bucket, prefix=prefix, delimiter="/")
            list(pages)
            return sorted(pages.prefixes)

        return retried(asked)

    def _folders(self, root: str, depth: int) -> dict[str, Folder]:
        folders: dict[str, Folder] = defaultdict(Folder)
        for blob in self._listed(prefix=root):
            parts = blob.name.split("/")
            if len(parts) > depth and not parts[depth - 1].startswith("."):
                folder = folders["/".join(parts[:depth]) + "/"]
                folder.add(int(blob.size or 0), blob.updated)
                folder.is_data_set |= parts[-1] == manifest.FILE_NAME or ".tfrecord" in parts[-1]
        return dict(folders)

    def _used(self, named: Mapping[str, int | None]) -> set[str]:
        """Return the data sets that runs name, by URI, from the generations of the files in which they do."""
        files = [(name, generation) for name, generation in named.items() if generation]
        new = [file for file in files if file not in self._data_sets]
        with refusing(self.connection, f"read gs://{self.bucket}"), ThreadPoolExecutor(THREADS) as pool:
            self._data_sets |= dict(zip(new, pool.map(self._data_set, new), strict=True))
        return {self._data_sets[file] for file in files}

    def _data_set(self, of: tuple[str, int]) -> str:
        """Return the data set that a run names; "" if the file was deleted or replaced meanwhile."""
        name, generation = of
        blob = self._blob(f"{RUNS}/{name}/{RUN_FILE}", generation)
        try:
            return str(json.loads(retried(blob.download_as_bytes))["uri"]).rstrip("/")
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"{self._uri(blob.name)} does not name a data set.", fix=f"gcloud storage cat {self._uri(blob.name)}"
            ) from None
        except Exception as error:
            if status_of(error) == NOT_FOUND:
                return ""
            raise

    def _delete_run(self, name: str) -> bool:
        run_id = name.removeprefix(f"{RUNS}/")
        run = self._runs(run_id).get(run_id)
        if run is None or run_id in self._kept({run_id: run}, self._references()):
            return False
        self._delete([blob for prefix in sorted(run.prefixes) for blob in self._listed(prefix=prefix)])
        return True

    def _delete_data_set(self, name: str) -> bool:
        blobs = self._listed(prefix=f"{name}/")
        if not blobs or max(blob.updated for blob in blobs) >= self._before or self._is_used(name):
            return False
        marks = [blob for blob in blobs if blob.name == f"{name}/{manifest.FILE_NAME}"]
        contents = [retried(blob.download_as_bytes) for blob in marks]
        self._delete(marks)
        if self._is_used(name):
            for blob, content in zip(marks, contents, strict=True):
                _restore(self._blob(blob.name), content)
            return False
        self._delete([blob for blob in blobs if blob not in marks])
        return True

    def _is_used(self, name: str) -> bool:
        if self._references().in_progress:
            return True
        files = self._listed(match_glob=f"{RUNS}/*/{RUN_FILE}")
        return self._uri(name) in self._used({blob.name.split("/")[1]: blob.generation for blob in files})

    def _delete(self, blobs: Sequence[Any]) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(_delete, blobs))

    def _listed(self, **which: str) -> list[Any]:
        storage = self.connection.storage
        return retried(lambda: list(storage.list_blobs(self.bucket, fields=FIELDS, **which)))

    def _blob(self, name: str, generation: int | None = None) -> Any:
        return self.connection.storage.bucket(self.bucket).blob(name, generation=generation)

    def _uri(self, name: str) -> str:
        return f"gs://{self.bucket}/{name}"


def _first(job: str) -> str:
    """Return the run of a job that resumed it, RUN-2; any other name as it is."""
    first, _, number = job.rpartition("-")
    return first if first and number.isdigit() else job


def _delete(blob: Any) -> None:
    """Delete an object unless it was replaced or deleted."""
    try:
        retried(lambda: blob.delete(if_generation_match=blob.generation))
    except Exception as error:
        if status_of(error) not in (NOT_FOUND, 412):
            raise


def _restore(blob: Any, content: bytes) -> None:
    """Write an object again that was deleted, unless another one was written meanwhile."""
    try:
        retried(lambda: blob.upload_from_string(content, content_type="application/json", if_generation_match=0))
    except Exception as error:
        if status_of(error) != 412:
            raise
