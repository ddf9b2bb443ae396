"""The doctor's checks of a project for `--target tpu`: each names its problem and the fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner

from slipway.components.setup_access.desired import machine_role
from slipway.core.errors import UserError
from slipway.pipelines.checks import Finding
from slipway.pipelines.cli.app import app
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.doctor import examine_all, refuse_on_failure
from slipway.pipelines.platforms.base import Context
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.platforms.tpu.doctor import CHECKS
from tests.fakes.errors import ServiceError
from tests.fakes.google import PROJECT, REGION, SUBMITTER, FakeGoogle
from tests.fakes.ready import (
    BUCKET,
    IMAGE,
    REPOSITORY,
    RUNNER,
    grant,
    let_build,
    let_use_tpus,
    make_ready,
    take_away,
)

ZONE = f"{REGION}-b"
CLOUD = {check.name for check in CHECKS}
DOMAIN = RUNNER.partition("@")[2]
SPOT = "tpu.googleapis.com/tpu-v5s-litepod-serving-preemptible"


@pytest.fixture
def ready(google: FakeGoogle) -> FakeGoogle:
    make_ready(google)
    let_use_tpus(google)
    return google


def context(google: FakeGoogle, folder: Path, hardware: str = "tpu-v5e-2x4+spot", **section: Any) -> Context:
    tpu = {
        "project": PROJECT,
        "zones": [ZONE],
        "bucket": f"gs://{BUCKET}",
        "image": IMAGE,
        "service_account": RUNNER,
        "endpoints": dict(google.endpoints),
        **section,
    }
    values = {
        "name": "digits",
        "hardware": hardware,
        "data": {"source": "digits", "store": str(folder)},
        "model": {"builder": "slipway.trainer.models.digits:build"},
        "train": {"epochs": 1},
        "tpu": tpu,
    }
    return Context(RunConfig.model_validate(values), platform_of("tpu"), False, folder)


def found(google: FakeGoogle, folder: Path, hardware: str = "tpu-v5e-2x4+spot", **section: Any) -> dict[str, Finding]:
    findings = examine_all(context(google, folder, hardware, **section))
    return {each.check: each for each in findings if each.check in CLOUD}


def test_a_project_for_target_tpu_that_is_ready_passes(ready: FakeGoogle, tmp_path: Path) -> None:
    ready.world.quotas[PROJECT, ZONE, SPOT] = 16
    findings = found(ready, tmp_path)
    assert {name: each.found for name, each in findings.items() if each.status != "pass"} == {
        "builds": "Cloud Build builds no image"
    }
    assert findings.keys() == CLOUD
    assert findings["quota"].found == f"8 of tpu-v5s-litepod-serving: 16 in {ZONE}"
    assert findings["runtime version"].found == f"v2-alpha-tpuv5-lite in {ZONE}"


def _disable(google: FakeGoogle) -> None:
    google.world.projects[PROJECT].services -= {"tpu.googleapis.com", "cloudbuild.googleapis.com"}


def _no_rights(google: FakeGoogle) -> None:
    google.world.owners.clear()
    grant(google, f"projects/{PROJECT}", "roles/serviceusage.serviceUsageViewer", SUBMITTER)


def _no_act_as(google: FakeGoogle) -> None:
    _no_rights(google)
    grant(google, f"projects/{PROJECT}", "roles/tpu.admin", SUBMITTER)


def _far_bucket(google: FakeGoogle) -> None:
    google.world.buckets[BUCKET]["location"] = "US-EAST5"


def _no_quota(google: FakeGoogle) -> None:
    google.world.quotas[PROJECT, ZONE, SPOT] = 4


def _no_quota_in_region(google: FakeGoogle) -> None:
    google.world.quotas |= {(PROJECT, ZONE, SPOT): 8, (PROJECT, REGION, SPOT): 4}


@pytest.mark.parametrize(
    ("change", "section", "check", "sentence", "fix"),
    [
        (_disable, {}, "APIs", "tpu.googleapis.com", "slipway setup --target tpu --apply, or gcloud"),
        (_disable, {"image": None}, "APIs", "cloudbuild.googleapis.com, tpu", "gcloud services enable cloudbuild"),
        (_no_rights, {"image": None}, "builds", "lacks cloudbuild.builds.create", "roles/cloudbuild.builds.editor"),
        (_no_rights, {}, "own rights", "lacks tpu.nodes.create", "--role=roles/tpu.admin"),
        (_no_act_as, {}, "machines' account", "iam.serviceAccounts.actAs", "--role=roles/iam.serviceAccountUser"),
        (
            None,
            {"service_account": f"no@{DOMAIN}"},
            "machines' account",
            "does not exist",
            "slipway setup --target tpu",
        ),
        (_far_bucket, {}, "bucket", "is in us-east5", f"--location={REGION}"),
        (None, {"bucket": "gs://absent"}, "bucket", "does not exist", "slipway setup --target tpu --apply"),
        (None, {"image": IMAGE.replace("0" * 64, "a" * 64)}, "image", "There is no image", "--set tpu.image=null"),
        (None, {"zones": [f"{REGION}-c"]}, "runtime version", "list the runtime versions", None),
        (_no_quota, {}, "quota", f"needs 8 of {SPOT}, and the limit is 4 in {ZONE}", "slipway runs tpu list"),
        (_no_quota_in_region, {}, "quota", f"and the limit is 4 in {REGION}.", "slipway runs tpu list"),
    ],
)
def test_a_check_for_target_tpu_fails_with_its_fix(
    ready: FakeGoogle,
    tmp_path: Path,
    change: Callable[[FakeGoogle], None] | None,
    section: dict[str, Any],
    check: str,
    sentence: str,
    fix: str | None,
) -> None:
    if change is not None:
        change(ready)
    finding = found(ready, tmp_path, **section)[check]
    assert (finding.status, sentence in finding.found) == ("fail", True), finding
    assert fix is None or fix in str(finding.fix), finding.fix


@pytest.mark.parametrize(
    ("resource", "role"),
    [
        (f"projects/{PROJECT}", machine_role(PROJECT)),
        (f"buckets/{BUCKET}", "roles/storage.objectUser"),
        (REPOSITORY, "roles/artifactregistry.reader"),
    ],
)
def test_a_role_that_the_machines_of_target_tpu_lack_is_a_warning(
    ready: FakeGoogle, tmp_path: Path, resource: str, role: str
) -> None:
    take_away(ready, resource, role)
    finding = found(ready, tmp_path)["machines' roles"]
    assert (finding.status, f"lacks {role} on" in finding.found) == ("warning", True), finding
    assert finding.fix == "slipway setup --target tpu --apply"
    assert ("cannot delete itself" in finding.found) == (role == machine_role(PROJECT))


BUILDER = f"builder@{DOMAIN}"


@pytest.fixture
def builds(ready: FakeGoogle) -> dict[str, Any]:
    """A section `tpu` without an image, whose builds have an account with all roles."""
    ready.iam.add_account(BUILDER)
    let_build(ready, BUILDER, BUCKET, REPOSITORY)
    return {"image": None, "build": {"service_account": BUILDER}}


def test_a_project_that_builds_the_image_for_target_tpu_passes(
    ready: FakeGoogle, builds: dict[str, Any], tmp_path: Path
) -> None:
    findings = found(ready, tmp_path, **builds)
    assert (findings["builds"].status, findings["builds"].found) == ("pass", f"{BUILDER} has 3 roles")
    assert findings["machines' roles"].found == f"{RUNNER} has 3 roles", "also on the repository of the image"
    assert findings["APIs"].found.startswith("6 enabled")


@pytest.mark.parametrize(
    ("resource", "role"),
    [
        (f"projects/{PROJECT}", "roles/logging.logWriter"),
        (f"buckets/{BUCKET}", "roles/storage.objectViewer"),
        (REPOSITORY, "roles/artifactregistry.writer"),
    ],
)
def test_a_role_that_builds_for_target_tpu_lack_is_a_warning(
    ready: FakeGoogle, builds: dict[str, Any], tmp_path: Path, resource: str, role: str
) -> None:
    take_away(ready, resource, role)
    finding = found(ready, tmp_path, **builds)["builds"]
    assert (finding.status, f"{BUILDER} lacks {role} on" in finding.found) == ("warning", True), finding
    assert finding.fix == "slipway setup --target tpu --apply"


def test_the_machines_of_target_tpu_need_an_account_of_their_own(ready: FakeGoogle, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"tpu\.service_account"):
        context(ready, tmp_path, service_account=None)


def test_setup_for_target_tpu_creates_what_the_doctor_requires(
    google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    google.world.projects[PROJECT].services -= {"tpu.googleapis.com", "cloudbuild.googleapis.com"}
    account, builder = f"machines@{DOMAIN}", f"builder@{DOMAIN}"
    section = {"bucket": "gs://slipway-tpus", "service_account": account, "image": None}
    asked = context(google, tmp_path, **section, build={"service_account": builder})
    values = asked.config.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    (tmp_path / "slipway.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.chdir(tmp_path)
    command = ["setup", "--target", "tpu", "--json"]
    rows = json.loads(CliRunner().invoke(app, command).stdout)
    missing = {row["kind"] for row in rows if row["status"] == "missing"}
    assert missing == {"api", "identity", "account", "role", "bucket", "lifecycle", "repository", "binding"}
    made = CliRunner().invoke(app, [*command, "--apply"])
    assert made.exit_code == 0, made.output
    assert google.world.roles == {machine_role(PROJECT): frozenset({"tpu.nodes.delete", "tpu.nodes.get"})}
    assert google.world.buckets["slipway-tpus"]["location"] == REGION.upper()
    held = {binding["role"] for binding in google.world.policy(f"projects/{PROJECT}")["bindings"]}
    assert not {role for role in held if "aiplatform" in role or role == "roles/tpu.admin"}
    findings = {each.check: each for each in examine_all(asked) if each.check in CLOUD}
    assert {name for name, each in findings.items() if each.status != "pass"} <= {"image", "quota"}, findings
    writes = dict(google.world.writes)
    assert CliRunner().invoke(app, [*command, "--apply"]).exit_code == 0
    assert google.world.writes == writes


@pytest.mark.parametrize(
    ("hardware", "wanted", "name"),
    [
        ("tpu-v5p-2x2x2", 16, "tpu-v5p"),
        ("tpu-v5e-2x4", 8, "tpu-v5s-litepod-serving"),
        ("tpu-v5e-4x4", 16, "tpu-v5s-litepod"),
    ],
)
def test_quota_for_target_tpu_counts_what_the_generation_counts(
    ready: FakeGoogle, tmp_path: Path, hardware: str, wanted: int, name: str
) -> None:
    metric = f"tpu.googleapis.com/{name}"
    ready.world.quotas[PROJECT, ZONE, metric] = wanted
    assert found(ready, tmp_path, hardware)["quota"].status == "pass"
    ready.world.quotas[PROJECT, ZONE, metric] = wanted - 1
    assert f"needs {wanted} of {metric}" in found(ready, tmp_path, hardware)["quota"].found


def test_without_a_section_tpu_only_the_hardware_fails_for_target_tpu(ready: FakeGoogle, tmp_path: Path) -> None:
    asked = context(ready, tmp_path)
    asked = Context(asked.config.model_copy(update={"tpu": None}), platform_of("tpu"), False, tmp_path)
    findings = {each.check: each for each in examine_all(asked)}
    assert findings["hardware"].status == "fail"
    assert {findings[name].status for name in CLOUD} == {"skipped"}


def test_a_run_with_target_tpu_is_refused_before_anything_is_requested(ready: FakeGoogle, tmp_path: Path) -> None:
    _no_quota(ready)
    with pytest.raises(UserError, match="The quota is too small"):
        refuse_on_failure(context(ready, tmp_path), submitting=True)
    assert ready.tpu.history == []


def test_roles_that_google_fails_to_list_are_a_failure_and_not_a_pass(ready: FakeGoogle, tmp_path: Path) -> None:
    ready.faults.plan(
        f"POST /v3/projects/{PROJECT}:getIamPolicy", ServiceError(400, "the policy is malformed"), times=9
    )
    finding = found(ready, tmp_path)["machines' roles"]
    assert (finding.status, "the policy is malformed" in finding.found) == ("fail", True), finding
