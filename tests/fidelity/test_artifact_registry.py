"""Artifact Registry's rules that the fake enforces, with Google's client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import status_of
from tests.fakes.errors import ServiceError
from tests.fakes.google import PROJECT, REGION, SUBMITTER, FakeGoogle

PARENT = f"projects/{PROJECT}/locations/{REGION}"
NAME = f"{PARENT}/repositories/slipway"
IMAGE = f"{REGION}-docker.pkg.dev/{PROJECT}/slipway/trainer-cpu:1"
METADATA = "google.devtools.artifactregistry.v1.OperationMetadata"
DIGEST = "sha256:" + "a" * 64


@pytest.fixture
def repositories(google: FakeGoogle) -> Any:
    return Connection(PROJECT, REGION, google.endpoints).api("artifactregistry", "v1").projects().locations()


@pytest.fixture
def create(repositories: Any) -> Callable[..., Any]:
    def created(identity: str = "slipway", **body: Any) -> Any:
        request = repositories.repositories().create(parent=PARENT, repositoryId=identity, body=body)
        return request.execute()

    return created


@pytest.mark.parametrize("identity", ["Slipway", "1slipway", "slipway-", "s" * 64])
def test_a_repository_id_is_a_name_of_63_characters_at_most(create, identity):
    """Source (read): `Repository.name` in google/devtools/artifactregistry/v1/repository.proto."""
    with pytest.raises(Exception, match="is not valid") as error:
        create(identity, format="DOCKER")
    assert status_of(error.value) == 400


def test_a_repository_needs_a_format(create):
    """Source (read): `Repository.format` in google/devtools/artifactregistry/v1/repository.proto."""
    with pytest.raises(Exception, match="format is required") as error:
        create()
    assert status_of(error.value) == 400


def test_a_repository_is_created_by_a_long_running_operation_and_once(repositories, create):
    """Source (recorded): k8s-config-connector, mockartifactregistry/testdata/repository/crud, commit e7ee33b523."""
    started = create(format="DOCKER")
    assert "done" not in started
    with pytest.raises(Exception, match="was not found") as early:
        repositories.repositories().get(name=NAME).execute()
    assert status_of(early.value) == 404
    operation = started
    for _ in range(3):
        operation = repositories.operations().get(name=started["name"]).execute()
    assert operation["done"]
    found = repositories.repositories().get(name=NAME).execute()
    assert (found["format"], found["mode"], found["satisfiesPzi"]) == ("DOCKER", "STANDARD_REPOSITORY", True)
    assert found["vulnerabilityScanningConfig"]["enablementState"] == "SCANNING_DISABLED"
    assert found["registryUri"] == IMAGE.rpartition("/")[0]
    assert "registryUri" not in operation["response"]
    assert operation["metadata"] == started["metadata"] == {"@type": f"type.googleapis.com/{METADATA}"}
    with pytest.raises(Exception, match="already exists") as again:
        create(format="DOCKER")
    assert status_of(again.value) == 409


def test_pushing_requires_a_repository_and_the_permission_to_upload(google):
    """Pushing does not create a repository. Source (read):
    https://cloud.google.com/artifact-registry/docs/docker/pushing-and-pulling"""
    with pytest.raises(ServiceError, match="name unknown"):
        google.images.push(SUBMITTER, IMAGE, DIGEST)
    google.repositories.add(NAME)
    google.world.owners.clear()
    with pytest.raises(ServiceError, match=r"denied: Permission \"artifactregistry.repositories.uploadArtifacts\""):
        google.images.push(SUBMITTER, IMAGE, DIGEST)


def test_reading_an_image_requires_the_permission_to_download(google, repositories):
    """Source (read): https://cloud.google.com/artifact-registry/docs/access-control#permissions"""
    google.repositories.add(NAME)
    google.images.push(SUBMITTER, IMAGE, DIGEST)
    tag = f"{NAME}/packages/trainer-cpu/tags/1"
    tags = repositories.repositories().packages().tags()
    assert tags.get(name=tag).execute()["version"].endswith(DIGEST)
    google.world.owners.clear()
    with pytest.raises(Exception, match=r"artifactregistry\.repositories\.downloadArtifacts") as error:
        tags.get(name=tag).execute()
    assert status_of(error.value) == 403


def test_an_api_that_is_not_enabled_answers_nothing(google, repositories):
    """Source (read): https://cloud.google.com/service-usage/docs/enable-disable (error SERVICE_DISABLED)."""
    google.world.projects[PROJECT].services.discard("artifactregistry.googleapis.com")
    with pytest.raises(Exception, match="has not been used in project") as error:
        repositories.repositories().get(name=NAME).execute()
    assert status_of(error.value) == 403
