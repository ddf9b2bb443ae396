"""Endpoints, batch predictions and schedules on Vertex AI, as installed commands."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import yaml

from tests.fakes.ready import BUCKET
from tests.installed.case import Case, Project

pytestmark = pytest.mark.timeout(1800)  # its commands have time limits

ENDPOINT = {"configuration": "slipway.yaml", "machine": "n1-standard-2", "canary": [20, 100], "hold": 0}
CHECK = {"requests": "requests.json", "rate": 100, "answers": 5}
SCHEDULE = {"configuration": "slipway.yaml", "cron": "0 3 * * *", "time_zone": "Europe/Berlin"}
FIRST = (
    Case(
        "endpoints diff", "endpoints diff", text="demo: absent to create it: slipway endpoints apply demo", forked=True
    ),
    Case(
        "endpoints apply without the right",
        "endpoints apply",
        code=2,
        text=r"aiplatform\.endpoints\.create is missing",
        fault={"method": "CreateEndpoint", "fault": "permission denied"},
    ),
    Case("endpoints apply", "endpoints apply", text="endpoints/slipway-demo.* created"),
    Case("deploy", "deploy", text=("demo@1 has 100% of the traffic .* 5 requests, 0 failed", "demo@1: deployed")),
)
SECOND = (
    Case(
        "deploy to an endpoint that is busy",
        "deploy",
        text=("demo@2 has 20% of the traffic .* demo@2 has 100%", "demo@2: deployed"),
        fault={"method": "DeployModel", "fault": 503},
    ),
    Case("endpoints list", "endpoints list", text=r"demo@2 100% .* demo@1 \(previous\) 0%"),
    Case("rollback", "endpoints rollback", text="demo@1 has all traffic again; demo@2 has none and stays deployed"),
    Case(
        "rollback of an expired token",
        "endpoints rollback",
        code=2,
        text="credentials for Google Cloud were rejected",
        fault={"method": "EndpointService", "fault": "expired token", "times": 9},
    ),
    Case("endpoints show", "endpoints show demo", text="matches configs/endpoints/demo.yaml", forked=True),
    Case("endpoints delete", "endpoints delete demo --yes", text="demo: absent deleted projects/", forked=True),
)
PREDICT = f"batch demo --target vertex --input gs://{BUCKET}/inputs/*.jsonl --output gs://{BUCKET}/out"
BATCHES = (
    Case(
        "batch without quota",
        PREDICT,
        code=2,
        text="Quota exceeded",
        fault={"method": "CreateBatchPredictionJob", "fault": 429, "times": 99},
    ),
    Case("batch", PREDICT, text="2 inputs: 2 predicted in gs://"),
)
SCHEDULES = (
    Case("schedule diff", "schedule diff", text="nightly: absent", forked=True),
    Case("schedule apply", "schedule apply", text="active, next run .* created"),
    Case(
        "schedule list", "schedule list", text="nightly .*: active", fault={"method": "ListSchedules", "fault": "reset"}
    ),
    Case("schedule pause", "schedule pause nightly", text="active → paused", forked=True),
    Case("schedule resume", "schedule resume nightly", text="paused → active", forked=True),
    Case(
        "schedule delete", "schedule delete nightly --yes", text="nightly: absent deleted", absent="next: ", forked=True
    ),
    Case(
        "schedule apply that is interrupted",
        "schedule apply",
        130,
        "interrupted: schedules may have been changed; slipway schedule list shows them$",
        fault={"method": "CreateSchedule", "fault": "stall", "seconds": 240},
        interrupted_at="CreateSchedule",
    ),
)


def test_an_endpoint(make_project: Callable[..., Project]) -> None:
    project = make_project("vertex")
    services, folder = project.services, project.folder
    (folder / "configs" / "endpoints").mkdir(parents=True)
    (folder / "configs" / "endpoints" / "demo.yaml").write_text(yaml.safe_dump(ENDPOINT | {"check": CHECK}))
    (folder / "requests.json").write_text(json.dumps({"instances": [{"pixel": 1}, {"pixel": 2}]}))
    services.ask("POST", "/models", {"name": "demo"})
    project.check(FIRST)
    services.ask("POST", "/models", {"name": "demo"})
    project.check(SECOND)
    services.ask("PUT", f"/objects/{BUCKET}/inputs/a.jsonl", b'{"n": 1}\n{"n": 2}\n')
    project.check(BATCHES)


def test_a_schedule(make_project: Callable[..., Project]) -> None:
    project = make_project("vertex")
    (project.folder / "configs" / "schedules").mkdir(parents=True)
    (project.folder / "configs" / "schedules" / "nightly.yaml").write_text(yaml.safe_dump(SCHEDULE))
    project.check(SCHEDULES)
