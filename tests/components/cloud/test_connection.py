"""Clients use the configured endpoints and the caller's credentials, and retry transient failures."""

from __future__ import annotations

import json

import pytest

from slipway.components.cloud.connection import Connection, check_endpoints
from slipway.components.cloud.retries import retried, status_of
from slipway.core.errors import UserError
from tests.fakes.errors import ConnectionReset, ServiceError
from tests.fakes.google import NUMBER, PROJECT, REGION, SUBMITTER, FakeGoogle


def get_project(google: FakeGoogle) -> str:
    api = Connection(PROJECT, REGION, google.endpoints).api("cloudresourcemanager", "v3")
    return str(retried(lambda: api.projects().get(name=f"projects/{PROJECT}").execute())["name"])


def test_a_call_arrives_with_the_callers_identity(google: FakeGoogle) -> None:
    assert get_project(google) == f"projects/{NUMBER}"
    google.world.owners.clear()
    with pytest.raises(Exception, match="resourcemanager") as refused:
        get_project(google)
    assert status_of(refused.value) == 403
    google.world.owners.add(SUBMITTER)
    assert get_project(google) == f"projects/{NUMBER}"


@pytest.mark.parametrize("fault", [ServiceError(429, "Slow down."), ServiceError(503, "Away."), ConnectionReset()])
def test_transient_faults_are_tried_again(google: FakeGoogle, fault: Exception) -> None:
    google.faults.plan("GET /v3/projects", fault, times=3)
    assert get_project(google) == f"projects/{NUMBER}"
    assert google.faults.struck.total() == 3


def test_a_refusal_is_not_tried_again(google: FakeGoogle) -> None:
    google.faults.plan("GET /v3/projects", ServiceError(404, "No such thing."), times=5)
    with pytest.raises(Exception, match="No such thing"):
        get_project(google)
    assert google.faults.struck.total() == 1


def test_without_credentials_the_login_is_named(google: FakeGoogle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    with pytest.raises(UserError, match="no credentials") as error:
        get_project(google)
    assert (error.value.value, error.value.fix) == ("/nowhere/key.json", "gcloud auth application-default login")


@pytest.mark.parametrize(
    ("endpoints", "near"),
    [({"aiplatfrom": "a:1"}, "aiplatform"), ({"storage": "https://storage.example.com/v1"}, "storage.example.com")],
)
def test_an_endpoint_that_cannot_be_is_refused(endpoints: dict[str, str], near: str) -> None:
    with pytest.raises(UserError) as error:
        check_endpoints(endpoints)
    assert error.value.nearest == near


def test_a_persons_calls_are_counted_against_the_runs_project(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    login = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    path = tmp_path / "login.json"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    path.write_text(json.dumps(login))
    assert Connection("mine", REGION).credentials.quota_project_id == "mine"
    path.write_text(json.dumps({**login, "quota_project_id": "chosen"}))
    assert Connection("mine", REGION).credentials.quota_project_id == "chosen"


def test_credentials_that_google_no_longer_takes_are_named(google: FakeGoogle) -> None:
    refused = ServiceError(400, "invalid_grant")
    google.tokens.faults.plan("POST /token", refused, times=100)
    with pytest.raises(UserError, match="were rejected") as error:
        _ = Connection(PROJECT, REGION, google.endpoints).caller
    assert error.value.fix == "gcloud auth application-default login"
