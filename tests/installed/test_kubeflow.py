"""Setup and runs on Kubeflow, as installed commands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.installed.case import Case, Project

pytestmark = pytest.mark.timeout(1800)  # its commands have time limits

RUN = "run --target kubeflow"
SEARCH = "tune={metric: accuracy, trials: 2, parameters: {train.learning_rate: {low: 0.001, high: 0.01}}}"
PREPARED = (
    Case("setup", "setup --target kubeflow", text="kind: Role .* name: slipway-train", forked=True),
    Case(
        "setup without the right",
        "setup --target kubeflow --apply",
        code=2,
        text="the cluster does not allow this account to",
        fault={"method": "kubernetes POST", "fault": "permission denied"},
    ),
    Case("setup --apply", "setup --target kubeflow --apply", text="Role slipway-train in kubeflow: created"),
    Case("doctor", "doctor --target kubeflow --hardware cpu*2", text="✓ kubeflow training .* ✓ kubeflow volume"),
    Case(
        "doctor of a server that denies access",
        "doctor --target kubeflow",
        code=1,
        text=r"✗ kubeflow server The Kubeflow Pipelines server denied access \(HTTP 401\)",
        fault={"method": "healthz", "fault": "expired token"},
    ),
    Case(
        "compile",
        "config compile --target kubeflow -o spec.yaml",
        text="spec.yaml: demo for kubeflow on cpu",
        forked=True,
    ),
)
FOLLOWED = (
    Case("run --no-wait", f"{RUN} --no-wait", text="submitted .* watch: slipway status --follow"),
    Case("status", "status", text="· train .* running"),
    Case(
        "status of a server that is down",
        "status",
        text=("as last seen; the Kubeflow Pipelines server does not respond", ": running"),
        fault={"method": "GET /apis/v2beta1/runs/", "fault": "reset", "times": 99},
    ),
    Case("logs", "logs", 2, text="its pods have them.* fix: kubectl -n kubeflow logs"),
    Case("cancel", "cancel", text=": cancelled"),
    Case("resume", "run --resume latest", text="✓ register_model .* succeeded .* verdict promote", forked=True),
    Case("tune", f"tune --target kubeflow --no-wait --set '{SEARCH}'", text="submitted .* watch: slipway status"),
)
FAILED = (
    Case("run", RUN, 1, text="✗ train .* the step train failed.* OOMKilled .* then: slipway run --resume"),
    Case("explain", "explain", 1, text="The step train failed.* OOMKilled"),
    Case(
        "run on a server that fails",
        RUN,
        code=2,
        text="the Kubeflow Pipelines server rejected the request: Internal error encountered",
        fault={"method": "POST /apis/v2beta1/runs", "fault": 500, "times": 99},
    ),
)


def test_a_cluster_that_is_set_up(make_project: Callable[..., Project]) -> None:
    make_project("kubeflow").check(PREPARED)


def test_a_run_that_is_cancelled_and_resumed(make_project: Callable[..., Project]) -> None:
    make_project("kubeflow").check(FOLLOWED)


def test_a_run_that_fails(make_project: Callable[..., Project]) -> None:
    project = make_project("kubeflow")
    project.services.ask("POST", "/kubeflow/failures", {"task": "train", "message": "OOMKilled (exit code 137)"})
    project.check(FAILED)
    project.services.ask("POST", "/kubeflow/failures", {"task": "train", "message": ""})
