"""Every known error of Google's services is recognized and has a fix."""

from __future__ import annotations

import pytest

from slipway.components.cloud.known_errors.table import (
    as_user_error,
    first_recognized,
    recognize,
    recognize_status,
)
from tests.docs.known_errors import PAGE, text_of

FACTS = {"project": "p", "region": "europe-west4", "bucket": "p-runs", "account": "runner@p.iam.gserviceaccount.com"}
# The service's words, by the known error's name; then what the sentence and the fix have to name.
WORDS: dict[str, tuple[str, str, str]] = {
    "accelerator": (
        'Accelerator "NVIDIA_TESLA_K80" is not supported for machine type "n1-standard-4"',
        "n1-standard-4 does not support the accelerator NVIDIA_TESLA_K80",
        "slipway hardware",
    ),
    "accelerator count": (
        "Both `accelerator_type` and `accelerator_count` should be specified or none.",
        "without its count",
        "--hardware l4x4",
    ),
    "machine type": ("Machine type n9-standard-4 is not supported.", "machine type n9-standard-4", "slipway hardware"),
    "chief": ("Chief spec replica count cannot be greater than 1.", "one, the chief", "--hardware 'cpu*4'"),
    "quota": (
        "429 RESOURCE_EXHAUSTED The following quota metrics exceed quota limits: "
        "aiplatform.googleapis.com/custom_model_training_cpus,aiplatform.googleapis.com/custom_model_training_pd_ssd",
        "in europe-west4 for this run: aiplatform.googleapis.com/custom_model_training_cpus,"
        "aiplatform.googleapis.com/custom_model_training_pd_ssd.",
        "quotas?project=p",
    ),
    "batch quota": (
        "Quota exhausted. Please reach out to ai-platform-unified-feedback@google.com for batch prediction quota "
        "increase.",
        "is used up in europe-west4",
        "ai-platform-unified-feedback@google.com",
    ),
    "prediction request": (
        "('Post request fails. Cannot get predictions. Error: Exceeded retries: Non-OK result 504 (upstream request "
        "timeout) from server, retry=3, elapsed=600.04s.', 16)",
        "with the status 504: upstream request timeout.",
        "a smaller --batch-size",
    ),
    "capacity": (
        "Resources are insufficient in region: us-west1. Try a different region or use a different accelerator.",
        "in us-west1 at the moment",
        "--set vertex.regions.REGION.bucket=gs://BUCKET",
    ),
    "Spot capacity": (
        "The prediction job fails with a STOCKOUT error.",
        "europe-west4 has no free machines of this kind",
        "the same without +spot",
    ),
    "TPU capacity": (
        "Insufficient reserved capacity. Contact customer support to increase your reservation. [EID: 0x1]",
        "no free TPUs of this kind",
        "--set tpu.zones=[ZONE]",
    ),
    "serving capacity": (
        'Machine type temporarily unavailable. Machine type: "g2-standard-24". Accelerator type: "nvidia-l4".',
        "for serving in europe-west4 at the moment.",
        "configs/endpoints/NAME.yaml",
    ),
    "internal error": (
        "Internal error occurred for the current attempt.",
        "The program is not the cause.",
        "slipway run --resume latest",
    ),
    "act as": (
        "You do not have permission to act as service_account: runner@p.iam.gserviceaccount.com. "
        "(or it may not exist).",
        "The account runner@p.iam.gserviceaccount.com does not exist, or you may not run jobs as it.",
        "add-iam-policy-binding runner@p.iam.gserviceaccount.com --project=p",
    ),
    "bucket rights": (
        "Failed to create pipeline job. Error: Service account `runner@p.iam.gserviceaccount.com` does not have "
        "`[storage.objects.get, storage.objects.create]` IAM permission(s) to the bucket `other-runs`. Please either",
        "may not use the bucket other-runs: it lacks storage.objects.get, storage.objects.create",
        "gs://other-runs --member=serviceAccount:runner@p.iam.gserviceaccount.com --role=roles/storage.objectUser",
    ),
    "image pull": (
        "service-12@gcp-sa-aiplatform-cc.iam.gserviceaccount.com does not have permission to access Artifact Registry "
        "repository projects/p/locations/europe-west4/repositories/slipway.",
        "from projects/p/locations/europe-west4/repositories/slipway: images are pulled by the agent",
        "service-12@gcp-sa-aiplatform-cc.iam.gserviceaccount.com the role roles/artifactregistry.reader",
    ),
    "TPU account": (
        "service-12@cloud-tpu.iam.gserviceaccount.com does not have storage.objects.list access to the Google Cloud",
        "it lacks storage.objects.list",
        "gs://p-runs --member=serviceAccount:service-12@cloud-tpu.iam.gserviceaccount.com",
    ),
    "Cloud Build logs": (
        "if 'build.service_account' is specified, the build must either (a) specify 'build.logs_bucket' (b) use the",
        "sets no log destination",
        "CLOUD_LOGGING_ONLY",
    ),
    "build region": (
        "failed precondition: due to quota restrictions, Cloud Build cannot run builds in this region",
        "only in certain regions",
        "vertex.build.region=global",
    ),
    "Dataflow jobs": (
        "The workflow could not be created. Causes: (8ac844dc41db82af): Dataflow quota error for jobs-per-project "
        "quota. Project apache-beam-testing is running 299 jobs.",
        "as many Dataflow jobs as its quota allows",
        "quotas?project=p",
    ),
    "Dataflow workers": (
        "Workflow failed. Causes: Error: Message: Exceeded limit 'QUOTA_FOR_INSTANCES' on resource "
        "'dataflow-import-bus-data-harness'. Limit: 8.0 HTTP Code: 403",
        "QUOTA_FOR_INSTANCES",
        "max_num_workers",
    ),
    "encryption key": (
        "Provided CryptoKey projects/p/locations/europe-west4/keyRings/r/cryptoKeys/k cannot be used in Vertex AI "
        "service. Please make sure the CryptoKey is enabled and Vertex AI service account "
        "`service-12@gcp-sa-aiplatform.iam.gserviceaccount.com` has Encryption and Decryption access to the CryptoKey.",
        "may not use the key projects/p/locations/europe-west4/keyRings/r/cryptoKeys/k",
        "--member=serviceAccount:service-12@gcp-sa-aiplatform.iam.gserviceaccount.com --role=roles/cloudkms",
    ),
    "memory": (
        "The replica workerpool1-2 ran out of memory and exited with a non-zero status of 9(SIGKILL).",
        "workerpool1-2 ran out of memory.",
        "--set train.batch_size",
    ),
    "model server": (
        "Model server exited unexpectedly. Model server logs can be found at https://console.cloud.google.com/logs",
        "The model's container ended instead of serving",
        "slipway predict",
    ),
    "try again": (
        "The replica workerpool1-0 exited with a non-zero status of 134(SIGABRT). Termination reason: Error.",
        "The replica workerpool1-0 asked for another try",
        "slipway run --resume latest",
    ),
    "pipeline root": ("URI pattern must be gs://bucket/object", "gs://bucket/object", "vertex.bucket to gs://BUCKET"),
    "first job": (
        "Service agents are being provisioned (https://cloud.google.com/vertex-ai/docs/general/access-control).",
        "it is the project's first job",
        "slipway setup --apply",
    ),
    "API": (
        "Vertex AI API has not been used in project p before or it is disabled. Enable it by visiting https://console",
        "The Vertex AI API is not enabled in the project p.",
        "slipway setup --apply",
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_the_words_are_known_wherever_they_stand(name: str):
    words, sentence, fix = WORDS[name]
    for text in (
        words,
        f"com.google.AiPlatformException: code=9, message={words}; cause=null",
        f"E0\n{words}\nmore",
    ):
        found = recognize(text, FACTS) or recognize_status(text, FACTS)
        assert found is not None, text
        assert found.name == name
        assert sentence in found.sentence
        assert fix in found.fix
        assert "{" not in found.sentence + found.fix


@pytest.mark.parametrize("name", WORDS)
def test_without_facts_the_sentence_is_whole_all_the_same(name: str):
    found = recognize(WORDS[name][0]) or recognize_status(WORDS[name][0])
    assert found is not None
    assert "{" not in found.sentence + found.fix
    assert "None" not in found.sentence + found.fix


def test_the_first_text_that_is_known_counts_and_an_unknown_one_is_not_guessed_at():
    assert recognize("ValueError: loss is nan", FACTS) is None
    found = first_recognized(["nothing", WORDS["memory"][0], WORDS["quota"][0]])
    assert found is not None
    assert found.name == "memory"


def test_the_answer_of_a_models_container_is_not_the_services():
    """A batch prediction's message quotes it."""
    answer = '{"detail": "the column STOCKOUT is missing; Machine type x is not supported"}'
    found = recognize(f"Post request fails. Error: Exceeded retries: Non-OK result 422 ({answer}) from server, retry=3")
    assert found is not None
    assert found.name == "prediction request"
    assert answer in found.sentence
    assert not found.moves


def test_an_error_that_is_not_known_keeps_the_services_words():
    error = as_user_error("400 Something\n  new.", "Vertex AI refused", FACTS)
    assert error.message == "Vertex AI refused: 400 Something new."
    assert error.fix == "slipway doctor --target vertex"


def test_the_page_about_failures_has_every_one_of_them():
    assert text_of(PAGE.read_text()) == PAGE.read_text(), "to write the tables: python -m tests.docs.known_errors"
