"""`slipway run --target vertex` and the commands for its runs, with Google's clients against the fakes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.dataflow import job_name, prefix_of
from slipway.pipelines.hardware import prices
from tests.end_to_end.workspace import record_in
from tests.fakes.errors import ServiceError
from tests.fakes.google import NUMBER, PROJECT, REGION, FakeGoogle
from tests.fakes.mlflow import FakeMlflow
from tests.fakes.ready import BUCKET, RUNNER, grant
from tests.fakes.vertex.script import Failure
from tests.pipelines.platforms.vertex.conftest import Slipway

CHECKED = ("run", "-c", "run.yaml", "--target", "vertex")
RUN = (*CHECKED, "--no-check")
TRAIN = "custom-training-job"


def record(workspace: Path, run: str = "latest") -> dict[str, Any]:
    return record_in(workspace / "runs" / run)


def test_a_run_is_submitted_watched_and_recorded(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    result = slipway(*RUN, "--hardware", "l4x4*2")
    assert result.exit_code == 0, result.output
    lines = [line.split()[:2] for line in result.output.splitlines() if line.startswith("✓")]
    assert [name for _, name in lines] == [
        "setup_access",
        "prepare_data",
        "plan_training",
        "train",
        "evaluate",
        "register_model",
    ]
    assert "60,000 train, 10,000 test examples" in result.output
    assert "validation accuracy 0.9812" in result.output
    assert "https://console.cloud.google.com/vertex-ai/locations/europe-west4/pipelines/runs/digits-" in result.output
    kept = record(workspace)
    assert (kept["platform"], kept["status"], kept["verdict"]["decision"]) == ("vertex", "succeeded", "promote")
    assert kept["metrics"] == {"loss": 0.0594, "accuracy": 0.9833}
    assert kept["job"] in ready_google.region.pipelines.jobs
    assert (workspace / "runs" / "latest" / "spec.yaml").is_file()


def test_a_run_with_impossible_images_is_refused(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    settings = (workspace / "run.yaml").read_text().splitlines()
    (workspace / "run.yaml").write_text("\n".join(line for line in settings if not line.startswith("  image:")))
    ready_google.world.repositories.clear()
    result = slipway(*RUN)
    assert (result.exit_code, "there is no repository" in result.output) == (2, True), result.output
    assert not any((workspace / "runs").iterdir())
    assert ready_google.region.pipelines.jobs == {}


def test_a_run_submitted_without_waiting_can_be_followed_later(workspace: Path, slipway: Slipway):
    submitted = slipway(*RUN, "--no-wait")
    assert submitted.exit_code == 0, submitted.output
    run_id = record(workspace)["run_id"]
    assert f"slipway status --follow {run_id}" in submitted.output
    assert "running" in slipway("status").output
    followed = slipway("status", "--follow", run_id)
    assert followed.exit_code == 0
    assert f"{run_id}: succeeded" in followed.output
    assert record(workspace)["status"] == "succeeded"
    assert "succeeded" in slipway("list").output


@pytest.fixture
def three_hours(ready_google: FakeGoogle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every custom job run for three hours."""
    jobs = ready_google.region.jobs
    end = jobs._end

    def ended(job: Any, *arguments: Any) -> None:
        end(job, *arguments)
        job.start_time = job.end_time - timedelta(hours=3)

    monkeypatch.setattr(jobs, "_end", ended)


def test_a_run_over_the_budget_never_reaches_a_submit_call(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    over = ("--hardware", "l4x4*2", "--set", "budget=1000")
    hourly, days = 2 * (48 * 0.038572 + 4 * 0.58804), 7
    for refused in (slipway(*CHECKED, *over), slipway(*RUN, *over), slipway("config", "compile", *CHECKED[1:], *over)):
        assert refused.exit_code == 2, refused.output
        assert f"at least ${hourly:.2f} per hour in europe-west4, ${hourly * 24 * days * 4:,.2f} in the worst case" in (
            refused.stderr
        )
        assert "setting:  budget = 1000.0" in refused.stderr
        assert "closest:  l4x4*2+timeout=29h" in refused.stderr
        assert "fix:      --hardware 'l4x4*2+timeout=29h' or --set budget=5650" in refused.stderr
        assert len(refused.stderr.splitlines()) <= 10
    assert (ready_google.region.pipelines.jobs, ready_google.world.writes["pipelineJob"]) == ({}, 0)
    assert not (workspace / "runs").exists()
    fits = slipway(*RUN, "--hardware", "l4x4*2+timeout=29h", "--set", "budget=1000")
    assert (fits.exit_code, len(ready_google.region.pipelines.jobs)) == (0, 1), fits.output
    assert f"cost: at least ${hourly:.2f} per hour in europe-west4, ${hourly * 29 * 4:,.2f} in the worst case" in (
        fits.output
    )


@pytest.mark.usefixtures("three_hours")
def test_a_run_records_what_the_training_cost_in_all_its_tries(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway
):
    script = ready_google.region.pipelines.script
    script[TRAIN].failure = Failure("The replica workerpool0-0 exited with a non-zero status of 1.")
    few = ("--hardware", "l4x1+timeout=4h", "--set", "budget=20")
    assert slipway(*RUN, *few).exit_code == 1
    hourly = 4 * 0.038572 + 0.58804
    cost = record(workspace)["cost"]
    assert cost["dollars"] == pytest.approx(3 * hourly, rel=1e-4)
    script[TRAIN].failure = None
    assert slipway("run", "--resume", "latest").exit_code == 0  # 3 h and at most 4 tries of 4 h: $14.10
    cost = record(workspace)["cost"]
    assert (cost["dollars"], cost["seconds"]) == (pytest.approx(6 * hourly, rel=1e-4), 6 * 3600)
    estimate = f"at least ${6 * hourly:.2f} for 6.00 h of training: an estimate by list prices of {cost['prices']}"
    assert f"cost     {estimate} without Vertex AI's fee" in slipway("status").output
    assert f"~${6 * hourly:.2f}  validation accuracy" in slipway("status").output
    steps = {step["name"]: step for step in record(workspace)["steps"]}
    assert steps["train"]["dollars"] == cost["dollars"]
    machine = 4 * prices.table()["machines"]["e2-standard"][REGION][0]
    for name in ("prepare_data", "evaluate"):
        assert steps[name]["dollars"] == pytest.approx(machine * steps[name]["seconds"] / 3600, abs=1e-4), name
    listed = slipway("list").output.splitlines()
    assert (listed[0].split()[-1], listed[1].split()[-1]) == ("cost", f"~${6 * hourly:.2f}")
    assert len(slipway("list", "--where", "cost>4").output.splitlines()) >= 2
    assert "No run meets" in slipway("list", "--where", "cost>5").output
    page = slipway("compare", "latest", "-o", "page.html")
    assert page.exit_code == 0, page.output
    assert f"<td>${6 * hourly:.2f}</td>" in (workspace / "page.html").read_text()


@pytest.mark.extension("bill")
@pytest.mark.usefixtures("three_hours")
def test_the_bill_of_a_run_has_the_seconds_that_its_trainer_recorded_in_the_bucket(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway
):
    assert slipway(*RUN, "--no-wait", "--hardware", "l4x1").exit_code == 0
    started = datetime.now(UTC).timestamp() - 2 * 3600
    attempt = {"started": started, "time": started + 3600, "activity": "ending", "resumed": 0, "step": 9, "saved": []}
    bucket = Connection(PROJECT, REGION, ready_google.endpoints).storage.bucket(BUCKET)
    blob = bucket.blob(f"runs/{record(workspace)['run_id']}/logs/attempts/1.json")
    blob.upload_from_string(json.dumps({**attempt, "seconds": {"steps": 3600.0}}))
    assert slipway("status", "--follow").exit_code == 0
    bill = json.loads(slipway("runs", "bill", "--json").stdout)
    rows = {row["activity"]: row["seconds"] for row in bill["rows"]}
    hourly = 4 * 0.038572 + 0.58804
    assert bill["dollars"] == pytest.approx(3 * hourly, rel=1e-3)
    assert rows == pytest.approx({"starting replicas": 3600, "steps": 3600, "ending": 3600}, abs=60)
    assert bill["saving"]["change"] == "--hardware 'l4x1+spot', which may be interrupted"


@pytest.mark.usefixtures("three_hours")
def test_a_months_runs_stay_within_the_months_budget(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    """One that has ended costs $2.23; one that runs may cost $11.88: four tries of four hours."""
    few = ("--hardware", "l4x1+timeout=4h", "--set", "budget_per_month=14")
    assert slipway(*RUN, *few).exit_code == 0
    ended = record(workspace)
    assert slipway(*RUN, *few).exit_code == 2, "$2.23 and $11.88 are more"
    within = slipway(*RUN, *few[:-1], "budget_per_month=14.80")
    assert within.exit_code == 0, within.output
    jobs = len(ready_google.region.pipelines.jobs)
    file = workspace / "runs" / ended["run_id"] / "run.json"
    stored = json.loads(file.read_text())
    file.write_text(json.dumps({**stored, "status": "running", "cost": None, "ended": None}))
    for refused in (slipway(*CHECKED, *few), slipway(*RUN, *few), slipway("config", "compile", *CHECKED[1:], *few)):
        assert refused.exit_code == 2, refused.output
        assert "exceed the budget of $14.00 per month, after $14.10 that this month's runs have cost or may still" in (
            " ".join(refused.stderr.split())
        )
        assert "setting:  budget_per_month = 14.0" in refused.stderr
        assert "--set budget_per_month=26" in refused.stderr
    assert len(ready_google.region.pipelines.jobs) == jobs
    last_month = datetime.now(UTC).replace(day=1) - timedelta(days=1)
    file.write_text(json.dumps({**stored, "created": last_month.isoformat()}))
    assert slipway(*RUN, *few[:-1], "budget_per_month=14.80").exit_code == 0


@pytest.mark.usefixtures("three_hours")
def test_a_months_budget_is_that_of_the_runs_with_the_same_label(workspace: Path, slipway: Slipway):
    few = ("--hardware", "l4x1+timeout=4h", "--set", "budget_per_month=14", "--set", "budget_label=team")
    assert slipway(*RUN, *few, "--set", "vertex.labels.team=vision").exit_code == 0
    assert record(workspace)["labels"] == {"team": "vision"}
    assert slipway(*RUN, *few, "--set", "vertex.labels.team=vision").exit_code == 2, "$2.23 and $11.88 are more"
    assert slipway(*RUN, *few, "--set", "vertex.labels.team=speech").exit_code == 0
    refused = slipway(*RUN, *few, "--set", "vertex.labels.cost=x")
    assert refused.exit_code == 2
    assert "the runs have no label team, by which their budget is divided" in refused.stderr
    assert "--set vertex.labels.team=VALUE" in refused.stderr


@pytest.mark.usefixtures("three_hours")
def test_a_resumed_run_stays_within_the_budget(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    ready_google.region.pipelines.script[TRAIN].failure = Failure("The replica exited with a non-zero status of 1.")
    assert slipway(*RUN, "--hardware", "l4x1+timeout=4h", "--set", "budget=12").exit_code == 1
    before = len(ready_google.region.pipelines.jobs)
    refused = slipway("run", "--resume", "latest")
    assert refused.exit_code == 2, refused.output
    assert "after $2.23 in earlier tries of this run" in refused.stderr
    assert len(ready_google.region.pipelines.jobs) == before
    assert record(workspace)["status"] == "failed"
    _, _, fix = refused.stderr.partition("fix:")
    assert fix.split()[0] == "--set"
    slipway("run", "--resume", "latest", *fix.split())
    assert len(ready_google.region.pipelines.jobs) == before + 1


def test_interrupting_the_watch_does_not_stop_the_run(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway, monkeypatch: pytest.MonkeyPatch
):
    from slipway.pipelines.platforms.vertex import run

    looks = []

    def interrupted() -> None:
        looks.append(1)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(run, "pause", interrupted)
    result = slipway(*RUN)
    assert result.exit_code == 130
    run_id = record(workspace)["run_id"]
    assert f"slipway status --follow {run_id}" in result.output
    assert f"slipway cancel {run_id}" in result.output
    (job,) = ready_google.region.pipelines.jobs.values()
    assert job.state.name == "PIPELINE_STATE_RUNNING"


def test_cancel_stops_the_jobs_of_the_run(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    ready_google.region.pipelines.script[TRAIN].looks = 1000
    assert slipway(*RUN, "--no-wait").exit_code == 0
    for _ in range(12):
        slipway("status")
    jobs = ready_google.region.jobs.jobs
    trained = next(job for job in jobs.values() if job.display_name == "digits")
    assert trained.state.name == "JOB_STATE_RUNNING"
    result = slipway("cancel")
    assert result.output.strip().endswith(": cancelled")
    assert jobs[trained.name].state.name in ("JOB_STATE_CANCELLING", "JOB_STATE_CANCELLED")
    assert {job.state.name for job in jobs.values()} <= {
        "JOB_STATE_SUCCEEDED",
        "JOB_STATE_CANCELLING",
        "JOB_STATE_CANCELLED",
    }
    assert {step["name"]: step["status"] for step in record(workspace)["steps"]}["train"] == "cancelled"
    again = slipway("cancel")
    assert again.exit_code == 0
    assert "was stopped before" in again.output


TRACEBACK = ["Traceback (most recent call last):", '  File "loop.py", line 3, in train', "ValueError: loss is nan"]


def test_explain_shows_the_traceback_of_the_failed_replica(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    step = ready_google.region.pipelines.script[TRAIN]
    step.failure = Failure(replica="workerpool1-0")
    step.looks = 3
    noise = "E0000 00:00:1741000000.000000 12 cuda_dnn.cc:94] Unable to register cuDNN factory: Attempting to register"
    failed = ["epoch 1", TRACEBACK[0], noise, *TRACEBACK[1:]]
    step.logs = {"workerpool0-0": ["epoch 1", "peer lost"], "workerpool1-0": failed}
    result = slipway(*RUN, "--hardware", "l4x4*2")
    assert result.exit_code == 1
    error = record(workspace)["error"]
    assert (error["step"], error["replica"]) == ("train", "workerpool1-0")
    assert error["traceback"].splitlines() == TRACEBACK
    assert "logs/viewer" not in error["message"]
    assert noise not in slipway("logs").output
    assert noise in slipway("logs", "--raw").output
    assert noise in slipway("explain", "--raw").output
    result = slipway("explain")
    assert result.exit_code == 1
    explained = result.output
    assert noise not in explained
    assert "The step train failed in the replica workerpool1-0" in explained
    assert "ValueError: loss is nan" in explained
    job = next(job for job in ready_google.region.jobs.jobs.values() if job.display_name == "digits")
    assert job.name in explained
    assert {step["name"]: step["status"] for step in record(workspace)["steps"]}["evaluate"] == "skipped"


def test_a_replica_that_asked_for_another_try_is_not_blamed(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway
):
    step = ready_google.region.pipelines.script[TRAIN]
    step.failure = Failure(replica="workerpool0-0", status=134)
    step.logs = {"workerpool1-0": TRACEBACK, "workerpool0-0": ["lost workerpool1-0"]}
    assert slipway(*RUN, "--hardware", "l4x4*2").exit_code == 1
    error = record(workspace)["error"]
    assert error["replica"] == "workerpool1-0"
    assert error["message"] == "The replica workerpool1-0 failed, and the others asked for another try because of it."
    assert error["traceback"].splitlines() == TRACEBACK


def test_a_job_whose_retries_are_used_up_is_explained_as_such(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway
):
    step = ready_google.region.pipelines.script[TRAIN]
    step.failure = Failure(replica="workerpool0-0", status=134)
    step.logs = {"workerpool0-0": ["lost worker 0; this replica cannot continue alone"]}
    assert slipway(*RUN, "--hardware", "l4x4*2").exit_code == 1
    error = record(workspace)["error"]
    assert error["replica"] == "workerpool0-0"
    assert error["message"].startswith("The replica workerpool0-0 asked for another try, because")
    assert error["fix"].startswith("slipway run --resume latest")


def test_a_user_error_in_a_step_is_shown_as_one(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    from slipway.core.errors import ERROR_PREFIX, UserError

    mistake = UserError("The batch is odd.", setting="train.batch_size", value=63, fix="--set train.batch_size=64")
    step = ready_google.region.pipelines.script["plan-training"]
    step.failure = Failure()
    step.logs = {"workerpool0-0": ["reading", f"{ERROR_PREFIX}{json.dumps(mistake.as_dict())}"]}
    assert slipway(*RUN).exit_code == 1
    error = record(workspace)["error"]
    assert error["step"] == "plan_training"
    assert error["message"].splitlines()[0] == "The batch is odd."
    assert error["fix"] == "--set train.batch_size=64"
    assert error["traceback"] is None


def test_logs_of_all_replicas_are_in_order_without_duplicates(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway
):
    step = ready_google.region.pipelines.script[TRAIN]
    step.looks = 3
    step.logs = {
        "workerpool0-0": [f"chief {n}" for n in range(3)],
        "workerpool1-0": [f"worker {n}\nand more" for n in range(3)],
    }
    assert slipway(*RUN, "--no-wait").exit_code == 0
    live = slipway("logs", "--step", "train", "--follow").output.splitlines()
    assert [line for line in live if "chief" in line] == [f"workerpool0-0 | chief {n}" for n in range(3)]
    assert [line for line in live if "worker " in line] == [f"workerpool1-0 | worker {n}" for n in range(3)]
    assert live.count("workerpool1-0 | and more") == 3
    everything = slipway("logs").output.splitlines()
    assert "train workerpool0-0 | chief 2" in everything
    unknown = slipway("logs", "--step", "trian")
    assert unknown.exit_code == 2
    assert "closest:  train" in unknown.output


def test_a_resumed_run_keeps_its_folder(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    step = ready_google.region.pipelines.script[TRAIN]
    step.failure = Failure()
    assert slipway(*RUN).exit_code == 1
    run_id = record(workspace)["run_id"]
    step.failure = None
    assert slipway("run", "--resume", "latest").exit_code == 0
    kept = record(workspace)
    assert (kept["run_id"], kept["status"], kept["tries"]) == (run_id, "succeeded", 2)
    first, second = [
        job.job_spec.base_output_directory.output_uri_prefix
        for job in ready_google.region.jobs.jobs.values()
        if job.display_name == "digits"
    ]
    assert first == second
    assert slipway("run", "--resume", "latest").exit_code == 2
    assert slipway("run", "--resume", "latest", "--set", "train.seed=1").exit_code == 2
    assert slipway("run", "--resume", "latest", "--set", "evaluate.gate.minimum=0.5").exit_code == 0
    assert record(workspace)["tries"] == 3
    job = ready_google.region.pipelines.jobs[record(workspace)["job"].replace(PROJECT, str(NUMBER))]
    assert job.runtime_config.parameter_values["gate_minimum"] == 0.5


def test_a_run_is_listed_in_its_experiment(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    for _ in range(2):
        assert slipway(*RUN, "--no-wait", "--set", "vertex.experiment=digit-runs").exit_code == 0
    contexts = ready_google.region.metadata.contexts
    (experiment,) = [context for context in contexts.values() if context.schema_title == "system.Experiment"]
    assert experiment.name.endswith("/contexts/digit-runs")
    runs = [context for context in contexts.values() if context.schema_title == "system.PipelineRun"]
    pipeline = experiment.name.replace("digit-runs", "digits")
    assert [list(run.parent_contexts) for run in runs] == [[pipeline, experiment.name]] * 2


def test_an_experiment_with_the_name_of_the_pipeline_is_refused(ready_google: FakeGoogle, slipway: Slipway):
    result = slipway(*RUN, "--set", "vertex.experiment=digits")
    assert result.exit_code == 2
    assert "fix:      --set vertex.experiment=digits-runs" in result.output
    assert not ready_google.region.pipelines.jobs


def test_an_experiment_error_does_not_stop_the_run(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    ready_google.faults.plan("CreateContext", ServiceError(403, "The caller does not have permission"))
    result = slipway(*RUN, "--set", "vertex.experiment=digit-runs")
    assert result.exit_code == 0
    assert "may not add the run to it: aiplatform.contexts.create is missing" in result.output


def test_the_report_is_downloaded(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    assert slipway(*RUN, "--no-wait").exit_code == 0
    run_id = record(workspace)["run_id"]
    connection = Connection(PROJECT, REGION, ready_google.endpoints)
    blob = connection.storage.bucket(BUCKET).blob(f"pipelines/{run_id}/evaluate/report")
    blob.upload_from_string("<html>run 1<!-- registered --></html>")
    assert slipway("status", "--follow").exit_code == 0
    assert (
        workspace / "runs" / run_id / "report.html"
    ).read_text() == "<html>run 1, registered as <strong>digits@1</strong></html>"
    assert record(workspace)["report"].endswith("report.html")


def test_the_command_that_watches_a_run_to_its_end_sends_it_to_mlflow(workspace: Path, slipway: Slipway):
    with FakeMlflow() as server:
        assert slipway(*RUN, "--set", f"track.mlflow={server.url}").exit_code == 0
        [run] = server.runs.values()
    assert (run.info["status"], run.tags["slipway.platform"]) == ("FINISHED", "vertex")
    assert run.series("test/accuracy")
    assert "@" in run.tags["slipway.model"]
    assert run.info["start_time"] < run.info["end_time"]


def test_an_unreadable_log_hides_nothing_else(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    sentence = "Permission 'logging.logEntries.list' denied on resource."
    ready_google.faults.plan("POST /v2/entries:list", ServiceError(403, sentence), times=99)
    ready_google.region.pipelines.script[TRAIN].failure = Failure(replica="workerpool1-0")
    assert slipway(*RUN).exit_code == 1
    error = record(workspace)["error"]
    assert (error["step"], error["replica"], error["traceback"]) == ("train", "workerpool1-0", None)
    assert f"Its log could not be read: {sentence}" in error["message"]
    read = slipway("logs")
    assert read.exit_code == 2
    assert "may not read the logs: logging.logEntries.list is missing" in read.output


def test_a_watch_survives_a_lost_connection(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    assert slipway(*RUN, "--no-wait").exit_code == 0
    ready_google.faults.plan("GetPipelineJob", ServiceError(503, "Away."), times=25)
    followed = slipway("status", "--follow")
    assert followed.exit_code == 0
    assert followed.output.count("Could not read the run: Google kept returning transient errors: Away.") == 1
    assert record(workspace)["status"] == "succeeded"


def test_an_ended_session_ends_the_watch_and_not_the_run(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    """gRPC reports it as an unavailable service. Reported: skypilot-org/skypilot#3393."""
    ended = "Getting metadata from plugin failed with error: Reauthentication is needed. Please run `gcloud auth "
    ready_google.faults.plan("GetPipelineJob", ServiceError(503, f"{ended}application-default login`."), 99, at_call=3)
    result = slipway(*RUN)
    assert result.exit_code == 2
    assert "The run continues on Vertex AI; slipway status digits-" in result.output
    assert "fix:      gcloud auth application-default login\n" in result.output
    assert record(workspace)["status"] == "running"
    ready_google.faults.clear()
    assert slipway("status", "--follow").exit_code == 0
    assert record(workspace)["status"] == "succeeded"


def test_an_interrupted_explanation_is_completed_at_the_next_refresh(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway
):
    ready_google.region.pipelines.script[TRAIN].failure = Failure()
    ready_google.faults.plan("GetCustomJob", ServiceError(503, "Away."), times=12)
    assert slipway(*RUN).exit_code == 1
    assert record(workspace)["error"]["replica"] == "workerpool0-0"


def test_cancel_stops_the_dataflow_job_of_a_killed_step(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    dataflow, project = ready_google.dataflow, ready_google.world.projects[PROJECT]
    project.services.add("dataflow.googleapis.com")
    agent = ready_google.service_usage.make_agent(project, "dataflow.googleapis.com")
    grant(ready_google, f"projects/{PROJECT}", "roles/dataflow.serviceAgent", agent)
    grant(ready_google, f"projects/{PROJECT}", "roles/dataflow.worker", RUNNER)
    beam = ("--set", "data.beam.runner=DataflowRunner", "--set", "data.store=gs://other/sets")
    ready_google.region.pipelines.script["prepare-data"].looks = 1000
    submitted = slipway(*RUN, *beam, "--no-wait")
    assert submitted.exit_code == 0, submitted.output
    run_id = record(workspace)["run_id"]
    jobs = Connection(PROJECT, REGION, ready_google.endpoints).api("dataflow", "v1b3").projects().locations().jobs()
    for run in (run_id, f"{run_id}x"):
        body = {"name": job_name(prefix_of(f"gs://{BUCKET}/runs/{run}"), "work")}
        body["environment"] = {"serviceAccountEmail": RUNNER}
        jobs.create(projectId=PROJECT, location=REGION, body=body).execute()
    slipway("status")
    result = slipway("cancel")
    assert result.exit_code == 0, result.output
    assert [job["currentState"] for job in dataflow.jobs.values()] == ["JOB_STATE_CANCELLING", "JOB_STATE_PENDING"]


def test_a_run_that_needs_drift_ends_without(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    script = ready_google.region.pipelines.script
    script["check-drift"].outputs = {"Output": "same"}
    calm = slipway(*RUN, "--set", "when=drift")
    assert calm.exit_code == 0, calm.output
    ended = record(workspace)
    states = {step["name"]: step["status"] for step in ended["steps"]}
    assert ended["status"] == "succeeded"
    assert states["check_drift"] == "succeeded"
    assert {states[name] for name in ("plan_training", "train", "evaluate", "register_model")} == {"skipped"}
    assert "same, says the script: the run ends here" in calm.output
    assert ended["cost"] is None
    script["check-drift"].outputs = {}
    drifted = slipway(*RUN, "--set", "when=drift")
    assert drifted.exit_code == 0, drifted.output
    assert record(workspace)["verdict"]["decision"] == "promote"
    assert {step["status"] for step in record(workspace)["steps"]} == {"succeeded"}


def test_a_resumed_run_that_has_trained_is_not_compared_again(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway
):
    """Its own model may be the champion by now."""
    script = ready_google.region.pipelines.script
    script["evaluate"].failure = Failure()
    assert slipway(*RUN, "--set", "when=drift", "--set", "vertex.retries=0").exit_code == 1
    script["evaluate"].failure = None
    script["check-drift"].outputs = {"Output": "same"}
    assert slipway("run", "--resume", "latest").exit_code == 0
    assert record(workspace)["verdict"]["decision"] == "promote"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (("evaluate.champion=none",), "the champion is not asked for"),
        (("serve.module=a:b",), "only a:b loads its models"),
    ],
)
def test_what_cannot_be_compared_is_refused(slipway: Slipway, settings: tuple[str, ...], problem: str):
    refused = slipway(*RUN, "--set", "when=drift", *(part for text in settings for part in ("--set", text)))
    assert refused.exit_code == 2
    assert problem in refused.stderr
