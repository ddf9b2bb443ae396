"""Cloud Build: builds of some duration, with sources and logs in buckets, that push images."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tests.fakes.artifact_registry import FakeImages
from tests.fakes.errors import ServiceError
from tests.fakes.http_service import HttpService, Request
from tests.fakes.storage import FakeStorage
from tests.fakes.world import World

SERVICE = "cloudbuild.googleapis.com"
BUILDS = "/v1/projects/{project}/locations/{location}/builds"
NO_LOGS = (
    "if 'build.service_account' is specified, the build must either (a) specify 'build.logs_bucket', (b) use the "
    "REGIONAL_USER_OWNED_BUCKET build.options.default_logs_bucket_behavior option, or (c) use either "
    "CLOUD_LOGGING_ONLY / NONE logging options"
)


# Builds and pushes for real: given the context (.tar.gz) and the docker step's arguments, it gives the image's digest.
Builder = Callable[[bytes, list[str]], str]


class BuildFailed(Exception):
    """A build that ends with FAILURE; the text is its detail."""


class FakeCloudBuild:
    """`builds` by id, in the order of their creation. A build ends at the `looks`-th poll.

    With a `builder` (see Builder) it ends when that is done.
    """

    def __init__(self, service: HttpService, world: World, storage: FakeStorage, images: FakeImages) -> None:
        self._world = world
        self._storage = storage
        self._images = images
        self.builds: dict[str, dict[str, Any]] = {}
        self.looks = 3
        self.builder: Builder | None = None
        self._pool = ThreadPoolExecutor(1)
        self._underway: dict[str, Future[str]] = {}
        self._looked: dict[str, int] = {}

        @service.route("POST", BUILDS)
        def create(request: Request) -> Any:
            project = self._project(request, "cloudbuild.builds.create")
            build = self._accepted(request.json, request.caller, project)
            build["name"] = f"{request.path.removeprefix('/v1/')}/{build['id']}"
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
                if set(tags) <= set(build["tags"]) and (not states or build["status"] in states)
            ]
            return {"builds": found}

        @service.route("GET", f"{BUILDS}/{{build}}")
        def get(request: Request) -> Any:
            self._project(request, "cloudbuild.builds.get")
            with world.lock:
                build = self.builds.get(request.parts["build"])
                if build is None:
                    raise ServiceError(404, "Requested entity was not found.")
                self._go_on(build)
                return dict(build)

    def _project(self, request: Request, permission: str) -> Any:
        project = self._world.project(request.parts["project"])
        self._world.require_service(project, SERVICE)
        self._world.require(
            request.caller, permission, f"projects/{project.id}", message="The caller does not have permission"
        )
        return project

    def _accepted(self, wanted: dict[str, Any], caller: str, project: Any) -> dict[str, Any]:
        account = wanted.get("serviceAccount", "").rpartition("/")[2]
        logging = wanted.get("options", {}).get("logging")
        if account and not wanted.get("logsBucket") and logging not in ("CLOUD_LOGGING_ONLY", "NONE"):
            raise ServiceError(400, NO_LOGS)
        if account:
            resource = f"projects/{project.id}/serviceAccounts/{account}"
            message = f"caller does not have permission to act as service account {resource}"
            self._world.require(
                caller, "iam.serviceAccounts.actAs", resource, f"projects/{project.id}", message=message
            )
        if not wanted.get("steps"):
            raise ServiceError(400, "invalid build: no build steps specified")
        with self._world.lock:
            number = len(self.builds) + 1
        return {
            "tags": [],
            "logsBucket": f"gs://{project.number}.cloudbuild-logs.googleusercontent.com",
            **wanted,
            "id": f"00000000-0000-4000-8000-{number:012d}",
            "projectId": project.id,
            "status": "QUEUED",
            "account": account or f"{project.number}-compute@developer.gserviceaccount.com",
        }

    def _go_on(self, build: dict[str, Any]) -> None:
        looks = self._looked[build["id"]] = self._looked.get(build["id"], 0) + 1
        if build["status"] not in ("QUEUED", "WORKING"):
            return
        if self.builder is not None and build["id"] not in self._underway:
            self._underway[build["id"]] = self._pool.submit(self._work, build)
        underway = self._underway.get(build["id"])
        unfinished = looks < self.looks if underway is None else not underway.done()
        if unfinished:
            build["status"] = "WORKING"
            self._log(build, "".join(f"Step {number}\n" for number in range(1, looks + 1)) + "half a li")
            return
        lines = "".join(f"Step {number}\n" for number in range(1, looks + 1)) + "half a line\n"
        try:
            digest = underway.result() if underway else self._work(build)
        except (BuildFailed, ServiceError) as error:
            build["status"], build["statusDetail"] = "FAILURE", str(error)
            self._log(build, f"{lines}ERROR: {error}\n")
            return
        build["status"] = "SUCCESS"
        build["results"] = {"images": [{"name": uri, "digest": digest} for uri in build.get("images", [])]}
        self._log(build, f"{lines}PUSH\nDONE\n")

    def _work(self, build: dict[str, Any]) -> str:
        """Push the image that the build's docker step would push; return its digest."""
        source = build["source"]["storageSource"]
        content, generation = self._storage.read(source["bucket"], source["object"])
        if "generation" in source and source["generation"] != generation:
            raise BuildFailed(f"No such object: {source['bucket']}/{source['object']}#{source['generation']}")
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
                raise BuildFailed(f"An image does not exist locally with the tag: {uri}")
            self._images.push(build["account"], uri, digest)
        return digest

    def _log(self, build: dict[str, Any], text: str) -> None:
        bucket, _, folder = build["logsBucket"].removeprefix("gs://").partition("/")
        name = f"log-{build['id']}.txt"
        self._storage.write(bucket, f"{folder}/{name}" if folder else name, text.encode())
