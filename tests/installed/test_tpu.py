"""Setup of Cloud TPUs, their requests and clean-up in buckets, as installed commands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.installed.case import Case, Project

pytestmark = pytest.mark.timeout(1800)  # its commands have time limits

TPU = "--target tpu --hardware tpu-v5e-1x1"
CASES = (
    Case("setup", "setup --target tpu", text="Everything that a run needs exists", forked=True),
    Case("doctor", f"doctor {TPU}", text="✓ own rights", absent="✗"),
    Case(
        "doctor without the right",
        f"doctor {TPU}",
        code=1,
        text="✗",
        fault={"method": "tpu GET", "fault": "permission denied", "times": 9},
    ),
    Case("tpu list", "runs tpu list", text="There are no TPUs"),
    Case(
        "tpu list of a service that fails",
        "runs tpu list",
        code=2,
        text="Google kept returning transient errors: Internal error encountered",
        fault={"method": "tpu GET", "fault": 500, "times": 99},
    ),
    Case(
        "tpu delete", "runs tpu delete --yes", text="There is no request of yours that failed or expired", forked=True
    ),
    Case("clean", "runs clean --target tpu", text="nothing is older than 30d and not needed"),
    Case(
        "clean on Vertex AI",
        "runs clean --target vertex --older-than 1d --apply",
        text="nothing is older than 1d",
        forked=True,
    ),
    Case(
        "clean without the right",
        "runs clean --target vertex",
        code=2,
        text="may not list gs://slipway-test-runs: The caller does not have permission",
        fault={"method": "storage GET", "fault": "permission denied", "times": 9},
    ),
)


def test_tpus(make_project: Callable[..., Project]) -> None:
    make_project("tpu", "vertex").check(CASES)
