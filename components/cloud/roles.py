"""Google's predefined roles, as far as runs need them. https://cloud.google.com/iam/docs/roles-permissions"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BASIC = ("roles/owner", "roles/editor")
# What Cloud Build's legacy account has by default.
LEGACY_BUILDER = "roles/cloudbuild.builds.builder"
# The custom role of a TPU's machines, which setup creates in the project.
MACHINE_ROLE = "slipwayTpuMachine"
MACHINE_ROLE_CONTAINED_IN = ("roles/tpu.admin", "roles/tpu.editor", *BASIC)


@dataclass(frozen=True)
class Role:
    """What a role is needed for, as permissions for testIamPermissions, and other roles that contain it."""

    permissions: tuple[str, ...] = ()
    contained_in: tuple[str, ...] = ()


ROLES: Mapping[str, Role] = {
    "roles/aiplatform.user": Role(
        (
            "aiplatform.customJobs.list",
            "aiplatform.pipelineJobs.cancel",
            "aiplatform.pipelineJobs.create",
            "aiplatform.pipelineJobs.get",
        ),
        ("roles/aiplatform.admin", *BASIC),
    ),
    "roles/artifactregistry.reader": Role(
        ("artifactregistry.repositories.downloadArtifacts",),
        (
            "roles/artifactregistry.writer",
            "roles/artifactregistry.repoAdmin",
            "roles/artifactregistry.admin",
            *BASIC,
        ),
    ),
    "roles/artifactregistry.writer": Role(
        ("artifactregistry.repositories.uploadArtifacts",),
        ("roles/artifactregistry.repoAdmin", "roles/artifactregistry.admin", *BASIC, LEGACY_BUILDER),
    ),
    "roles/bigquery.dataViewer": Role(
        ("bigquery.tables.getData",),
        ("roles/bigquery.dataEditor", "roles/bigquery.dataOwner", "roles/bigquery.admin", "roles/owner"),
    ),
    "roles/bigquery.jobUser": Role(("bigquery.jobs.create",), ("roles/bigquery.user", "roles/bigquery.admin", *BASIC)),
    "roles/bigquery.readSessionUser": Role(
        ("bigquery.readsessions.create",), ("roles/bigquery.user", "roles/bigquery.admin", *BASIC)
    ),
    "roles/cloudbuild.builds.editor": Role(
        ("cloudbuild.builds.create", "cloudbuild.builds.get", "cloudbuild.builds.list"), BASIC
    ),
    "roles/compute.viewer": Role(("compute.machineTypes.get",), ("roles/compute.admin", "roles/viewer", *BASIC)),
    "roles/dataflow.developer": Role(
        tuple(f"dataflow.jobs.{verb}" for verb in ("cancel", "create", "get", "list")), ("roles/dataflow.admin", *BASIC)
    ),
    "roles/dataflow.worker": Role(("dataflow.workItems.lease",)),
    "roles/iam.serviceAccountUser": Role(("iam.serviceAccounts.actAs",), BASIC),
    "roles/logging.logWriter": Role(("logging.logEntries.create",), ("roles/logging.admin", *BASIC, LEGACY_BUILDER)),
    "roles/logging.viewer": Role(
        ("logging.logEntries.list",),
        ("roles/logging.privateLogViewer", "roles/logging.admin", *BASIC, "roles/viewer"),
    ),
    "roles/pubsub.publisher": Role((), ("roles/pubsub.editor", "roles/pubsub.admin", "roles/owner")),
    "roles/secretmanager.secretAccessor": Role((), ("roles/secretmanager.admin", "roles/owner")),
    "roles/serviceusage.serviceUsageConsumer": Role(
        ("serviceusage.services.use",), ("roles/serviceusage.serviceUsageAdmin", *BASIC)
    ),
    "roles/storage.objectUser": Role(
        tuple(f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list")),
        ("roles/storage.objectAdmin", "roles/storage.admin"),
    ),
    "roles/storage.objectViewer": Role(
        ("storage.objects.get", "storage.objects.list"),
        ("roles/storage.objectUser", "roles/storage.objectAdmin", "roles/storage.admin", LEGACY_BUILDER),
    ),
    # Queued resources have no permissions of their own.
    "roles/tpu.admin": Role(tuple(f"tpu.nodes.{verb}" for verb in ("create", "delete", "get", "list"))),
}
# The role to request for a permission, or for all other permissions with a prefix that ends in a dot.
REQUESTED = {
    "aiplatform.": "roles/aiplatform.user",
    "artifactregistry.repositories.downloadArtifacts": "roles/artifactregistry.reader",
    "artifactregistry.repositories.get": "roles/artifactregistry.reader",
    "artifactregistry.dockerimages.list": "roles/artifactregistry.reader",
    "artifactregistry.versions.delete": "roles/artifactregistry.repoAdmin",
    "artifactregistry.": "roles/artifactregistry.admin",
    "bigquery.jobs.": "roles/bigquery.jobUser",
    "bigquery.readsessions.": "roles/bigquery.readSessionUser",
    "bigquery.tables.create": "roles/bigquery.dataEditor",
    "bigquery.tables.update": "roles/bigquery.dataEditor",
    "bigquery.tables.updateData": "roles/bigquery.dataEditor",
    "bigquery.": "roles/bigquery.dataViewer",
    "cloudbuild.": "roles/cloudbuild.builds.editor",
    "cloudkms.": "roles/cloudkms.admin",
    "dataflow.": "roles/dataflow.developer",
    "iam.serviceAccounts.actAs": "roles/iam.serviceAccountUser",
    "iam.serviceAccounts.get": "roles/iam.serviceAccountViewer",
    "iam.serviceAccounts.getIamPolicy": "roles/iam.serviceAccountViewer",
    "iam.roles.": "roles/iam.roleAdmin",
    "iam.": "roles/iam.serviceAccountAdmin",
    "logging.": "roles/logging.viewer",
    "pubsub.topics.publish": "roles/pubsub.publisher",
    "pubsub.": "roles/pubsub.admin",
    "resourcemanager.projects.get": "roles/browser",
    "resourcemanager.projects.getIamPolicy": "roles/browser",
    "resourcemanager.": "roles/resourcemanager.projectIamAdmin",
    "secretmanager.versions.access": "roles/secretmanager.secretAccessor",
    "secretmanager.": "roles/secretmanager.admin",
    "serviceusage.quotas.": "roles/serviceusage.serviceUsageViewer",
    "serviceusage.services.get": "roles/serviceusage.serviceUsageViewer",
    # Calls with a person's credentials count against the quota of the project (header x-goog-user-project).
    "serviceusage.services.use": "roles/serviceusage.serviceUsageConsumer",
    "serviceusage.": "roles/serviceusage.serviceUsageAdmin",
    "storage.objects.": "roles/storage.objectUser",
    "storage.": "roles/storage.admin",
    "tpu.": "roles/tpu.admin",
}


def role_with(permission: str) -> str | None:
    """Return the role to request for a missing permission, or None."""
    matches = [name for name in REQUESTED if name == permission or (name.endswith(".") and permission.startswith(name))]
    return REQUESTED[max(matches, key=len)] if matches else None


def permissions_of(role: str) -> tuple[str, ...]:
    """Return what a role is needed for, as permissions that can be asked for; empty if none can be."""
    return ROLES[role].permissions if role in ROLES else ()


def roles_with(role: str) -> tuple[str, ...]:
    """Return the role and the other roles that contain what it is needed for."""
    if role.endswith(f"/roles/{MACHINE_ROLE}"):
        return (role, *MACHINE_ROLE_CONTAINED_IN)
    return (role, *ROLES[role].contained_in) if role in ROLES else (role,)
