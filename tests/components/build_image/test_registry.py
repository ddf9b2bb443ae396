"""Image lookup in Artifact Registry and in other registries."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from slipway.components.build_image.registry import ArtifactRegistry, HttpRegistry
from slipway.components.cloud.connection import Connection
from slipway.core.errors import UserError
from tests.fakes.errors import ConnectionReset, Faults, ServiceError
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.http_service import HttpService, Raw, Request

REPOSITORY = f"{REGION}-docker.pkg.dev/{PROJECT}/slipway"
RESOURCE = f"projects/{PROJECT}/locations/{REGION}/repositories/slipway"
DIGEST = "sha256:" + "a" * 64
# By tag or digest; "several" is for several platforms.
MANIFESTS: dict[str, dict[str, Any]] = {
    "one": {"config": {"digest": "sha256:config"}},
    "several": {
        "manifests": [
            {"digest": "sha256:arm", "platform": {"os": "linux", "architecture": "arm64"}},
            {"digest": "one", "platform": {"os": "linux", "architecture": "amd64"}},
        ]
    },
}


@pytest.fixture
def registry(google: FakeGoogle) -> ArtifactRegistry:
    return ArtifactRegistry(Connection(PROJECT, REGION, google.endpoints))


def test_an_image_is_found_by_its_tag(google: FakeGoogle, registry: ArtifactRegistry) -> None:
    google.repositories.add(RESOURCE)
    google.images.push("submitter@slipway-test.iam.gserviceaccount.com", f"{REPOSITORY}/trainer-cpu:abc", DIGEST)
    google.faults.plan("artifactregistry GET", ConnectionReset(), times=2)
    assert registry.digest(REPOSITORY, "trainer-cpu", "abc") == DIGEST
    assert registry.digest(REPOSITORY, "trainer-cpu", "abd") is None
    assert registry.digest(REPOSITORY, "trainer-gpu", "abc") is None


def test_a_repository_that_is_not_there_is_no_missing_image(google: FakeGoogle, registry: ArtifactRegistry) -> None:
    with pytest.raises(UserError, match="There is no repository") as error:
        registry.digest(REPOSITORY, "trainer-cpu", "abc")
    assert error.value.fix is not None
    assert "slipway setup" in error.value.fix


def test_a_reader_without_rights_is_told_the_role(google: FakeGoogle, registry: ArtifactRegistry) -> None:
    google.repositories.add(RESOURCE)
    google.world.owners.clear()
    with pytest.raises(UserError, match="downloadArtifacts") as error:
        registry.digest(REPOSITORY, "trainer-cpu", "abc")
    assert "roles/artifactregistry.reader" in str(error.value)


class OtherRegistry:
    """A registry that wants a token for everything, and knows one image."""

    def __init__(self) -> None:
        self.service = HttpService("registry", Faults(), lambda _headers: "someone")
        self.service.route("HEAD", "/v2/{name=**}/manifests/{tag}")(self._manifest)
        self.service.route("GET", "/v2/{name=**}/manifests/{tag}")(self._manifest)
        self.service.route("GET", "/v2/{name=**}/blobs/{digest=**}")(self._blob)
        self.service.route("GET", "/elsewhere")(self._elsewhere)
        self.service.route("GET", "/token")(self._token)
        self.asked: list[str] = []
        self.port = self.service.start(None)

    def _manifest(self, request: Request) -> Raw:
        if request.headers.get("Authorization") != "Bearer t0":
            challenge = f'Bearer realm="http://localhost:{self.port}/token",service="r",scope="repository:pull"'
            return Raw(b"", 401, {"WWW-Authenticate": challenge})
        if request.parts["tag"] in MANIFESTS:
            return Raw(json.dumps(MANIFESTS[request.parts["tag"]]).encode())
        if (request.parts["name"], request.parts["tag"]) != ("team/slipway/trainer-cpu", "abc"):
            raise ServiceError(404, "manifest unknown")
        assert "application/vnd.oci.image.manifest.v1+json" in request.headers["Accept"]
        return Raw(b"", 200, {"Docker-Content-Digest": DIGEST})

    def _blob(self, request: Request) -> Raw:
        if request.headers.get("Authorization") != "Bearer t0":
            return self._manifest(request)
        assert request.parts["digest"] == "sha256:config"
        return Raw(b"", 307, {"Location": f"http://localhost:{self.port}/elsewhere?signature=1"})

    def _elsewhere(self, request: Request) -> Raw:
        assert "Authorization" not in request.headers, "a signed address refuses a second authentication"
        return Raw(json.dumps({"config": {"Env": ["PATH=/bin", "OPTIONS=a=b", "EMPTY="]}}).encode())

    def _token(self, request: Request) -> dict[str, str]:
        self.asked.append(request.headers.get("Authorization", ""))
        assert request.query == {"service": "r", "scope": "repository:pull"}
        return {"token": "t0"}


@pytest.fixture
def other() -> Iterator[OtherRegistry]:
    other = OtherRegistry()
    yield other
    other.service.stop()


def test_another_registry_is_asked_with_the_stored_login(
    other: OtherRegistry, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = base64.b64encode(b"me:secret").decode()
    folder = tmp_path_factory.mktemp("docker")
    (folder / "config.json").write_text(f'{{"auths": {{"localhost:{other.port}": {{"auth": "{login}"}}}}}}')
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    repository = f"localhost:{other.port}/team/slipway"
    assert HttpRegistry("containers.repository").digest(repository, "trainer-cpu", "abc") == DIGEST
    assert HttpRegistry("containers.repository").digest(repository, "trainer-cpu", "abd") is None
    assert other.asked == [f"Basic {login}"] * 2


@pytest.mark.parametrize("version", ["one", "several"])
def test_an_images_configuration_is_read(other: OtherRegistry, version: str) -> None:
    """Source (read): https://github.com/opencontainers/image-spec/blob/main/config.md, image-index.md."""
    registry = HttpRegistry("train.image", ("oauth2accesstoken", "secret"))
    repository = f"localhost:{other.port}/team/slipway"
    found = registry.configuration(repository, "trainer", version)
    assert found is not None
    assert found["Env"] == ["PATH=/bin", "OPTIONS=a=b", "EMPTY="]
    assert registry.configuration(repository, "trainer", "none") is None
    assert other.asked[0] == "Basic " + base64.b64encode(b"oauth2accesstoken:secret").decode()


def test_a_registry_that_is_away_is_named_with_the_command_that_starts_one() -> None:
    with pytest.raises(UserError, match="Could not query the registry localhost:1") as error:
        HttpRegistry("containers.repository").digest("localhost:1/slipway", "trainer-cpu", "abc")
    assert "--publish 127.0.0.1:1:5000" in str(error.value.fix)
