"""`slipway schedule …` on the command line, and that a scheduled run equals a manual run."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform_v1 as vertex
from google.protobuf import json_format

from slipway.components.cloud.connection import Connection
from tests.fakes.errors import ServiceError
from tests.fakes.google import PROJECT, FakeGoogle
from tests.fakes.ready import RUNNER
from tests.fakes.vertex.pipeline_checks import specification_of
from tests.fakes.vertex.schedules import QUOTA
from tests.fakes.vertex.script import Failure, Script
from tests.pipelines.platforms.vertex.schedules.conftest import Slipway

Write = Callable[..., Path]
BILLING = "vertex-ai-pipelines-run-billing-id"
OUTPUT_ONLY = ("name", "create_time", "update_time", "start_time", "end_time", "state", "job_detail", "error")


def request(job: vertex.PipelineJob) -> dict[str, Any]:
    """The request of a job in the fake, however the fake stores it."""
    values = json_format.MessageToDict(vertex.PipelineJob.pb(job), preserving_proto_field_name=True)
    values["pipeline_spec"] = json_format.MessageToDict(specification_of(job))
    values["labels"].pop(BILLING, None)
    return {key: value for key, value in values.items() if key not in OUTPUT_ONLY}


def defaults_of(job: dict[str, Any]) -> dict[str, Any]:
    """Remove the default values of the pipeline's parameters from a request; return them."""
    parameters = job["pipeline_spec"]["root"]["inputDefinitions"]["parameters"]
    return {name: parameter.pop("defaultValue") for name, parameter in parameters.items()}


def test_a_scheduled_run_equals_a_manual_run_except_for_the_schedule(
    ready_google: FakeGoogle, write: Write, slipway: Slipway
) -> None:
    hardware, overrides = "l4x4*2", ["train.epochs=7", "vertex.labels.team=vision"]
    options = [part for text in overrides for part in ("--set", text)]
    by_hand = slipway(
        "run", "-c", "configs/digits.yaml", "--target", "vertex", "--hardware", hardware, *options, "--no-wait"
    )
    assert by_hand.exit_code == 0, by_hand.output
    write(set=overrides, hardware=hardware)
    applied = slipway("schedule", "apply")
    assert applied.exit_code == 0, applied.output
    [scheduled] = ready_google.region.schedules.move(timedelta(days=1))
    [typed] = [job for job in ready_google.region.pipelines.jobs.values() if not job.schedule_name]
    [schedule] = ready_google.region.schedules.schedules
    by_schedule, as_typed = request(scheduled), request(typed)
    assert by_schedule.pop("schedule_name") == schedule
    defaults = [defaults_of(job) for job in (by_schedule, as_typed)]
    assert by_schedule == as_typed
    assert [values["epochs"] for values in defaults] == [30, 7]  # the schedule passes its own as a parameter
    # What is the same is not empty.
    assert as_typed["runtime_config"]["parameter_values"]["epochs"] == 7
    assert as_typed["labels"]["team"] == "vision"
    assert as_typed["service_account"] == RUNNER
    tasks = json_format.MessageToDict(vertex.PipelineJob.pb(typed).pipeline_spec)["root"]["dag"]["tasks"]
    assert [task["cachingOptions"] for task in tasks.values()] == [{"enableCache": False}] * len(tasks)
    # And the scheduled one goes as the other does.
    assert ready_google.region.pipelines.run_to_end(scheduled.name).state.name == "PIPELINE_STATE_SUCCEEDED"


def test_diff_changes_nothing_and_shows_field_by_field(
    ready_google: FakeGoogle, write: Write, slipway: Slipway
) -> None:
    write()
    assert "nightly: absent" in slipway("schedule", "diff").stdout
    assert ready_google.world.writes["schedule"] == 0
    assert "created" in slipway("schedule", "apply").stdout
    write(cron="0 4 * * *", set=["train.epochs=7"], paused=True)
    shown = slipway("schedule", "diff", "nightly").stdout
    assert "cron: TZ=Europe/Berlin 0 3 * * * → TZ=Europe/Berlin 0 4 * * *" in shown
    assert "job.runtime_config.parameter_values.epochs: 30.0 → 7.0" in shown
    assert "pipeline_spec" not in shown
    assert "paused: no → yes" in shown
    [result] = json.loads(slipway("schedule", "diff", "--json").stdout)
    assert {"field": "paused", "service": False, "file": True} in result["differences"]
    assert ready_google.world.writes["schedule"] == 1
    assert slipway("schedule", "apply").exit_code == 0
    assert "matches configs/schedules/nightly.yaml" in slipway("schedule", "diff").stdout
    assert "unchanged: matches" in slipway("schedule", "apply").stdout


def test_a_schedule_whose_runs_are_refused_says_so(ready_google: FakeGoogle, write: Write, slipway: Slipway) -> None:
    write()
    assert "nightly: absent" in slipway("schedule", "list").stdout
    assert slipway("schedule", "apply").exit_code == 0
    assert "last run" not in slipway("schedule", "list").stdout
    doctor = ("doctor", "-c", "configs/digits.yaml", "--target", "vertex", "--json")

    def checked() -> dict[str, str]:
        [finding] = [one for one in json.loads(slipway(*doctor).stdout) if one["check"] == "schedules"]
        return finding

    assert len(ready_google.region.schedules.move(timedelta(days=1))) == 1
    assert ": started" in slipway("schedule", "list").stdout
    assert checked()["status"] == "pass"
    ready_google.world.accounts.pop(RUNNER)
    assert ready_google.region.schedules.move(timedelta(days=1)) == []
    shown = slipway("schedule", "list").stdout
    assert "active" in shown
    assert f": refused: The account {RUNNER} does not exist, or you may not run jobs as it." in shown
    assert "fix: slipway setup --apply" in shown
    [result] = json.loads(slipway("schedule", "list", "--json").stdout)
    assert "does not exist" in result["refused"]["message"]
    assert checked()["status"] == "warning"
    assert "The last run of nightly was refused" in checked()["found"]
    ready_google.region.schedules.schedules.clear()
    assert checked()["status"] == "skipped"


def test_the_runs_of_a_schedule_are_summarized(ready_google: FakeGoogle, write: Write, slipway: Slipway) -> None:
    write()
    assert slipway("schedule", "apply").exit_code == 0
    pipelines = ready_google.region.pipelines
    for fails in (True, False, False):
        pipelines.script = Script()
        pipelines.script["evaluate"].failure = Failure() if fails else None
        [job] = ready_google.region.schedules.move(timedelta(days=1))
        pipelines.run_to_end(job.name)
    ready_google.region.schedules.move(timedelta(days=1))  # it is running
    shown = slipway("schedule", "list").stdout
    assert "  runs: 2 of the last 3 succeeded; the last 2: succeeded\n" in shown
    [result] = json.loads(slipway("schedule", "list", "--json").stdout)
    assert [run["status"] for run in result["recent"]] == ["running", "succeeded", "succeeded", "failed"]
    values = [run["value"] for run in result["recent"] if run["status"] == "succeeded"]
    assert f"  accuracy, oldest first: {values[1]:.4f}, {values[0]:.4f}\n" in shown


def test_two_schedules_that_differ_in_parameters_share_the_spec(
    ready_google: FakeGoogle, write: Write, slipway: Slipway
) -> None:
    write("few", set=["train.epochs=7", "evaluate.gate.minimum=0.5"])
    write("many", set=["train.epochs=70", "train.learning_rate=0.01", "train.seed=4", "train.batch_size=128"])
    assert slipway("schedule", "apply").exit_code == 0
    jobs = [request(job) for job in ready_google.region.schedules.move(timedelta(days=1))]
    assert jobs[0]["pipeline_spec"] == jobs[1]["pipeline_spec"]
    few, many = (job["runtime_config"]["parameter_values"] for job in jobs)
    assert few == many | {
        "epochs": 7,
        "gate_minimum": 0.5,
        "learning_rate": 0.002,
        "seed": 0,
        "batch_size": 64,
    }
    assert (many["epochs"], many["learning_rate"]) == (70, 0.01)


def test_a_duration_that_replaces_that_of_the_file_is_a_parameter(
    ready_google: FakeGoogle, write: Write, slipway: Slipway
) -> None:
    write(set=["train.epochs=null", "train.steps=500"])
    applied = slipway("schedule", "apply")
    assert applied.exit_code == 0, applied.output
    [scheduled] = ready_google.region.schedules.move(timedelta(days=1))
    values = request(scheduled)["runtime_config"]["parameter_values"]
    assert "epochs" not in values
    assert values["steps"] == 500
    assert ready_google.region.pipelines.run_to_end(scheduled.name).state.name == "PIPELINE_STATE_SUCCEEDED"


def test_a_value_that_the_service_changes_does_not_stop_apply(
    ready_google: FakeGoogle, write: Write, slipway: Slipway, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = ready_google.region.schedules
    check = service._check

    def changed(project: Any, schedule: vertex.Schedule) -> None:
        check(project, schedule)
        job = schedule.create_pipeline_job_request.pipeline_job
        job.display_name = job.display_name.upper()

    monkeypatch.setattr(service, "_check", changed)
    write()
    applied = slipway("schedule", "apply")
    assert applied.exit_code == 0, applied.output
    assert "Vertex AI stores 1 values differently, such as job.display_name" in applied.stdout
    assert ready_google.world.writes["schedule"] == 2


def test_pause_resume_and_delete(ready_google: FakeGoogle, write: Write, slipway: Slipway) -> None:
    write()
    service = ready_google.region.schedules
    assert "slipway schedule apply nightly" in slipway("schedule", "pause", "nightly").stderr
    slipway("schedule", "apply")
    assert "active → paused" in slipway("schedule", "pause", "nightly").stdout
    assert "already paused" in slipway("schedule", "pause", "nightly").stdout
    service.move(timedelta(days=2))
    assert "paused → active" in slipway("schedule", "resume", "nightly", "--catch-up").stdout
    assert len(service.move(timedelta())) == 2
    asked = slipway("schedule", "delete", "nightly")
    assert (asked.exit_code, "2 runs started" in asked.stderr, "--yes" in asked.stderr) == (2, True, True)
    assert len(service.schedules) == 1
    assert slipway("schedule", "delete", "nightly", "--yes").exit_code == 0
    assert not service.schedules
    again = slipway("schedule", "delete", "nightly", "--yes")
    assert (again.exit_code, "nightly: absent" in again.stdout) == (0, True)
    unknown = slipway("schedule", "delete", "nightli", "--yes")
    assert (unknown.exit_code, "closest:  nightly" in unknown.stderr) == (2, True)


def test_delete_asks_for_confirmation(
    ready_google: FakeGoogle, write: Write, slipway: Slipway, monkeypatch: pytest.MonkeyPatch
) -> None:
    write()
    slipway("schedule", "apply")
    monkeypatch.setattr("slipway.pipelines.terminal.is_terminal", lambda: True)
    answers = iter([False, True])
    monkeypatch.setattr("typer.confirm", lambda *_, **__: next(answers))
    assert slipway("schedule", "delete").exit_code == 130
    assert len(ready_google.region.schedules.schedules) == 1
    assert slipway("schedule", "delete").exit_code == 0
    assert not ready_google.region.schedules.schedules


def test_a_schedule_without_its_file_is_shown_and_can_be_deleted(
    ready_google: FakeGoogle, write: Write, slipway: Slipway
) -> None:
    old = write()
    slipway("schedule", "apply")
    old.unlink()
    write("weekly", cron="0 3 * * 0")
    assert "no file; to delete it: slipway schedule delete nightly" in slipway("schedule", "diff").stdout
    assert slipway("schedule", "delete", "nightly", "--yes").exit_code == 0
    assert not ready_google.region.schedules.schedules


def test_a_duplicate_is_shown_and_deleted(ready_google: FakeGoogle, write: Write, slipway: Slipway) -> None:
    write()
    slipway("schedule", "apply")
    [first] = ready_google.region.schedules.schedules.values()
    parent = f"projects/{PROJECT}/locations/{ready_google.location}"
    client = Connection(PROJECT, ready_google.location, ready_google.endpoints).schedules
    client.create_schedule(parent=parent, schedule=vertex.Schedule(first))
    shown = slipway("schedule", "diff").stdout
    assert "matches configs/schedules/nightly.yaml" in shown
    assert "duplicate; to delete it: slipway schedule apply nightly" in shown
    asked = slipway("schedule", "delete", "nightly", "--yes")
    assert asked.stdout.count("deleted projects/") == 2
    assert not ready_google.region.schedules.schedules


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"hardware": "a100x3"}, "setting:  hardware"),
        ({"end": "2020-01-01"}, "end is in the past"),
        ({"set": ["budget=20"]}, "may exceed the budget of $20.00"),
        ({"set": ["vertex.image=europe-west4-docker.pkg.dev/slipway-test/slipway/none:1"]}, "there is no image"),
    ],
)
def test_a_configuration_that_cannot_run_is_not_scheduled(
    ready_google: FakeGoogle, write: Write, slipway: Slipway, settings: dict[str, Any], said: str
) -> None:
    write(**settings)
    refused = slipway("schedule", "apply")
    assert (refused.exit_code, said in refused.stderr) == (2, True), refused.output
    assert ready_google.world.writes["schedule"] == 0


def test_a_scheduled_run_has_one_candidate(ready_google: FakeGoogle, write: Write, slipway: Slipway) -> None:
    """Nobody watches it, so the quota has to be enough for the first one."""
    write(set=["hardware=[cpu*4, cpu]"])
    cpus = (PROJECT, ready_google.location, "aiplatform.googleapis.com/custom_model_training_cpus")
    ready_google.world.quotas[cpus] = 16
    refused = slipway("schedule", "apply")
    assert (refused.exit_code, "the run needs 20 of" in refused.stderr) == (2, True), refused.output
    ready_google.world.quotas[cpus] = 20
    applied = slipway("schedule", "apply")
    assert (applied.exit_code, "its runs are on cpu*4 in europe-west4 only" in applied.output) == (0, True), (
        applied.output
    )


def test_an_error_of_vertex_is_one_sentence_with_a_fix(
    ready_google: FakeGoogle, write: Write, slipway: Slipway
) -> None:
    write()
    ready_google.world.quotas[(PROJECT, ready_google.location, QUOTA)] = 0
    quota = slipway("schedule", "apply")
    assert (quota.exit_code, "too little quota" in quota.stderr) == (2, True), quota.output
    ready_google.world.quotas.clear()
    act_as = f"You do not have permission to act as service account: {RUNNER}. (or it may not exist)."
    ready_google.faults.plan("CreateSchedule", ServiceError(403, act_as))
    rights = slipway("schedule", "apply")
    assert rights.exit_code == 2
    assert RUNNER in rights.stderr
    assert "fix:" in rights.stderr
    ready_google.faults.plan("DeleteSchedule", ServiceError(403, "The caller does not have permission"))
    ready_google.faults.plan("CreateSchedule", ServiceError(403, "The caller does not have permission"))
    unnamed = slipway("schedule", "apply")
    assert "may not apply the schedule nightly: aiplatform.schedules.create is missing" in unnamed.stderr
    assert "--role=roles/aiplatform.user" in unnamed.stderr
    assert not ready_google.region.schedules.schedules
    assert slipway("schedule", "apply").exit_code == 0
    kept = slipway("schedule", "delete", "nightly", "--yes")
    assert kept.exit_code == 2
    assert "may not delete the schedule nightly: aiplatform.schedules.delete is missing" in kept.stderr
    assert ready_google.region.schedules.schedules
