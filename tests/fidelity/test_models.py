"""Rules of Vertex AI's Model Registry and ML Metadata that the fakes enforce, with Google's clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import aiplatform_v1 as vertex

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import status_of
from tests.fakes.google import NUMBER, PROJECT, REGION, FakeGoogle
from tests.fakes.ready import SERVING_IMAGE

PARENT = f"projects/{PROJECT}/locations/{REGION}"
MODEL = f"projects/{NUMBER}/locations/{REGION}/models/digits"
STORE = f"{PARENT}/metadataStores/default"


@pytest.fixture
def connection(ready_google: FakeGoogle) -> Connection:
    return Connection(PROJECT, REGION, ready_google.endpoints)


@pytest.fixture
def upload(connection: Connection) -> Callable[..., Any]:
    """Upload a version of the model digits with some fields changed; return the finished operation."""

    def made(request: dict[str, Any] | None = None, **fields: Any) -> Any:
        model = {
            "display_name": "digits",
            "artifact_uri": "gs://bucket/runs/digits-1/model",
            "container_spec": {"image_uri": SERVING_IMAGE},
            **fields,
        }
        sent = {"parent": PARENT, "model": model, "model_id": "digits"} | (request or {})
        started = connection.models.upload_model(request=sent).operation
        return connection.models.get_operation({"name": started.name})

    return made


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"display_name": "x" * 129}, "1 to 128 characters"),
        ({"labels": {"Upper": "x"}}, "Invalid label key"),
        ({"labels": {"upper": "X"}}, "Invalid label value"),
        ({"artifact_uri": "/gcs/bucket/model"}, "must be gs://bucket/object"),
        ({"container_spec": {"image_uri": "no image"}}, "Invalid container image URI"),
        ({"version_aliases": ["1"]}, "Invalid version alias"),
        ({"encryption_spec": {"kms_key_name": "key"}}, "Invalid KMS key name"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_field_outside_its_format_is_refused(upload, fields, sentence):
    """Source (read): comments of `Model` in google/cloud/aiplatform/v1/model.proto."""
    with pytest.raises(Exception, match=sentence) as error:
        upload(**fields)
    assert status_of(error.value) == 400


@pytest.mark.parametrize("identity", ["Digits", "1digits", "-digits", "d" * 64])
def test_a_model_id_has_at_most_63_characters_and_begins_with_a_letter(upload, identity):
    """Source (read): `UploadModelRequest.model_id`, which also permits an underscore, in model_service.proto."""
    with pytest.raises(Exception, match="Invalid model_id") as error:
        upload({"model_id": identity})
    assert status_of(error.value) == 400


def test_a_model_is_created_once_and_a_version_needs_its_model(upload):
    """Source (read): `UploadModelRequest.model_id` and `parent_model` in model_service.proto."""
    with pytest.raises(Exception, match="does not exist") as unknown:
        upload({"parent_model": MODEL, "model_id": ""})
    assert status_of(unknown.value) == 404
    assert not upload().error.message
    with pytest.raises(Exception, match="already exists") as again:
        upload()
    assert status_of(again.value) == 409
    assert not upload({"parent_model": MODEL, "model_id": ""}).error.message


def test_an_alias_belongs_to_one_version_and_the_first_version_is_the_default(connection, upload):
    """Source (read): `Model.version_aliases` in model.proto, `MergeVersionAliasesRequest` in model_service.proto."""
    upload(version_aliases=["champion"])
    upload({"parent_model": MODEL, "model_id": ""}, version_aliases=["champion"])
    models = connection.models
    assert list(models.get_model(name=f"{MODEL}@1").version_aliases) == ["default"]
    assert models.get_model(name=f"{MODEL}@champion").version_id == "2"
    models.merge_version_aliases(name=f"{MODEL}@1", version_aliases=["champion", "-default"])
    assert models.get_model(name=f"{MODEL}@champion").version_id == "1"
    assert list(models.get_model(name=f"{MODEL}@2").version_aliases) == []


def test_an_upload_is_a_long_running_operation(connection, ready_google, upload):
    """The version does not exist before it is done. Source (read): ModelService.UploadModel in model_service.proto."""
    ready_google.region.operations.looks = 2
    assert not upload().done
    with pytest.raises(Exception, match="does not exist") as error:
        connection.models.get_model(name=MODEL)
    assert status_of(error.value) == 404


def test_another_region_knows_nothing_of_the_model(connection):
    """A request goes to its location's address. Source (read):
    https://cloud.google.com/vertex-ai/docs/general/locations"""
    with pytest.raises(Exception, match="names location us-central1") as error:
        connection.models.get_model(name=f"projects/{PROJECT}/locations/us-central1/models/digits")
    assert status_of(error.value) == 400


def test_the_metadata_store_exists_after_the_first_run_only(connection, ready_google):
    """Source (read): https://cloud.google.com/vertex-ai/docs/ml-metadata/configure (the default store)."""
    context = vertex.Context(schema_title="system.Experiment", schema_version="0.0.1")
    made = {"parent": STORE, "context": context, "context_id": "digits"}
    with pytest.raises(Exception, match="metadata store") as error:
        connection.metadata.create_context(request=made)
    assert status_of(error.value) == 404
    ready_google.region.metadata.add(f"{STORE}/contexts/digits-1", "system.PipelineRun")
    connection.metadata.create_context(request=made)
    with pytest.raises(Exception, match="already exists") as again:
        connection.metadata.create_context(request=made)
    assert status_of(again.value) == 409
    with pytest.raises(Exception, match="400") as invalid:
        connection.metadata.create_context(request={**made, "context_id": "Digits"})
    assert status_of(invalid.value) == 400
