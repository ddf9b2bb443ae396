"""Cloud Build: builds of some duration, with sources and logs in buckets, that push images."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Literal

from slipway.components.build_image.refusals import OPEN_REGIONS
from tests.fakes.artifact_registry import FakeImages
from tests.fakes.errors import ServiceError
from tests.fakes.http_service import HttpService, Request
from tests.fakes.logging import Log
from tests.fakes.storage import FakeStorage
from tests.fakes.world import Project, World

SERVICE = "cloudbuild.googleapis.com"
BUILDS = "/v1/projects/{project}/locations/{location}/builds"
NO_LOGS = (
    "if 'build.service_account' is specified, the build must either (a) specify 'build.logs_bucket', (b) use the "
    "REGIONAL_USER_OWNED_BUCKET build.options.default_logs_bucket_behavior option, or (c) use either "
    "CLOUD_LOGGING_ONLY / NONE logging options"
)
CLOSED_REGION = (
    "failed precondition: due to quota restrictions, cannot run builds in this region, see "
    "https://cloud.google.com/build/docs/locations#restricted_regions_for_some_projects"
)

# Builds and pushes for real: given the context (.tar.gz) and the docker step's arguments, it gives the image's digest.
Builder = Callable[[bytes, list[str]], str]


class BuildFailed(Exception):
    """A build that ends with FAILURE; the text is its detail, `type` that of its failureInfo."""

    def __init__(self, detail: str, type: str = "USER_BUILD_STEP") -> None:
        super().__init__(detail)
        self.type = type


class FakeCloudBuild:
    """`builds` by id, in the order of their creation. A build ends at the `looks`-th poll.

    With a `builder` (see Builder) it ends when that is done. `default` is the account that builds run as unless they
    name one: Compute Engine's (since 2024), the legacy one of Cloud Build, or none. A `restricted` project may build in
    some regions only.
    """

    def __init__(self, service: HttpService, world: World, storage: FakeStorage, images: FakeImages, log: Log) -> None:
        self._world = world
        self._storage = storage
        self._images = images
        self._logging = log
        self._logged: dict[str, int] = {}
        self.default: Literal["compute", "legacy", "none"] = "compute"
        self.restricted = False
        self.builds: dict[str, dict[str, Any]] = {}
        self.looks = 3
        self.builder: Builder | None = None
        self._pool = ThreadPoolExecutor(1)
        self._underway: dict[str, Future[str]] = {}
        self._looked: dict[str, int] = {}

        @service.route("POST", BUILDS)
        def create(request: Request) -> Any:
            project = self._project(request, "cloudbuild.builds.create")
            build = self._accepted(request, project)
            with world.lock:
                self.builds[build["id"]] = build
                world.writes["build"] += 1
            return {"name": f"operations/build/{project.id}/{build['id']}", "metadata": {"build": build}}

        @service.route("GET", BUILDS)
        def list_(request: Request) -> Any:
            self._project(request, "cloudbuild.builds.list")
            tags = re.findall(r'tags="([^"]+)"', request.query.get("filter", ""))
            states = re.findall(r'status="([^"]+)"', request.query.get("filter", ""))
            found = [
                build
                for build in self.builds.values()
                if build["name"].startswith(f"{request.path.removeprefix('/v1/')}/")
                and set(tags) <= set(build["tags"])
                and (not states or build["status"] in states)
            ]
            return {"builds": found}

        @service.route("GET", f"{BUILDS}/{{build}}")
        def get(request: Request) -> Any:
            self._project(request, "cloudbuild.builds.get")
            with world.lock:
                build = self.builds.get(request.parts["build"])
                if build is None or build["name"] != request.path.removeprefix("/v1/"):
                    raise ServiceError(404, "Requested entity was not found.")
                self._go_on(build)
                return dict(build)

        @service.route("POST", f"{BUILDS}/{{build}}:cancel")
        def cancel(request: Request) -> Any:
            self._project(request, "cloudbuild.builds.update")
            with world.lock:
                build = self.builds[request.parts["build"]]
                if build["status"] in ("QUEUED", "WORKING"):
                    build["status"] = "CANCELLED"
                return dict(build)

        @service.route("GET", "/v1/projects/{project}/locations/{location}/defaultServiceAccount")
        def default_account(request: Request) -> Any:
            project = self._project(request, "cloudbuild.builds.get")
            email = self._default(project)
            account = f"projects/{project.number}/serviceAccounts/{email}"
            return {"name": request.path.removeprefix("/v1/"), **({"serviceAccountEmail": account} if email else {})}

    def _default(self, project: Project) -> str:
        """The e-mail of the account that builds run as by default; "" for none."""
        accounts = {
            "compute": f"{project.number}-compute@developer.gserviceaccount.com",
            "legacy": f"{project.number}@cloudbuild.gserviceaccount.com",
        }
        return accounts.get(self.default, "")

    def _project(self, request: Request, permission: str) -> Any:
        project = self._world.project(request.parts["project"])
        self._world.require_service(project, SERVICE)
        self._world.require(
            request.caller, permission, f"projects/{project.id}", message="The caller does not have permission"
        )
        return project

    def _accepted(self, request: Request, project: Project) -> dict[str, Any]:
        wanted, location = request.json, request.parts["location"]
        account = wanted.get("serviceAccount", "").rpartition("/")[2]
        logging = wanted.get("options", {}).get("logging")
        if self.restricted and location not in (*OPEN_REGIONS, "global"):
            raise ServiceError(400, CLOSED_REGION, reason="FAILED_PRECONDITION")
        if account and not wanted.get("logsBucket") and logging not in ("CLOUD_LOGGING_ONLY", "NONE"):
            raise ServiceError(400, NO_LOGS)
        account = account or self._default(project)
        if not account:
            raise ServiceError(400, "invalid build: no service account: the project has no default one")
        if not _is_legacy(account):
            self._check_act_as(request.caller, project, account)
        if not wanted.get("steps"):
            raise ServiceError(400, "invalid build: no build steps specified")
        with self._world.lock:
            number = len(self.builds) + 1
        identity = f"00000000-0000-4000-8000-{number:012d}"
        place = "" if location == "global" else f";region={location}"
        return {
            "tags": [],
            "logsBucket": f"gs://{project.number}.cloudbuild-logs.googleusercontent.com",
            **wanted,
            "id": identity,
            "name": f"{request.path.removeprefix('/v1/')}/{identity}",
            "logUrl": f"https://console.cloud.google.com/cloud-build/builds{place}/{identity}?project={project.number}",
            "projectId": project.id,
            "status": "QUEUED",
            "createTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
            "account": account,
        }

    def _check_act_as(self, caller: str, project: Project, email: str) -> None:
        """The refusal names the account by its unique id, and is the same where the account does not exist."""
        account = self._world.accounts.get(email)
        resource = f"projects/{project.id}/serviceAccounts/{email}"
        if (
            account is None
            or account.get("disabled")
            or not self._world.allowed(caller, "iam.serviceAccounts.actAs", resource, f"projects/{project.id}")
        ):
            identity = account["uniqueId"] if account else email
            raise ServiceError(
                403,
                "caller does not have permission to act as service account "
                f"projects/{project.id}/serviceAccounts/{identity}",
            )

    def _go_on(self, build: dict[str, Any]) -> None:
        looks = self._looked[build["id"]] = self._looked.get(build["id"], 0) + 1
        if build["status"] not in ("QUEUED", "WORKING"):
            return
        if self.builder is not None and build["id"] not in self._underway:
            self._underway[build["id"]] = self._pool.submit(self._work, build)
        underway = self._underway.get(build["id"])
        unfinished = looks < self.looks if underway is None else not underway.done()
        lines = "".join(f"Step {number}\n" for number in range(1, looks + 1))
        try:
            if unfinished:
                build["status"] = "WORKING"
                self._log(build, f"{lines}half a li")
                return
            digest = underway.result() if underway else self._work(build)
            self._log(build, f"{lines}half a line\nPUSH\nDONE\n")
        except (BuildFailed, ServiceError) as error:
            kind = error.type if isinstance(error, BuildFailed) else "USER_BUILD_STEP"
            build["status"], build["statusDetail"] = "FAILURE", str(error)
            build["failureInfo"] = {"type": kind, "detail": str(error)}
            if kind != "LOGGING_FAILURE":
                self._log(build, f"{lines}half a line\nERROR: {error}\n")
            return
        build["status"] = "SUCCESS"
        build["results"] = {"images": [{"name": uri, "digest": digest} for uri in build.get("images", [])]}

    def _work(self, build: dict[str, Any]) -> str:
        """Push the image that the build's docker step would push; return its digest."""
        source = build["source"]["storageSource"]
        if not self._may(build, "storage.objects.get", f"buckets/{source['bucket']}"):
            raise BuildFailed(
                f"{build['account']} does not have storage.objects.get access to the Google Cloud Storage object. "
                "Permission 'storage.objects.get' denied on resource (or it may not exist).",
                "FETCH_SOURCE_FAILED",
            )
        content, generation = self._storage.read(source["bucket"], source["object"])
        if "generation" in source and source["generation"] != generation:
            name = f"{source['bucket']}/{source['object']}#{source['generation']}"
            raise BuildFailed(f"No such object: {name}", "FETCH_SOURCE_FAILED")
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content))) as archive:
            if "Dockerfile" not in archive.getnames():
                raise BuildFailed("unable to prepare context: unable to evaluate symlinks in Dockerfile path")
        arguments = build["steps"][0]["args"]
        if self.builder is not None:
            digest = self.builder(content, arguments)
        else:
            digest = "sha256:" + hashlib.sha256(content + "\0".join(arguments).encode()).hexdigest()
        for uri in build.get("images", []):
            if uri not in arguments:
                raise BuildFailed(f"An image does not exist locally with the tag: {uri}", "PUSH_IMAGE_NOT_FOUND")
            try:
                self._images.push(build["account"], uri, digest)
            except ServiceError as error:
                raise BuildFailed(error.message, "PUSH_NOT_AUTHORIZED") from None
        return digest

    def _may(self, build: dict[str, Any], permission: str, *resources: str) -> bool:
        return self._world.allowed(build["account"], permission, *resources, f"projects/{build['projectId']}")

    def _log(self, build: dict[str, Any], text: str) -> None:
        """Store the log so far where the build's options say."""
        if build.get("options", {}).get("logging") == "CLOUD_LOGGING_ONLY":
            self._log_lines(build, text[: text.rfind("\n") + 1].splitlines())
            return
        bucket, _, folder = build["logsBucket"].removeprefix("gs://").partition("/")
        # The legacy account's own bucket for logs takes its logs; a bucket of the project's asks for more.
        for permission in ("storage.objects.create", "storage.buckets.get"):
            if not _is_legacy(build["account"]) and not self._may(build, permission, f"buckets/{bucket}"):
                raise BuildFailed(
                    "Failure setting up GCS logging: failed to create GCS logging client: error creating logfile: "
                    f"googleapi: Error 403: {build['account']} does not have {permission} access to the Google Cloud "
                    "Storage object., forbidden",
                    "LOGGING_FAILURE",
                )
        name = f"log-{build['id']}.txt"
        self._storage.write(bucket, f"{folder}/{name}" if folder else name, text.encode())

    def _log_lines(self, build: dict[str, Any], lines: list[str]) -> None:
        """Write the lines that are new to Cloud Logging. Without the permission the build continues, with a warning."""
        if not self._may(build, "logging.logEntries.create"):
            account = f"projects/{build['projectId']}/serviceAccounts/{build['account']}"
            text = (
                f"The service account running this build {account} does not have permission to write logs to Cloud "
                "Logging. To fix this, grant the Logs Writer (roles/logging.logWriter) role to the service account."
            )
            build["warnings"] = [{"text": text, "priority": "ALERT"}]
            return
        resource = {"type": "build", "labels": {"build_id": build["id"], "project_id": build["projectId"]}}
        for line in lines[self._logged.get(build["id"], 0) :]:
            self._logging.write(build["projectId"], "cloudbuild", resource, {"textPayload": line})
        self._logged[build["id"]] = len(lines)


def _is_legacy(account: str) -> bool:
    return account.endswith("@cloudbuild.gserviceaccount.com")
