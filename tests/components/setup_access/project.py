"""The settings of a run in the fakes' project."""

from __future__ import annotations

from typing import Any

from slipway.components.setup_access.settings import AccessSettings
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.ready import BUCKET, REPOSITORY
from tests.fakes.ready import RUNNER as ACCOUNT


def settings(google: FakeGoogle, **fields: Any) -> AccessSettings:
    values = {
        "section": "vertex",
        "vertex_jobs": True,
        "project": PROJECT,
        "region": REGION,
        "bucket": BUCKET,
        "repository": REPOSITORY,
        "account": ACCOUNT,
        "endpoints": dict(google.endpoints),
        **fields,
    }
    return AccessSettings.model_validate(values)
