"""A project that is fully set up for runs on Vertex AI and on Cloud TPUs."""

from __future__ import annotations

from typing import Any

from slipway.components.setup_access.desired import MACHINE_PERMISSIONS, machine_role
from tests.fakes.google import NUMBER, PROJECT, REGION, FakeGoogle

ZONE = f"{REGION}-b"  # of TPUs
RUNNER = f"runner@{PROJECT}.iam.gserviceaccount.com"
BUCKET = "slipway-test-runs"
REPOSITORY = f"projects/{PROJECT}/locations/{REGION}/repositories/slipway"
IMAGE = f"{REGION}-docker.pkg.dev/{PROJECT}/slipway/trainer@sha256:{'0' * 64}"
SERVING_IMAGE = f"{REGION}-docker.pkg.dev/{PROJECT}/slipway/serving@sha256:{'1' * 64}"
AGENTS = {
    f"service-{NUMBER}@gcp-sa-aiplatform.iam.gserviceaccount.com": "roles/aiplatform.serviceAgent",
    f"service-{NUMBER}@gcp-sa-aiplatform-cc.iam.gserviceaccount.com": "roles/aiplatform.customCodeServiceAgent",
    f"service-{NUMBER}@cloud-tpu.iam.gserviceaccount.com": "roles/tpu.serviceAgent",
}


def make_ready(google: FakeGoogle) -> None:
    """Create the agents, the run-as account RUNNER, the bucket BUCKET and all roles, without counting writes."""
    world = google.world
    google.iam.add_account(RUNNER)
    google.repositories.add(REPOSITORY)
    google.images.untagged.add((REPOSITORY, "trainer", IMAGE.partition("@")[2]))
    for email in AGENTS:
        world.accounts[email] = {"email": email}
    google.storage.add_bucket(BUCKET, world.projects[PROJECT], google.location)
    for email, role in AGENTS.items():
        grant(google, f"projects/{PROJECT}", role, email)
        grant(google, REPOSITORY, "roles/artifactregistry.reader", email)
    grant(google, f"projects/{PROJECT}", "roles/aiplatform.user", RUNNER)
    grant(google, f"projects/{PROJECT}/serviceAccounts/{RUNNER}", "roles/iam.serviceAccountUser", RUNNER)
    grant(google, f"buckets/{BUCKET}", "roles/storage.objectUser", RUNNER)
    grant(google, REPOSITORY, "roles/artifactregistry.reader", RUNNER)


def make_region_ready(google: FakeGoogle, name: str) -> dict[str, Any]:
    """Start Vertex AI in another region, with a bucket there; return its entry in `vertex.regions`."""
    google.other_region(name)
    bucket = f"{BUCKET}-{name}"
    google.storage.add_bucket(bucket, google.world.projects[PROJECT], name)
    grant(google, f"buckets/{bucket}", "roles/storage.objectUser", RUNNER)
    return {"bucket": f"gs://{bucket}", "endpoints": {"aiplatform": google.addresses[name]}}


def let_build(google: FakeGoogle, email: str, bucket: str, repository: str) -> None:
    """Grant an account the roles of one that builds run as."""
    grant(google, f"projects/{PROJECT}", "roles/logging.logWriter", email)
    grant(google, f"buckets/{bucket}", "roles/storage.objectViewer", email)
    grant(google, repository, "roles/artifactregistry.writer", email)


def grant(google: FakeGoogle, resource: str, role: str, email: str) -> None:
    """Grant an account an additional role."""
    policy = google.world.policy(resource)
    policy["bindings"].append({"role": role, "members": [f"serviceAccount:{email}"]})
    google.world.policies[resource] = policy


def take_away(google: FakeGoogle, resource: str, role: str) -> None:
    """Remove a role from all its members on a resource."""
    policy = google.world.policy(resource)
    policy["bindings"] = [binding for binding in policy["bindings"] if binding["role"] != role]
    google.world.policies[resource] = policy


def vertex_settings(google: FakeGoogle, **more: Any) -> dict[str, Any]:
    """Return the section `vertex` of a configuration for this project."""
    return {
        "project": PROJECT,
        "region": google.location,
        "bucket": f"gs://{BUCKET}",
        "image": IMAGE,
        "serving_image": SERVING_IMAGE,
        "service_account": RUNNER,
        "endpoints": dict(google.endpoints),
        **more,
    }


def tpu_settings(google: FakeGoogle, **more: Any) -> dict[str, Any]:
    """Return the section `tpu` of a configuration for this project."""
    return {
        "project": PROJECT,
        "zones": [ZONE],
        "bucket": f"gs://{BUCKET}",
        "image": IMAGE,
        "service_account": RUNNER,
        "endpoints": dict(google.endpoints),
        **more,
    }


def let_use_tpus(google: FakeGoogle) -> None:
    """Grant the account of the TPU's machines the role with which it deletes them."""
    google.world.roles[machine_role(PROJECT)] = frozenset(MACHINE_PERMISSIONS)
    grant(google, f"projects/{PROJECT}", machine_role(PROJECT), RUNNER)
