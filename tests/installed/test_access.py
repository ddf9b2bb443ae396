"""`slipway doctor`, `setup`, `migrate`, `config compile` and others as installed commands, for Vertex AI."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.installed.case import Case, Project, Services

pytestmark = pytest.mark.timeout(1800)  # its commands have time limits

LEGACY = """
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-standard-4
  packageUris: [gs://slipway-test-runs/packages/trainer-0.1.tar.gz]
  pythonModule: trainer.task
  args: [--data, gs://slipway-test-runs/data]
  jobDir: gs://slipway-test-runs/job
  region: europe-west4
  runtimeVersion: "2.11"
  pythonVersion: "3.7"
"""
BUILT = "--target vertex --set vertex.image=null --set vertex.serving_image=null"
PREPARED = (
    Case("doctor passes", "doctor --target vertex", text="✓ first job", absent="✗"),
    Case(
        "doctor names the permission that a check lacks",
        "doctor --target vertex",
        code=1,
        text=r"✗ first job submitter@.* may not list the jobs: aiplatform\.pipelineJobs\.list is missing",
        fault={"method": "ListPipelineJobs", "fault": "permission denied"},
    ),
    Case("setup finds everything", "setup", text="Everything that a run needs exists; 19 items checked"),
    Case(
        "setup of an expired login",
        "setup",
        code=2,
        text=r"credentials for Google Cloud were rejected.* fix: gcloud auth application-default login",
        fault={"method": "tokens", "fault": "expired token", "times": 9},
    ),
    Case("compile", "config compile --target vertex -o spec.yaml", text="spec.yaml: demo for vertex on cpu"),
    Case("build of a configured image", "config build", text="/slipway/trainer@sha256:0000", forked=True),
    Case(
        "build without the right",
        f"config build {BUILT}",
        code=2,
        text="may not start builds",
        fault={"method": "cloudbuild POST", "fault": "permission denied", "times": 9},
    ),
    Case("build", f"config build {BUILT}", text="with cloud-build .* image .*/slipway/serving-cpu@sha256:"),
    Case("prices", "config prices -o prices.json", text="prices.json"),
    Case(
        "prices of an API that stalls",
        "config prices -o prices.json",
        fault={"method": "cloudbilling", "fault": "stall", "seconds": 1},
    ),
    Case("migrate", "migrate legacy.yaml -o migrated.yaml", text="migrated.yaml"),
)
BARE = (
    Case("setup lists what is missing", "setup", text="6 there, 13 to create", forked=True),
    Case(
        "setup continues after unavailable services",
        "setup --apply",
        text="created",
        fault={"method": "POST /v1/projects", "fault": 503, "times": 3},
    ),
    Case(
        "setup that a policy of the organization forbids in part",
        "setup --apply --set vertex.bucket=gs://slipway-test-other",
        code=1,
        text=(
            r"✗ roles/storage\.objectUser on gs://.* forbids roles for accounts of other domains",
            r"fix: ask an administrator of the organization's policies",
        ),
        fault={"method": "PUT /storage/v1/b", "fault": "organization policy", "times": 99},
    ),
    Case("setup is complete but for Google's own account", "setup", text="16 there, 3 to create", forked=True),
)


def test_a_ready_project(make_project: Callable[..., Project]) -> None:
    project = make_project("vertex")
    project.commit()
    (project.folder / "legacy.yaml").write_text(LEGACY)
    project.check(PREPARED)


@pytest.fixture
def bare_services(tmp_path: Path) -> Iterator[Services]:
    process = Services(tmp_path / "bare", "--only", "google", "--bare")
    yield process
    process.stop()


def test_a_bare_project(bare_services: Services, template: Path, tmp_path: Path) -> None:
    project = Project(bare_services, shutil.copytree(template, tmp_path / "demo"))
    project.add("vertex")
    project.check(BARE)
