"""The service's validation of resources, with its error messages."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.fakes.errors import ServiceError
from tests.fakes.world import Project, World

PARENT = re.compile(r"projects/([^/]+)/locations/([^/]+)")
JOB_ID = re.compile(r"[a-z][-a-z0-9]{0,127}")
# The collections whose ids are numbers, and the names of their resources.
NUMBERED = {
    "customJobs": "CustomJob",
    "hyperparameterTuningJobs": "HyperparameterTuningJob",
    "schedules": "Schedule",
}
NETWORK = re.compile(r"projects/\d+/global/networks/[a-z]([-a-z0-9]*[a-z0-9])?")
OBJECT = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]/.+")
LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
KMS_KEY = re.compile(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+")
IMAGE = re.compile(
    r"(?:[a-z0-9.-]+(?::\d+)?/)?[a-z0-9._-]+(?:/[a-z0-9._-]+)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)


def invalid(message: str) -> ServiceError:
    """Return an INVALID_ARGUMENT error."""
    return ServiceError(400, message)


def project_of(world: World, parent: str, region: str) -> Project:
    """Return the project of a parent in this region; Vertex AI must be enabled."""
    match = PARENT.fullmatch(parent)
    if not match:
        raise invalid(f"Invalid resource name {parent}.")
    if match[2] != region:
        raise invalid(f"The request was sent to {region}-aiplatform.googleapis.com, and names location {match[2]}.")
    project = world.project(match[1])
    if "aiplatform.googleapis.com" not in project.services:
        raise ServiceError(
            403,
            f"Vertex AI API has not been used in project {project.id} before or it is disabled. Enable it by visiting "
            f"https://console.developers.google.com/apis/api/aiplatform.googleapis.com/overview?project={project.id} "
            "then retry.",
        )
    return project


def resource_of(
    world: World, region: str, name: str, collection: str, caller: str, permission: str
) -> tuple[Project, str]:
    """Return the project and the full name of a resource in this region; the caller needs the permission."""
    parent, _, identity = name.rpartition(f"/{collection}/")
    project = project_of(world, parent, region)
    world.require(caller, permission, f"projects/{project.id}")
    if collection in NUMBERED and not identity.isdigit():
        raise invalid(f"List of found errors:\t1.Field: name; Message: Invalid {NUMBERED[collection]} resource name.\t")
    return project, f"projects/{project.number}/locations/{region}/{collection}/{identity}"


def check_display_name(name: str) -> None:
    if not name or len(name) > 128:
        raise invalid("The display_name must be 1 to 128 characters long.")


def check_labels(labels: Mapping[str, str]) -> None:
    if len(labels) > 64:
        raise invalid("No more than 64 user labels can be associated with one resource.")
    for key, value in labels.items():
        if not LABEL_KEY.fullmatch(key):
            raise invalid(f"Invalid label key: {key!r}.")
        if not LABEL_VALUE.fullmatch(value):
            raise invalid(f"Invalid label value: {value!r} of label {key!r}.")


def check_network(network: str) -> None:
    if network and not NETWORK.fullmatch(network):
        raise invalid(f"Network {network} must be of the form projects/{{project_number}}/global/networks/{{network}}.")


def check_object(uri: str, field: str) -> str:
    """Check that `uri` names an object in a bucket; return the bucket."""
    if not OBJECT.fullmatch(uri):
        raise invalid(f"Invalid {field} {uri!r}: URI pattern must be gs://bucket/object")
    return uri.removeprefix("gs://").partition("/")[0]


def check_key(world: World, project: Project, key: str, region: str = "") -> None:
    """Check that the key exists in the region, and that Vertex AI's service agent may use it."""
    if not key:
        return
    if not KMS_KEY.fullmatch(key):
        raise invalid(f"Invalid KMS key name: {key}.")
    if region and key.split("/")[3] != region:
        raise invalid(f"The KMS key {key} must be in the same region as the resource, {region}.")
    agent = f"service-{project.number}@gcp-sa-aiplatform.iam.gserviceaccount.com"
    permissions = ("cloudkms.cryptoKeyVersions.useToEncrypt", "cloudkms.cryptoKeyVersions.useToDecrypt")
    enabled = world.keys.get(key, {}).get("primary", {}).get("state") == "ENABLED"
    if not enabled or not all(world.allowed(agent, one, key, f"projects/{key.split('/')[1]}") for one in permissions):
        raise invalid(
            f"Provided CryptoKey {key} cannot be used in Vertex AI service. Please make sure the CryptoKey is enabled "
            f"and Vertex AI service account `{agent}` has Encryption and Decryption access to the CryptoKey."
        )


def check_act_as(world: World, project: Project, caller: str, account: str) -> None:
    """Check that the account exists and that the caller may act as it."""
    name = f"projects/{project.id}/serviceAccounts/{account}"
    if account not in world.accounts or not world.allowed(
        caller, "iam.serviceAccounts.actAs", name, f"projects/{project.id}"
    ):
        raise ServiceError(
            403, f"You do not have permission to act as service account: {account}. (or it may not exist)."
        )
