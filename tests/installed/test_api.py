"""`import slipway` in a program, and artifacts in buckets, as they are installed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fakes.ready import BUCKET
from tests.installed.case import Case, Project

pytestmark = pytest.mark.timeout(1800)  # its commands have time limits

# The third submission is refused.
RUN = """
import slipway
from slipway.core.errors import UserError
print(bool(slipway.check(target="vertex")))
run = slipway.run("slipway.yaml", target="vertex", wait=False)
print(run.status)
run.wait(timeout=1000)
print(run.status, run.verdict, run.metrics["accuracy"], slipway.runs()["latest"].status)
print(slipway.runs().frame().to_string())
run = slipway.run("slipway.yaml", target="vertex", wait=False)
run.cancel()
print(run.status)
try:
    slipway.run("slipway.yaml", target="vertex")
except UserError as error:
    print("refused:", error)
"""
CASES = (
    Case(
        "check, run, wait, cancel, and a run without the right",
        script=RUN,
        text="True .* running .* succeeded promote 0.98.* cancelled .*"
        r"refused: submitter@.* may not submit the run: aiplatform\.pipelineJobs\.create is missing",
        fault={"method": "CreatePipelineJob", "fault": "permission denied", "at_call": 3},
    ),
    Case("verify of a bucket", f"runs verify gs://{BUCKET}/runs", 2, text="there is no model or data set in gs://"),
    Case("drift of a bucket", f"drift demo gs://{BUCKET}/inputs/a.jsonl", 2, text="there is no model demo"),
    Case("predict of a bucket", f"predict demo gs://{BUCKET}/inputs/a.jsonl", 2, text="there is no model demo"),
)


def test_the_python_api(make_project: Callable[..., Project]) -> None:
    make_project("vertex").check(CASES)
