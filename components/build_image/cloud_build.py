"""Image builds with Cloud Build: upload the source, follow the log, return the digest."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from slipway.components.build_image.refusals import failed, is_closed_region, refused
from slipway.components.cloud.connection import Connection
from slipway.components.cloud.logs import LogEntries, text_of
from slipway.components.cloud.policies import Resource, grant_command
from slipway.components.cloud.refusals import answers_ignored, member_of, refusal
from slipway.components.cloud.retries import paced, retried, status_of
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.trainer.settings import Settings

DOCKER = "gcr.io/cloud-builders/docker"
# Images with CUDA libraries exceed Cloud Build's default of ten minutes.
TIMEOUT = "3600s"
# The log is read as often; Cloud Logging allows 60 reads a minute per project.
# https://cloud.google.com/logging/quotas#api-limits
POLL_SECONDS = 4.0
# Cloud Logging receives the last lines some seconds after the build has ended.
LAST_LINES_POLLS = 2
ENDED = ("SUCCESS", "FAILURE", "INTERNAL_ERROR", "TIMEOUT", "CANCELLED", "EXPIRED")
SOURCES = "builds/sources"
# Builds that have no region run in the global pool, which restricted projects may use, too (reported publicly).
GLOBAL = "global"


class Source(Settings):
    """A build context in a bucket, pinned by object generation."""

    bucket: str
    name: str
    generation: str


class CloudBuildSettings(Settings):
    """The arguments of CloudBuild, serializable as a step's argument."""

    project: str
    region: str
    endpoints: dict[str, str]
    bucket: str
    service_account: str | None
    build_region: str | None = None
    section: str = "vertex"

    def service(self) -> CloudBuild:
        """Return the client for these settings."""
        connection = Connection(self.project, self.region, self.endpoints, section=self.section)
        return CloudBuild(connection, self.bucket, self.service_account, self.build_region)


@dataclass(frozen=True)
class CloudBuild:
    """Cloud Build in one project and region.

    Args:
        connection: To the project and region.
        bucket: The bucket (without gs://) for sources.
        service_account: The account that builds run as, None for the project's default.
        region: The region that runs the builds, or global; None for the connection's region, and global if the project
            may not build there.
        wait_seconds: Polling interval.
    """

    connection: Connection
    bucket: str
    service_account: str | None = None
    region: str | None = None
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
            grant = grant_command(
                Resource("bucket", self.bucket), member_of(self.connection), "roles/storage.objectUser"
            )
            raise UserError(
                f"Could not upload the source to gs://{self.bucket}: {error}",
                setting="vertex.bucket",
                value=f"gs://{self.bucket}",
                allowed="a bucket on which you have roles/storage.objectUser",
                fix=grant if status_of(error) == 403 else "slipway setup --apply, which creates the bucket",
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
        build = self._started(self._request(source, uri, arguments, labels), log)
        log.write(f"Cloud Build {build['id']}, log at {build.get('logUrl', '')}\n")
        build = self._follow(build, log)
        if build["status"] != "SUCCESS":
            raise failed(build, uri, self.account, self.connection.section)
        return next(str(image["digest"]) for image in build["results"]["images"] if image["name"] == uri)

    def account(self) -> str:
        """Return the e-mail of the account that builds run as; "" if none is set and the project has no default."""
        return self.service_account or default_account(self.connection, self.region)

    def _request(self, source: Source, uri: str, arguments: Mapping[str, str], labels: Mapping[str, str]) -> JsonObject:
        options = [part for name, value in sorted(arguments.items()) for part in ("--build-arg", f"{name}={value}")]
        options += [part for name, value in sorted(labels.items()) for part in ("--label", f"{name}={value}")]
        request: JsonObject = {
            "source": {
                "storageSource": {"bucket": source.bucket, "object": source.name, "generation": source.generation}
            },
            "steps": [{"name": DOCKER, "args": ["build", *options, "--tag", uri, "."], "env": ["DOCKER_BUILDKIT=1"]}],
            "images": [uri],
            "tags": ["slipway-" + uri.rpartition("/")[2].replace(":", "-")],
            "timeout": TIMEOUT,
            # In a bucket of the project, the account would need more than to write objects; a custom account has no
            # other default. https://cloud.google.com/build/docs/securing-builds/store-manage-build-logs
            "options": {"logging": "CLOUD_LOGGING_ONLY"},
        }
        if self.service_account:
            request["serviceAccount"] = f"projects/{self.connection.project}/serviceAccounts/{self.service_account}"
        return request

    def _started(self, request: JsonObject, log: TextIO) -> JsonObject:
        """Start a build, or find a running one, where the project may build."""
        region = self.region or self.connection.region
        try:
            return self._started_in(region, request)
        except Exception as error:
            if self.region is not None or not is_closed_region(error):
                raise self._explained(error, region) from None
        log.write(
            f"Google does not allow this project to run builds in {region}: building in the location {GLOBAL}, which "
            f"may be on another continent. To choose a region: --set {self.connection.section}.build.region=REGION\n"
        )
        try:
            return self._started_in(GLOBAL, request)
        except Exception as error:
            raise self._explained(error, GLOBAL) from None

    def _explained(self, error: Exception, location: str) -> Exception:
        if status_of(error) not in (400, 403, 404):
            return error
        return refused(error, self.connection, location, self.account)

    def _started_in(self, location: str, request: JsonObject) -> JsonObject:
        """Start a build, or return a running one of this image: another caller's, or our own after a lost response.

        Of builds that were started at the same moment, all callers follow the first one, and cancel their own.
        """
        tag = request["tags"][0]
        build = retried(lambda: self._running(location, tag) or self._create(location, request))
        first = retried(lambda: self._running(location, tag)) or build
        if first["id"] != build["id"]:
            with answers_ignored():
                retried(self._builds().cancel(name=build["name"], body={}).execute)
        return first

    def _running(self, location: str, tag: str) -> JsonObject | None:
        """Return the running build of this image that was started first."""
        answer = (
            self._builds()
            .list(parent=self._parent(location), filter=f'tags="{tag}" AND (status="QUEUED" OR status="WORKING")')
            .execute()
        )
        return min(answer.get("builds", []), key=lambda build: (build["createTime"], build["id"]), default=None)

    def _create(self, location: str, request: JsonObject) -> JsonObject:
        operation = self._builds().create(parent=self._parent(location), body=request).execute()
        return dict(operation["metadata"]["build"])

    def _parent(self, location: str) -> str:
        return f"projects/{self.connection.project}/locations/{location}"

    def _builds(self) -> Any:
        return self.connection.api("cloudbuild", "v1").projects().locations().builds()

    def _follow(self, build: JsonObject, log: TextIO) -> JsonObject:
        """Wait until the build has ended and its log has arrived; return the build."""
        lines = BuildLog(self.connection, build, log)
        polls_after_end = 0
        while True:
            build = retried(self._builds().get(name=build["name"]).execute)
            lines.copy()
            polls_after_end += build["status"] in ENDED
            if polls_after_end > (LAST_LINES_POLLS if lines.readable else 0):
                for warning in build.get("warnings", ()):
                    log.write(f"{warning.get('priority', 'WARNING')}: {warning.get('text', '')}\n")
                return build
            time.sleep(paced(self.wait_seconds))


class BuildLog:
    """Copies a build's log from Cloud Logging; `readable` is whether the caller may read it."""

    def __init__(self, connection: Connection, build: JsonObject, log: TextIO) -> None:
        self.readable = True
        self._connection = connection
        self._log = log
        self._entries = LogEntries(connection, ['resource.type="build"', f'resource.labels.build_id="{build["id"]}"'])

    def copy(self) -> None:
        """Write the lines that are new."""
        if not self.readable:
            return
        try:
            entries = self._entries.read()
        except Exception as error:
            if status_of(error) != 403:
                raise
            self.readable = False
            problem = refusal(error, self._connection, "read the build log", "logging.logEntries.list")
            self._log.write(f"{problem.message} It can be read at the address above.\n")
            return
        self._log.writelines(f"{text_of(entry)}\n" for entry in entries)
        self._log.flush()


def default_account(connection: Connection, region: str | None = None) -> str:
    """Return the e-mail of the account that a project's builds run as unless they name one; "" if there is none.

    It is Compute Engine's default account, or in projects that used Cloud Build before 2024 the legacy one.
    https://cloud.google.com/build/docs/cloud-build-service-account-updates
    """
    name = f"projects/{connection.project}/locations/{region or connection.region}/defaultServiceAccount"
    locations = connection.api("cloudbuild", "v1").projects().locations()
    answer = retried(lambda: locations.getDefaultServiceAccount(name=name).execute())
    return str(answer.get("serviceAccountEmail", "")).rpartition("/")[2]
