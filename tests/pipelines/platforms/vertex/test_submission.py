"""What Vertex AI receives: one PipelineJob with the configured pools, images, account and labels."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import json_format

from tests.fakes.errors import ConnectionReset, ServiceError
from tests.fakes.google import FakeGoogle
from tests.fakes.ready import BUCKET, RUNNER, make_ready, vertex_settings
from tests.pipelines.platforms.vertex.conftest import CONFIGURATION, Slipway

RUN = ("run", "-c", "run.yaml", "--target", "vertex")
# By digest, or the exact release of Google's own launcher: neither is ever moved.
NEVER_MOVED = re.compile(r"\S+@sha256:[0-9a-f]{64}|gcr\.io/ml-pipeline/google-cloud-pipeline-components:\d+\.\d+\.\d+")


def images_in(value: Any) -> list[str]:
    """Return every image in a spec, from executors and parameter values."""
    if isinstance(value, dict):
        return [image for item in value.values() for image in images_in(item)]
    if isinstance(value, list):
        return [image for item in value for image in images_in(item)]
    return (
        [value]
        if isinstance(value, str) and re.fullmatch(r"[a-z0-9.-]*(?:docker\.pkg\.dev|gcr\.io)/\S+", value)
        else []
    )


def the_job(google: FakeGoogle) -> Any:
    (job,) = google.region.pipelines.jobs.values()
    return job


def specification_of(job: Any) -> dict[str, Any]:
    return dict(json_format.MessageToDict(type(job).pb(job).pipeline_spec))


def training_jobs(google: FakeGoogle) -> list[Any]:
    return [job for job in google.region.jobs.jobs.values() if job.display_name == "digits"]


def test_a_run_on_two_pools_of_gpus(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    subprocess.run(["git", "init", "-q"], check=True)
    author = ["-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run(["git", *author, "commit", "-qm", "m", "--allow-empty"], check=True)
    refused = slipway(*RUN, "--hardware", "l4x4*3")
    assert refused.exit_code == 2
    assert "cannot be split evenly over 3 replicas of 4 devices" in refused.output
    assert not (workspace / "runs").exists()
    more = ("--set", "train.batch_size=96", "--set", "vertex.labels={team: vision}")
    assert slipway(*RUN, "--hardware", "l4x4*3", *more).exit_code == 0
    job = the_job(ready_google)
    assert job.service_account == RUNNER
    assert job.runtime_config.gcs_output_directory == f"gs://{BUCKET}/pipelines"
    assert job.runtime_config.failure_policy.name == "PIPELINE_FAILURE_POLICY_FAIL_FAST"
    assert job.runtime_config.parameter_values["batch_size"] == 96
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert job.labels["team"] == "vision"
    assert job.labels["slipway-commit"].startswith(commit)
    assert len(job.labels["slipway-configuration"]) == 16
    (trained,) = training_jobs(ready_google)
    pools = trained.job_spec.worker_pool_specs
    assert [pool.replica_count for pool in pools] == [1, 2]
    assert {(pool.machine_spec.machine_type, pool.machine_spec.accelerator_type.name) for pool in pools} == {
        ("g2-standard-48", "NVIDIA_L4")
    }
    assert trained.job_spec.service_account == RUNNER
    assert list(pools[1].container_spec.command) == ["python", "-m", "slipway.trainer"]
    plan = json.loads(pools[0].container_spec.args[1])["plan"]
    assert plan["replicas"] == 3
    images = images_in(specification_of(job)) + [pool.container_spec.image_uri for pool in pools]
    assert len(images) > 6
    assert [image for image in images if not NEVER_MOVED.fullmatch(image)] == []


def test_a_run_on_a_tpu_slice(google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    google.location = "us-west4"
    make_ready(google)
    assert google.region.name == "us-west4"
    monkeypatch.chdir(tmp_path)
    values = {**CONFIGURATION, "vertex": vertex_settings(google)}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    submit_in_process(hardware="tpu-v5e-2x4")
    google.region.pipelines.run_to_end(the_job(google).name)
    (trained,) = training_jobs(google)
    (pool,) = trained.job_spec.worker_pool_specs
    assert (pool.replica_count, pool.machine_spec.tpu_topology) == (1, "2x4")
    assert pool.machine_spec.machine_type.startswith("ct5lp-hightpu-")
    assert NEVER_MOVED.fullmatch(pool.container_spec.image_uri)


def submit_in_process(hardware: str | None = None) -> Any:
    """Submit run.yaml without watching; return the run."""
    from slipway.pipelines.config.config import load
    from slipway.pipelines.platforms.vertex.images import Images
    from slipway.pipelines.platforms.vertex.run import VertexRun
    from slipway.pipelines.runs import record as runs

    config = load(Path("run.yaml"), (), hardware)
    run = VertexRun(runs.create(config), config)
    assert config.vertex is not None
    image = str(config.vertex.image)
    run.submit(Images.one(image))
    return run


@pytest.mark.parametrize("seed", range(5))
def test_one_job_is_created_if_a_fifth_of_all_calls_fail(google: FakeGoogle, workspace: Path, seed: int):
    print(f"seed {seed}")
    google.faults._random.seed(seed)
    google.faults.share = 0.2
    google.region.pipelines.script["custom-training-job"].looks = 20
    run = submit_in_process()
    record = run.watch(run.folder.read())
    assert record.status == "succeeded"
    assert google.world.writes["pipelineJob"] == 1
    assert google.faults.struck.total() > 0


@pytest.mark.parametrize("fault", [ServiceError(503, "Away."), ServiceError(429, "Slow down."), ConnectionReset()])
def test_a_lost_response_does_not_create_a_second_job(
    google: FakeGoogle, workspace: Path, fault: Exception, monkeypatch: pytest.MonkeyPatch
):
    lost = [fault, fault]

    def after(method: str) -> None:
        if method == "PipelineService.CreatePipelineJob" and lost:
            raise lost.pop()

    monkeypatch.setattr(google.faults, "after", after)
    run = submit_in_process()
    assert google.world.writes["pipelineJob"] == 1
    assert google.faults.calls["PipelineService.CreatePipelineJob"] == 2
    assert run.folder.read().job == the_job(google).name


def test_a_foreign_job_with_the_same_id_is_not_adopted(google: FakeGoogle, workspace: Path):
    from slipway.components.cloud.retries import status_of
    from slipway.pipelines.config.config import load
    from slipway.pipelines.platforms.vertex import submission

    run = submit_in_process()
    config = load(run.folder.configuration_file)
    job = submission.pipeline_job(config, run.folder.specification_file)
    with pytest.raises(Exception, match="already exists") as refused:
        submission.submit(run.connection, job, run.folder.run_id)
    assert status_of(refused.value) == 409


def test_no_secret_is_written_anywhere(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    key = json.loads(Path(ready_google.environment["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())
    secrets = [key["private_key"].splitlines()[1], "fake.submitter"]
    (workspace / ".env").write_text("API_TOKEN=planted-7f3a9c\n")
    secrets.append("planted-7f3a9c")
    ready_google.region.pipelines.script["evaluate"].refused = ServiceError(403, "The caller does not have permission")
    result = slipway(*RUN)
    assert result.exit_code == 1
    job = the_job(ready_google)
    written = [path.read_text(errors="replace") for path in (workspace / "runs").rglob("*") if path.is_file()]
    for text in [*written, result.output, json.dumps(specification_of(job)), str(job.labels), slipway("logs").output]:
        assert [secret for secret in secrets if secret in text] == []
    assert len(written) >= 3


def test_a_refused_submission_leaves_no_run(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    assert slipway(*RUN).exit_code == 0
    ready_google.region.pipelines.script["evaluate"].refused = ServiceError(403, "The caller does not have permission")
    assert slipway(*RUN).exit_code == 1
    before = slipway("list", "--json").output
    ready_google.faults.plan("CreatePipelineJob", ServiceError(403, "The caller does not have permission"), times=9)
    for command in (RUN, ("run", "--resume", "latest")):
        result = slipway(*command)
        assert result.exit_code == 2
        assert "may not submit the run: aiplatform.pipelineJobs.create is missing" in result.stderr
        assert slipway("list", "--json").output == before
    assert [path.name for path in (workspace / "runs").iterdir() if not (path / "run.json").exists()] == []
    assert len(ready_google.region.pipelines.jobs) == 2


def test_a_submission_without_a_response_leaves_a_failed_run(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SLIPWAY_RETRY_SECONDS", "0.001")
    ready_google.faults.plan("CreatePipelineJob", ServiceError(503, "Away."), times=99)
    result = slipway(*RUN, "--json")
    assert result.exit_code == 1
    record = json.loads(result.stdout)
    assert (record["status"], record["job"]) == ("failed", None)
    assert "Could not submit the run: Google kept returning transient errors" in record["error"]["message"]
    assert slipway("explain").exit_code == 1


@pytest.mark.parametrize("command", [("config", "build", "-c", "run.yaml"), (*RUN, "--no-check"), RUN])
def test_without_credentials_every_command_exits_with_2(
    workspace: Path, slipway: Slipway, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    result = slipway(*command, "--set", "vertex.image=null", "--target", "vertex", "--json")
    assert result.exit_code == 2
    assert "no credentials" in json.loads(result.stdout)["error"]["message"]
    assert not any((workspace / "runs").glob("*"))
