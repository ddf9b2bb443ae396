"""Images in Artifact Registry: packages with tags, each pointing to a digest."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tests.fakes.artifact_repositories import REPOSITORY, SERVICE, FakeRepositories
from tests.fakes.errors import ServiceError
from tests.fakes.http_service import HttpService, Raw, Request
from tests.fakes.paging import page_of
from tests.fakes.world import World

PULL = "artifactregistry.repositories.downloadArtifacts"
# The variables of Slipway's images that matter to a platform.
ENVIRONMENT = ["PATH=/usr/local/nvidia/bin:/usr/bin", "LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/usr/local/nvidia/lib"]


class FakeImages:
    """`tags` maps (repository's full name, image, tag) to the digest; `moved` lists the tags that were moved.

    `untagged` lists the other images as (repository's full name, image, digest). `environments` has the variables of
    images by digest, if they differ from `ENVIRONMENT`; `configurations` what else their configurations have;
    `uploads` when they were uploaded, now if it is not said.
    """

    def __init__(self, service: HttpService, docker: HttpService, world: World, repositories: FakeRepositories) -> None:
        self.uploads: dict[str, datetime] = {}
        self.environments: dict[str, list[str]] = {}
        self.configurations: dict[str, dict[str, Any]] = {}
        self._world = world
        self.tags: dict[tuple[str, str, str], str] = {}
        self.moved: list[tuple[str, str, str]] = []
        self.untagged: set[tuple[str, str, str]] = set()

        @service.route("GET", f"{REPOSITORY}/packages/{{package}}/tags/{{tag}}")
        def get_tag(request: Request) -> Any:
            repository = self._repository(request)
            package, tag = request.parts["package"], request.parts["tag"]
            name = f"{repository}/packages/{package}"
            digest = self.tags.get((repository, package, tag))
            if digest is None:
                raise ServiceError(404, "Requested entity was not found.")
            return {"name": f"{name}/tags/{tag}", "version": f"{name}/versions/{digest}"}

        @service.route("GET", f"{REPOSITORY}/packages/{{package}}/versions/{{digest=**}}")
        def get_version(request: Request) -> Any:
            repository = self._repository(request)
            there = self.untagged | {(held, package, digest) for (held, package, _), digest in self.tags.items()}
            if (repository, request.parts["package"], request.parts["digest"]) not in there:
                raise ServiceError(404, "Requested entity was not found.")
            return {"name": request.path.removeprefix("/v1/")}

        @service.route("DELETE", f"{REPOSITORY}/packages/{{package}}/versions/{{digest=**}}")
        def delete_version(request: Request) -> Any:
            repository = self._repository(request, "artifactregistry.versions.delete")
            package, digest = request.parts["package"], request.parts["digest"]
            tags = [tag for tag, held in self.tags.items() if (*tag[:2], held) == (repository, package, digest)]
            if not tags and (repository, package, digest) not in self.untagged:
                raise ServiceError(404, "Requested entity was not found.")
            if tags and request.query.get("force") != "true":
                raise ServiceError(400, "Versions with tags can only be deleted with force.")

            def delete() -> dict[str, Any]:
                self.untagged.discard((repository, package, digest))
                for tag in tags:
                    self.tags.pop(tag, None)
                self._world.writes["imageDeletion"] += 1
                return {"@type": "type.googleapis.com/google.protobuf.Empty"}

            return repositories.start(repository.partition("/repositories/")[0], delete)

        @service.route("GET", f"{REPOSITORY}/dockerImages")
        def list_images(request: Request) -> Any:
            repository = self._repository(request, "artifactregistry.dockerimages.list")
            found: dict[tuple[str, str], list[str]] = {}
            for held, package, digest in self.untagged:
                if held == repository:
                    found[package, digest] = []
            for (held, package, tag), digest in self.tags.items():
                if held == repository:
                    found.setdefault((package, digest), []).append(tag)
            images = [self._image(repository, *key, tags) for key, tags in sorted(found.items())]
            page, following = page_of(images, int(request.query.get("pageSize", 0)), request.query.get("pageToken", ""))
            return {"dockerImages": page, **({"nextPageToken": following} if following else {})}

        @docker.route("GET", "/v2/token")
        def get_token(request: Request) -> Any:
            login = base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
            assert login.startswith("oauth2accesstoken:")
            return {"token": login.partition(":")[2]}

        @docker.route("GET", "/v2/{project}/{repository}/{package=**}/manifests/{version=**}")
        def get_manifest(request: Request) -> Any:
            return self._served(request, lambda digest: {"schemaVersion": 2, "config": {"digest": digest}})

        @docker.route("GET", "/v2/{project}/{repository}/{package=**}/blobs/{version=**}")
        def get_configuration(request: Request) -> Any:
            return self._served(request, self._configuration)

    def _configuration(self, digest: str) -> Any:
        environment = self.environments.get(digest, ENVIRONMENT)
        return {"config": {"Env": environment, **self.configurations.get(digest, {})}}

    def _served(self, request: Request, content: Callable[[str], Any]) -> Any:
        """Return what REGION-docker.pkg.dev has of an image, by tag or digest, or the challenge of a registry.

        Source: https://distribution.github.io/distribution/spec/auth/token/, and
        https://cloud.google.com/artifact-registry/docs/docker/authentication#token
        """
        if "Authorization" not in request.headers:
            realm = f'Bearer realm="http://{request.headers["Host"]}/v2/token",service="docker.pkg.dev"'
            return Raw(b"", 401, {"WWW-Authenticate": realm})
        images = {**{image: image[2] for image in self.untagged}, **self.tags}
        images |= {(held, name, digest): digest for (held, name, _), digest in self.tags.items()}
        for (held, name, version), digest in images.items():
            path = (held.rpartition("/")[2], name, version)
            if path == (request.parts["repository"], request.parts["package"], request.parts["version"]):
                caller, project = self._world.identify(request.headers), f"projects/{request.parts['project']}"
                self._world.require(caller, PULL, held, project, message="denied")
                return content(digest)
        raise ServiceError(404, "Requested entity was not found.")

    def push(self, caller: str, uri: str, digest: str) -> None:
        """Push an image (REGION-docker.pkg.dev/PROJECT/REPOSITORY/IMAGE:TAG), as a builder does."""
        host, project, repository, image = uri.split("/")
        package, _, tag = image.partition(":")
        name = f"projects/{project}/locations/{host.removesuffix('-docker.pkg.dev')}/repositories/{repository}"
        with self._world.lock:
            if name not in self._world.repositories:
                raise ServiceError(404, f'name unknown: Repository "{repository}" not found')
            permission = "artifactregistry.repositories.uploadArtifacts"
            message = f'denied: Permission "{permission}" denied on resource "{name}" (or it may not exist)'
            self._world.require(caller, permission, name, f"projects/{project}", message=message)
            if self.tags.get((name, package, tag), digest) != digest:
                self.moved.append((name, package, tag))
            self.tags[(name, package, tag)] = digest
            self._world.writes["image"] += 1

    def _image(self, repository: str, package: str, digest: str, tags: list[str]) -> dict[str, Any]:
        """Return a DockerImage. Source: the API's discovery document."""
        _, project, _, location, _, name = repository.split("/")
        uploaded = self.uploads.get(digest, datetime.now(UTC)).isoformat().replace("+00:00", "Z")
        return {
            "name": f"{repository}/dockerImages/{package}@{digest}",
            "uri": f"{location}-docker.pkg.dev/{project}/{name}/{package}@{digest}",
            **({"tags": tags} if tags else {}),
            "imageSizeBytes": "1000000000",
            "uploadTime": uploaded,
            "updateTime": uploaded,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        }

    def _repository(self, request: Request, permission: str = PULL) -> str:
        project = self._world.project(request.parts["project"])
        self._world.require_service(project, SERVICE)
        location, repository = request.parts["location"], request.parts["repository"]
        name = f"projects/{project.id}/locations/{location}/repositories/{repository}"
        message = f"Permission '{permission}' denied on resource '//{SERVICE}/{name}' (or it may not exist)."
        self._world.require(request.caller, permission, name, f"projects/{project.id}", message=message)
        if name not in self._world.repositories:
            raise ServiceError(404, "Requested entity was not found.")
        return name
