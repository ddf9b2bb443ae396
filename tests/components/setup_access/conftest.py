"""A new project, and the settings of a run in it."""

from __future__ import annotations

from typing import Any

import pytest

from components.setup_access.settings import AccessSettings
from tests.fakes.google import PROJECT, REGION, FakeGoogle

ACCOUNT = f"runner@{PROJECT}.iam.gserviceaccount.com"
REPOSITORY = f"projects/{PROJECT}/locations/{REGION}/repositories/slipway"
BUCKET = "slipway-test-runs"


@pytest.fixture
def new_project(google: FakeGoogle) -> FakeGoogle:
    """A project as Google makes it: nothing is enabled but what is enabled everywhere."""
    google.world.projects[PROJECT].services = {"serviceusage.googleapis.com", "storage.googleapis.com"}
    return google


def settings(google: FakeGoogle, **fields: Any) -> AccessSettings:
    values = {
        "project": PROJECT,
        "region": REGION,
        "bucket": BUCKET,
        "repository": REPOSITORY,
        "account": ACCOUNT,
        "endpoints": dict(google.endpoints),
        **fields,
    }
    return AccessSettings.model_validate(values)
