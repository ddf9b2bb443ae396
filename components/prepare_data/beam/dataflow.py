"""The Dataflow job of the step: created once, found again by a restarted step, watched, and cancelled with the step.

Its name is derived from the run and from the folder into which it writes. Dataflow has at most one active job of a
name in a region, so a restarted step finds the job of a killed one, and no other run's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from slipway.components.cloud.dataflow import (
    DONE,
    ENDING,
    FAILED,
    TERMINAL,
    DataflowJobs,
    job_name,
    prefix_of,
    run_label,
)
from slipway.components.cloud.known_errors.table import first_recognized, recognize_program
from slipway.components.cloud.refusals import is_answer, message_of, refusal
from slipway.components.cloud.retries import is_transient, paced
from slipway.components.cloud.tracebacks import exceptions
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.workers import Tick
from slipway.core import events
from slipway.core.errors import UserError
from slipway.core.values import JsonObject

POLL_SECONDS = 5.0
# The message with the reason of a failure follows it by about 30 seconds (Beam's DataflowRunner waits for 50).
LAST_MESSAGE_SECONDS = 50.0
IDLE_SECONDS = 600.0
# The step has 20 seconds from SIGTERM to SIGKILL on this machine.
CANCEL_TRIES = 4
# The counter of finished examples, or of listed parts.
NAMESPACE, EXAMPLES = "slipway", "examples"
CORES = "CurrentVcpuCount"
MAX_ERRORS_SAID = 10

logger = logging.getLogger(__name__)


def owned_by(data: DataSettings, run: str) -> DataSettings:
    """Return the settings with the beginning of the names and the label of the Dataflow jobs of a run.

    Args:
        data: The settings.
        run: What identifies the run: its base output directory.
    """
    if data.beam is None or not data.beam.on_dataflow:
        return data
    options = dict(data.beam.options)
    options["job_name"] = prefix_of(run, options.get("job_name"))
    labels = options.get("labels") or []
    options["labels"] = [*(labels if isinstance(labels, list) else [labels]), run_label(run)]
    return data.model_copy(update={"beam": data.beam.model_copy(update={"options": options})})


@dataclass
class DataflowJob:
    """The job that writes into one folder, of a run whose jobs' names begin with `prefix`.

    Use as a context manager: the job ends with the step, however that ends, because the folder into which it writes is
    then removed. A step that is killed leaves the job to the step that resumes it.
    """

    jobs: DataflowJobs
    prefix: str
    work: str
    tick: Tick
    _id: str | None = field(default=None, init=False)
    _is_submitting: bool = field(default=False, init=False)

    @classmethod
    def of(cls, options: Mapping[str, Any], work: str, tick: Tick) -> DataflowJob:
        """Return the job for Beam's pipeline options, which `owned_by` completed, and the folder `work`."""
        return cls(DataflowJobs.of_options(options), str(options["job_name"]), work, tick)

    @property
    def name(self) -> str:
        """The job's name."""
        return job_name(self.prefix, self.work)

    def __enter__(self) -> DataflowJob:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not (self._id or self._is_submitting):
            return
        # A signal may have interrupted a request: its connection would answer the next request with the first response.
        self.jobs = DataflowJobs(dataclasses.replace(self.jobs.connection))
        with self._cancelling(self._id):
            # Without an id, the step ended while the job was created.
            for job in [self._id] if self._id else [str(active_job["id"]) for active_job in self._active()]:
                self.jobs.cancel(job, CANCEL_TRIES)
                events.message(f"Cancelled the Dataflow job {job}.")

    def adopt(self) -> bool:
        """Follow the job that a killed step of this run left; return whether there was one.

        Raises:
            UserError: Dataflow cannot be asked, or the job failed.
        """
        adopted = False
        with self._refusing("list the Dataflow jobs", "dataflow.jobs.list"):
            active_jobs = self.jobs.active(self.prefix)
        for job in active_jobs:
            if job["name"] != self.name:
                events.message(
                    f"Cancelling the Dataflow job {job['id']} of an earlier attempt, which writes other data."
                )
                with self._cancelling(str(job["id"])):
                    self.jobs.cancel(str(job["id"]), CANCEL_TRIES)
            elif job.get("currentState") in ENDING:
                self._wait_for_end(str(job["id"]))
            else:
                self._record(str(job["id"]), "of an earlier attempt of this run continues")
                self._follow(adopted=True)
                adopted = True
        return adopted

    def run(self, submit: Callable[[str], str]) -> None:
        """Create the job by `submit`, which receives its name and returns its id, and follow it to its end.

        Raises:
            UserError: Dataflow refuses the job, or the job failed.
        """
        events.phase("submitting the Dataflow job")
        self._is_submitting = True
        try:
            identity = submit(self.name)
        except Exception as error:
            # The response may be lost; a job of this name that is active is this one.
            active_jobs = self._active_if_known()
            self._is_submitting = False
            if not active_jobs:
                raise self._refusal(error, "start the Dataflow job", "dataflow.jobs.create") from error
            identity = str(active_jobs[0]["id"])
        self._record(identity, "was created")
        self._follow()

    def _record(self, identity: str, how: str) -> None:
        self._id, self._is_submitting = identity, False
        message = f"The Dataflow job {identity} {how}: {self.jobs.console(identity)}"
        logger.info(message)
        events.message(message)

    def _follow(self, *, adopted: bool = False) -> None:
        assert self._id is not None
        follower = Follower(self.jobs, self._id, self.tick, adopted=adopted)
        state = follower.follow()
        self._id = None
        if state == FAILED:
            raise follower.failure()
        if state != DONE:
            raise UserError(
                f"The Dataflow job ended with the state {readable(state)}: another command cancelled, drained or "
                "updated it.",
                setting="data.beam.runner",
                value="DataflowRunner",
                fix="run again",
            )

    def _wait_for_end(self, identity: str) -> None:
        events.phase(f"waiting until the Dataflow job {identity} of an earlier attempt has stopped")
        with self._refusing("read the Dataflow job", "dataflow.jobs.get"):
            while self.jobs.get(identity).get("currentState") not in TERMINAL:
                time.sleep(paced(POLL_SECONDS))

    def _active(self) -> list[JsonObject]:
        return [job for job in self.jobs.active(self.prefix) if job["name"] == self.name]

    def _active_if_known(self) -> list[JsonObject]:
        try:
            return self._active()
        except Exception as error:  # what prevented the submission
            if not is_answer(error):
                raise
            return []

    @contextlib.contextmanager
    def _refusing(self, action: str, needs: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise self._refusal(error, action, needs) from error

    def _refusal(self, error: Exception, action: str, needs: str) -> UserError:
        connection = self.jobs.connection
        facts = {"project": connection.project, "region": connection.region}
        return refusal(error, connection, action, needs, facts)

    @contextlib.contextmanager
    def _cancelling(self, identity: str | None) -> Iterator[None]:
        """Report that a job could not be cancelled: it costs money, but is not why the step ends."""
        try:
            yield
        except Exception as error:
            message = (
                f"Could not cancel the Dataflow job {identity or self.name}: {message_of(error)}. To cancel it: "
                f"{self.jobs.cancel_command(identity or 'ID')}"
            )
            logger.error(message, exc_info=not is_answer(error))
            events.message(message)


class Follower:
    """Follows a job to its end: reports its state, workers, examples and errors.

    Args:
        jobs: The jobs of its project and region.
        identity: Its id.
        tick: Called with the number of examples that its workers have processed since the last call.
        adopted: Whether a killed step started it; what its workers processed before is not counted.
    """

    def __init__(self, jobs: DataflowJobs, identity: str, tick: Tick, *, adopted: bool) -> None:
        self._jobs, self._id, self._tick = jobs, identity, tick
        self._state = ""
        self._workers = 0
        self._has_cores = False  # jobs without autoscaling report cores only
        self._examples: int | None = None if adopted else 0
        self._latest: str | None = None  # the time of the latest message
        self._seen: set[tuple[str, str]] = set()
        self._errors: dict[str, None] = {}  # in the order of their first occurrence
        self._idle_since: float | None = time.monotonic()
        self._warned: set[str] = set()

    def follow(self) -> str:
        """Return the state with which the job ended.

        Raises:
            UserError: The job may not be read.
        """
        while self._state not in TERMINAL:
            self._attempt("state", self._read_state)
            self._attempt("messages", self._read_messages)
            self._attempt("metrics", self._read_metrics)
            self._report_idle()
            if self._state not in TERMINAL:
                time.sleep(paced(POLL_SECONDS))
        if self._state == FAILED:
            self._wait_for_reason()
        return self._state

    def _attempt(self, resource: str, read: Callable[[], None]) -> None:
        """Read something; the job continues while Dataflow is unreachable, and without its messages or metrics."""
        try:
            read()
        except Exception as error:
            if resource == "state" and not is_transient(error):
                raise refusal(error, self._jobs.connection, "read the Dataflow job", "dataflow.jobs.get") from error
            if resource not in self._warned:
                self._warned.add(resource)
                message = f"Could not read the Dataflow job's {resource}, the job continues: {message_of(error)}"
                logger.warning(message, exc_info=not is_answer(error))
                events.message(message)

    def _read_state(self) -> None:
        state = str(self._jobs.get(self._id).get("currentState", "JOB_STATE_UNKNOWN"))
        self._warned.discard("state")
        if state != self._state:
            self._state = state
            self._report()

    def _read_messages(self) -> None:
        workers = self._workers
        for page in self._jobs.messages(self._id, self._latest):
            for event in page.get("autoscalingEvents", []):
                if event.get("eventType") == "CURRENT_NUM_WORKERS_CHANGED":
                    workers = int(event.get("currentNumWorkers", 0))
            for message in page.get("jobMessages", []):
                # Those of the latest time are returned again.
                key = (message["time"], message.get("messageText", ""))
                if key not in self._seen:
                    self._seen.add(key)
                    self._latest = max(self._latest or "", message["time"])
                    self._receive(message)
        if workers != self._workers:
            self._workers, self._idle_since = workers, time.monotonic()
            self._report()

    def _receive(self, message: JsonObject) -> None:
        importance, text = message.get("messageImportance"), str(message.get("messageText", ""))
        if importance not in ("JOB_MESSAGE_ERROR", "JOB_MESSAGE_WARNING"):
            logger.info("Dataflow: %s", text)
            return
        logger.log(logging.ERROR if importance == "JOB_MESSAGE_ERROR" else logging.WARNING, "Dataflow: %s", text)
        if importance == "JOB_MESSAGE_ERROR":
            is_new = last_line(text) not in {last_line(known) for known in self._errors}
            if is_new and len(self._errors) < MAX_ERRORS_SAID:
                events.message(f"Dataflow reports an error: {last_line(text)}")
            self._errors.setdefault(text)

    def _read_metrics(self) -> None:
        """Count the examples: the tentative value includes shards that are not finished."""
        counts = {"true": 0, "": 0}
        for metric in self._jobs.metrics(self._id):
            name = metric.get("name", {})
            context = name.get("context", {})
            self._has_cores |= name.get("name") == CORES and float(metric.get("scalar", 0)) > 0
            if name.get("name") == EXAMPLES and context.get("namespace") == NAMESPACE:
                counts[context.get("tentative", "")] += int(metric.get("scalar", 0))
        examples = max(counts.values())
        # An adopted job's examples until now are counted by their shards.
        if self._examples is not None and examples > self._examples:
            self._tick(examples - self._examples)
            self._idle_since = None
        self._examples = max(examples, self._examples or 0)

    def _report_idle(self) -> None:
        """Report once that nothing has happened for ten minutes."""
        if self._examples or self._idle_since is None or time.monotonic() - self._idle_since < paced(IDLE_SECONDS):
            return
        self._idle_since = None
        minutes = round(IDLE_SECONDS / 60)
        if not (self._workers or self._has_cores):
            message = (
                f"The Dataflow job has had no worker for {minutes} minutes: usually a quota (CPUs, IP addresses), a "
                f"region without free machines, or a network without access. Its page has the reason: "
            )
        else:
            message = (
                f"The workers of the Dataflow job have written nothing for {minutes} minutes: usually an "
                "sdk_container_image that cannot be pulled or does not start /opt/apache/beam/boot. The log of a "
                "worker has the reason: "
            )
        message += self._jobs.console(self._id)
        logger.warning(message)
        events.message(message)

    def _report(self) -> None:
        workers = f", {self._workers} worker{'s' if self._workers > 1 else ''}" if self._workers else ""
        message = f"Dataflow job {self._id}: {readable(self._state)}{workers}"
        logger.info(message)
        events.phase(message)

    def _wait_for_reason(self) -> None:
        deadline = time.monotonic() + paced(LAST_MESSAGE_SECONDS)
        while not self._errors and time.monotonic() < deadline:
            time.sleep(paced(POLL_SECONDS))
            self._attempt("messages", self._read_messages)

    def failure(self) -> UserError:
        """Return why the job failed."""
        connection = self._jobs.connection
        facts = {"project": connection.project, "region": connection.region}
        texts = sorted(self._errors, key=_rank)
        known = first_recognized(reversed(texts), facts)
        if known is None and texts:
            known = recognize_program(exceptions(texts[-1].splitlines()), [], facts)
        reason = known.sentence if known else last_line(texts[-1]) if texts else "it reported no reason"
        return UserError(
            f"The Dataflow job {self._id} failed: {reason}",
            setting="data.beam.runner",
            value="DataflowRunner",
            fix=known.fix if known else f"see {self._jobs.console(self._id)}",
            traceback=texts[-1] if texts and "Traceback" in texts[-1] else None,
        )


def readable(state: str) -> str:
    """Return a state without its prefix, in lower case."""
    return state.removeprefix("JOB_STATE_").lower().replace("_", " ")


def last_line(text: str) -> str:
    """Return the line of an error that says most: the exception of a traceback, else the first line."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()] or [""]
    if "Traceback" not in text:
        return lines[0]
    exceptions = [line for line in lines if ": " in line and not line.startswith(("File ", "Traceback"))]
    return exceptions[-1] if exceptions else lines[-1]


def _rank(text: str) -> int:
    """Return how much an error says, as Beam's DataflowRunner ranks them: the user's traceback most."""
    return -1 if "work item was attempted" in text else int("Traceback" in text)
