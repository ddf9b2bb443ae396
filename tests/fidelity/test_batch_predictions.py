"""Which batch prediction jobs the fake service accepts, and how they end, called by Google's client."""

from __future__ import annotations

import ast
import json
import re
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import status_of
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.ready import BUCKET, SERVING_IMAGE
from tests.fakes.vertex.serving import STAND_IN

PARENT = f"projects/{PROJECT}/locations/{REGION}"
JOB: dict[str, Any] = {
    "display_name": "job",
    "model": f"{PARENT}/models/digits",
    "input_config": {"instances_format": "jsonl", "gcs_source": {"uris": [f"gs://{BUCKET}/in.jsonl"]}},
    "output_config": {
        "predictions_format": "jsonl",
        "gcs_destination": {"output_uri_prefix": f"gs://{BUCKET}/out"},
    },
    "dedicated_resources": {"machine_spec": {"machine_type": "n1-standard-4"}, "max_replica_count": 2},
}


@pytest.fixture
def connection(ready_google: FakeGoogle) -> Connection:
    """The connection to a project with the model digits."""
    found = Connection(PROJECT, REGION, ready_google.endpoints)
    model = {
        "display_name": "digits",
        "artifact_uri": f"gs://{BUCKET}/model",
        "container_spec": {"image_uri": SERVING_IMAGE},
    }
    request = {"parent": PARENT, "model": model, "model_id": "digits"}
    started = found.models.upload_model(request=request).operation
    while not found.models.get_operation({"name": started.name}).done:
        pass
    return found


def create(connection: Connection, **fields: Any) -> Any:
    return connection.jobs.create_batch_prediction_job(parent=PARENT, batch_prediction_job={**JOB, **fields})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"display_name": ""}, "display_name must be"),
        ({"labels": {"Upper": "x"}}, "Invalid label key"),
        ({"model": ""}, "Exactly one of model and unmanaged_container_model"),
        ({"input_config": {"instances_format": "xml"}}, "Unsupported instances_format 'xml'"),
        ({"input_config": {"instances_format": "jsonl"}}, "uris is required"),
        (
            {
                "input_config": {**JOB["input_config"], "instances_format": "file-list"},
                "instance_config": {"key_field": "id"},
            },
            "key_field is not supported",
        ),
        ({"instance_config": {"included_fields": ["a"], "excluded_fields": ["b"]}}, "Only one of included_fields"),
        ({"instance_config": {"instance_type": "row"}}, "Unsupported instance_type"),
        ({"output_config": {**JOB["output_config"], "predictions_format": "xml"}}, "Unsupported predictions_format"),
        ({"output_config": {"predictions_format": "jsonl"}}, "Invalid Cloud Storage URI"),
        ({"dedicated_resources": {}}, "machine_type is required"),
        ({"dedicated_resources": {"machine_spec": {"machine_type": "n9-standard-4"}}}, "is not supported"),
        (
            {"dedicated_resources": {**JOB["dedicated_resources"], "starting_replica_count": 3}},
            "starting_replica_count must not be greater",
        ),
        ({"encryption_spec": {"kms_key_name": "key"}}, "Invalid KMS key name"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_field_outside_its_format_is_refused(connection: Connection, ready_google: FakeGoogle, fields, sentence):
    """Source (read): comments of BatchPredictionJob in batch_prediction_job.proto, BatchDedicatedResources in
    machine_resources.proto.
    """
    with pytest.raises(Exception, match=sentence) as error:
        create(connection, **fields)
    assert status_of(error.value) == 400
    assert not ready_google.region.batches.jobs


def test_models_accounts_and_buckets_are_checked(connection: Connection, ready_google: FakeGoogle):
    """Source (read): the page "Get batch inferences from a custom trained model" (the bucket's region)."""
    with pytest.raises(Exception, match="does not exist") as error:
        create(connection, model=f"{PARENT}/models/digits@7")
    assert status_of(error.value) == 404
    with pytest.raises(Exception, match="act as service account"):
        create(connection, service_account="nobody@x.iam.gserviceaccount.com")
    for name, location in (("in-america", "US"), ("in-europe", "EU")):
        ready_google.storage.add_bucket(name, ready_google.world.projects[PROJECT], location)
    elsewhere = {"predictions_format": "jsonl", "gcs_destination": {"output_uri_prefix": "gs://in-america/x"}}
    with pytest.raises(Exception, match="in-america is in US, the model in europe-west4"):
        create(connection, output_config=elsewhere)
    elsewhere["gcs_destination"] = {"output_uri_prefix": "gs://in-europe/x"}
    assert create(connection, output_config=elsewhere).model_version_id == "1"


def test_spot_is_a_field_of_v1beta1_alone(connection: Connection, ready_google: FakeGoogle):
    """Source (read): BatchDedicatedResources in the protos of v1 and v1beta1."""
    resources = {**JOB["dedicated_resources"], "spot": True}
    with pytest.raises(ValueError, match="Unknown field"):
        create(connection, dedicated_resources=resources)
    made = connection.beta_jobs.create_batch_prediction_job(
        parent=PARENT, batch_prediction_job={**JOB, "dedicated_resources": resources}
    )
    assert ready_google.region.batches.on_spot == {made.name}


def run(connection: Connection, google: FakeGoogle) -> tuple[Any, dict[str, str]]:
    """Predict one instance with a stand-in; return the job and the files of its output by name."""
    google.storage.write(BUCKET, "in.jsonl", b'{"x": 1}\n')
    job = create(connection)
    while job.state.name in ("JOB_STATE_PENDING", "JOB_STATE_RUNNING"):
        job = connection.jobs.get_batch_prediction_job(name=job.name)
    folder = job.output_info.gcs_output_directory.removeprefix(f"gs://{BUCKET}/") + "/"
    names = [name for name in google.storage.names(BUCKET) if folder != "/" and name.startswith(folder)]
    return job, {name.removeprefix(folder): google.storage.read(BUCKET, name)[0].decode() for name in names}


# vertex-ai-samples: notebooks/community/migration/UJ3 Vertex SDK Custom Image Classification with custom training
# container.ipynb (2021), whose text has the replies.


def test_the_output_folder_has_the_pacific_time_and_a_file_of_errors(connection: Connection, ready_google: FakeGoogle):
    """The folder is named by the model and the job's creation, to milliseconds, in Pacific time with a Z; the file of
    errors exists though nothing failed. `manualBatchTuningParameters` is filled in.

    Source (reported): UJ3.
    """
    ready_google.region.servers.commands["digits"] = STAND_IN
    job, files = run(connection, ready_google)
    local = job.create_time.astimezone(ZoneInfo("America/Los_Angeles"))
    when = f"{local:%Y_%m_%dT%H_%M_%S}_{local.microsecond // 1000:03}Z"
    assert job.output_info.gcs_output_directory == f"gs://{BUCKET}/out/prediction-digits-{when}"
    assert files["prediction.errors_stats-00000-of-00001"] == ""
    (result,) = [line for name, text in files.items() if "results-" in name for line in text.splitlines()]
    assert json.loads(result).keys() == {"instance", "prediction"}
    assert "manual_batch_tuning_parameters" in job


def test_a_line_of_errors_is_a_python_tuple(connection: Connection, ready_google: FakeGoogle):
    """The message and the number of its instances. Source (reported): googleapis/python-aiplatform#2666."""
    ready_google.region.servers.commands["digits"] = (*STAND_IN, "--failing", "1", "--status", "422")
    _, files = run(connection, ready_google)
    message, count = ast.literal_eval(files["prediction.errors_stats-00000-of-00001"])
    sentence = r"Post request fails\. Cannot get predictions\. Error: Exceeded retries: Non-OK result 422 \(.*\) from"
    assert re.fullmatch(sentence + r" server, retry=3, ellapsed=\d+\.\d+s\.", message)
    assert count == 1


def test_a_job_without_free_machines_fails(connection: Connection, ready_google: FakeGoogle):
    """With code 14 and the sentence of deployments.

    Source (reported): GoogleCloudPlatform/PerfKitBenchmarker; public reports of batch predictions.
    """
    sentence = "Machine type temporarily unavailable, please deploy with a different machine type or retry."
    ready_google.region.servers.stock_out = sentence
    job, _ = run(connection, ready_google)
    assert (job.state.name, job.error.code, job.error.message) == ("JOB_STATE_FAILED", 14, sentence)


def test_a_job_that_has_ended_is_not_cancelled(connection: Connection):
    """Source (read): JobService.CancelBatchPredictionJob in job_service.proto."""
    job = create(connection)
    connection.jobs.cancel_batch_prediction_job(name=job.name)
    assert connection.jobs.get_batch_prediction_job(name=job.name).state.name == "JOB_STATE_CANCELLED"
    with pytest.raises(Exception, match="has ended"):
        connection.jobs.cancel_batch_prediction_job(name=job.name)
