"""The Dataflow job of a step: created once, adopted, followed, cancelled; what its workers do is the test's."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slipway.components.cloud.dataflow import DataflowJobs, prefix_of
from slipway.components.prepare_data.beam.dataflow import DataflowJob, owned_by
from slipway.components.prepare_data.beam.options import beam_for
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError
from tests.fakes.dataflow import NAME as VALID
from tests.fakes.dataflow import FakeDataflow, JobFailed, Script
from tests.fakes.errors import ServiceError
from tests.fakes.google import PROJECT, REGION, SUBMITTER, FakeGoogle

NAME = f"projects/{PROJECT}"
WORKER = f"worker@{PROJECT}.iam.gserviceaccount.com"
RUN = "gs://bucket/runs/digits-20260101-abc"
WORK = "/gcs/bucket/sets/digits/.work-1"
IMAGES = 80


def grant(google: FakeGoogle, resource: str, role: str, email: str) -> None:
    policy = google.world.policy(resource)
    policy["bindings"].append({"role": role, "members": [f"serviceAccount:{email}"]})
    google.world.set_policy(resource, policy)


@pytest.fixture
def dataflow(google: FakeGoogle) -> FakeDataflow:
    """Dataflow in a project in which SUBMITTER has the roles that setup grants the run-as account."""
    project = google.world.projects[PROJECT]
    project.services.add("dataflow.googleapis.com")
    google.world.add_account(project, WORKER)
    agent = google.service_usage.make_agent(project, "dataflow.googleapis.com")
    grant(google, NAME, "roles/dataflow.serviceAgent", agent)
    grant(google, NAME, "roles/dataflow.worker", WORKER)
    google.world.owners.clear()
    grant(google, NAME, "roles/dataflow.developer", SUBMITTER)
    grant(google, f"{NAME}/serviceAccounts/{WORKER}", "roles/iam.serviceAccountUser", SUBMITTER)
    return google.dataflow


def settings(**options: Any) -> DataSettings:
    """Return the settings of images in a bucket; an option that is None is not set."""
    own = {
        "project": PROJECT,
        "region": REGION,
        "temp_location": "gs://bucket/temp",
        "service_account_email": WORKER,
        "sdk_container_image": "e.g/beam:1",
        "labels": ["team=vision"],
        **options,
    }
    beam = {"from_gigabytes": 0, "options": {name: value for name, value in own.items() if value is not None}}
    return DataSettings.model_validate(
        {"source": "images:gs://bucket/images", "store": "gs://bucket/sets", "beam": beam}
    )


class Step:
    """A step that writes a data set by a Dataflow job."""

    def __init__(self, google: FakeGoogle, events_file: Path) -> None:
        self._endpoint = f"https://{google.endpoints['dataflow']}"
        self._events_file = events_file
        self.counted: list[int] = []

    def job(self, run: str = RUN, work: str = WORK) -> DataflowJob:
        """Return the job of a run that writes into the folder `work`."""
        beam = owned_by(settings(dataflow_endpoint=self._endpoint), run).beam
        assert beam is not None
        self._options = beam.options
        return DataflowJob.of(beam.options, work, self.counted.append)

    def submit(self, name: str) -> str:
        """Create a job as Beam does."""
        jobs = DataflowJobs.of_options(self._options).connection.api("dataflow", "v1b3").projects().locations().jobs()
        body = {
            "name": name,
            "labels": dict(label.split("=") for label in self._options["labels"]),
            "environment": {"serviceAccountEmail": self._options["service_account_email"]},
        }
        return str(jobs.create(projectId=PROJECT, location=REGION, body=body).execute()["id"])

    def leave(self, dataflow: FakeDataflow, run: str = RUN) -> None:
        """Create the job of a step that is killed; it has processed half of the images, and keeps running."""
        job = self.job(run)
        found = dataflow.jobs[self.submit(job.name)]
        found["currentState"] = "JOB_STATE_RUNNING"
        dataflow.count(found, "examples", "slipway", IMAGES // 2)

    def run(self, run: str = RUN, work: str = WORK, submit: Callable[[str], str] | None = None) -> None:
        """Follow the job of a killed step, or create one."""
        with self.job(run, work) as job:
            if not job.adopt():
                job.run(submit or self.submit)

    def said(self, kind: str = "message") -> str:
        """Return the events of a kind, one a line."""
        events = [*map(json.loads, self._events_file.read_text().splitlines())]
        return "\n".join(event["text"] for event in events if event["event"] == kind)


def working(fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
    """What a job's workers do."""
    fake.scale(job, 2)
    yield
    for done in range(20, IMAGES + 1, 20):
        fake.count(job, "examples", "slipway", done)
        yield


def interrupted(_fake: FakeDataflow, _job: dict[str, Any]) -> Iterator[None]:
    """A job during which the user presses Ctrl-C, while the step waits for a response."""
    yield
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        yield


@pytest.fixture
def step(google: FakeGoogle, dataflow: FakeDataflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Step:
    events_file = tmp_path / "events"
    events_file.touch()
    monkeypatch.setenv("SLIPWAY_EVENTS", str(events_file))
    dataflow.script = working
    return Step(google, events_file)


def states(fake: FakeDataflow) -> list[str]:
    return [job["currentState"].removeprefix("JOB_STATE_") for job in fake.jobs.values()]


def test_the_job_has_the_runs_name_and_label_and_its_examples_are_counted(step: Step, dataflow: FakeDataflow) -> None:
    step.run()
    (job,) = dataflow.jobs.values()
    assert job["name"].startswith("slipway-digits-20260101-abc-")
    assert job["labels"] == {"team": "vision", "slipway-run": "digits-20260101-abc"}
    console = f"https://console.cloud.google.com/dataflow/jobs/{REGION}/{job['id']}?project={PROJECT}"
    assert step.said() == f"The Dataflow job {job['id']} was created: {console}"
    assert f"Dataflow job {job['id']}: running, 2 workers" in step.said("phase")
    assert step.counted == [20, 20, 20, 20]  # while the job runs, not only at its end


def test_the_job_is_cancelled_with_the_step(step: Step, dataflow: FakeDataflow) -> None:
    dataflow.script = interrupted
    with pytest.raises(KeyboardInterrupt):
        step.run()
    (job,) = dataflow.jobs
    assert states(dataflow) == ["CANCELLING"]
    assert f"Cancelled the Dataflow job {job}." in step.said()


def test_a_step_stopped_while_the_job_is_created_cancels_it(step: Step, dataflow: FakeDataflow) -> None:
    def submit(name: str) -> str:
        step.submit(name)
        raise SystemExit

    with pytest.raises(SystemExit):
        step.run(submit=submit)
    assert states(dataflow) == ["CANCELLING"]


def test_a_job_that_cannot_be_cancelled_is_named(step: Step, google: FakeGoogle, dataflow: FakeDataflow) -> None:
    google.faults.plan("PUT", ServiceError(403, "Permission 'dataflow.jobs.cancel' denied."))
    dataflow.script = interrupted
    with pytest.raises(KeyboardInterrupt):
        step.run()
    (job,) = dataflow.jobs
    assert states(dataflow) == ["RUNNING"]
    assert f"gcloud dataflow jobs cancel {job} --region={REGION} --project={PROJECT}" in step.said()


def test_the_job_of_a_killed_step_is_adopted(step: Step, dataflow: FakeDataflow) -> None:
    step.leave(dataflow)
    step.run()
    (job,) = dataflow.jobs
    assert states(dataflow) == ["DONE"]
    assert f"The Dataflow job {job} of an earlier attempt of this run continues" in step.said()
    assert step.counted == [20, 20]  # the others are counted by their shards


def test_an_adopted_job_is_cancelled_with_the_step(step: Step, dataflow: FakeDataflow) -> None:
    dataflow.script = interrupted
    step.leave(dataflow)
    with pytest.raises(KeyboardInterrupt):
        step.run()
    assert states(dataflow) == ["CANCELLING"]
    # A run that is resumed now waits until this job has stopped: a new one would not be created.
    dataflow.script = working
    step.run()
    assert states(dataflow) == ["CANCELLED", "DONE"]


def test_another_run_does_not_adopt_the_job(step: Step, dataflow: FakeDataflow) -> None:
    step.leave(dataflow)
    step.run(f"{RUN}d")
    assert states(dataflow) == ["RUNNING", "DONE"]


def test_a_job_of_the_run_for_other_data_is_cancelled(step: Step, dataflow: FakeDataflow) -> None:
    step.leave(dataflow)
    step.run(work=WORK.replace("1", "2"))
    assert states(dataflow)[0].startswith("CANCELL")
    assert states(dataflow)[1] == "DONE"


def test_a_response_that_is_lost_starts_no_second_job(step: Step, google: FakeGoogle, dataflow: FakeDataflow) -> None:
    google.faults.plan("POST", ServiceError(503, "The service is currently unavailable."), lost=True)
    step.run()
    assert states(dataflow) == ["DONE"]
    assert sum(step.counted) == IMAGES


TRACEBACK = """Error message from worker: Traceback (most recent call last):
  File "shards.py", line 7, in write
    raise ValueError("odd")
ValueError: odd [while running 'write-ptransform-32']
"""


def failing(text: str, *messages: str) -> Script:
    def script(fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
        for message in messages:
            fake.say(job, message, "JOB_MESSAGE_ERROR")
        fake.say(job, "Worker configuration: n1-standard-1.")
        yield
        raise JobFailed(text)

    return script


def test_the_errors_of_workers_are_shown_and_explain_the_failure(step: Step, dataflow: FakeDataflow) -> None:
    end = "Workflow failed. Causes: the work item was attempted 4 times without success."
    dataflow.script = failing(end, TRACEBACK, TRACEBACK)
    with pytest.raises(UserError) as error:
        step.run()
    (job,) = dataflow.jobs
    line = "ValueError: odd [while running 'write-ptransform-32']"
    assert step.said().splitlines().count(f"Dataflow reports an error: {line}") == 1
    assert error.value.message == f"The Dataflow job {job} failed: {line}"
    assert "raise ValueError" in (error.value.traceback or "")
    assert "cancel" not in step.said()


def test_a_quota_for_workers_is_explained(step: Step, dataflow: FakeDataflow) -> None:
    dataflow.script = failing(
        "Workflow failed. Causes: Error: Message: Exceeded limit 'QUOTA_FOR_INSTANCES' on resource "
        "'slipway-harness'. Limit: 8.0 HTTP Code: 403"
    )
    with pytest.raises(UserError, match="too little Compute Engine quota for Dataflow's workers: QUOTA") as error:
        step.run()
    assert f"project={PROJECT}" in (error.value.fix or "")


def test_missing_permissions_are_named(step: Step, google: FakeGoogle, dataflow: FakeDataflow) -> None:
    policy = google.world.policy(NAME)
    policy["bindings"] = [one for one in policy["bindings"] if one["role"] != "roles/dataflow.developer"]
    google.world.set_policy(NAME, policy)
    with pytest.raises(UserError) as error:
        step.run()
    assert error.value.message == f"{SUBMITTER} may not list the Dataflow jobs: dataflow.jobs.list is missing."
    assert "--role=roles/dataflow.developer" in (error.value.fix or "")
    assert not dataflow.jobs


def test_a_job_is_followed_while_dataflow_is_unreachable_and_without_its_metrics(
    step: Step, google: FakeGoogle, dataflow: FakeDataflow
) -> None:
    google.faults.plan("/metrics", ServiceError(403, "Permission 'dataflow.metrics.get' denied."), times=1000)

    def script(fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
        google.faults.plan(
            f"GET /v1b3/{NAME}/locations/{REGION}/jobs/{job['id']}", ServiceError(503, "unavailable"), 22
        )
        yield from working(fake, job)

    dataflow.script = script
    step.run()
    assert states(dataflow) == ["DONE"]
    assert step.said().count("Could not read the Dataflow job's metrics") == 1
    assert "Could not read the Dataflow job's state, the job continues: unavailable" in step.said()


@pytest.mark.parametrize(
    ("workers", "said"), [(0, "has had no worker for 10 minutes"), (3, "have written nothing for 10 minutes")]
)
def test_a_job_in_which_nothing_happens_is_reported_once(
    step: Step, dataflow: FakeDataflow, monkeypatch: pytest.MonkeyPatch, workers: int, said: str
) -> None:
    monkeypatch.setenv("SLIPWAY_RETRY_SECONDS", "0.0001")  # ten minutes are 60 ms

    def script(fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
        if workers:
            fake.scale(job, workers)
        while said not in step.said():
            yield
        yield from 20 * [None]
        yield from working(fake, job)

    dataflow.script = script
    step.run()
    (job,) = dataflow.jobs
    (line,) = [line for line in step.said().splitlines() if said in line]
    assert f"/{job}?project={PROJECT}" in line


def test_a_job_that_another_command_cancels_fails_the_step(step: Step, dataflow: FakeDataflow) -> None:
    def script(_fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
        yield
        job["currentState"] = "JOB_STATE_CANCELLING"
        yield

    dataflow.script = script
    with pytest.raises(UserError, match="ended with the state cancelled"):
        step.run()


@pytest.mark.parametrize("option", ["project", "region", "temp_location", "sdk_container_image"])
def test_the_options_that_dataflow_needs_are_required(option: str) -> None:
    with pytest.raises(UserError, match=f"Dataflow needs the option {option}") as error:
        beam_for(settings(**{option: None}), 1)
    assert error.value.setting == f"data.beam.options.{option}"


@pytest.mark.parametrize(
    ("run", "title", "beginning"),
    [
        ("gs://b/runs/Digits_2026", None, "slipway-digits-2026-"),
        ("/home/me/runs/digits-1/train", None, "slipway-digits-1-"),
        ("gs://b/runs/digits", "my job", "my-job-"),
        ("gs://b/runs/" + 80 * "x", None, "slipway-xxxxx"),
    ],
)
def test_names_of_jobs_are_valid_and_distinct(run: str, title: str | None, beginning: str) -> None:
    prefix = prefix_of(run, title)
    assert prefix.startswith(beginning)
    assert VALID.fullmatch(f"{prefix}x")
    assert prefix != prefix_of(f"{run}x", title)


@pytest.mark.parametrize(
    ("exception", "reason", "fix"),
    [
        (
            "ValueError: Exceeded limit 'QUOTA_FOR_INSTANCES' on resource 'x', says a row",
            "ValueError: Exceeded limit 'QUOTA_FOR_INSTANCES' on resource 'x', says a row",
            "see https://",
        ),
        ("ModuleNotFoundError: No module named 'cv2'", "The module cv2 is not in the image.", "requirements.txt"),
    ],
)
def test_a_workers_own_words_are_not_the_services(
    step: Step, dataflow: FakeDataflow, exception: str, reason: str, fix: str
) -> None:
    """What a worker's traceback quotes is no quota; what ended the worker is known as in a training."""
    dataflow.script = failing(
        "Workflow failed. Causes: the work item was attempted 4 times without success.",
        'Error message from worker: Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\n'
        f"{exception}\n",
    )
    with pytest.raises(UserError) as error:
        step.run()
    assert error.value.message.endswith(f" failed: {reason}")
    assert fix in str(error.value.fix)
