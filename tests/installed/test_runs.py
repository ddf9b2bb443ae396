"""Runs on Vertex AI from the submission to their end, as installed commands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.installed.case import Case, Project

pytestmark = pytest.mark.timeout(1800)  # its commands have time limits

RUN = "run --target vertex"
FOLLOWED = (
    Case("run --no-wait", f"{RUN} --no-wait", text="on cpu in europe-west4, submitted .* watch: slipway status"),
    Case("status", "status", text="· prepare_data .* running"),
    Case(
        "status of an unavailable service",
        "status",
        text=(": running", "as last seen; could not read the run: Google kept returning transient errors: The service"),
        fault={"method": "GetPipelineJob", "fault": 503, "times": 99},
    ),
    Case(
        "follow a run after the session has ended",
        "status --follow",
        code=2,
        text=(
            r"error: could not read the run: the credentials for Google Cloud were rejected.* The run continues",
            r"fix: gcloud auth application-default login$",
        ),
        fault={"method": "GetPipelineJob", "fault": "session ended", "times": 99},
    ),
    Case(
        "list of a broken connection", "list", text="running cpu", fault={"method": "GetPipelineJob", "fault": "reset"}
    ),
    Case(
        "logs without the right",
        "logs",
        code=2,
        text=r"may not read the logs: logging\.logEntries\.list is missing",
        fault={"method": "entries:list", "fault": "permission denied"},
    ),
    Case("cancel", "cancel", text=": cancelled", fault={"method": "CancelPipelineJob", "fault": 500}),
    Case("explain a cancelled run", "explain", text="has not failed; its status is cancelled"),
    Case("resume", "run --resume latest", text="✓ register_model .* succeeded .* verdict promote", forked=True),
    Case("status of a run that has ended", "status --follow", text="✓ train .* succeeded", forked=True),
    Case("bill", "runs bill", text="together .* by list prices of", forked=True),
    Case("track", "runs track latest", text="/#/experiments/"),
    Case(
        "track to a server that is down",
        "runs track latest",
        code=2,
        text="MLflow",
        fault={"method": "mlflow", "fault": 503, "times": 99},
    ),
)
FAILED = (
    Case(
        "run", RUN, 1, text="✗ train .* exited with a non-zero status of 1.* ValueError: a mistake .* then: slipway run"
    ),
    Case("explain", "explain", 1, text="The step train failed in the replica workerpool0-0.* ValueError: a mistake"),
    Case("logs", "logs --step train", text=r"workerpool0-0 \| ValueError: a mistake"),
)
# The job is created when the service no longer stalls, which is after the command has ended.
INTERRUPTED = (
    Case(
        "run that is interrupted while its job is created",
        RUN,
        130,
        r"Run demo-\S+ may have been submitted\. watch: slipway status --follow demo-\S+ stop: slipway cancel demo-",
        fault={"method": "CreatePipelineJob", "fault": "stall", "seconds": 240},
        interrupted_at="CreatePipelineJob",
    ),
    Case("status", "status", text="running", forked=True),
    Case("logs", "logs", text="run demo-.* has no log lines yet; its status is running", forked=True),
    Case("cancel", "cancel", text="demo-.*: cancelled"),
    Case("list", "list", text="cancelled"),
)
SUBMITTED = (
    Case(
        "run on a service that fails",
        RUN,
        code=1,
        text="the run failed: Could not submit the run: Google kept returning transient errors: Internal error",
        fault={"method": "CreatePipelineJob", "fault": 500, "times": 99},
    ),
    Case("tune", "tune --target vertex", text="✓ train .* of trial .* train.learning_rate .* verdict promote"),
    Case(
        "tune of an expired login",
        "tune --target vertex",
        code=2,
        text="credentials for Google Cloud were rejected: .* fix: gcloud auth application-default login",
        fault={"method": "tokens", "fault": "expired token", "times": 9},
    ),
)


def test_a_run_that_is_cancelled_and_resumed(make_project: Callable[..., Project]) -> None:
    make_project("vertex", "track").check(FOLLOWED)


def test_a_run_that_is_interrupted_while_its_job_is_created(make_project: Callable[..., Project]) -> None:
    make_project("vertex").check(INTERRUPTED)


def test_a_run_that_fails(make_project: Callable[..., Project]) -> None:
    project = make_project("vertex")
    lines = ["Traceback (most recent call last):", '  File "train.py", line 1, in <module>', "ValueError: a mistake"]
    project.services.ask(
        "POST", "/steps", {"task": "custom-training-job", "failure": {}, "logs": {"workerpool0-0": lines}}
    )
    project.check(FAILED)
    project.services.ask("POST", "/steps", {"task": "custom-training-job"})


def test_submissions(make_project: Callable[..., Project]) -> None:
    search = {"metric": "accuracy", "trials": 4, "parallel": 2}
    search["parameters"] = {"train.learning_rate": {"low": 0.0005, "high": 0.02, "scale": "log"}}
    make_project("vertex", tune=search).check(SUBMITTED)
