"""What is old and not needed of runs on Cloud TPU: folders and data sets in the bucket, and TPUs without a launcher."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from slipway.components.cloud.rules import LEASE, RUNS
from slipway.components.train.tpu import service
from slipway.components.train.tpu.lease import has_lapsed
from slipway.components.train.tpu.request import DATA
from slipway.components.train.tpu.service import QueuedResource
from slipway.pipelines.cleaning.cleaner import Age, Cleaner, Unneeded
from slipway.pipelines.cleaning.local import kept_runs
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.tpu.checks import settings_of
from slipway.pipelines.platforms.vertex.bucket import BucketCleaner, References


class TpuCleaner(Cleaner):
    """The cleaner of a configuration's bucket, after that of the TPUs in its zones.

    A launcher holds the lease of its run, and names its data set, before it looks whether the bucket has it: a run in
    progress is one that was written to lately.
    """

    def __init__(self, config: RunConfig, age: Age) -> None:
        self.age, self.settings = age, settings_of(config)
        self.connection, self._bucket = self.settings.connection, self.settings.bucket.removeprefix("gs://")
        self._runs = BucketCleaner(self.connection, self._bucket, (DATA, 2), self._references, age, leased=True)

    def unneeded(self) -> list[Unneeded]:
        abandoned = self._abandoned()
        tpus = [
            Unneeded("TPU", self._path(resource), datetime.fromisoformat(resource.created), 0) for resource in abandoned
        ]
        return [*tpus, *self._runs.unneeded()]

    def delete(self, to_delete: Iterable[Unneeded]) -> Iterator[Unneeded]:
        to_delete = list(to_delete)
        abandoned = {self._path(resource): resource for resource in self._abandoned()}
        for unneeded in to_delete:
            if unneeded.kind == "TPU" and unneeded.path in abandoned:
                service.delete(self.connection, abandoned[unneeded.path].zone, abandoned[unneeded.path].name)
                yield unneeded
        yield from self._runs.delete(entry for entry in to_delete if entry.kind in BucketCleaner.kinds)

    def in_progress(self) -> list[str]:
        return []

    def _references(self) -> References:
        return References(frozenset(kept_runs(self.age)))

    def _abandoned(self) -> list[QueuedResource]:
        """Return the requests whose launchers no longer renew their leases: of runs that were killed or lost."""
        listed = service.listed(self.connection, list(self.settings.zones))
        leases = ((resource, f"{RUNS}/{resource.run_id}/{LEASE}") for resource in listed)
        seconds = 60 * self.settings.lease
        return [resource for resource, lease in leases if has_lapsed(self.connection, self._bucket, lease, seconds)]

    def _path(self, resource: QueuedResource) -> str:
        return f"projects/{self.settings.project}/locations/{resource.zone}/queuedResources/{resource.name}"
