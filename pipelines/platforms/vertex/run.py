"""Submit, watch, explain, cancel and record runs on Vertex AI."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.known_errors import as_user_error
from slipway.components.cloud.retries import is_transient, retried, status_of
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, load, vertex_of
from slipway.pipelines.images.images import Images
from slipway.pipelines.platforms.vertex import submission
from slipway.pipelines.platforms.vertex.experiments import list_in_experiment
from slipway.pipelines.platforms.vertex.explanation import explain
from slipway.pipelines.platforms.vertex.logs import LogReader, not_noise
from slipway.pipelines.platforms.vertex.tasks import RUNNING, custom_jobs, step_of, steps_of, take_in
from slipway.pipelines.runs.record import ErrorRecord, RunFolder, RunRecord, StepRecord

PLATFORM = "vertex"
POLL_SECONDS = 10.0
ENDED = ("PIPELINE_STATE_SUCCEEDED", "PIPELINE_STATE_FAILED", "PIPELINE_STATE_CANCELLED")

# How often a run is looked at until it has begun, for its experiment.
LOOKS_FOR_CONTEXT = 12
# How long a run that Vertex AI does not know may still be on its way there.
SUBMISSION_TIME = timedelta(minutes=10)

# Who is told of a step's change: the record and the event (see slipway.pipelines.cli.display).
Tell = Callable[[RunRecord, dict[str, Any]], None]


def pause() -> None:
    """Wait until it is worth looking again."""
    time.sleep(POLL_SECONDS)


class NoSuchJobError(UserError):
    """Vertex AI has no pipeline job of the run's id."""


class UnreachableError(UserError):
    """Vertex AI is temporarily unreachable."""


class VertexRun:
    """The run in `folder`, on Vertex AI."""

    def __init__(self, folder: RunFolder, config: RunConfig | None = None) -> None:
        self.folder = folder
        self.config = config or load(folder.configuration_file)
        self.connection: Connection = vertex_of(self.config).connection

    @property
    def experiment(self) -> str | None:
        """The experiment that the run is to be listed in."""
        return vertex_of(self.config).experiment

    def submit(self, images: Images, earlier: RunRecord | None = None) -> RunRecord:
        """Compile the pipeline, make the job of it, and record where it is.

        Args:
            images: What its containers run.
            earlier: The record of the same run's try before this one: its output directory is kept, and with it what
                training has saved; steps that succeeded are found in Vertex AI's cache.

        Returns:
            The record; failed where Vertex AI could not be reached, as the job may or may not have been made.

        Raises:
            UserError: Vertex AI refuses it.
        """
        tries = earlier.tries + 1 if earlier else 1
        job_id = self.folder.run_id if tries == 1 else f"{self.folder.run_id}-{tries}"
        kept = self.folder.run_id if earlier else None
        submission.compile_pipeline(self.config, images, self.folder.specification_file, kept)
        record = self._new_record()
        record.job = f"{self.connection.parent}/pipelineJobs/{job_id}"
        record.console = submission.console_url(self.config, job_id)
        record.tries = tries
        record.steps = [StepRecord(name=name) for name in steps_of(self.folder.specification_file)]
        self.folder.write(record)
        try:
            job = submission.pipeline_job(self.config, self.folder.specification_file)
            made = submission.submit(self.connection, job, job_id)
        except Exception as error:
            told = self._told(error)
            if not isinstance(told, UnreachableError):
                raise told from error
            self._never_began(record, told)
            return record
        take_in(record, made)
        self.folder.write(record)
        return record

    def build_failed(self, error: UserError, earlier: RunRecord | None) -> RunRecord:
        """Record that an image could not be built, and give the record."""
        record = earlier or self._new_record()
        record.status, record.ended = "failed", datetime.now(UTC)
        record.error = ErrorRecord(step=None, message=error.message, fix=error.fix)
        self.folder.write(record)
        return record

    def list_in_experiment(self, record: RunRecord) -> None:
        """Put a run that has been submitted into its experiment, which takes until it has begun.

        Raises:
            UserError: It could not be; the run goes on all the same.
        """
        experiment = self.experiment
        for _ in range(LOOKS_FOR_CONTEXT if experiment else 0):
            job = self._job(record)
            try:
                if list_in_experiment(self.connection, str(experiment), job):
                    return
            except Exception as error:
                raise self._told(error) from error
            pause()
        if experiment:
            raise UserError("The run has not started yet.", setting="vertex.experiment", value=experiment)

    def refresh(self, record: RunRecord, tell: Tell | None = None) -> RunRecord:
        """Bring the record up to what the service says, and write it; `tell` hears of every step that has changed."""
        try:
            job = self._job(record)
        except NoSuchJobError as error:
            # A submission that is under way in another process may still arrive.
            if datetime.now(UTC) - record.created < SUBMISSION_TIME:
                raise
            self._never_began(record, error)
            return record
        for change in take_in(record, job):
            if tell is not None:
                tell(record, {"step": change.step.name, "event": change.event})
        if job.state.name in ENDED:
            try:
                self._conclude(record, job)
            except Exception as error:
                # What is written is what was known before: the next look comes back to it.
                record.status = "running"
                raise self._told(error) from error
        self.folder.write(record)
        return record

    def watch(self, record: RunRecord, tell: Tell | None = None) -> RunRecord:
        """Refresh until the run has ended, through times without a connection. An interruption leaves it as it is."""
        connected = True
        while True:
            try:
                record = self.refresh(record, tell)
                connected = True
            except UnreachableError as error:
                if connected and tell is not None:
                    text = f"{error.message} The run continues; retrying."
                    tell(record, {"step": record.steps[0].name, "event": "message", "text": text})
                connected = False
            if record.status != "running":
                return record
            pause()

    def cancel(self) -> RunRecord:
        """Stop the pipeline and the jobs that it has made, and wait until they have stopped."""
        record = self.folder.read()
        self._ask_to_stop(lambda: self.connection.pipelines.cancel_pipeline_job(name=record.job))
        stopping: set[str] = set()
        while True:
            job = self._job(record)
            live = [task for task in job.job_detail.task_details if task.state.name in (*RUNNING, "CANCELLED")]
            for name in {name for task in live for name in custom_jobs(task)[:1]} - stopping:
                # A launcher that is stopped hard does not stop the job that it made.
                self._ask_to_stop(lambda name=name: self.connection.jobs.cancel_custom_job(name=name))  # type: ignore[misc]
                stopping.add(name)
            if job.state.name in ENDED:
                return self.refresh(record)
            pause()

    def log_lines(self, step: str | None, *, follow: bool, raw: bool) -> Iterator[str]:
        """The lines of all replicas, in the order they were written; with `follow`, until the run has ended.

        `raw` keeps the start-up messages of libraries.
        """
        reader, record = LogReader(self.connection), self.folder.read()
        if record.job is None:
            raise UserError(f"The run {record.run_id} was never on Vertex AI.", fix=f"slipway explain {record.run_id}")
        while True:
            job = self._job(record)
            steps: dict[str, str] = {}
            for task in job.job_detail.task_details:
                of = step_of(task.task_name)
                if of is not None and step in (None, of):
                    steps |= {name.rpartition("/")[2]: of for name in custom_jobs(task)}
            try:
                lines = reader.read(steps)
            except Exception as error:
                raise as_user_error(error, "Cloud Logging refused", submission.facts_of(self.config)) from error
            for line in lines if raw else not_noise(lines):
                yield f"{'' if step else steps[line.job] + ' '}{line.replica} | {line.text}"
            if not follow or job.state.name in ENDED:
                return
            pause()

    def _job(self, record: RunRecord) -> Any:
        """The run's pipeline job.

        Raises:
            NoSuchJobError: It is not there.
            UserError: It cannot be asked for.
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
            raise self._told(error) from error

    def _told(self, error: BaseException) -> UserError:
        """An error of the service in a sentence, with its fix."""
        if isinstance(error, UserError):
            return error
        facts = submission.facts_of(self.config)
        if is_transient(error):
            told = as_user_error(error, "Vertex AI could not be reached", facts)
            return UnreachableError(told.message, fix=told.fix)
        return as_user_error(error, "Vertex AI refused", facts)

    def _conclude(self, record: RunRecord, job: Any) -> None:
        """What is kept of a run that has ended: its report, and why it failed."""
        if record.status == "failed" and record.error is None:
            record.error = explain(self.connection, job, record.run_id, submission.facts_of(self.config))
        report = record.step("evaluate").outputs.get("report")
        if report and record.report is None:
            bucket, _, name = report.removeprefix("gs://").partition("/")
            # The report's absence is no reason to hide how the run ended; its address stays.
            record.report = report
            with contextlib.suppress(Exception):
                blob = self.connection.storage.bucket(bucket).blob(name)
                self.folder.report_file.write_bytes(retried(blob.download_as_bytes))
                record.report = str(self.folder.report_file)

    def _ask_to_stop(self, call: Callable[[], Any]) -> None:
        """Ask for a stop; what has ended by itself needs none."""
        try:
            retried(call)
        except Exception as error:
            if status_of(error) not in (400, 404, 409, 412):
                raise self._told(error) from error

    def _new_record(self) -> RunRecord:
        return RunRecord(
            run_id=self.folder.run_id,
            name=self.config.name,
            platform=PLATFORM,
            hardware=self.config.hardware,
            created=datetime.now(UTC),
            steps=[],
        )

    def _never_began(self, record: RunRecord, error: UserError) -> None:
        record.status, record.ended, record.job, record.console = "failed", datetime.now(UTC), None, None
        record.error = ErrorRecord(step=None, message=error.message, fix=error.fix)
        for step in record.steps:
            step.status = "skipped"
        self.folder.write(record)
