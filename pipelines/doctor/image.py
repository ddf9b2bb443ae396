"""The check of a run's container image."""

from __future__ import annotations

from typing import Any

from slipway.components.build_image.registry import ArtifactRegistry, HttpRegistry
from slipway.components.cloud.refusals import is_absent, refusal
from slipway.components.cloud.retries import retried, status_of
from slipway.components.setup_access.settings import IMAGE, PUBLIC_PROJECT, repository_of
from slipway.core.errors import UserError
from slipway.pipelines.doctor.check import NotConcernedError, Subject
from slipway.pipelines.doctor.vertex import CloudCheck


class Image(CloudCheck):
    """The configured image exists; skipped if images are built."""

    name = "image"
    of_run = True

    def look(self, subject: Subject) -> str:  # noqa: ARG002
        image = self.view.vertex.image
        if image is None:
            raise NotConcernedError("it is built if the registry does not have it (slipway build --target vertex)")
        found = IMAGE.fullmatch(image)
        if found is not None and found["project"] == PUBLIC_PROJECT:
            raise NotConcernedError("it is one of Google's images")
        _ = self.view.number
        there = self._in_artifact_registry(image) if repository_of(image) else self._elsewhere(image)
        if not there:
            raise UserError(
                f"There is no image {image}.",
                setting="vertex.image",
                value=image,
                fix="--set vertex.image=null to let the run build its images, or slipway build --target vertex",
            )
        return image

    def _in_artifact_registry(self, image: str) -> bool:
        found: Any = IMAGE.fullmatch(image)
        name = found["image"]
        if found["digest"] is None:
            repository = image.partition(f"/{name}:")[0]
            return ArtifactRegistry(self.view.connection).digest(repository, name, found["tag"]) is not None
        versions = self.view.connection.api("artifactregistry", "v1").projects().locations().repositories().packages()
        package = name.replace("/", "%2F")
        request = versions.versions().get(name=f"{repository_of(image)}/packages/{package}/versions/{found['digest']}")
        try:
            retried(request.execute)
        except Exception as error:
            if status_of(error) == 403:
                # The service agents pull the image; the submitter needs no access to it.
                raise NotConcernedError(refusal(error, self.view.connection, "see the image").message) from None
            if is_absent(error):
                return False
            raise
        return True

    def _elsewhere(self, image: str) -> bool:
        path, _, digest = image.partition("@")
        repository, _, last = path.rpartition("/")
        name, _, tag = last.partition(":")
        return HttpRegistry("vertex.image").digest(repository, name, digest or tag) is not None
