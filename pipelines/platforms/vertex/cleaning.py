"""What is old and not needed on Vertex AI: runs and data sets in the buckets, Slipway's images, completed schedules.

Kept is what a registered model, a job, a schedule or a kept run of this machine refers to, in all regions of the
configuration. What another project or another region keeps in the same bucket or repository is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from slipway.components.build_image.images import NAME
from slipway.components.cloud.connection import Connection
from slipway.components.cloud.operations import finished
from slipway.components.cloud.refusals import refusing
from slipway.components.cloud.retries import existing, pages, retried
from slipway.components.register_model.vertex.model_registry import RUN_LABEL
from slipway.core.image_reference import ImageReference
from slipway.pipelines.cleaning.cleaner import Age, Cleaner, Unneeded
from slipway.pipelines.cleaning.local import kept_runs
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.vertex.bucket import BucketCleaner, References
from slipway.pipelines.platforms.vertex.schedules.service import Schedules
from slipway.pipelines.platforms.vertex.settings import vertex_of
from slipway.pipelines.platforms.vertex.submission import refusals
from slipway.pipelines.runs import record as runs

# Where the step prepare_data writes data sets, as NAME/FINGERPRINT.
DATA = ("datasets", 3)
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


class VertexCleaner(Cleaner):
    """The cleaners of a configuration's buckets, repository and schedules, one after the other."""

    def __init__(self, config: RunConfig, age: Age) -> None:
        self.config, self.age = config, age
        vertex = vertex_of(config)
        self._regions = [vertex.in_region(name).connection for name in (vertex.region, *vertex.regions)]
        buckets = {vertex.in_region(name).bucket for name in (vertex.region, *vertex.regions)}
        self._buckets = [
            BucketCleaner(vertex.connection, bucket.removeprefix("gs://"), DATA, self.references, age, leased=False)
            for bucket in sorted(buckets)
        ]

    def unneeded(self) -> list[Unneeded]:
        unneeded = [entry for bucket in self._buckets for entry in bucket.unneeded()]
        schedules = [Unneeded("schedule", schedule.name, since, 0) for _, schedule, since in self._completed()]
        return [*unneeded, *schedules, *self._images()]

    def delete(self, to_delete: Iterable[Unneeded]) -> Iterator[Unneeded]:
        to_delete = list(to_delete)
        for bucket in self._buckets:
            yield from bucket.delete(entry for entry in to_delete if entry.kind in BucketCleaner.kinds)
        for unneeded in to_delete:
            if unneeded.kind == "schedule":
                yield from self._deleted_schedule(unneeded)
            elif unneeded.kind == "image" and unneeded in self._images():
                yield from self._deleted_image(unneeded)

    def in_progress(self) -> list[str]:
        return list(self.references().in_progress)

    def references(self) -> References:
        """Return what refers to runs now: versions of models, jobs that have not ended, and runs of this machine."""
        here = [folder.read() for folder in runs.folders()]
        running = [record.run_id for record in here if record.status == "running" and record.platform != runs.LOCAL]
        references = References(frozenset(kept_runs(self.age)), in_progress=tuple(running))
        for connection in self._regions:
            versions = self._versions(connection)
            names = [job.name.rpartition("/")[2] for job in self._jobs(connection, _unended())]
            references += References(
                runs=frozenset([*(version.labels.get(RUN_LABEL, "") for version in versions), *names]),
                uris=frozenset(version.artifact_uri for version in versions if version.artifact_uri),
                in_progress=tuple(name for name in names if name not in running),
            )
        return references

    def _versions(self, connection: Connection) -> list[Any]:
        """Return all versions of all models in a region."""
        models = connection.models
        with refusals(self.config, f"list the models in {connection.region}", "aiplatform.models.list"):
            names = retried(lambda: [model.name for model in models.list_models(parent=connection.parent)])
            every = [existing(lambda name=name: list(models.list_model_versions(name=name))) for name in names]  # type: ignore[misc]
        return [version for versions in every for version in versions or ()]

    def _jobs(self, connection: Connection, which: str) -> list[Any]:
        request = {"parent": connection.parent, "filter": which}
        with refusals(self.config, f"list the jobs in {connection.region}", "aiplatform.pipelineJobs.list"):
            return retried(lambda: list(connection.pipelines.list_pipeline_jobs(request)))

    def _completed(self) -> list[tuple[Connection, Any, datetime]]:
        """Return the schedules that have come to their end, and when; they start no runs, and their runs stay."""
        return [
            (connection, schedule, since)
            for connection in self._regions
            for schedule in self._listed_schedules(connection)
            if schedule.state.name == "COMPLETED" and (since := _last_active(schedule)) < self.age.before
        ]

    def _listed_schedules(self, connection: Connection) -> list[Any]:
        with refusals(self.config, f"list the schedules in {connection.region}", "aiplatform.schedules.list"):
            return [schedule for _, _, schedule in Schedules(connection).all()]

    def _deleted_schedule(self, unneeded: Unneeded) -> Iterator[Unneeded]:
        for connection, schedule, _ in self._completed():
            if schedule.name == unneeded.path:
                with refusals(self.config, f"delete {unneeded.path}", "aiplatform.schedules.delete"):
                    Schedules(connection).delete(schedule, None)
                yield unneeded

    def _images(self) -> list[Unneeded]:
        """Return Slipway's images that no job of the age, model, schedule or kept run here names; not the newest."""
        vertex = vertex_of(self.config)
        parent = ImageReference.parse(f"{vertex.image_repository}/image").artifact_repository
        if vertex.image is not None or parent is None:
            return []
        repositories = vertex.connection.api("artifactregistry", "v1").projects().locations().repositories()
        action = f"list the images in {vertex.image_repository}"
        with refusing(vertex.connection, action, "artifactregistry.dockerimages.list"):
            listed = list(pages(repositories.dockerImages(), parent=parent))
        every = [image for page in listed for image in page.get("dockerImages", ())]
        old, newest = [], set()
        for image in sorted(every, key=lambda image: str(image["uploadTime"]), reverse=True):
            name, _, digest = str(image["uri"]).partition("@")
            name = name.rpartition("/")[2]
            uploaded = datetime.fromisoformat(str(image["uploadTime"])).astimezone(UTC)
            if NAME.fullmatch(name) and name in newest and uploaded < self.age.before:
                size = int(image.get("imageSizeBytes", 0))
                unneeded = Unneeded("image", f"{parent}/packages/{name}/versions/{digest}", uploaded, size)
                old.append(({digest, *image.get("tags", ())}, unneeded))
            newest.add(name)
        text = self._images_named() if old else ""
        return [entry for names, entry in reversed(old) if not any(name in text for name in names)]

    def _images_named(self) -> str:
        """Return a text with the digests and tags of images that models, jobs, schedules and kept runs here name."""
        kept = kept_runs(self.age)
        files = [folder.specification_file for folder in runs.folders() if folder.run_id in kept]
        texts = [file.read_text() for file in files if file.is_file()]
        for connection in self._regions:
            recent = f'update_time>"{self.age.before:%Y-%m-%dT%H:%M:%SZ}"'
            jobs = [job for which in (_unended(), recent) for job in self._jobs(connection, which)]
            # As plain text: the wrappers of such fields do not show their values.
            texts += [str(type(resource).pb(resource)) for resource in (*jobs, *self._listed_schedules(connection))]
            texts += [version.container_spec.image_uri for version in self._versions(connection)]
        return "\n".join(texts)

    def _deleted_image(self, unneeded: Unneeded) -> Iterator[Unneeded]:
        connection = vertex_of(self.config).connection
        locations = connection.api("artifactregistry", "v1").projects().locations()
        versions = locations.repositories().packages().versions()
        action = f"delete {unneeded.path}"
        with refusing(connection, action, "artifactregistry.versions.delete"):
            operation = existing(versions.delete(name=unneeded.path, force=True).execute)  # with its tags
            if operation is not None:
                finished(operation, lambda name: locations.operations().get(name=name).execute(), action)
        yield unneeded


def _last_active(schedule: Any) -> datetime:
    """Return when a completed schedule was changed, or should have started its last run."""
    times = (schedule.update_time, schedule.last_scheduled_run_response.scheduled_run_time, schedule.end_time)
    now = datetime.now(UTC)
    return max(time for time in times if time is not None and time <= now)


def _unended() -> str:
    """Return the filter of the jobs that have not ended."""
    return " AND ".join(f'state!="PIPELINE_STATE_{state}"' for state in ENDED)
