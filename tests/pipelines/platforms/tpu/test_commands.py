"""`slipway runs tpu list` and `slipway runs tpu delete`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from slipway.components.train.tpu import service
from slipway.pipelines.cli.app import app
from tests.fakes.google import PROJECT, FakeGoogle
from tests.fakes.ready import BUCKET, IMAGE, RUNNER, make_ready
from tests.fidelity.test_tpu_api import ZONE, Tpus


@pytest.fixture
def tpus(google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tpus:
    """A project with one active TPU of a run, two users' requests that failed, and a TPU that is not Slipway's."""
    make_ready(google)
    section = {"project": PROJECT, "zones": [ZONE], "bucket": f"gs://{BUCKET}", "image": IMAGE}
    section |= {"service_account": RUNNER, "endpoints": dict(google.endpoints)}
    values = {"name": "digits", "model": {"builder": "slipway.trainer.models.digits:build"}, "train": {"epochs": 1}}
    (tmp_path / "slipway.yaml").write_text(yaml.safe_dump({**values, "data": {"source": "digits"}, "tpu": section}))
    monkeypatch.chdir(tmp_path)
    found = Tpus(google)
    for name, run, owner, state in (
        ("slipway-digits-1-1", "digits-1", service.owner(), "ACTIVE"),
        ("slipway-digits-2-1", "digits-2", service.owner(), "FAILED"),
        ("slipway-digits-3-1", "digits-3", "you-there", "FAILED"),
        ("mine", "", "", "ACTIVE"),
    ):
        google.tpu.exhausted = {ZONE} if state == "FAILED" else set()
        labels = {service.RUN_LABEL: run, service.OWNER_LABEL: owner} if run else {}
        found.create(name, {"labels": labels})
        found.wait(state, name)
    return found


def slipway(*words: str) -> Result:
    return CliRunner().invoke(app, ["runs", "tpu", *words])


def test_queued_resources_of_runs_are_listed_with_their_states(tpus: Tpus) -> None:
    shown = slipway("list")
    assert shown.exit_code == 0, shown.output
    first, second, third = shown.stdout.splitlines()
    assert first.startswith(f"slipway-digits-1-1 in {ZONE}: ACTIVE, v5litepod-8 Spot, since 20")
    assert second.startswith(f"slipway-digits-2-1 in {ZONE}: FAILED, ")
    assert f"of {service.owner()}: There is no more capacity in the zone" in second
    assert "of you-there: There is" in third
    assert "slipway runs tpu delete" in shown.stderr
    first, second, _ = json.loads(slipway("list", "--json").stdout)
    assert (first["state"], second["error"].partition(" in ")[0]) == ("ACTIVE", "There is no more capacity")


def test_queued_requests_that_failed_are_deleted_by_default(tpus: Tpus) -> None:
    done = slipway("delete", "--yes")
    assert done.exit_code == 0, done.output
    names = ("slipway-digits-1-1", "slipway-digits-2-1", "slipway-digits-3-1", "mine")
    assert [tpus.state(name) for name in names] == ["ACTIVE", "", "FAILED", "ACTIVE"]
    assert "no request of yours that failed" in slipway("delete", "--yes").stderr


@pytest.mark.parametrize("name", ["slipway-digits-1-1", "digits-1"])
def test_a_queued_resource_is_deleted_by_its_name_or_run(tpus: Tpus, name: str) -> None:
    refused = slipway("delete", name)
    assert (refused.exit_code, "--yes" in refused.stderr) == (2, True)
    assert slipway("delete", name, "--yes").exit_code == 0
    assert tpus.state("slipway-digits-1-1") == ""


def test_a_queued_resource_of_somebody_else_is_never_deleted(tpus: Tpus) -> None:
    refused = slipway("delete", "mine", "--yes")
    assert (refused.exit_code, "slipway-digits-1-1" in refused.stderr) == (2, True)
    assert tpus.state("mine") == "ACTIVE"
