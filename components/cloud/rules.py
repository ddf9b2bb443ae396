"""Rules of Google Cloud for settings: labels, and the region of a bucket."""

from __future__ import annotations

import re
from collections.abc import Mapping

from slipway.core.errors import UserError

# Patterns of settings, and what they demand, with an example.
PROJECT = r"^(?:[a-z0-9.-]+:)?[a-z0-9][a-z0-9-]*$"
BUCKET = r"^gs://[a-z0-9][a-z0-9._-]*[a-z0-9]$"
ACCOUNT = r"^[^@\s/:]+@[^@\s/:]+$"
NETWORK = r"^projects/\d+/global/networks/[a-z]([-a-z0-9]*[a-z0-9])?$"
KEY = r"^projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+$"
SUBMITTER = r"^((user|group|serviceAccount):[^@\s]+@[^@\s]+|principal(Set)?://iam\.googleapis\.com/\S+)$"
FORMS: Mapping[str, str] = {
    PROJECT: "must be a project's id, not its name, such as my-project-123456: gcloud projects list shows both",
    BUCKET: "must be gs://NAME, such as gs://my-bucket",
    ACCOUNT: "must be the e-mail address of an account, such as runner@my-project.iam.gserviceaccount.com",
    NETWORK: "must be projects/NUMBER/global/networks/NAME, such as projects/123456789012/global/networks/main, with "
    "the number of the network's project: gcloud projects describe PROJECT --format='value(projectNumber)'",
    KEY: "must be projects/PROJECT/locations/REGION/keyRings/RING/cryptoKeys/KEY, such as "
    "projects/my-project/locations/europe-west4/keyRings/training/cryptoKeys/runs",
    SUBMITTER: "must be a principal with its kind, such as user:ada@example.com, group:, serviceAccount:, or "
    "principal:// and principalSet:// of workload identity federation",
}
# The folder of runs in their bucket, and the file of one whose process has a lease on a TPU.
RUNS, LEASE = "runs", "lease"
REGION = re.compile(r"[a-z]+-[a-z]+\d+")
MULTI_REGIONS = {"us": "us-", "eu": "europe-", "asia": "asia-"}


def label(text: str) -> str:
    """Convert `text` to a label value: at most 63 lower-case letters, digits, dashes and underscores."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:63]


def check_labels(labels: Mapping[str, str], setting: str) -> None:
    """Raise UserError if Google Cloud rejects a label."""
    for key, value in labels.items():
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) or not re.fullmatch(r"[a-z0-9_-]{0,63}", value):
            raise UserError(
                f"{key}: {value} cannot be a label.",
                setting=setting,
                value=f"{key}: {value}",
                allowed="up to 63 lower-case letters, digits, dashes and underscores; a key begins with a letter",
            )


def is_bucket_near(location: str, region: str, *, around: bool = False) -> bool:
    """Return whether a bucket is in a job's region, or with `around` in a dual-region or multi-region around it."""
    place = location.lower()
    if not around or REGION.fullmatch(place):
        return place == region
    return region.startswith(MULTI_REGIONS.get(place, ""))


def check_bucket_region(
    bucket: str, location: str, region: str, *, job: str, why: str, setting: str, around: bool = False
) -> None:
    """Check that a bucket is where a job reads and writes it.

    Args:
        bucket: The bucket, as in `setting`.
        location: The bucket's location, as in Cloud Storage: ``US-CENTRAL1``, ``EU``, ``NAM4``.
        region: The job's region.
        job: What is in the region, such as "the TPU".
        why: A clause with the reason.
        setting: The setting that names the bucket.
        around: Whether a dual-region or multi-region around the region will do.

    Raises:
        UserError: It is elsewhere.
    """
    if is_bucket_near(location, region, around=around):
        return
    place = location.lower()
    where = place if REGION.fullmatch(place) else f"the multi-region or dual-region {location}"
    fix = f"gcloud storage buckets create gs://NEW_NAME --location={region}"
    if setting == "vertex.bucket" and where == place:
        fix += f", or --set vertex.region={place}"
    raise UserError(
        f"The bucket {bucket} is in {where}, {job} in {region}; {why}.",
        setting=setting,
        value=bucket,
        allowed=f"a bucket in {region}",
        fix=fix,
    )
