"""The step in a pipeline: it verifies access, and grants only if configured to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipway.components.setup_access.access import apply, ensure
from slipway.components.setup_access.component import setup_access
from slipway.core.errors import UserError
from tests.components.setup_access.project import BUCKET, settings
from tests.fakes.ready import RUNNER, make_ready, take_away


def test_it_verifies_and_changes_nothing(new_project):
    with pytest.raises(UserError) as error:
        ensure(settings(new_project), grant=False)
    assert "aiplatform.googleapis.com is missing" in error.value.message
    assert error.value.fix == "slipway setup --apply"
    assert new_project.world.writes.total() == 0


def test_it_grants_when_it_is_told_to(new_project):
    granted = ensure(settings(new_project), grant=True)["granted"]
    assert f"gs://{BUCKET}" in granted
    after = ensure(settings(new_project), grant=False)
    assert after["granted"] == []
    assert after["unseen"] == []


def test_the_step_fails_on_one_screen(new_project, capsys):
    apply(settings(new_project))
    new_project.world.policies[f"buckets/{BUCKET}"]["bindings"] = []
    with pytest.raises(SystemExit):
        setup_access.python_func(settings=settings(new_project).model_dump_json(), grant=False)
    shown = capsys.readouterr().err
    assert "roles/storage.objectUser on gs://slipway-test-runs" in shown
    assert "slipway setup --apply" in shown
    assert "Traceback" not in shown


def test_the_run_as_account_verifies_with_no_more_than_its_own_roles(google, tmp_path, monkeypatch):
    make_ready(google)
    google.world.owners.clear()
    key = json.loads(Path(google.environment["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())
    (tmp_path / "runner.json").write_text(json.dumps({**key, "client_email": RUNNER}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "runner.json"))
    found = ensure(settings(google), grant=False)
    assert found["granted"] == []
    assert f"gs://{BUCKET}" in found["unseen"]
    # It may not see the bucket's policy, and learns all the same that it is not in it.
    take_away(google, f"buckets/{BUCKET}", "roles/storage.objectUser")
    with pytest.raises(UserError, match=r"it lacks storage\.objects\.create"):
        ensure(settings(google), grant=False)
