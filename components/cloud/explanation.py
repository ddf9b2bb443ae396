"""What a job of Vertex AI says: why it failed (step, custom job, replica, traceback), and what was evaluated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.known_errors.error import Recognized
from slipway.components.cloud.known_errors.jobs import ASKED_AGAIN
from slipway.components.cloud.known_errors.table import (
    first_recognized,
    own_words,
    recognize_program,
    recognize_status,
)
from slipway.components.cloud.logs import SERVICE, LogLine, LogReader, not_noise
from slipway.components.cloud.refusals import answers_ignored
from slipway.components.cloud.retries import existing, retried, status_of
from slipway.components.cloud.tracebacks import TRACEBACK, exceptions, last_traceback, without_process
from slipway.core.errors import ERROR_PREFIX, UserError
from slipway.core.values import JsonObject

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import CustomJob, PipelineJob, PipelineTaskDetail

# Out of memory, Vertex AI names the pool only.
REPLICA = re.compile(r"(?:[Tt]he replica|low on memory:) (?P<replica>workerpool\d+(?:-\d+)?)")
EXITED = "exited with a non-zero status"
# Statuses of a replica that SIGKILL, SIGTERM, SIGBUS or SIGILL ended, and no exception.
SIGNALLED = re.compile(EXITED + r" of (?:137|143|135|132|9|15|7|4)\b")
LINK = re.compile(r"\s*To find out more about why your job exited please check the logs: \S+")
# How a message is wrapped that one of Google's services passes on from another one.
WRAPPED = re.compile(r"com\.google\.\S+Exception: code=\w+, message=(?P<message>.*?)[,;] cause=\w+", re.DOTALL)
TAIL_LINES = 24
CANCELLED_ELSEWHERE = "The job was cancelled, but not by Slipway: in the console, or by gcloud."
FAILED, CANCELLED = "JOB_STATE_FAILED", "JOB_STATE_CANCELLED"
INFEASIBLE = "INFEASIBLE"  # of a trial: "done but missing the final_measurement"
LIST_ENTRIES = "logging.logEntries.list"
RESOURCES = "output:gcp_resources"
# Of FLEX_START, in seconds, where a job sets none (Scheduling.max_wait_duration).
DEFAULT_WAIT = 86400.0
# Of a custom job, in seconds, where it sets none (Scheduling.timeout), and how late it may be stopped.
DEFAULT_TIMEOUT = 7 * 86400.0
LATE = 60.0
# The jobs that launchers create: a training, or a search.
KINDS = ("CustomJob", "HyperparameterTuningJob")


@dataclass(frozen=True)
class Explanation:
    """Why a run failed; the fields are those of a run's ErrorRecord.

    `moves` are the provisioning modes with which it may succeed elsewhere; see known_errors.KnownError.
    """

    step: str | None
    message: str
    setting: str | None = None
    fix: str | None = None
    traceback: str | None = None
    job: str | None = None
    replica: str | None = None
    moves: tuple[str, ...] = ()


@dataclass(frozen=True)
class _FailedJob:
    """A failed custom job: its resource name, the service's message, and its log or why that could not be read.

    `waited` is for how many seconds it waited for machines in vain, as FLEX_START does; 0 if that is not why it failed.
    `trial` is the number of the search's trial that it executed, if any. `stopped` is why it was cancelled, and with
    which fix, if it was.
    """

    name: str
    message: str
    lines: list[LogLine]
    unread: str | None = None
    waited: float = 0.0
    trial: str | None = None
    stopped: tuple[str, str] | None = None


def explain(
    connection: Connection,
    job: PipelineJob,
    run_id: str,
    facts: Mapping[str, str | None],
    step_of: Callable[[str], str | None],
) -> Explanation:
    """Return why a PipelineJob failed.

    Args:
        connection: The project and region of the job.
        job: The failed job.
        run_id: The run's id, for the commands in the fix.
        facts: Values for the messages of known errors; see known_errors.table.recognize.
        step_of: Returns the step to which a task belongs, None for the pipeline's own tasks.
    """
    task = _first_failed(job, step_of)
    if task is None:
        known = first_recognized([job.error.message], facts)
        message = known.sentence if known else _parts(job.error.message)[0] or "The pipeline failed outside its steps."
        fix = known.fix if known else f"slipway logs {run_id}"
        return Explanation(step=None, message=message, fix=fix, moves=known.moves if known else ())
    step = step_of(task.task_name) or task.task_name
    failed = _failed_job(connection, custom_jobs(task), run_id, facts)
    lines = failed.lines if failed else []
    messages = [failed.message if failed else "", task.error.message, job.error.message]
    message, quoted = _parts(next((text for text in messages if text), ""))
    replica = _replica(message, lines)
    mistake = _user_error(lines)
    fix = f"slipway logs {run_id} --step {step}"
    lost_another = _asked_again(message) and replica is not None and replica not in message
    if lost_another:
        message = f"The replica {replica} failed, and the others asked for another try because of it."
    known = _recognized(messages, lines, _log_of(lines, replica) or (quoted or "").splitlines(), facts, lost_another)
    moves: tuple[str, ...] = ()
    if mistake is not None:
        message, fix = str(UserError.from_dict({**mistake.as_dict(), "fix": None})), mistake.fix or fix
    elif failed is not None and failed.stopped:
        message, fix = failed.stopped
    elif known is not None:
        message, fix, moves = known.sentence, known.fix, known.moves
    elif failed is not None and failed.waited:
        message = f"No machines of this kind were free within {failed.waited / 3600:.1f} hours: {message}"
        fix, moves = (
            "slipway run --resume latest, later; or a longer wait: --hardware 'CHOICE+flex+wait=24h'",
            ("flex",),
        )
    if failed is not None and failed.trial:
        message = f"Trial {failed.trial}: {message}"
    if failed is not None and failed.unread:
        message += f"\nIts log could not be read: {failed.unread}"
    return Explanation(
        step=step,
        message=message,
        setting=mistake.setting if mistake else None,
        fix=fix,
        traceback=mistake.traceback if mistake else _traceback(lines, replica, quoted),
        job=failed.name if failed else None,
        replica=replica,
        moves=moves,
    )


def _recognized(
    messages: list[str], lines: list[LogLine], program: list[str], facts: Mapping[str, str | None], lost_another: bool
) -> Recognized | None:
    """Return the known error of a failed task: of the service's, of the program's, or a replica's exit status.

    Args:
        messages: What the service says about the job, the task and the pipeline.
        lines: The job's log. The service's own lines count if no replica ended the job; they are also of earlier tries.
        program: The failed replica's log.
        facts: See `explain`.
        lost_another: Whether the status is that of a replica that only lost another one.
    """
    if known := first_recognized(messages, facts):
        return known
    texts = [] if any(EXITED in text for text in messages) else list(reversed(_own_lines(lines)))
    signalled = not lost_another and any(SIGNALLED.search(text) for text in messages)
    raised = [] if signalled else exceptions(program)
    return (
        first_recognized(texts, facts)
        or recognize_program(raised, [without_process(line) for line in program], facts)
        or (
            None
            if lost_another
            else next((known for text in messages if (known := recognize_status(text, facts))), None)
        )
    )


def _own_lines(lines: list[LogLine]) -> list[str]:
    """Return the service's own lines of a log, without those in which it quotes a program."""
    texts, quoting = [], False
    for line in lines:
        if line.replica == SERVICE:
            words = own_words(line.text)
            quoting = quoting or words != line.text
            if not quoting:
                texts.append(line.text)
            quoting = quoting and not LINK.search(line.text)
    return texts


def custom_jobs(task: PipelineTaskDetail) -> list[str]:
    """Return the resource names of a task's jobs: first those it created, then the custom jobs that executed it.

    A search is a job whose trials are custom jobs.
    """
    created = []
    metadata: JsonObject = task.execution.metadata or {}  # None without an execution
    if metadata.get(RESOURCES):
        resources = json.loads(metadata[RESOURCES]).get("resources", [])
        uris = [resource["resourceUri"] for resource in resources if resource.get("resourceType") in KINDS]
        created = [uri.partition("/v1/")[2] for uri in uris]
    container = task.executor_detail.container_detail
    custom_job = task.executor_detail.custom_job_detail
    named = [*created, custom_job.job, *custom_job.failed_jobs, container.main_job, *container.failed_main_jobs]
    return list(dict.fromkeys(name for name in named if name))


def is_search(job: str) -> bool:
    """Return whether a job is a search, by its resource name."""
    return "/hyperparameterTuningJobs/" in job


def evaluation(task: PipelineTaskDetail) -> JsonObject:
    """Return what the step evaluate found, from its last task: metrics, verdict and the report's URI."""
    artifacts = {name: output.artifacts[0] for name, output in task.outputs.items() if output.artifacts}
    metadata = {name: dict(artifact.metadata or {}) for name, artifact in artifacts.items()}
    report = metadata["report"]
    verdict = {
        "decision": report.get("decision", ""),
        "reasons": [report.get("reasons", "")],
        "checked": bool(report.get("checked", True)),
    }
    measured = {"metrics": numeric_metrics(metadata.get("metrics", {})), "metric": report.get("metric", "accuracy")}
    return {**measured, "verdict": verdict, "report": artifacts["report"].uri}


def evaluated(job: PipelineJob) -> JsonObject:
    """Return what a job's step evaluate found, see `evaluation`; {} if it has not finished."""
    task = next((task for task in job.job_detail.task_details if task.task_name == "evaluate"), None)
    return evaluation(task) if task and "report" in task.outputs else {}


def results(job: PipelineJob) -> JsonObject:
    """Return the results of a job's steps that have finished, as fields of a Notice."""
    tasks = {task.task_name: task for task in job.job_detail.task_details}
    fields: JsonObject = {}
    if measured := evaluated(job):
        verdict = measured["verdict"]
        fields |= {"metrics": measured["metrics"], "report": measured["report"]}
        fields |= {"decision": verdict["decision"], "reasons": tuple(verdict["reasons"])}
    if "register-version" in tasks and "registered" in tasks["register-version"].outputs:
        artifact = tasks["register-version"].outputs["registered"].artifacts[0]
        fields["model"] = dict(artifact.metadata or {}).get("resourceName")
    return fields


def numeric_metrics(metadata: Mapping[str, object]) -> dict[str, float]:
    """Return the metrics in an artifact's metadata by name, whose order there is arbitrary."""
    return {name: value for name, value in sorted(metadata.items()) if isinstance(value, int | float)}


def _first_failed(job: PipelineJob, step_of: Callable[[str], str | None]) -> PipelineTaskDetail | None:
    """Return the task that failed first; not a condition, which fails only because of a task in it."""
    failed = [task for task in job.job_detail.task_details if task.state.name == "FAILED"]
    known = [task for task in failed if step_of(task.task_name)] or failed
    return min(known, key=lambda task: task.end_time, default=None)


def _failed_job(
    connection: Connection, names: Iterable[str], run_id: str, facts: Mapping[str, str | None]
) -> _FailedJob | None:
    """Return the first failed job; `names` has the jobs that a task created before those that executed it."""
    reader = LogReader(connection)
    candidates = []
    for name in names:
        if is_search(name):
            if (trial := _failed_trial(connection, reader, name, run_id, facts)) is not None:
                return trial
            continue
        job = existing(lambda name=name: connection.jobs.get_custom_job(name=name))  # type: ignore[misc]
        if job is None:
            continue
        lines, unread = _log(reader, name)
        waited, stopped = _waited(job), None
        if job.state.name == CANCELLED and not waited:
            stopped = _stopped(connection, job, run_id, facts)
        candidates.append(_FailedJob(name, job.error.message, lines, unread, waited, stopped=stopped))
        if job.state.name in (FAILED, CANCELLED):
            return candidates[-1]
    return next((candidate for candidate in candidates if candidate.lines), None)


def _stopped(connection: Connection, job: CustomJob, run_id: str, facts: Mapping[str, str | None]) -> tuple[str, str]:
    """Return why a job was cancelled that the run has not cancelled, and the fix.

    A job that reaches its timeout is cancelled without an error: https://github.com/tensorflow/tfx/issues/6223.
    """
    limit = job.job_spec.scheduling.timeout.total_seconds() if job.job_spec.scheduling.timeout else DEFAULT_TIMEOUT
    ran = (job.end_time - job.start_time).total_seconds() if job.start_time and job.end_time else 0.0
    saved = _checkpoint(connection, job)
    resume = f"slipway run --resume {run_id}, which continues from {saved or 'the beginning'}"
    if ran < limit - LATE:
        return CANCELLED_ELSEWHERE, resume
    hours = f"{limit / 3600:,.3g} h"
    message = f"Vertex AI stopped the job when it reached its limit of {hours} (+timeout of the hardware)."
    if saved is None and limit < DEFAULT_TIMEOUT:
        longer = f"slipway run -c runs/{run_id}/config.yaml --target vertex --hardware '{facts.get('longer')}'"
        return f"{message} No checkpoint was saved.", longer
    return message, f"{resume}, with another {hours}"


def _checkpoint(connection: Connection, job: CustomJob) -> str | None:
    """Return from which checkpoint a resumed run continues; None if there is none, or the bucket cannot be read."""
    from slipway.trainer.checkpoint.store import POINTER

    bucket, _, path = job.job_spec.base_output_directory.output_uri_prefix.removeprefix("gs://").partition("/")
    folder = f"{path.rstrip('/')}/checkpoints/"
    if not bucket:
        return None
    with answers_ignored():
        pointer = existing(lambda: connection.storage.bucket(bucket).blob(f"{folder}{POINTER}").download_as_bytes())
        if pointer is not None and (step := re.fullmatch(rb"step-(\d+)\s*", pointer)):
            return f"the checkpoint of step {int(step[1]):,}"
        if retried(lambda: list(connection.storage.list_blobs(bucket, prefix=folder, max_results=1))):
            return f"what the program has saved in gs://{bucket}/{folder}"
    return None


def _waited(job: CustomJob) -> float:
    """Return for how many seconds a FLEX_START job waited for machines, if that was as long as it may wait; else 0.

    https://cloud.google.com/vertex-ai/docs/training/schedule-jobs-dws; no report has the words of such a job's error.
    """
    scheduling = job.job_spec.scheduling
    if scheduling.strategy.name != "FLEX_START" or job.start_time or not job.end_time:
        return 0.0
    seconds = (job.end_time - job.create_time).total_seconds()
    longest = scheduling.max_wait_duration.total_seconds() if scheduling.max_wait_duration else DEFAULT_WAIT
    return seconds if seconds >= longest else 0.0


def _failed_trial(
    connection: Connection, reader: LogReader, name: str, run_id: str, facts: Mapping[str, str | None]
) -> _FailedJob | None:
    """Return the custom job of a search's first trial without a result, else the search if it was cancelled."""
    search = retried(lambda: connection.jobs.get_hyperparameter_tuning_job(name=name))
    trial = next((trial for trial in search.trials if trial.state.name == INFEASIBLE), None)
    if trial is None:
        again = f"slipway run --resume {run_id}, which begins the search again"
        is_cancelled = search.state.name == CANCELLED
        return _FailedJob(name, "", [], stopped=(CANCELLED_ELSEWHERE, again)) if is_cancelled else None
    job = retried(lambda: connection.jobs.get_custom_job(name=trial.custom_job)) if trial.custom_job else search
    lines, unread = _log(reader, name)
    trial_lines = [line for line in lines if line.trial == trial.id]
    message = job.error.message or trial.infeasible_reason or search.error.message
    stopped = _stopped(connection, job, run_id, facts) if trial.custom_job and job.state.name == CANCELLED else None
    return _FailedJob(trial.custom_job or name, message, trial_lines, unread, trial=trial.id, stopped=stopped)


def _log(reader: LogReader, job: str) -> tuple[list[LogLine], str | None]:
    """Return a job's log without the libraries' start-up messages; without permission to read it, the reason."""
    try:
        return not_noise(reader.read([job])), None
    except Exception as error:
        if status_of(error) not in (401, 403):
            raise
        reason = _parts(str(getattr(error, "reason", None) or error))[0]
        return [], reason if LIST_ENTRIES in reason else f"{reason} ({LIST_ENTRIES} is missing)"


def _replica(message: str, lines: list[LogLine]) -> str | None:
    """Return the replica that the service names, else the last that ended with an exception, else with an error.

    A replica that asked for another try is not to blame if an exception ended another one.
    """
    blamed = REPLICA.search(message)
    replica_lines = [line for line in lines if line.replica != SERVICE]
    names = dict.fromkeys(line.replica for line in replica_lines if TRACEBACK in line.text)
    traced = [name for name in names if exceptions([line.text for line in replica_lines if line.replica == name])]
    if blamed:
        return traced[-1] if traced and _asked_again(message) else blamed["replica"]
    erred = [line.replica for line in replica_lines if line.severity in ("ERROR", "CRITICAL")]
    return next((replicas[-1] for replicas in (traced, erred) if replicas), None)


def _asked_again(text: str) -> bool:
    return re.search(ASKED_AGAIN, text) is not None


def _user_error(lines: list[LogLine]) -> UserError | None:
    """Return the UserError that a step or the trainer wrote to its log as JSON."""
    for line in reversed(lines):
        if line.text.startswith(ERROR_PREFIX):
            try:
                return UserError.from_dict(json.loads(line.text.removeprefix(ERROR_PREFIX)))
            except (ValueError, TypeError):
                continue
    return None


def _of(replica: str | None, lines: list[LogLine]) -> list[LogLine]:
    """Return the lines of a replica, or of the replicas of a pool."""
    return [line for line in lines if replica and (line.replica == replica or line.replica.startswith(f"{replica}-"))]


def _log_of(lines: list[LogLine], replica: str | None) -> list[str]:
    """Return the failed replica's log; of several, that of the last one with a traceback."""
    replica_lines = _of(replica, lines)
    traced = [line.replica for line in replica_lines if TRACEBACK in line.text]
    return [line.text for line in replica_lines if not traced or line.replica == traced[-1]]


def _traceback(lines: list[LogLine], replica: str | None, quoted: str | None) -> str | None:
    """Return the last traceback of `replica`, else of any replica, else the one `quoted` by the service, else the last
    lines; None without a log.
    """
    replica_lines = [line for line in lines if line.replica != SERVICE]
    traced = [line.replica for line in replica_lines if TRACEBACK in line.text]
    for some in (_log_of(lines, replica), _log_of(replica_lines, traced[-1] if traced else None)):
        if shown := last_traceback(some):
            return "\n".join(shown)
    if quoted:
        return quoted
    rest = _of(replica, replica_lines) or replica_lines
    return "\n".join(line.text for line in rest[-TAIL_LINES:]) or None


def _parts(message: str) -> tuple[str, str | None]:
    """Return the service's message in one line, and the end of the traceback that it quotes, if it does.

    Without its link to the logs (`slipway logs` prints them), and without what another service has wrapped it in.
    """
    wrapped = WRAPPED.search(message)
    text, start, rest = LINK.sub("", wrapped["message"] if wrapped else message).partition(TRACEBACK)
    return " ".join(text.split()), (start + rest).rstrip() or None
