"""Image builds with Cloud Build: upload the source, follow the log, return the digest."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import retried, status_of
from slipway.components.step import WorkFailed
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.trainer.config import Settings

DOCKER = "gcr.io/cloud-builders/docker"
# Images with CUDA libraries exceed Cloud Build's default of ten minutes.
TIMEOUT = "3600s"
POLL_SECONDS = 3.0
ENDED = ("SUCCESS", "FAILURE", "INTERNAL_ERROR", "TIMEOUT", "CANCELLED", "EXPIRED")
SOURCES = "builds/sources"
LOGS = "builds/logs"


class Source(Settings):
    """A build context in a bucket, pinned by object generation."""

    bucket: str
    name: str
    generation: str


class CloudBuildSettings(Settings):
    """Project, region, bucket and service account of builds, serializable as a step's argument; see CloudBuild."""

    project: str
    region: str
    endpoints: dict[str, str]
    bucket: str
    service_account: str | None

    def service(self) -> CloudBuild:
        """Return the client for these settings."""
        return CloudBuild(Connection(self.project, self.region, self.endpoints), self.bucket, self.service_account)


@dataclass(frozen=True)
class CloudBuild:
    """Cloud Build in one project and region.

    Args:
        connection: To the project and region.
        bucket: The bucket (without gs://) for sources and logs.
        service_account: The account that builds run as, None for the project's default.
        wait_seconds: Polling interval.
    """

    connection: Connection
    bucket: str
    service_account: str | None = None
    wait_seconds: float = POLL_SECONDS

    def upload(self, archive: bytes, name: str) -> Source:
        """Upload a context unless an object of that name, which is derived from its content, exists."""
        blob = self.connection.storage.bucket(self.bucket).blob(f"{SOURCES}/{name}.tar.gz")

        def put() -> None:
            try:
                blob.upload_from_string(archive, content_type="application/gzip", if_generation_match=0)
            except Exception as error:
                if status_of(error) != 412:
                    raise
                blob.reload()

        try:
            retried(put)
        except Exception as error:
            if status_of(error) not in (403, 404):
                raise
            raise UserError(
                f"Could not upload the source to gs://{self.bucket}: {error}",
                setting="vertex.bucket",
                value=f"gs://{self.bucket}",
                allowed="a bucket on which you have roles/storage.objectUser",
                fix="slipway setup --apply",
            ) from None
        return Source(bucket=self.bucket, name=blob.name, generation=str(blob.generation))

    def uploaded(self, name: str) -> Source | None:
        """Return a context that was uploaded before, or None."""
        blob = retried(lambda: self.connection.storage.bucket(self.bucket).get_blob(f"{SOURCES}/{name}.tar.gz"))
        return Source(bucket=self.bucket, name=blob.name, generation=str(blob.generation)) if blob else None

    def build(
        self, source: Source, uri: str, arguments: Mapping[str, str], labels: Mapping[str, str], log: TextIO
    ) -> str:
        """Build and push the image of a context; return its digest.

        If a build of the same image is running, wait for that one instead.

        Args:
            source: The context.
            uri: Registry, name and tag.
            arguments: The build arguments.
            labels: The image's labels.
            log: Receives the build log while the build runs.

        Raises:
            UserError: The caller lacks permission to build.
            WorkFailed: The build failed.
        """
        request = self._request(source, uri, arguments, labels)
        try:
            build = retried(lambda: self._running(request["tags"][0]) or self._create(request))
        except Exception as error:
            if status_of(error) not in (400, 403, 404):
                raise
            raise self._refused(error) from None
        log.write(f"Cloud Build {build['id']}, log in {self._log_uri(build)}\n")
        build = self._follow(build, log)
        if build["status"] != "SUCCESS":
            raise self._failure(build)
        return next(str(image["digest"]) for image in build["results"]["images"] if image["name"] == uri)

    def account(self) -> str:
        """Return the e-mail of the account that builds run as."""
        if self.service_account:
            return self.service_account
        name = f"{self.connection.parent}/defaultServiceAccount"
        answer = retried(self._locations().getDefaultServiceAccount(name=name).execute)
        return str(answer["serviceAccountEmail"]).rpartition("/")[2]

    def _locations(self) -> Any:
        return self.connection.api("cloudbuild", "v1").projects().locations()

    def _request(self, source: Source, uri: str, arguments: Mapping[str, str], labels: Mapping[str, str]) -> JsonObject:
        options = [part for name, value in sorted(arguments.items()) for part in ("--build-arg", f"{name}={value}")]
        options += [part for name, value in sorted(labels.items()) for part in ("--label", f"{name}={value}")]
        request: JsonObject = {
            "source": {
                "storageSource": {"bucket": source.bucket, "object": source.name, "generation": source.generation}
            },
            "steps": [
                {"name": DOCKER, "args": ["build", *options, "--tag", uri, "."], "env": ["DOCKER_BUILDKIT=1"]},
            ],
            "images": [uri],
            "tags": ["slipway-" + uri.rpartition("/")[2].replace(":", "-")],
            "timeout": TIMEOUT,
            # The default depends on the project's age; custom service accounts have none.
            "logsBucket": f"gs://{self.bucket}/{LOGS}",
            "options": {"logging": "GCS_ONLY"},
        }
        if self.service_account:
            request["serviceAccount"] = f"projects/{self.connection.project}/serviceAccounts/{self.service_account}"
        return request

    def _running(self, tag: str) -> JsonObject | None:
        """Return a running build of this image: another caller's, or our own if its response was lost."""
        builds = self._locations().builds()
        answer = builds.list(
            parent=self.connection.parent, filter=f'tags="{tag}" AND (status="QUEUED" OR status="WORKING")'
        ).execute()
        return next(iter(answer.get("builds", [])), None)

    def _create(self, request: JsonObject) -> JsonObject:
        operation = self._locations().builds().create(parent=self.connection.parent, body=request).execute()
        return dict(operation["metadata"]["build"])

    def _follow(self, build: JsonObject, log: TextIO) -> JsonObject:
        """Wait until the build has ended and return it."""
        builds = self._locations().builds()
        name = build.get("name") or f"{self.connection.parent}/builds/{build['id']}"
        seen = 0
        while True:
            build = retried(builds.get(name=name).execute)
            seen = self._copy_log(build, seen, log)
            if build["status"] in ENDED:
                return build
            time.sleep(self.wait_seconds)

    def _copy_log(self, build: JsonObject, seen: int, log: TextIO) -> int:
        """Write the log object's content after byte `seen`; return the offset to continue from."""
        bucket, _, path = self._log_uri(build).removeprefix("gs://").partition("/")
        blob = self.connection.storage.bucket(bucket).blob(path)
        try:
            data: bytes = retried(lambda: blob.download_as_bytes(start=seen))
        except Exception as error:
            if status_of(error) not in (403, 404, 416):  # no log yet, nothing new, or no permission
                raise
            return seen
        whole = data if build["status"] in ENDED else data[: data.rfind(b"\n") + 1]
        log.write(whole.decode(errors="replace"))
        log.flush()
        return seen + len(whole)

    def _log_uri(self, build: JsonObject) -> str:
        return f"{build['logsBucket']}/log-{build['id']}.txt"

    def _refused(self, error: Exception) -> UserError:
        return UserError(
            f"Cloud Build rejected the build: {error}",
            setting="vertex.build.service_account",
            value=self.service_account,
            allowed="an account that you may act as; your account needs roles/cloudbuild.builds.editor",
            fix="slipway setup --apply",
        )

    def _failure(self, build: JsonObject) -> Exception:
        detail = build.get("statusDetail") or build.get("failureInfo", {}).get("detail") or "see the build log"
        sentence = f"Cloud Build {build['id']} ended with {build['status']}: {detail} ({self._log_uri(build)})"
        if "denied" in detail.lower() or "permission" in detail.lower():
            return UserError(
                sentence,
                setting="vertex.build.service_account",
                value=self.service_account,
                allowed=f"{self.account()} needs roles/artifactregistry.writer on the repository and "
                f"roles/storage.objectUser on gs://{self.bucket}",
                fix="slipway setup --apply",
            )
        return WorkFailed(sentence)
