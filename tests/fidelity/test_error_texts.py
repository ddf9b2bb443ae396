"""Sentences of Google's services and libraries, each with its source, are recognized as known errors."""

from __future__ import annotations

import re

import pytest
from google.api_core.exceptions import Forbidden, ServiceUnavailable, from_grpc_status

from slipway.components.cloud.connection import SERVICES, Connection
from slipway.components.cloud.explanation import REPLICA
from slipway.components.cloud.known_errors import KNOWN_ERRORS, recognize
from slipway.components.cloud.refusals import is_disabled, refusal
from tests.fakes.world import title_of

DOCS = "docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning"
ERRORS = f"read: {DOCS}/training/understanding-training-service, common errors"
SDK = "read: google-cloud-aiplatform, also raised in a custom program that uses it"
# The known error, where the sentence was seen, and the sentence; names of projects and accounts are changed.
SAID = (
    (
        "accelerator",
        "reported: GoogleCloudPlatform/vertex-ai-samples#213",
        'Accelerator "NVIDIA_TESLA_K80" is not supported for machine type "n1-standard-4"',
    ),
    (
        "accelerator count",
        "reported: prefect-archive/prefect-gcp#175",
        "List of found errors: 1.Field: job_spec.worker_pool_specs[0].machine_spec.accelerator_type; Message: Both "
        "`accelerator_type` and `accelerator_count` should be specified or none.",
    ),
    (
        "machine type",
        "reported: a note of 2026-04 in the public repository Effort-AIGI-Detection-DtectVision, HANDOFF.md",
        'Machine type "a2-highgpu-1g" is not supported.',
    ),
    (
        "chief",
        SDK,
        "Chief spec replica count cannot be greater than 1.",
    ),
    (
        "quota",
        "reported: google-deepmind/xmanager#29",
        "The following quota metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_tpu_v2",
    ),
    (
        "batch quota",
        f"read: {DOCS}/troubleshooting",
        "Quota exhausted. Please reach out to ai-platform-unified-feedback@google.com for batch prediction "
        "quota increase.",
    ),
    (
        "prediction request",
        "recorded: googleapis/python-aiplatform#2666",
        "('Post request fails. Cannot get predictions. Error: Exceeded retries: Non-OK result 422 "
        '({"detail":"x"}) from server, retry=3, ellapsed=0.03s.\', 1)',
    ),
    (
        "capacity",
        "reported: openreview/openreview-expertise#401",
        "Resources are insufficient in region: us-central1. Please try a different region or use a different "
        "accelerator.",
    ),
    (
        "Spot capacity",
        "read: cloud.google.com/vertex-ai/docs/predictions/use-spot-vms, which has the error's name only",
        "When Spot VMs are preempted, the prediction job fails with a STOCKOUT error",
    ),
    (
        "TPU capacity",
        "reported: skypilot-org/skypilot#4579",
        "Insufficient reserved capacity. Contact customer support to increase your reservation. [EID: 0x1]",
    ),
    (
        "serving capacity",
        "reported: GoogleCloudPlatform/PerfKitBenchmarker, vertex_ai_test.py",
        "Machine type temporarily unavailable, please deploy with a different machine type or retry.",
    ),
    (
        "internal error",
        f"{ERRORS}, section on internal errors",
        "Internal error occurred for the current attempt.",
    ),
    (
        "act as",
        "reported: GoogleCloudPlatform/vertex-pipelines-end-to-end-samples, troubleshooting",
        "You do not have permission to act as service_account: runner@p.iam.gserviceaccount.com. (or it may "
        "not exist).",
    ),
    (
        "act as",
        "reported: hashicorp/terraform-provider-google#7126",
        "Current user cannot act as service account runner@p.iam.gserviceaccount.com.",
    ),
    (
        "act as",
        "reported: dora-team/fourkeys#459",
        "googleapi: Error 403: Permission 'iam.serviceaccounts.actAs' denied on service account "
        "runner@p.iam.gserviceaccount.com (or it may not exist).",
    ),
    (
        "bucket rights",
        "reported: statmike/vertex-ai-mlops#60",
        "Failed to create pipeline job. Error: Service account `12-compute@developer.gserviceaccount.com` "
        "does not have `[storage.objects.get, storage.objects.create]` IAM permission(s) to the bucket "
        "`runs`.",
    ),
    (
        "image pull",
        "reported: zenml-io/zenml#3766",
        "Failed to create pipeline job. Error: Vertex AI Service Agent "
        "service-12@gcp-sa-aiplatform-cc.iam.gserviceaccount.com does not have permission to access Artifact "
        "Registry repository projects/p/locations/europe-west4/repositories/r",
    ),
    (
        "image pull",
        f"read: {DOCS}/training/neural-architecture-search",
        "Agent Platform Service Agent service-12@gcp-sa-aiplatform-cc.iam.gserviceaccount.com does not have "
        "permission to access Artifact Registry repository "
        "projects/my-project/locations/my-region/repositories/my-repo",
    ),
    (
        "TPU account",
        "reported: google-research/text-to-text-transfer-transformer#1003",
        "service-12@cloud-tpu.iam.gserviceaccount.com does not have storage.objects.list access to the "
        "Google Cloud Storage bucket.",
    ),
    (
        "Cloud Build logs",
        "reported: cert-manager/cert-manager#8851",
        "if 'build.service_account' is specified, the build must either (a) specify 'build.logs_bucket', (b) "
        "use the REGIONAL_USER_OWNED_BUCKET build.options.default_logs_bucket_behavior option, or (c) use "
        "either CLOUD_LOGGING_ONLY / NONE logging options",
    ),
    (
        "build region",
        "reported: google-github-actions/deploy-cloudrun#480",
        "failed precondition: due to quota restrictions, cannot run builds in this region. Please contact support",
    ),
    (
        "build region",
        "reported: https://superuser.com/questions/1716674",
        "FAILED_PRECONDITION: generic::failed_precondition: no concurrent builds quota available to create builds.",
    ),
    (
        "Dataflow jobs",
        "reported: apache/beam#34381",
        "The workflow could not be created. Causes: (8ac844dc41db82af): Dataflow quota error for jobs-per-project "
        "quota. Project p is running 299 jobs. Please check the quota usage via GCP Console.",
    ),
    (
        "Dataflow workers",
        "reported: googlecodelabs/feedback#967",
        "Workflow failed. Causes: Error: Message: Exceeded limit 'QUOTA_FOR_INSTANCES' on resource "
        "'dataflow-import-bus-data-162142127-05190347-iwvy-harness'. Limit: 8.0 HTTP Code: 403",
    ),
    (
        "encryption key",
        "reported: hashicorp/terraform-provider-google#11819",
        "Provided CryptoKey projects/p/locations/l/keyRings/r/cryptoKeys/k cannot be used in Vertex AI service.",
    ),
    (
        "libtpu",
        "reported: apple/axlearn, axlearn/common/launch.py",
        "tpu_library_init_fns.inc:98] TpuEmbeddingEngine_ExecutePartitioner not available in this library.",
    ),
    (
        "memory",
        "reported: google/agents-cli#43 and nine more, 2025-11 to 2026-07",
        "Replicas low on memory: workerpool0. Specify a machine with larger memory and try again.",
    ),
    (
        "memory",
        f"{ERRORS}; seen in no report",
        "The replica workerpool0-0 ran out of memory and exited with a non-zero status of 137.",
    ),
    (
        "memory",
        "reported: tensorflow/models#5591, AI Platform",
        "The replica master 0 ran out-of-memory and exited with a non-zero status of 9(SIGKILL).",
    ),
    (
        "model server",
        "reported: GoogleCloudPlatform/vertex-ai-samples#3485",
        "Model server exited unexpectedly. Please use recommended machine spec.",
    ),
    (
        "model server",
        "read: https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/predictions/"
        "get-batch-predictions",
        "Error: model server never became ready. Please validate that your model file or container configuration are "
        "valid.",
    ),
    (
        "try again",
        f"{ERRORS}: the code 134 asks for another try",
        "The replica workerpool1-0 exited with a non-zero status of 134(SIGABRT). Termination reason: Error.",
    ),
    (
        "pipeline root",
        "read: google-cloud-storage, Blob.from_uri",
        "URI pattern must be gs://bucket/object",
    ),
    (
        "first job",
        "reported: GoogleCloudPlatform/generative-ai#1308",
        "Service agents are being provisioned "
        "(https://cloud.google.com/vertex-ai/docs/general/access-control#service-agents). Service agents are "
        "needed to read the Cloud Storage file provided. So please try again in a few minutes.",
    ),
    (
        "API",
        "recorded: k8s-config-connector, devicestreamingsession-minimal",
        "Device Streaming API has not been used in project p before or it is disabled.",
    ),
)


@pytest.mark.parametrize(("name", "source", "sentence"), SAID, ids=[f"{row[0]} {n}" for n, row in enumerate(SAID)])
def test_a_sentence_is_recognized(name, source, sentence):
    """A sentence that a service or library has said is the known error whose fix applies.

    Source (reported): beside each sentence, some of which were recorded or read.
    """
    assert source.startswith(("recorded: ", "read: ", "reported: "))
    found = recognize(sentence)
    assert found is not None
    assert found.name == name


def alternatives(pattern: str) -> list[str]:
    """Return the alternatives of a regular expression that are not in a group."""
    depth, found = 0, [""]
    for part in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|.", pattern):
        depth += (part == "(") - (part == ")")
        found = [*found, ""] if part == "|" and not depth else [*found[:-1], found[-1] + part]
    return found


@pytest.mark.parametrize(
    ("name", "words"), [(known.name, each) for known in KNOWN_ERRORS for each in alternatives(known.pattern.pattern)]
)
def test_every_known_error_has_been_said(name, words):
    """No alternative of a known error rests on a guess.

    Source (read): the table above.
    """
    assert any(re.search(words, sentence, re.DOTALL) for said, _, sentence in SAID if said == name)


def test_out_of_memory_names_the_pool():
    """Vertex AI names the worker pool, not the replica, that is low on memory, with the code RESOURCE_EXHAUSTED.

    Source (reported): google/agents-cli#43 and nine more public reports from 2025-11 to 2026-07.
    """
    sentence = next(text for name, _, text in SAID if name == "memory" and text.startswith("Replicas"))
    found = recognize(str(from_grpc_status(8, sentence)))
    assert found is not None
    assert found.sentence == "workerpool0 ran out of memory."
    named = REPLICA.search(sentence)
    assert named is not None
    assert named["replica"] == "workerpool0"


def test_a_deployment_without_free_machines_ends_with_unavailable():
    """The operation's code is 14, which elsewhere means that a repeated call may succeed at once.

    Source (reported): "503 … 14: Machine type temporarily unavailable, …" in the tests of PerfKitBenchmarker.
    """
    error = from_grpc_status(14, "Machine type temporarily unavailable, please deploy with a different machine type.")
    assert isinstance(error, ServiceUnavailable)
    found = recognize(str(error), {"region": "europe-west4"})
    assert found is not None
    assert "no free machines of this kind for serving in europe-west4" in found.sentence


@pytest.mark.parametrize("service", sorted({*SERVICES} - {"docker"}))  # a registry, without a title
def test_a_disabled_api_is_named_by_its_title(service):
    """The refusal begins with the API's title, which may have parentheses or a slash: "(IAM) API", "Pub/Sub API".

    Source (recorded): k8s-config-connector, devicestreamingsession-minimal; the titles are read from the discovery
    documents in google-api-python-client.
    """
    title = title_of(f"{service}.googleapis.com")
    sentence = (
        f"{title} has not been used in project 123456789012 before or it is disabled. Enable it by visiting "
        f"https://console.developers.google.com/apis/api/{service}.googleapis.com/overview?project=123456789012 then "
        "retry. If you enabled this API recently, wait a few minutes for the action to propagate to our systems and "
        "retry."
    )
    for text in (sentence, f"googleapi: Error 403: {sentence}", f"403 {sentence}"):
        found = recognize(text)
        assert found is not None
        assert found.sentence == f"The {title} is not enabled in the project 123456789012."
    error = Forbidden(sentence)
    assert is_disabled(error)
    assert f"the API {service}.googleapis.com is not enabled in p" in refusal(error, Connection("p", "r"), "x").message
