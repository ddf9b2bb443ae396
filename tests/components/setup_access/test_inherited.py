"""Roles held through a folder, an organization or a group: asked for where possible, and otherwise a warning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipway.components.setup_access.access import apply, ensure
from slipway.components.setup_access.difference import Line, blocking, difference
from slipway.components.setup_access.observed import observe
from slipway.core.errors import UserError
from tests.components.setup_access.project import settings
from tests.fakes.google import NUMBER, PROJECT, FakeGoogle
from tests.fakes.ready import BUCKET, RUNNER, grant, make_ready, take_away

FOLDER, ORGANIZATION = "folders/11", "organizations/7"
PROJECTS_ROLE = f"roles/aiplatform.user on {PROJECT} for {RUNNER}"


@pytest.fixture
def in_folder(google: FakeGoogle) -> FakeGoogle:
    """A ready project in a folder of an organization, which grants the run-as account's role on the project."""
    make_ready(google)
    google.world.projects[PROJECT].parents = (FOLDER, ORGANIZATION)
    take_away(google, f"projects/{PROJECT}", "roles/aiplatform.user")
    grant(google, FOLDER, "roles/aiplatform.user", RUNNER)
    return google


def lines(google: FakeGoogle) -> dict[str, Line]:
    asked = settings(google, builds=False)
    return {str(line.item): line for line in difference(asked, observe(asked))}


def run_as_runner(google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call with the credentials of the run-as account, which may read no policy."""
    google.world.owners.clear()
    key = json.loads(Path(google.environment["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())
    (tmp_path / "runner.json").write_text(json.dumps({**key, "client_email": RUNNER}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "runner.json"))


def test_a_role_from_above_the_project_is_a_warning_and_does_not_block(in_folder):
    line = lines(in_folder)[PROJECTS_ROLE]
    assert (line.status, line.doubtful) == ("missing", True)
    assert line.observed == "not visible on slipway-test: grant or ignore"
    assert PROJECTS_ROLE in ensure(settings(in_folder, builds=False), grant=False)["unseen"]


def test_apply_grants_what_is_not_visible(in_folder):
    outcomes, left = apply(settings(in_folder, builds=False))
    assert [str(outcome.line.item) for outcome in outcomes] == [PROJECTS_ROLE]
    assert {line.status for line in left} == {"there"}


def test_a_role_that_a_group_has_is_a_warning(google):
    make_ready(google)
    google.world.groups["ml@example.com"] = {RUNNER}
    take_away(google, f"buckets/{BUCKET}", "roles/storage.objectUser")
    policy = google.world.policy(f"buckets/{BUCKET}")
    policy["bindings"].append({"role": "roles/storage.objectAdmin", "members": ["group:ml@example.com"]})
    google.world.policies[f"buckets/{BUCKET}"] = policy
    assert lines(google)[f"roles/storage.objectUser on gs://{BUCKET} for {RUNNER}"].doubtful
    assert blocking(lines(google).values()) == []


def test_without_a_folder_or_a_group_a_missing_role_blocks(google):
    make_ready(google)
    take_away(google, f"projects/{PROJECT}", "roles/aiplatform.user")
    assert [str(line.item) for line in blocking(lines(google).values())] == [PROJECTS_ROLE]


def test_a_missing_role_of_a_service_agent_blocks_also_in_a_folder(in_folder):
    take_away(in_folder, f"projects/{PROJECT}", "roles/aiplatform.serviceAgent")
    agent = f"service-{NUMBER}@gcp-sa-aiplatform.iam.gserviceaccount.com"
    assert [str(line.item) for line in blocking(lines(in_folder).values())] == [
        f"roles/aiplatform.serviceAgent on {PROJECT} for {agent}"
    ]


@pytest.mark.parametrize("through", [FOLDER, ORGANIZATION, "group"])
def test_the_caller_is_asked_about_its_own_roles(in_folder, tmp_path, monkeypatch, through):
    in_folder.world.policies.pop(FOLDER)
    if through == "group":
        in_folder.world.groups["ml@example.com"] = {RUNNER}
        binding = {"role": "roles/aiplatform.user", "members": ["group:ml@example.com"]}
        in_folder.world.policy(f"projects/{PROJECT}")
        in_folder.world.policies[f"projects/{PROJECT}"]["bindings"].append(binding)
    else:
        grant(in_folder, through, "roles/aiplatform.user", RUNNER)
    run_as_runner(in_folder, tmp_path, monkeypatch)
    assert lines(in_folder)[PROJECTS_ROLE].status == "there"
    assert ensure(settings(in_folder, builds=False), grant=False)["granted"] == []


def test_a_role_that_the_caller_does_not_have_blocks_also_in_a_folder(in_folder, tmp_path, monkeypatch):
    take_away(in_folder, f"buckets/{BUCKET}", "roles/storage.objectUser")
    run_as_runner(in_folder, tmp_path, monkeypatch)
    with pytest.raises(
        UserError, match=rf"objectUser on gs://{BUCKET} .* is missing: it lacks storage\.objects\.create"
    ):
        ensure(settings(in_folder, builds=False), grant=False)
