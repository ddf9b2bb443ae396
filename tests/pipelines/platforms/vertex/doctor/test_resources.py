"""The doctor's checks of a Google Cloud project: each reports its problem with the fix, and does not hide others."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest
from google.cloud import aiplatform_v1 as vertex
from typer.testing import CliRunner

from slipway.components.build_image.images import beam_version
from slipway.components.setup_access.access import apply
from slipway.core import waiting
from slipway.core.errors import UserError
from slipway.pipelines.checks import Finding, examine, examine_in_parallel
from slipway.pipelines.cli.app import app
from slipway.pipelines.cli.targets import show_warnings
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.doctor import examine_all, refuse_on_failure
from slipway.pipelines.google.platform import connection_of
from slipway.pipelines.images.images import SOURCE_TREE
from slipway.pipelines.platforms.base import Check, Context
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.platforms.vertex.access import access_settings
from slipway.pipelines.platforms.vertex.doctor import resources as checks
from slipway.pipelines.platforms.vertex.doctor.quotas import peak
from tests.fakes.cloud_kms import add_key
from tests.fakes.errors import ServiceError
from tests.fakes.google import COMPUTE_ACCOUNT, NUMBER, PROJECT, REGION, SUBMITTER, FakeGoogle
from tests.fakes.ready import (
    BUCKET,
    REPOSITORY,
    RUNNER,
    grant,
    let_build,
    make_ready,
    take_away,
    vertex_settings,
)

FINDS = ["LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64"]
T4 = "aiplatform.googleapis.com/custom_model_training_nvidia_t4_gpus"
SCHEDULES = "aiplatform.googleapis.com/active_schedules"
ACCOUNT = f"projects/{PROJECT}/serviceAccounts/{RUNNER}"
AGENT = f"service-{NUMBER}@gcp-sa-aiplatform.iam.gserviceaccount.com"
TPU_AGENT = f"service-{NUMBER}@cloud-tpu.iam.gserviceaccount.com"


@pytest.fixture
def ready(google: FakeGoogle) -> FakeGoogle:
    make_ready(google)
    _ = google.region
    methods = {"ListSchedules": (vertex.ListSchedulesRequest, lambda request, caller: vertex.ListSchedulesResponse())}
    google.vertex.add("google.cloud.aiplatform.v1.ScheduleService", methods)
    return google


def subject(google: FakeGoogle, folder, hardware: str = "cpu", data=None, **place) -> Context:
    values = {
        "name": "digits",
        "hardware": hardware,
        "data": data or {"source": "digits", "store": str(folder)},
        "model": {"builder": "slipway.trainer.models.digits:build"},
        "train": {"epochs": 1},
        "vertex": vertex_settings(google, **place),
    }
    return Context(RunConfig.model_validate(values), platform_of("vertex"), False, folder)


def findings(google: FakeGoogle, folder, hardware: str = "cpu", **place) -> dict[str, Finding]:
    asked = subject(google, folder, hardware, **place)
    return {finding.check: finding for finding in examine_all(asked)}


def failed(found: dict[str, Finding]) -> set[str]:
    return {name for name, finding in found.items() if finding.status == "fail"}


def test_a_project_that_is_ready_passes(ready, tmp_path):
    ready.world.quotas[PROJECT, REGION, T4] = 4
    ready.service_usage.metrics = {SCHEDULES: 10}
    found = findings(ready, tmp_path, "t4x2")
    assert failed(found) == set()
    assert found["project"].found == f"{PROJECT}, number {NUMBER}"
    assert found["quota"].found == f"2 of 4 custom_model_training_nvidia_t4_gpus in {REGION}"
    assert found["schedule quota"].found == f"0 of 10 active in {REGION}"
    assert "first" in found["first job"].found
    assert ready.world.writes.total() == 0


@pytest.mark.parametrize(
    ("spoil", "check", "says", "fixes"),
    [
        (lambda g: take_away(g, f"buckets/{BUCKET}", "roles/storage.objectUser"), "bucket rights", RUNNER, "setup"),
        (lambda g: g.world.buckets.clear(), "bucket", "does not exist", "slipway setup --apply"),
        (
            lambda g: g.world.buckets[BUCKET].update(location="EU", locationType="multi-region"),
            "bucket",
            "EU",
            "create",
        ),
        (lambda g: g.world.buckets[BUCKET].update(location="US-CENTRAL1"), "bucket", "us-central1", "create"),
        (lambda g: g.world.repositories.clear(), "repository", "slipway", "slipway setup --apply"),
        (
            lambda g: take_away(g, REPOSITORY, "roles/artifactregistry.reader"),
            "repository",
            "gcp-sa-aiplatform.iam",
            "slipway setup --apply",
        ),
        (lambda g: g.images.untagged.clear(), "image", "no image", "slipway config build"),
        (lambda g: take_away(g, f"projects/{PROJECT}", "roles/aiplatform.user"), "roles", RUNNER, "setup"),
        (lambda g: g.world.projects[PROJECT].services.discard("logging.googleapis.com"), "APIs", "logging", "enable"),
        (
            lambda g: g.world.quotas.update({(PROJECT, REGION, T4): 1, (PROJECT, "us-central1", T4): 8}),
            "quota",
            "needs 2",
            "vertex.region=us-central1",
        ),
    ],
)
def test_each_problem_fails_only_its_own_check(ready, tmp_path, spoil, check, says, fixes):
    spoil(ready)
    found = findings(ready, tmp_path, "t4x2")
    assert failed(found) == {check} | ({"image"} if check == "repository" and not ready.world.repositories else set())
    assert says in found[check].found
    assert fixes in found[check].fix


def test_a_run_as_account_that_was_created_seconds_ago_exists(ready, tmp_path):
    for call in ("iam GET", "iam POST"):
        ready.faults.plan(call, ServiceError(404, f"Service account {ACCOUNT} does not exist."), 2)
    assert failed(findings(ready, tmp_path)) == set()


def in_folder(google: FakeGoogle) -> None:
    """The run-as account has its roles on the bucket through the folder that the project is in."""
    google.world.projects[PROJECT].parents = ("folders/11",)
    take_away(google, f"buckets/{BUCKET}", "roles/storage.objectUser")
    grant(google, "folders/11", "roles/storage.objectUser", RUNNER)


def test_a_role_that_may_be_inherited_is_a_warning_and_the_run_is_submitted(ready, tmp_path, capsys):
    in_folder(ready)
    finding = findings(ready, tmp_path)["bucket rights"]
    assert finding.status == "warning"
    assert f"roles/storage.objectUser on gs://{BUCKET} for {RUNNER}" in finding.found
    assert "if it is inherited, ignore this" in finding.fix
    warnings = refuse_on_failure(subject(ready, tmp_path), submitting=True)
    assert [warning.check for warning in warnings] == ["bucket rights"]
    show_warnings(warnings)
    assert "warning: bucket rights: Not visible" in " ".join(capsys.readouterr().err.split())


def test_roles_of_the_submitter_through_a_group_are_enough(ready, tmp_path):
    ready.world.owners.clear()
    ready.world.groups["team@example.com"] = {SUBMITTER}
    roles = ("roles/aiplatform.user", "roles/iam.serviceAccountUser", "roles/serviceusage.serviceUsageViewer")
    for role in roles:
        ready.world.policies[f"projects/{PROJECT}"]["bindings"].append(
            {"role": role, "members": ["group:team@example.com"]}
        )
    found = findings(ready, tmp_path)
    assert (found["own rights"].status, found["run-as account"].status) == ("pass", "pass")


def test_the_account_of_builds_is_checked(ready, tmp_path):
    let_build(ready, COMPUTE_ACCOUNT, BUCKET, REPOSITORY)
    found = findings(ready, tmp_path, image=None)
    assert found["builder"].found == f"{COMPUTE_ACCOUNT}; you may start builds that run as it"
    ready.world.accounts[COMPUTE_ACCOUNT]["disabled"] = True
    assert "disabled" in findings(ready, tmp_path, image=None)["builder"].found
    ready.world.accounts.pop(COMPUTE_ACCOUNT)
    absent = findings(ready, tmp_path, image=None)["builder"]
    assert absent.status == "fail"
    assert absent.fix.startswith("--set vertex.build.service_account=slipway-builder@")
    assert findings(ready, tmp_path)["builder"].status == "skipped"


def test_a_submitter_who_may_not_act_as_the_account_of_builds(ready, tmp_path):
    ready.world.owners.clear()
    roles = ("roles/aiplatform.user", "roles/cloudbuild.builds.editor", "roles/serviceusage.serviceUsageViewer")
    for role in roles:
        grant(ready, f"projects/{PROJECT}", role, SUBMITTER)
    found = findings(ready, tmp_path, image=None)["builder"]
    assert (found.status, COMPUTE_ACCOUNT in found.found) == ("fail", True)
    assert "--role=roles/iam.serviceAccountUser" in found.fix


KEY = f"projects/{PROJECT}/locations/{REGION}/keyRings/ring/cryptoKeys/key"


def test_an_encryption_key_is_checked(ready, tmp_path):
    ready.world.projects[PROJECT].services.add("cloudkms.googleapis.com")
    assert findings(ready, tmp_path)["encryption key"].status == "skipped"
    absent = findings(ready, tmp_path, encryption_key=KEY)["encryption key"]
    assert (absent.status, absent.fix.startswith("gcloud kms keys create")) == ("fail", True)
    add_key(ready.world, KEY)
    locked = findings(ready, tmp_path, encryption_key=KEY)["encryption key"]
    assert (locked.status, locked.fix) == ("fail", "slipway setup --apply")
    grant(ready, KEY, "roles/cloudkms.cryptoKeyEncrypterDecrypter", AGENT)
    assert findings(ready, tmp_path, encryption_key=KEY)["encryption key"].found == f"{AGENT} may use it"


def test_dataflow_needs_its_apis_agent_and_roles(ready, tmp_path):
    data = {"source": "digits", "store": f"gs://{BUCKET}/sets", "beam": {"runner": "DataflowRunner"}}
    found = {finding.check: finding for finding in examine_all(subject(ready, tmp_path, data=data))}
    assert failed(found) >= {"APIs", "service agents", "roles"}
    assert "dataflow.googleapis.com" in found["APIs"].found
    assert "roles/dataflow" in found["roles"].found
    data["beam"]["options"] = {"temp_location": "gs://elsewhere/temp"}
    assert access_settings(subject(ready, tmp_path, data=data).config).stores == ("elsewhere",)
    del data["beam"]["options"]
    apply(access_settings(subject(ready, tmp_path, data=data).config))
    found = {finding.check: finding for finding in examine_all(subject(ready, tmp_path, data=data))}
    assert not failed(found) & {"APIs", "service agents", "roles", "bucket rights"}
    assert {"gcp-sa-aiplatform", "dataflow-service-producer-prod"} <= {*found["service agents"].found.split(", ")}


def test_missing_service_agents_before_the_first_job(ready, tmp_path):
    for name in (f"projects/{PROJECT}", REPOSITORY):
        policy = ready.world.policies[name]
        policy["bindings"] = [b for b in policy["bindings"] if "gcp-sa-aiplatform" not in b["members"][0]]
    found = findings(ready, tmp_path)
    assert failed(found) == {"service agents", "first job", "roles", "repository"}
    assert "No job has run" in found["first job"].found
    assert found["first job"].fix == "slipway setup --apply"


def test_a_tpu_requires_the_roles_of_its_service_agent(ready, tmp_path):
    found = findings(ready, tmp_path, "tpu-v5e-2x4")
    assert TPU_AGENT in found["bucket rights"].found
    assert "TPU" in found["bucket rights"].found


def test_the_data_bucket_is_checked_too(ready, tmp_path):
    ready.storage.add_bucket("the-prepared", ready.world.projects[PROJECT], REGION)
    asked = subject(ready, tmp_path, data={"source": "digits", "store": "gs://the-prepared/sets"})
    found = {finding.check: finding for finding in examine_all(asked)}
    assert failed(found) == {"bucket rights"}
    assert f"roles/storage.objectUser on gs://the-prepared for {RUNNER}" in found["bucket rights"].found


def test_a_missing_act_as_permission_is_fixed_by_a_command(ready, tmp_path):
    ready.world.owners.clear()
    found = findings(ready, tmp_path)
    assert found["project"].status == "fail"
    viewer = {"role": "roles/serviceusage.serviceUsageViewer", "members": [f"serviceAccount:{SUBMITTER}"]}
    ready.world.policies[f"projects/{PROJECT}"]["bindings"].append(viewer)
    found = findings(ready, tmp_path)
    assert failed(found) == {"own rights", "run-as account", "first job"}
    assert "aiplatform.pipelineJobs.create" in found["own rights"].found
    assert found["own rights"].fix.endswith("--role=roles/aiplatform.user")
    assert f"may not start jobs that run as {RUNNER}" in found["run-as account"].found
    assert f"--member=serviceAccount:{SUBMITTER} --role=roles/iam.serviceAccountUser" in found["run-as account"].fix
    # A check without permission is skipped, not failed.
    assert found["bucket rights"].status == "skipped"
    assert "storage.buckets.getIamPolicy is missing" in found["bucket rights"].found


def test_without_credentials_only_that_check_fails(ready, tmp_path, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    found = findings(ready, tmp_path)
    assert failed(found) == {"credentials"}
    assert found["credentials"].fix == "gcloud auth application-default login"


def test_a_missing_project_fails_one_check(ready, tmp_path):
    found = findings(ready, tmp_path, project="slipway-tset")
    assert failed(found) == {"project"}
    assert "slipway-tset" in found["project"].found


def test_only_regions_with_quota_are_suggested(ready, tmp_path):
    ready.world.quotas.update(
        {(PROJECT, REGION, T4): 0, (PROJECT, "us-east1", T4): 4, (PROJECT, "europe-west2", T4): 4,
         (PROJECT, "europe-west1", T4): 1}
    )  # fmt: skip
    error = findings(ready, tmp_path, "t4x2")["quota"].error
    assert error is not None
    assert "europe-west2" in error.allowed
    assert "us-east1" in error.allowed
    assert "europe-west1" not in error.allowed
    assert error.nearest == "europe-west2"


def limit(google: FakeGoogle, region: str = REGION, **limits: int) -> None:
    prefix = "aiplatform.googleapis.com/custom_model_training_"
    google.world.quotas.update({(PROJECT, region, prefix + metric): amount for metric, amount in limits.items()})


def test_every_quota_that_falls_short_is_named_with_what_it_is_for(ready, tmp_path):
    limit(ready, preemptible_nvidia_t4_gpus=2, preemptible_cpus=1, cpus=11, pd_ssd=300)
    limit(ready, "us-east1", preemptible_nvidia_t4_gpus=2, preemptible_cpus=4, cpus=12, pd_ssd=300)
    limit(ready, "us-west1", preemptible_nvidia_t4_gpus=2, preemptible_cpus=4, cpus=11, pd_ssd=300)
    error = findings(ready, tmp_path, "t4x2+spot")["quota"].error
    assert error is not None
    training = "aiplatform.googleapis.com/custom_model_training_"
    assert error.message == (
        f"The quota in {REGION} is too small: the run needs 12 of {training}cpus for find-champion, prepare-data and "
        f"setup-access, and the limit is 11; it needs 4 of {training}preemptible_cpus for custom-training-job, and the "
        "limit is 1."
    )
    assert error.allowed == "a region with enough: us-east1"
    assert f"12 of {training}cpus and 4 of {training}preemptible_cpus in {REGION}" in error.fix
    limit(ready, preemptible_cpus=4, cpus=12)
    found = findings(ready, tmp_path, "t4x2+spot")["quota"]
    assert (found.status, found.found) == (
        "pass",
        "12 of 12 custom_model_training_cpus, 300 of 300 custom_model_training_pd_ssd, "
        "2 of 2 custom_model_training_preemptible_nvidia_t4_gpus, "
        f"4 of 4 custom_model_training_preemptible_cpus in {REGION}",
    )


@pytest.mark.parametrize(
    ("hardware", "place", "cpus"),
    [
        ("cpu", {}, 12),  # three steps at the start
        ("cpu*4", {}, 20),  # the launcher beside four replicas
        ("l4x4", {}, 12),  # the GPUs' machines have their own metric
        ("cpu", {"image": None}, 16),  # the image is built, too
        ("cpu", {"steps": {"prepare_data": {"memory": "64G"}}}, 16),
        ("cpu", {"steps": {"prepare_data": {"cpu": 16, "disk": "500G"}}}, 20),  # its launcher, after the permissions
        ("cpu", {"steps": {"evaluate": {"cpu": 32}}}, 32),
    ],
)
def test_cpus_are_counted_at_the_peak_of_the_run(ready, tmp_path, hardware, place, cpus):
    demand = peak(subject(ready, tmp_path, hardware, **place).config)
    assert demand["aiplatform.googleapis.com/custom_model_training_cpus"].amount == cpus


def test_a_run_stays_within_the_quotas_that_the_doctor_counted(ready, tmp_path):
    """The fake refuses the first job that exceeds a quota."""
    from slipway.pipelines.platforms.vertex.images import Images
    from slipway.pipelines.platforms.vertex.submission import compile_pipeline, pipeline_job, submit

    asked = subject(ready, tmp_path, "cpu*4", steps={"prepare_data": {"memory": "32G", "disk": "500G"}})
    counted = {metric.rpartition("training_")[2]: demand.amount for metric, demand in peak(asked.config).items()}
    assert counted == {"cpus": 20, "pd_ssd": 600}
    for metric, amount in counted.items():
        for given, state in ((amount, "SUCCEEDED"), (amount - 1, "FAILED")):
            limit(ready, **counted | {metric: given})
            compile_pipeline(asked.config, Images.one(str(asked.config.vertex.image)), tmp_path / "spec.yaml")
            job = submit(
                connection_of(asked),
                pipeline_job(asked.config, tmp_path / "spec.yaml"),
                f"digits-{metric.replace('_', '-')}-{given}",
            )
            ended = ready.region.pipelines.run_to_end(job.name)
            assert ended.state.name == f"PIPELINE_STATE_{state}", (metric, given)


def put(google: FakeGoogle, name: str, gigabytes: float) -> None:
    """Add an object of a size, without its content."""
    google.storage.write(BUCKET, name, b"")
    objects = google.storage._objects.objects[BUCKET]
    objects[name]["size"] = str(int(gigabytes * 1e9))


@pytest.mark.parametrize(
    ("source", "files", "disk", "needed"),
    [
        ("images:gs://{}/photos.tar", {"photos.tar": 120}, None, "120 GB"),
        ("images:gs://{}/photos.tar.gz", {"photos.tar.gz": 45}, None, "90 GB"),
        ("tfrecord:gs://{}/set/train-*", {"set/train-0": 70, "set/train-1": 70, "set/test": 500}, "120G", "140 GB"),
    ],
)
def test_a_data_set_that_the_steps_disk_cannot_hold_is_refused_before_the_run(
    ready, tmp_path, source, files, disk, needed
):
    for name, gigabytes in files.items():
        put(ready, name, gigabytes)
    data = {"source": source.format(BUCKET)}
    place = {"steps": {"prepare_data": {"disk": disk}}} if disk else {}
    finding = examine(Check("data disk", checks.data_disk), subject(ready, tmp_path, data=data, **place))
    assert needed in finding.found
    assert finding.error.setting == "vertex.steps.prepare_data.disk"
    found = re.search(r"disk=(\d+G)", finding.fix)
    assert found
    enough = subject(ready, tmp_path, data=data, steps={"prepare_data": {"disk": found[1]}})
    assert examine(Check("data disk", checks.data_disk), enough).status == "pass"
    beam = subject(ready, tmp_path, data={**data, "beam": {"options": {"region": REGION}, "from_gigabytes": 50}})
    assert examine(Check("data disk", checks.data_disk), beam).status == "skipped"


def test_a_source_of_many_files_is_not_listed_before_the_run(ready, tmp_path, monkeypatch):
    found = examine(
        Check("data disk", checks.data_disk), subject(ready, tmp_path, data={"source": f"images:gs://{BUCKET}/photos"})
    )
    assert (found.status, "listed by the step" in found.found) == ("skipped", True)
    for number in range(4):
        put(ready, f"set/train-{number}", 100)
    monkeypatch.setattr(checks, "MAX_OBJECTS", 3)
    files = subject(ready, tmp_path, data={"source": f"tfrecord:gs://{BUCKET}/set/train-*"})
    found = examine(Check("data disk", checks.data_disk), files)
    assert (found.status, "more than 3 objects" in found.found) == ("skipped", True)


def test_an_exhausted_schedule_quota(ready, tmp_path):
    ready.service_usage.metrics = {SCHEDULES: 0}
    found = findings(ready, tmp_path)
    assert failed(found) == {"schedule quota"}
    assert "limit of" in found["schedule quota"].found and "is 0" in found["schedule quota"].found


def test_a_failed_check_stops_the_submission(ready, tmp_path):
    asked = subject(ready, tmp_path)
    refuse_on_failure(asked, submitting=True)
    take_away(ready, f"buckets/{BUCKET}", "roles/storage.objectUser")
    asked = subject(ready, tmp_path)  # a context reads its project once
    refuse_on_failure(asked)
    with pytest.raises(UserError, match=r"roles/storage\.objectUser"):
        refuse_on_failure(asked, submitting=True)


def test_an_unreachable_service_fails_only_its_check(ready, tmp_path):
    hangs = threading.Event()

    def hang(_: Context) -> str:
        hangs.wait(60)
        return "too late"

    asked = subject(ready, tmp_path)
    both = [Check("hanging", hang, remote=True), Check("credentials", checks.credentials, remote=True)]
    shown: list[str] = []
    slow, quick = examine_in_parallel(both, asked, seconds=3, show=lambda finding: shown.append(finding.check))
    hangs.set()
    assert shown == ["credentials", "hanging"]
    assert (slow.status, quick.status) == ("fail", "pass")
    assert "did not respond within 3 s" in slow.found


def test_a_check_that_is_late_because_of_failures_says_so(ready, tmp_path):
    ended = threading.Event()

    def fail(_: Context) -> str:
        with waiting.Call("Google Cloud", 10) as call:
            call.failed("503 Service Unavailable", 1.0)
            ended.wait(60)
        return "too late"

    [late] = examine_in_parallel([Check("failing", fail, remote=True)], subject(ready, tmp_path), seconds=2)
    ended.set()
    assert late.found == "Google kept failing for 2 s: 503 Service Unavailable."
    assert "status.cloud.google.com" in late.fix


def test_a_service_error_is_one_sentence(ready, tmp_path):
    ready.faults.plan("consumerQuotaMetrics", ServiceError(500, "Internal error encountered."), times=100)
    found = findings(ready, tmp_path)
    assert failed(found) == {"quota", "schedule quota"}
    assert "Internal error encountered" in found["quota"].found


def test_an_exception_of_a_check_is_a_bug_and_not_an_answer(ready, tmp_path):
    def broken(_: Context) -> str:
        raise TypeError("unsupported operand")

    asked = subject(ready, tmp_path)
    both = [Check("broken", broken, remote=True), Check("credentials", checks.credentials, remote=True)]
    bug, other = examine_in_parallel(both, asked)
    assert (bug.status, other.status) == ("fail", "pass")
    assert bug.found.startswith("This is a bug in Slipway: TypeError: unsupported operand. Traceback: /")
    file = Path(bug.found.partition("Traceback: ")[2])
    assert 'raise TypeError("unsupported operand")' in file.read_text()
    file.unlink()


def test_a_missing_vertex_section_is_reported_once(tmp_path):
    result = CliRunner().invoke(app, ["doctor", "--target", "vertex"])
    assert result.exit_code == 1
    assert result.stdout.count("✗") == 1


def test_setup_shows_and_apply_creates(google, tmp_path, monkeypatch):
    import yaml

    google.world.projects[PROJECT].services = {"serviceusage.googleapis.com"}
    asked = subject(google, tmp_path, image=None)
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(asked.config.model_dump(mode="json", by_alias=True, exclude_none=True)))
    cli = CliRunner()
    shown = cli.invoke(app, ["setup", "-c", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "--apply" in shown.stdout
    assert google.world.writes.total() == 0
    made = cli.invoke(app, ["setup", "-c", str(path), "--apply"])
    assert made.exit_code == 0, made.output
    assert google.world.writes["bucket"] == 2, "the bucket and its lifecycle rule"
    again = cli.invoke(app, ["setup", "-c", str(path), "--apply", "--json"])
    assert again.exit_code == 0
    missing = [row for row in json.loads(again.stdout) if row["status"] == "missing"]
    assert all("gcp-sa-aiplatform-cc" in row["what"] and row["result"] == "later" for row in missing)
    refused = cli.invoke(app, ["setup", "-c", "configs/digits.yaml"])
    assert refused.exit_code == 2
    assert "vertex" in refused.stderr


def test_setup_requires_a_service_account(google, tmp_path):
    from slipway.pipelines.platforms.vertex.access import setup

    with pytest.raises(UserError) as error:
        setup([access_settings(subject(google, tmp_path, service_account=None).config)], apply=True, as_json=False)
    assert error.value.nearest == f"slipway@{PROJECT}.iam.gserviceaccount.com"
    assert google.world.writes.total() == 0


@pytest.mark.parametrize(
    ("hardware", "environment", "status", "says"),
    [
        ("t4x2", [*FINDS, "PATH=/usr/bin:/usr/local/nvidia/bin"], "pass", ": finds it"),
        ("t4x2", [*FINDS, "PATH=/usr/bin"], "warning", "does not set PATH to /usr/local/nvidia/bin"),
        ("t4x2", ["PATH=/usr/local/bin"], "warning", "vertex.image europe-west4-docker.pkg.dev/"),
        ("t4x2", None, "warning", "may find no GPU"),
        ("cpu", None, "skipped", "no custom image runs on GPUs"),
        ("tpu-v5e-2x2", None, "skipped", "no custom image runs on GPUs"),
    ],
)
def test_a_custom_image_for_gpus_must_find_the_driver(ready, tmp_path, hardware, environment, status, says):
    digest = vertex_settings(ready)["image"].partition("@")[2]
    ready.images.environments[digest] = environment or []
    found = examine(Check("GPU driver", checks.gpu_driver), subject(ready, tmp_path, hardware))
    assert (found.status, says in found.found) == (status, True), found
    if status == "warning":
        assert "ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=" in found.fix


def test_an_image_that_the_caller_may_not_read_is_not_judged(ready, tmp_path):
    ready.world.owners.clear()
    found = examine(Check("GPU driver", checks.gpu_driver), subject(ready, tmp_path, "t4x2"))
    assert (found.status, "403" in found.found) == ("skipped", True), found


BOOT = ["/opt/apache/beam/boot"]
LABEL = "org.apache.beam.version"


@pytest.mark.parametrize(
    ("configuration", "status", "says"),
    [
        ({"Entrypoint": BOOT}, "pass", ": started by Beam's boot (its versions are not known)"),
        ({"Entrypoint": BOOT, "Env": ["PYTHON_VERSION=3.11.9"]}, "pass", "(Python 3.11)"),
        ({"Entrypoint": BOOT, "Labels": {LABEL: beam_version(SOURCE_TREE)}}, "pass", "(Beam 2."),
        ({}, "warning", "is not set, not /opt/apache/beam/boot"),
        ({"Entrypoint": ["/bin/sh", "-c"]}, "warning", "is ['/bin/sh', '-c'], not /opt/apache/beam/boot"),
        (
            {"Entrypoint": BOOT, "Env": ["PYTHON_VERSION=3.12.1"]},
            "warning",
            "has Python 3.12, but the step that starts",
        ),
        ({"Entrypoint": BOOT, "Labels": {LABEL: "2.5.0"}}, "warning", "has Beam 2.5.0, but the step that starts"),
    ],
)
def test_a_custom_image_of_dataflows_workers_must_start_by_boot(ready, tmp_path, configuration, status, says):
    image = vertex_settings(ready)["image"]
    ready.images.configurations[image.partition("@")[2]] = configuration
    data = {"source": "digits", "store": f"gs://{BUCKET}/sets", "beam": {"options": {"sdk_container_image": image}}}
    found = examine(Check("Dataflow image", checks.dataflow_image), subject(ready, tmp_path, data=data))
    assert (found.status, says in found.found) == (status, True), found
    if "boot" in says and status == "warning":
        assert 'ENTRYPOINT ["/opt/apache/beam/boot"]' in found.fix


def test_dataflows_workers_need_an_image_with_slipway(ready, tmp_path):
    data = {"source": "digits", "store": f"gs://{BUCKET}/sets", "beam": {}}
    check = Check("Dataflow image", checks.dataflow_image)
    found = examine(check, subject(ready, tmp_path, data=data))
    assert (found.status, "with vertex.image, Slipway builds none" in found.found) == ("fail", True), found
    assert examine(check, subject(ready, tmp_path, data=data, image=None)).found == "built by Slipway"
    assert examine(check, subject(ready, tmp_path)).status == "skipped"
