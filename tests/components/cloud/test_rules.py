"""Rules of Google Cloud for settings."""

from __future__ import annotations

import pytest

from slipway.components.cloud.rules import check_bucket_region, is_bucket_near
from slipway.core.errors import UserError


@pytest.mark.parametrize(
    ("location", "region", "reason", "fix"),
    [
        ("US", "us-central1", "in the multi-region or dual-region US", "--location=us-central1"),
        ("NAM4", "us-central1", "dual-region NAM4", "--location=us-central1"),
        ("EUROPE-WEST4", "us-central1", "in europe-west4, the job in us-c", "vertex.region=europe-west4"),
    ],
)
def test_a_bucket_elsewhere_is_refused(location, region, reason, fix):
    with pytest.raises(UserError) as caught:
        check_bucket_region("gs://b", location, region, job="the job", why="it is slow", setting="vertex.bucket")
    assert reason in caught.value.message
    assert fix in caught.value.fix
    assert caught.value.allowed == f"a bucket in {region}"


@pytest.mark.parametrize(
    ("location", "region", "near", "around"),
    [
        ("US-CENTRAL1", "us-central1", True, True),
        ("US", "us-central1", False, True),
        ("NAM4", "us-central1", False, True),
        ("EU", "us-central1", False, False),
        ("US-EAST1", "us-central1", False, False),
    ],
)
def test_a_multi_region_around_the_region_is_near_where_that_will_do(location, region, near, around):
    assert is_bucket_near(location, region) == near
    assert is_bucket_near(location, region, around=True) == around
