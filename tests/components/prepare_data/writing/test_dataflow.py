"""The Dataflow job of a step: created once, adopted, watched, cancelled; Beam's submission alone is replaced."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from slipway.components import step as step_module
from slipway.components.cloud.dataflow import DataflowJobs, prefix_of
from slipway.components.prepare_data import remote
from slipway.components.prepare_data.component import prepare_data
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.publishing import store
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources import images
from slipway.components.prepare_data.writing import beam as beam_module
from slipway.components.prepare_data.writing import dataflow as dataflow_module
from slipway.core.errors import UserError
from tests.fakes.dataflow import FakeDataflow, JobFailed
from tests.fakes.errors import ServiceError
from tests.fakes.google import PROJECT, REGION, SUBMITTER, FakeGoogle

NAME = f"projects/{PROJECT}"
WORKER = f"worker@{PROJECT}.iam.gserviceaccount.com"
RUN = "gs://bucket/runs/digits-20260101-abc"
Script = Callable[[FakeDataflow, dict[str, Any]], Iterator[None]]


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


class Step:
    """The step prepare_data with a source and a store in a bucket that is mounted in the folder `mount`."""

    def __init__(self, google: FakeGoogle, folder: Path, mount: Path) -> None:
        self._folder, self._mount = folder, mount
        options = {
            "project": PROJECT,
            "region": REGION,
            "temp_location": "gs://bucket/temp",
            "service_account_email": WORKER,
            "sdk_container_image": "e.g/beam:1",
            "dataflow_endpoint": f"https://{google.endpoints['dataflow']}",
            "labels": ["team=vision"],
        }
        self.settings = DataSettings.model_validate(
            {
                "source": "images:gs://bucket/images",
                "store": "gs://bucket/sets",
                "workers": 1,
                "beam": {"from_gigabytes": 0, "options": options},
            }
        )
        self.events_file = folder / "events"

    def run(self, output: str = RUN, **settings: Any) -> dsl.Dataset:
        """Run the step of the run with this output directory."""
        dataset = dsl.Dataset(name="dataset", uri="gs://bucket/artifacts/dataset", metadata={})
        prepare_data.python_func(
            settings=self.settings.model_copy(update=settings).model_dump_json(),
            replicas=3,
            output=output,
            dataset=dataset,
            statistics=dsl.HTML(name="statistics", uri=str(self._folder / "statistics"), metadata={}),
        )
        return dataset

    def start(self, output: str = RUN) -> Any:
        """Run the step in another process, which can be killed."""
        process = multiprocessing.get_context("fork").Process(target=self.run, args=(output,))
        process.start()
        return process

    def start_and_kill(self, dataflow: FakeDataflow) -> None:
        """Run the step in another process, which is killed as soon as its job exists; the job keeps running."""

        def killing(fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
            yield
            os.kill(process.pid, signal.SIGKILL)
            while True:
                yield

        dataflow.script = killing
        process = self.start()
        process.join(60)

    def submit(self, beam: Any, writer: Any, tasks: Any, name: str) -> str:
        """What Beam does: store the pipeline, and create the job."""
        (self._folder / name).write_bytes(pickle.dumps((writer, tasks)))
        jobs = DataflowJobs.of_options(beam.options)
        body = {
            "name": name,
            "labels": dict(label.split("=") for label in beam.options["labels"]),
            "environment": {"serviceAccountEmail": beam.options["service_account_email"]},
        }
        created = jobs._api.create(projectId=PROJECT, location=REGION, body=body).execute()
        return str(created["id"])

    def work(self, fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
        """What a job's workers do: write one shard between two polls."""
        writer, tasks = pickle.loads((self._folder / job["name"]).read_bytes())
        fake.scale(job, 2)
        yield
        done = 0
        for task in tasks:
            beam_module.write_shard(writer, task)
            if task.result.exists():
                tally = json.loads(task.result.read_text())["tally"]
                done += sum(tally["classes"].values())
            fake.count(job, "examples", "slipway", done)
            yield

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = self.events_file.read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def said(self, kind: str = "message") -> str:
        return "\n".join(event["text"] for event in self.events(kind))


@pytest.fixture
def step(
    google: FakeGoogle,
    dataflow: FakeDataflow,
    make_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Step]:
    mount = tmp_path / "gcs"
    (mount / "bucket").mkdir(parents=True)
    make_folder({"a": 40, "b": 40}).rename(mount / "bucket" / "images")
    step = Step(google, tmp_path, mount)
    monkeypatch.setattr(remote, "CLOUD_MOUNT", str(mount))
    for module in (store, images):
        monkeypatch.setattr(module, "local_path", lambda path: mount / path.removeprefix("gs://"))
    monkeypatch.setattr(
        "slipway.components.prepare_data.publishing.remembered.local_path",
        lambda path: tmp_path / path.rpartition("/")[2],
    )
    monkeypatch.setattr(beam_module, "_submit", step.submit)
    monkeypatch.setattr(beam_module.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(step_module._Termination, "requested", False)
    monkeypatch.setenv("SLIPWAY_EVENTS", str(step.events_file))
    monkeypatch.delenv("SLIPWAY_LOGS", raising=False)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    dataflow.script = step.work
    yield step
    for number, handler in handlers.items():
        signal.signal(number, handler)


def states(fake: FakeDataflow) -> list[str]:
    return [job["currentState"].removeprefix("JOB_STATE_") for job in fake.jobs.values()]


def test_the_job_has_the_runs_name_and_label_and_writes_the_data_set(
    step: Step, dataflow: FakeDataflow, tmp_path: Path
) -> None:
    dataset = step.run()
    (job,) = dataflow.jobs.values()
    assert job["name"].startswith("slipway-digits-20260101-abc-")
    assert job["labels"] == {"team": "vision", "slipway-run": "digits-20260101-abc"}
    console = f"https://console.cloud.google.com/dataflow/jobs/{REGION}/{job['id']}?project={PROJECT}"
    assert f"The Dataflow job {job['id']} was created: {console}" in step.said()
    assert f"Dataflow job {job['id']}: running, 2 workers" in step.said("phase")
    progress = [event["done"] for event in step.events("progress")]
    assert progress == sorted(progress)
    assert progress[-1] == 80
    assert len(set(progress)) > 2  # while the job runs, not only at its end
    here = prepare(step.settings.model_copy(update={"beam": None, "store": str(tmp_path / "here")}), 3)
    assert dataset.metadata["fingerprint"] == here.manifest.fingerprint


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_job_is_cancelled_with_the_step(step: Step, dataflow: FakeDataflow, number: int) -> None:
    def interrupted(fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
        yield
        os.kill(os.getpid(), number)
        while True:
            yield

    dataflow.script = interrupted
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        step.run()
    (job,) = dataflow.jobs.values()
    assert states(dataflow) == ["CANCELLING"]
    assert f"Cancelled the Dataflow job {job['id']}." in step.said()


def test_a_step_stopped_while_the_job_is_created_cancels_it(
    step: Step, dataflow: FakeDataflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(*arguments: Any) -> str:
        step.submit(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(beam_module, "_submit", submit)
    with pytest.raises(KeyboardInterrupt):
        step.run()
    assert states(dataflow) == ["CANCELLING"]


def test_a_job_that_cannot_be_cancelled_is_named(step: Step, google: FakeGoogle, dataflow: FakeDataflow) -> None:
    def interrupted(fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
        google.faults.plan("PUT", ServiceError(403, "Permission 'dataflow.jobs.cancel' denied."))
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            yield

    dataflow.script = interrupted
    with pytest.raises(KeyboardInterrupt):
        step.run()
    (job,) = dataflow.jobs
    assert states(dataflow) == ["RUNNING"]
    assert f"gcloud dataflow jobs cancel {job} --region={REGION} --project={PROJECT}" in step.said()


def test_the_job_of_a_killed_step_is_adopted(step: Step, dataflow: FakeDataflow) -> None:
    def killing(fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
        for number, _ in enumerate(step.work(fake, job)):
            if number == 4:
                os.kill(process.pid, signal.SIGKILL)
            yield

    dataflow.script = killing
    process = step.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert states(dataflow) == ["RUNNING"]
    dataset = step.run()
    (job,) = dataflow.jobs
    assert states(dataflow) == ["DONE"]
    assert f"The Dataflow job {job} of an earlier attempt of this run continues" in step.said()
    assert dataset.metadata["examples"] == {"train": 64, "validation": 8, "test": 8}
    assert step.events("progress")[-1]["done"] == 80


def test_an_adopted_job_is_cancelled_with_the_step(step: Step, dataflow: FakeDataflow) -> None:
    def killing(fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
        yield
        os.kill(process.pid, signal.SIGKILL)
        yield
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            yield

    dataflow.script = killing
    process = step.start()
    process.join(60)
    with pytest.raises(KeyboardInterrupt):
        step.run()
    assert states(dataflow) == ["CANCELLING"]
    # A run that is resumed now waits until this job has stopped: a new one would not be created.
    dataflow.script = step.work
    step.run()
    assert states(dataflow) == ["CANCELLED", "DONE"]


def test_another_run_does_not_adopt_the_job(step: Step, dataflow: FakeDataflow) -> None:
    step.start_and_kill(dataflow)
    dataflow.script = step.work
    step.run("gs://bucket/runs/digits-20260101-abcd")
    assert states(dataflow) == ["RUNNING", "DONE"]


def test_a_job_of_the_run_for_other_data_is_cancelled(step: Step, dataflow: FakeDataflow, tmp_path: Path) -> None:
    step.start_and_kill(dataflow)
    dataflow.script = step.work
    source = tmp_path / "gcs" / "bucket" / "images" / "a"
    (source / "image 0.png").rename(source / "other.png")
    step.run()
    assert states(dataflow)[0].startswith("CANCELL")
    assert states(dataflow)[1] == "DONE"


def test_a_response_that_is_lost_starts_no_second_job(step: Step, google: FakeGoogle, dataflow: FakeDataflow) -> None:
    google.faults.plan("POST", ServiceError(503, "The service is currently unavailable."), lost=True)
    step.run()
    assert states(dataflow) == ["DONE"]


TRACEBACK = """Error message from worker: Traceback (most recent call last):
  File "shards.py", line 7, in write
    raise ValueError("odd")
ValueError: odd [while running 'write-ptransform-32']
"""


def failing(text: str) -> Script:
    def script(fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
        fake.say(job, TRACEBACK, "JOB_MESSAGE_ERROR")
        fake.say(job, TRACEBACK, "JOB_MESSAGE_ERROR")
        fake.say(job, "Worker configuration: n1-standard-1.")
        yield
        raise JobFailed(text)

    return script


def test_the_errors_of_workers_are_shown_and_explain_the_failure(step: Step, dataflow: FakeDataflow) -> None:
    dataflow.script = failing("Workflow failed. Causes: the work item was attempted 4 times without success.")
    with pytest.raises(SystemExit):
        step.run()
    (job,) = dataflow.jobs
    said = step.said().splitlines()
    line = "ValueError: odd [while running 'write-ptransform-32']"
    assert said.count(f"Dataflow reports an error: {line}") == 1
    (failed,) = step.events("failed")
    assert failed["error"]["message"] == f"The Dataflow job {job} failed: {line}"
    assert "raise ValueError" in failed["error"]["traceback"]
    assert "cancel" not in step.said()


def test_a_quota_for_workers_is_explained(step: Step, dataflow: FakeDataflow) -> None:
    def script(fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
        yield
        raise JobFailed(
            "Workflow failed. Causes: Error: Message: Exceeded limit 'QUOTA_FOR_INSTANCES' on resource "
            "'slipway-harness'. Limit: 8.0 HTTP Code: 403"
        )

    dataflow.script = script
    with pytest.raises(SystemExit):
        step.run()
    error = step.events("failed")[0]["error"]
    assert "too little Compute Engine quota for Dataflow's workers: QUOTA_FOR_INSTANCES" in error["message"]
    assert f"project={PROJECT}" in error["fix"]


def test_missing_permissions_are_named(step: Step, google: FakeGoogle, dataflow: FakeDataflow) -> None:
    policy = google.world.policy(NAME)
    policy["bindings"] = [one for one in policy["bindings"] if one["role"] != "roles/dataflow.developer"]
    google.world.set_policy(NAME, policy)
    with pytest.raises(SystemExit):
        step.run()
    error = step.events("failed")[0]["error"]
    assert error["message"] == f"{SUBMITTER} may not list the Dataflow jobs: dataflow.jobs.list is missing."
    assert "--role=roles/dataflow.developer" in error["fix"]
    assert not dataflow.jobs


def test_a_job_is_followed_while_dataflow_is_unreachable_and_without_its_metrics(
    step: Step, google: FakeGoogle, dataflow: FakeDataflow
) -> None:
    google.faults.plan("/metrics", ServiceError(403, "Permission 'dataflow.metrics.get' denied."), times=1000)

    def script(fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
        google.faults.plan(
            f"GET /v1b3/{NAME}/locations/{REGION}/jobs/{job['id']}", ServiceError(503, "unavailable"), 22
        )
        yield from step.work(fake, job)

    dataflow.script = script
    step.run()
    assert states(dataflow) == ["DONE"]
    assert step.said().count("Could not read the Dataflow job's metrics") == 1
    assert "Could not read the Dataflow job's state, the job continues: unavailable" in step.said()
    assert step.events("progress")[-1]["done"] == 80


@pytest.mark.parametrize(
    ("workers", "said"), [(0, "has had no worker for 10 minutes"), (3, "have written nothing for 10 minutes")]
)
def test_a_job_in_which_nothing_happens_is_reported_once(
    step: Step, dataflow: FakeDataflow, monkeypatch: pytest.MonkeyPatch, workers: int, said: str
) -> None:
    clock = time.monotonic
    passed = [0.0]
    monkeypatch.setattr(dataflow_module.time, "monotonic", lambda: clock() + passed[0])

    def script(fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
        if workers:
            fake.scale(job, workers)
        for _ in range(12):
            yield
            passed[0] += 120
        yield from step.work(fake, job)

    dataflow.script = script
    step.run()
    (job,) = dataflow.jobs
    (line,) = [line for line in step.said().splitlines() if said in line]
    assert f"/{job}?project={PROJECT}" in line


def test_a_job_that_another_command_cancels_fails_the_step(step: Step, dataflow: FakeDataflow) -> None:
    def script(fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
        yield
        job["currentState"] = "JOB_STATE_CANCELLING"
        yield

    dataflow.script = script
    with pytest.raises(SystemExit):
        step.run()
    assert "ended with the state cancelled" in step.events("failed")[0]["error"]["message"]


@pytest.mark.parametrize("option", ["project", "region", "temp_location", "sdk_container_image"])
def test_the_options_that_dataflow_needs_are_required(step: Step, option: str) -> None:
    beam = step.settings.beam
    assert beam is not None
    options = {name: value for name, value in beam.options.items() if name != option}
    settings = step.settings.model_copy(update={"beam": beam.model_copy(update={"options": options})})
    with pytest.raises(UserError, match=f"Dataflow needs the option {option}") as error:
        prepare(settings, 1)
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
    from tests.fakes.dataflow import NAME as VALID

    prefix = prefix_of(run, title)
    assert prefix.startswith(beginning)
    assert VALID.fullmatch(f"{prefix}x")
    assert prefix != prefix_of(f"{run}x", title)
