"""Submit, watch, explain, cancel and record runs on Vertex AI."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.dataflow import DataflowJobs, prefix_of
from slipway.components.cloud.explanation import custom_jobs, explain, is_search
from slipway.components.cloud.logs import LogReader, not_noise
from slipway.components.cloud.refusals import answers_ignored, refusal
from slipway.components.cloud.retries import is_logged_out, is_transient, paced, retried, status_of
from slipway.components.page import completed
from slipway.components.step import WorkFailed
from slipway.components.train.restarts import REPLICAS_FILE
from slipway.components.train.tuning import SearchSettings
from slipway.core.atomic import append_line
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, load
from slipway.pipelines.hardware.prices import Bill, of_machine, vertex_bill
from slipway.pipelines.hardware.quotas import step_machine
from slipway.pipelines.images.images import Say
from slipway.pipelines.platforms.vertex import facts, submission
from slipway.pipelines.platforms.vertex.access import uses_dataflow, with_dataflow
from slipway.pipelines.platforms.vertex.candidates import bring, candidates, title_of
from slipway.pipelines.platforms.vertex.images import Images, ensure_images
from slipway.pipelines.platforms.vertex.settings import vertex_of
from slipway.pipelines.platforms.vertex.tasks import RUNNING, steps_of, update
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.budget import check_month, labels_of
from slipway.pipelines.runs.continuing import submitting
from slipway.pipelines.runs.record import (
    CREATION_TIME,
    ErrorRecord,
    RefusalRecord,
    RunFolder,
    RunRecord,
    StepRecord,
    Watcher,
)
from slipway.pipelines.table import STEPS, step_of
from slipway.pipelines.tuning.search import settings_of
from slipway.trainer.metrics.attempt import FOLDER as ATTEMPTS
from slipway.trainer.metrics.history import FILE_NAME as HISTORY_FILE

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import PipelineJob

POLL_SECONDS = 10.0
RIGHTS = "aiplatform.pipelineJobs"
ENDED = ("PIPELINE_STATE_SUCCEEDED", "PIPELINE_STATE_FAILED", "PIPELINE_STATE_CANCELLED")

# The tasks that create the job of the training.
TRAINING = tuple(task.name for task in STEPS["train"].tasks_on("vertex")[:-1])
# Number of polls for a submitted run to start; only then can it be added to its experiment.
START_POLLS = 12
# The status of an answer that did not arrive in time.
TIMED_OUT = 504


def pause() -> None:
    """Wait before the next poll."""
    time.sleep(paced(POLL_SECONDS))


class NoSuchJobError(UserError):
    """Vertex AI has no pipeline job with the run's id."""


class UnreachableError(UserError):
    """Vertex AI is temporarily unreachable."""

    then = "The run continues; retrying."


class BeingSubmittedError(UnreachableError):
    """Vertex AI does not have the job, but the request to create it may still arrive."""

    then = "Waiting for it."


class VertexRun:
    """The run on Vertex AI whose record is in `folder`; `config` is that of the candidate on which it runs."""

    def __init__(
        self, folder: RunFolder, config: RunConfig | None = None, search: SearchSettings | None = None
    ) -> None:
        self.folder = folder
        self.candidates = candidates(config or load(folder.configuration_file))
        self.search = search  # how to search, if the training is a search
        self._take(0)
        if folder.record_file.exists():
            record = folder.read()
            self.take_recorded(record)
            self.search = settings_of(self.config) if record.searches else None

    def _take(self, position: int) -> None:
        self.position, self.config = position, self.candidates[position]
        self.connection: Connection = vertex_of(self.config).connection

    def take_recorded(self, record: RunRecord) -> None:
        """Take the candidate of a record; the first one if it is no longer listed."""
        titles = [title_of(config) for config in self.candidates]
        recorded = f"{record.hardware} in {record.region}"
        self._take(titles.index(recorded) if recorded in titles else 0)

    def take_next(self, record: RunRecord) -> None:
        """Take the next candidate if there was no quota or capacity for the recorded one; after the last, the first."""
        if record.error is not None and record.error.moves:
            self._take((self.position + 1) % len(self.candidates))

    @property
    def others(self) -> list[str]:
        """The candidates that are tried after the present one."""
        return [title_of(config) for config in self.candidates[self.position + 1 :]]

    @property
    def experiment(self) -> str | None:
        """The experiment to add the run to."""
        return vertex_of(self.config).experiment

    @property
    def bill(self) -> Bill:
        """What its training costs at most."""
        bill = vertex_bill(self.config.training_hardware, vertex_of(self.config).region)
        return bill.times(self.search.trials) if self.search else bill

    def submit(self, images: Images, earlier: RunRecord | None = None) -> RunRecord:
        """Compile the pipeline, create the job, and record it.

        Args:
            images: The images of its containers.
            earlier: The record of the previous attempt, if the run is resumed: its output directory is kept, with the
                data set, the checkpoints and the model; after a finished training, no job is created for it.

        Returns:
            The record; its status is failed if Vertex AI answered with transient errors and does not have the job, and
            running if it did not answer: the job may exist.

        Raises:
            UserError: Vertex AI refuses the job, or cannot be reached.
        """
        # A job that may not have been created is not followed by another one: the same id cannot be used twice.
        again = earlier is not None and (earlier.job is None or earlier.requested is not None)
        tries = earlier.tries + (not again) if earlier else 1
        job_id = self.folder.run_id if tries == 1 else f"{self.folder.run_id}-{tries}"
        kept = self.folder.run_id if earlier else None
        record = self._new_record()
        record.trained = earlier is not None and (
            earlier.trained or any((step.name, step.status) == ("train", "succeeded") for step in earlier.steps)
        )
        if earlier is not None:
            record.cost, record.refused, record.choice = earlier.cost, earlier.refused, earlier.choice
        record.estimate = runs.estimate_on(record)
        if not record.trained:
            self.bill.check(self.config.dollars, record.cost.dollars if record.cost else 0.0)
            check_month(self.config, record.platform, self.bill, running=self.folder.run_id)
        submission.compile_pipeline(
            self.config, images, self.folder.specification_file, kept, trained=record.trained, search=self.search
        )
        record.job = f"{self.connection.parent}/pipelineJobs/{job_id}"
        record.console = facts.console_url(self.config, job_id)
        record.tries = tries
        record.steps = [StepRecord(name=name) for name in steps_of(self.folder.specification_file)]
        job = submission.pipeline_job(self.config, self.folder.specification_file)

        def requesting() -> None:
            record.requested = datetime.now(UTC)
            self.folder.write(record)

        try:
            created = submission.submit(self.connection, job, job_id, again=again, requesting=requesting)
        except submission.UnansweredError as error:
            return self._unanswered(record, error)
        except Exception as error:
            raise self._refusal(error, "submit the run", f"{RIGHTS}.create") from error
        record.requested = None
        update(record, created)
        self.folder.write(record)
        return record

    def _unanswered(self, record: RunRecord, error: submission.UnansweredError) -> RunRecord:
        """Return the record of a run whose creation was answered with transient errors, or not at all."""
        cause = error.__cause__ or error
        if status_of(cause) in (None, TIMED_OUT):  # the last request may still arrive
            return record
        record.requested = datetime.now(UTC) - CREATION_TIME
        with contextlib.suppress(UnreachableError):
            record = self.refresh(record)
            if record.error is not None:
                known = self._refusal(cause, "submit the run", f"{RIGHTS}.create")
                record.error = ErrorRecord(step=None, message=known.message, fix=known.fix)
                self.folder.write(record)
        return record

    def not_submitted(self, error: UserError, earlier: RunRecord | None) -> RunRecord:
        """Record that the run could not be submitted, such as for an image that cannot be built; return the record."""
        record = self._new_record()
        if earlier is not None:
            record = replace(earlier, hardware=record.hardware, region=record.region)
            if earlier.region != record.region or earlier.hardware != record.hardware:
                record.tries, record.job, record.console = earlier.tries + (earlier.job is not None), None, None
        record.status, record.ended = "failed", datetime.now(UTC)
        record.error = ErrorRecord(step=None, message=error.message, fix=error.fix)
        self.folder.write(record)
        return record

    def add_to_experiment(self, record: RunRecord) -> None:
        """Add a submitted run to its experiment, after waiting until it has started.

        Raises:
            UserError: That failed; the run continues.
        """
        experiment = self.experiment
        for _ in range(START_POLLS if experiment else 0):
            job = self._job(record)
            try:
                if submission.add_to_experiment(self.connection, str(experiment), job):
                    return
            except Exception as error:
                raise self._refusal(error, "add the run to it", "aiplatform.contexts.create") from error
            pause()
        if experiment:
            raise UserError("The run has not started yet.", setting="vertex.experiment", value=experiment)

    def refresh(self, record: RunRecord, watcher: Watcher | None = None) -> RunRecord:
        """Update the record from the service, and write it; the watcher receives each change of a step's status.

        If another command has submitted the run again in the meantime, return that try's record.
        """
        if newer := self._newer(record):
            return newer
        try:
            job = self._created_job(record)
        except NoSuchJobError as error:
            self._never_started(record, error)
            return record
        record.requested = None
        for change in update(record, job):
            if watcher is not None:
                watcher.event(record, {"step": change.step.name, "event": change.event})
        if job.state.name in ENDED:
            try:
                self._conclude(record, job)
            except Exception as error:
                # The stored record still has the status running, so the next call repeats this.
                record.status = "running"
                raise self._refusal(error, "read why the run failed", "aiplatform.customJobs.get") from error
        if newer := self._newer(record):
            return newer
        self.folder.write(record)
        return record

    def _newer(self, record: RunRecord) -> RunRecord | None:
        """Return the stored record, and take its candidate, if it is that of a later try; else None."""
        stored = self.folder.read()
        if stored.tries <= record.tries:
            return None
        self.take_recorded(stored)
        return stored

    @contextlib.contextmanager
    def executed(self) -> Iterator[None]:
        """Return a context in which no other command submits the run; this one may be in such a context already.

        Raises:
            UserError: Another command submits it.
        """
        with contextlib.nullcontext() if self.folder.lock is not None else self.folder.held():
            yield

    def watch(self, record: RunRecord, watcher: Watcher | None = None) -> RunRecord:
        """Refresh the record until the try has ended, also after failures of the connection."""
        connected = True
        while True:
            try:
                record = self.refresh(record, watcher)
                connected = True
            except UnreachableError as error:
                if connected and watcher is not None:
                    text = f"{error.message} {error.then}"
                    watcher.event(record, {"step": record.steps[0].name, "event": "message", "text": text})
                connected = False
            if record.status != "running":
                return record
            pause()

    def cancel(self) -> RunRecord:
        """Stop the pipeline and its custom jobs, and wait until they have stopped."""
        record = self._submitted()
        if record.status != "running":
            return record
        self._stop(lambda: self.connection.pipelines.cancel_pipeline_job(name=record.job))
        stopping: set[str] = set()
        while True:
            job = self._job(record)
            live = [task for task in job.job_detail.task_details if task.state.name in (*RUNNING, "CANCELLED")]
            for name in {name for task in live for name in custom_jobs(task)[:1]} - stopping:
                # A launcher that is killed does not stop the job that it created.
                self._stop(lambda name=name: self._cancel_job(name))  # type: ignore[misc]
                stopping.add(name)
            if job.state.name in ENDED:
                record = self.refresh(record)
                self._cancel_dataflow(record)
                return record
            pause()

    def _submitted(self) -> RunRecord:
        """Return the run's record once Vertex AI has its job, or will not have it."""
        record = self.folder.read()
        while record.requested is not None:
            try:
                record = self.refresh(record)
            except BeingSubmittedError:
                pause()
        return record

    def _cancel_job(self, name: str) -> None:
        jobs = self.connection.jobs
        (jobs.cancel_hyperparameter_tuning_job if is_search(name) else jobs.cancel_custom_job)(name=name)

    def _cancel_dataflow(self, record: RunRecord) -> None:
        """Cancel the Dataflow job of a step that was killed before it could cancel the job itself.

        Raises:
            UserError: Dataflow refuses.
        """
        data = self.config.prepared
        if data is None or not uses_dataflow(data) or record.step("prepare_data").status == "succeeded":
            return
        settings = vertex_of(self.config)
        beam = with_dataflow(settings, data).beam
        assert beam is not None
        jobs = DataflowJobs.of_options(beam.options)
        prefix = prefix_of(f"{settings.bucket}/runs/{record.run_id}", beam.options.get("job_name"))
        try:
            active = jobs.active(prefix)
        except Exception as error:
            raise self._refusal(error, "list the run's Dataflow jobs", "dataflow.jobs.list") from error
        for dataflow_job in active:
            self._stop(lambda identity=str(dataflow_job["id"]): jobs.cancel(identity))  # type: ignore[misc]

    def log_lines(self, step: str | None, *, follow: bool, raw: bool) -> Iterator[str]:
        """Yield the log lines of all replicas in the order of their times; with `follow`, until the run has ended.

        Args:
            step: A step's name, None for all.
            follow: Whether to wait for new lines.
            raw: Whether to keep the start-up messages of libraries.
        """
        reader, record = LogReader(self.connection), self.folder.read()
        if record.job is None:
            raise UserError(
                f"Run {record.run_id} was never submitted to Vertex AI.", fix=f"slipway explain {record.run_id}"
            )
        while True:
            job = self._created_job(record)
            steps: dict[str, str] = {}
            for task in job.job_detail.task_details:
                of = step_of(task.task_name)
                if of is not None and step in (None, of):
                    steps |= {name.rpartition("/")[2]: of for name in custom_jobs(task)}
            try:
                lines = reader.read(steps)
            except Exception as error:
                raise self._refusal(error, "read the logs", "logging.logEntries.list") from error
            for line in lines if raw else not_noise(lines):
                trial = f"trial {line.trial} " if line.trial else ""
                yield f"{'' if step else steps[line.job] + ' '}{trial}{line.replica} | {line.text}"
            if not follow or job.state.name in ENDED:
                return
            pause()

    def _created_job(self, record: RunRecord) -> PipelineJob:
        """Return the run's pipeline job, which may just have been requested.

        Raises:
            BeingSubmittedError: It does not exist, but the request may still arrive.
            NoSuchJobError: It does not exist; of a request that was not answered, Vertex AI has said so twice.
            UserError: The request failed.
        """
        try:
            return self._job(record)
        except NoSuchJobError:
            if record.requested is None:
                raise
            if record.is_being_submitted():
                until = (record.requested + CREATION_TIME).astimezone()
                raise BeingSubmittedError(
                    f"Run {record.run_id} is being submitted: Vertex AI does not have it, but the request to create it "
                    f"may arrive until {until:%H:%M:%S}.",
                    fix=f"slipway status {record.run_id}",
                ) from None
        pause()
        return self._job(record)

    def _job(self, record: RunRecord) -> PipelineJob:
        """Return the run's pipeline job.

        Raises:
            NoSuchJobError: It does not exist.
            UserError: The request failed.
        """
        try:
            return retried(lambda: self.connection.pipelines.get_pipeline_job(name=record.job))
        except Exception as error:
            if status_of(error) == 404:
                raise NoSuchJobError(
                    f"Vertex AI has no run {self.folder.run_id} in {self.connection.parent}: it was never submitted, "
                    "or it was deleted there.",
                    fix="slipway run --target vertex",
                ) from None
            refused = self._refusal(error, "read the run", f"{RIGHTS}.get")
            if is_logged_out(error) and record.status == "running":
                text = f"The run continues on Vertex AI; slipway status {record.run_id} --follow watches it again."
                refused = UserError(f"{refused.message} {text}", fix=refused.fix)
            raise refused from error

    def _refusal(self, error: BaseException, action: str, needs: str) -> UserError:
        known = refusal(error, self.connection, action, needs, facts.facts_of(self.config))
        return UnreachableError(known.message, fix=known.fix) if is_transient(error) else known

    def _conclude(self, record: RunRecord, job: PipelineJob) -> None:
        """Add to the record of a finished run why it failed, and download its report, history and confusion matrix."""
        if record.status == "failed" and record.error is None:
            values = facts.facts_of(self.config)
            failure = asdict(explain(self.connection, job, record.run_id, values, step_of))
            moves = self.config.training_hardware.provisioning in failure.pop("moves")
            record.error = ErrorRecord(**failure, moves=moves)
            if record.error.moves:
                self._refused(record, record.error, job)
        # From here on, nothing fails: only what is complete is stored.
        times = self._training_times(job)
        seconds = sum((ended - started).total_seconds() for _, started, ended in times)
        record.add_cost(self.bill, seconds, self._step_costs(record))
        with contextlib.suppress(OSError):
            self._keep_attempts(times)
        evaluated, model = record.step("evaluate").outputs, record.step("train").outputs.get("model")
        report = evaluated.get("report")
        if report and record.report is None:
            # Without the report, the record still shows the outcome and the report's address.
            record.report = str(self.folder.report_file) if self._download(report, self.folder.report_file) else report
            with contextlib.suppress(OSError):
                page = self.folder.report_file.read_bytes()
                cost = str(record.cost) if record.cost else ""
                self.folder.report_file.write_bytes(completed(page, record.registered, cost))
            self._download(evaluated.get("classification"), self.folder.classification_file)
            self._download(f"{model}/{HISTORY_FILE}" if model else None, self.folder.path / HISTORY_FILE)

    def _step_costs(self, record: RunRecord) -> dict[str, float]:
        """Return what the steps beside the training cost on their machines, in US dollars, if that is known."""
        settings, costs = vertex_of(self.config), {}
        for step in record.steps:
            resources = settings.steps.get(step.name)
            machine = step_machine(resources.cpus, resources.memory_gb) if resources else step_machine()
            price = of_machine(machine.name, machine.vcpus or 0, None, 0, settings.region, "standard")
            if step.name != "train" and step.seconds and price is not None:
                costs[step.name] = price * step.seconds / 3600
        return costs

    def _refused(self, record: RunRecord, error: ErrorRecord, job: PipelineJob) -> None:
        """Add the try to those without quota or capacity, and how the run continues elsewhere to the error."""
        assert record.job is not None
        record.refused.append(
            RefusalRecord(
                hardware=record.hardware,
                region=vertex_of(self.config).region,
                job=record.job,
                started=job.create_time,
                ended=job.end_time,
                message=error.message,
            )
        )
        if len(self.candidates) == 1:
            return
        then = f"to continue on {self.others[0]}" if self.others else f"later, from {title_of(self.candidates[0])} on"
        error.fix = f"slipway run --resume {record.run_id}, {then}"

    def _training_times(self, job: PipelineJob) -> list[tuple[datetime, datetime, datetime]]:
        """Return when the custom job, or each trial's, was created, started and ended; [] if that is not known."""
        task = next((task for task in job.job_detail.task_details if task.task_name in TRAINING), None)
        with answers_ignored():  # an estimate is not what decides about the run
            for name in custom_jobs(task)[:1] if task else ():
                jobs = self.connection.jobs
                read = jobs.get_hyperparameter_tuning_job if is_search(name) else jobs.get_custom_job
                custom_job = retried(lambda name=name, read=read: read(name=name))  # type: ignore[misc]
                return [
                    (custom_job.create_time, training.start_time, training.end_time)
                    for training in (custom_job.trials if is_search(name) else [custom_job])
                    if training.start_time and training.end_time
                ]
        return []

    def _keep_attempts(self, times: list[tuple[datetime, datetime, datetime]]) -> None:
        """Add to the run's folder when the replicas ran, and what the trainer recorded of its time in the bucket."""
        for moments in times:
            for event, moment in zip(("created", "started", "ended"), moments, strict=True):
                record = {"event": event, "restarts": 0, "time": moment.timestamp()}
                append_line(self.folder.path / REPLICAS_FILE, json.dumps(record))
        bucket, _, parent = vertex_of(self.config).bucket.removeprefix("gs://").partition("/")
        prefix = "/".join(filter(None, (parent, "runs", self.folder.run_id, "logs", ATTEMPTS, "")))
        with answers_ignored():
            blobs = retried(lambda: list(self.connection.storage.list_blobs(bucket, prefix=prefix)))
            (self.folder.path / ATTEMPTS).mkdir(exist_ok=True)
            for blob in blobs:
                self._download(f"gs://{bucket}/{blob.name}", self.folder.path / ATTEMPTS / Path(blob.name).name)

    def _download(self, uri: str | None, file: Path) -> bool:
        """Copy an object to a file; return whether that succeeded."""
        if uri is None or not uri.startswith("gs://"):
            return False
        bucket, _, name = uri.removeprefix("gs://").partition("/")
        with answers_ignored(), contextlib.suppress(OSError):  # what the file shows is not what decides about the run
            file.write_bytes(retried(self.connection.storage.bucket(bucket).blob(name).download_as_bytes))
            return True
        return False

    def _stop(self, call: Callable[[], object]) -> None:
        """Request a stop; ignore that the job has already ended."""
        try:
            retried(call)
        except Exception as error:
            if status_of(error) not in (400, 404, 409, 412):
                raise self._refusal(error, "cancel the run", f"{RIGHTS}.cancel") from error

    def _new_record(self) -> RunRecord:
        return RunRecord(
            run_id=self.folder.run_id,
            name=self.config.name,
            platform="vertex",
            hardware=str(self.config.training_hardware),
            region=vertex_of(self.config).region,
            searches=self.search is not None,
            created=datetime.now(UTC),
            steps=[],
            at_most=self.bill.worst_case,
            labels=labels_of(self.config, "vertex"),
            choice=self.config.choice,
        )

    def _never_started(self, record: RunRecord, error: UserError) -> None:
        record.status, record.ended, record.job, record.console = "failed", datetime.now(UTC), None, None
        record.requested = None
        record.error = ErrorRecord(step=None, message=error.message, fix=error.fix)
        for step in record.steps:
            step.status = "skipped"
        self.folder.write(record)


def start(config: RunConfig, say: Say, search: SearchSettings | None = None) -> tuple[RunFolder, RunRecord]:
    """Ensure that the images exist, submit the run, whose training may be a search, and print its URL.

    Returns:
        The run. Its status is failed if a build failed or Vertex AI became unreachable.

    Raises:
        UserError: An image cannot be built, or Vertex AI refuses the run, whose folder is removed.
    """
    return submitted(VertexRun(runs.create(config), config, search), None, say)


def resume(folder: RunFolder, say: Say) -> tuple[RunFolder, RunRecord]:
    """Resubmit a failed or cancelled run, on the next candidate if it failed for quota or capacity; see `start`."""
    run, record = VertexRun(folder), folder.read()
    run.take_next(record)
    return submitted(run, record, say)


def submitted(run: VertexRun, earlier: RunRecord | None, say: Say) -> tuple[RunFolder, RunRecord]:
    """Submit a run for the first time, or again with the record of its previous try; see `start`."""
    with run.executed(), submitting(run.folder, earlier, say):
        try:
            with (run.folder.logs / "build_image.log").open("w") as log:
                images = ensure_images(run.config, log, say)
        except WorkFailed as error:
            return run.folder, run.not_submitted(UserError(error.message, fix=f"see {log.name}"), earlier)
        if earlier is not None:
            bring(earlier, run.candidates, run.config, say)
        say("compiling the pipeline")
        record = run.submit(images, earlier)
        if record.status == "failed":
            return run.folder, record
        say(f"run {record.run_id} on {title_of(run.config)}, {'being ' if record.requested else ''}submitted")
        say(f"  console: {record.console}")
        if run.others:
            say(f"  without quota or capacity, a command that watches it moves it to {', then '.join(run.others)}")
        try:
            if not record.requested:
                run.add_to_experiment(record)
        except UserError as error:
            say(f"  not in the experiment {run.experiment}: {error.message}")
    return run.folder, record
