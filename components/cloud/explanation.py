"""What a job of Vertex AI says: why it failed (step, custom job, replica, traceback), and what was evaluated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.known_errors import ASKED_AGAIN, first_recognized
from slipway.components.cloud.logs import SERVICE, LogLine, LogReader, not_noise
from slipway.components.cloud.retries import retried, status_of
from slipway.core.errors import ERROR_PREFIX, UserError
from slipway.core.values import JsonObject

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import CustomJob, PipelineJob, PipelineTaskDetail

# Out of memory, Vertex AI names the pool only.
REPLICA = re.compile(r"(?:[Tt]he replica|low on memory:) (?P<replica>workerpool\d+(?:-\d+)?)")
LINK = re.compile(r"\s*To find out more about why your job exited please check the logs: \S+")
TRACEBACK = "Traceback (most recent call last):"
TAIL_LINES = 24
LONGEST_TRACEBACK = 200
FAILED = "JOB_STATE_FAILED"
INFEASIBLE = "INFEASIBLE"  # of a trial: "done but missing the final_measurement"
LIST_ENTRIES = "logging.logEntries.list"
RESOURCES = "output:gcp_resources"
# Of FLEX_START, in seconds, where a job sets none (Scheduling.max_wait_duration).
DEFAULT_WAIT = 86400.0
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
    `trial` is the number of the search's trial that it executed, if any.
    """

    name: str
    message: str
    lines: list[LogLine]
    unread: str | None = None
    waited: float = 0.0
    trial: str | None = None


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
        facts: Values for the messages of known errors; see known_errors.recognize.
        step_of: Returns the step to which a task belongs, None for the pipeline's own tasks.
    """
    task = _first_failed(job, step_of)
    if task is None:
        found = first_recognized([job.error.message], facts)
        message = found.sentence if found else _parts(job.error.message)[0] or "The pipeline failed outside its steps."
        fix = found.fix if found else f"slipway logs {run_id}"
        return Explanation(step=None, message=message, fix=fix, moves=found.moves if found else ())
    step = step_of(task.task_name) or task.task_name
    failed = _failed_job(connection, custom_jobs(task))
    lines = failed.lines if failed else []
    replica = _replica(failed.message if failed else task.error.message, lines)
    mistake = _user_error(lines)
    texts = [failed.message if failed else "", task.error.message, job.error.message]
    message, quoted = _parts((failed and failed.message) or task.error.message)
    fix = f"slipway logs {run_id} --step {step}"
    texts += [line.text for line in reversed(lines)]  # the last known error is the one that ended the job
    if _asked_again(message) and replica and replica not in message:
        texts = [text for text in texts if not _asked_again(text)]
        message = f"The replica {replica} failed, and the others asked for another try because of it."
    found = first_recognized(sorted(texts, key=_asked_again), facts)
    moves: tuple[str, ...] = ()
    if mistake is not None:
        message, fix = str(UserError.from_dict({**mistake.as_dict(), "fix": None})), mistake.fix or fix
    elif found is not None:
        message, fix, moves = found.sentence, found.fix, found.moves
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
    own = task.executor_detail.custom_job_detail
    named = [*created, own.job, *own.failed_jobs, container.main_job, *container.failed_main_jobs]
    return list(dict.fromkeys(name for name in named if name))


def is_search(job: str) -> bool:
    """Return whether a job is a search, by its resource name."""
    return "/hyperparameterTuningJobs/" in job


def evaluation(task: PipelineTaskDetail) -> JsonObject:
    """Return what the step evaluate found, from its last task: metrics, verdict and the report's URI."""
    artifacts = {name: found.artifacts[0] for name, found in task.outputs.items() if found.artifacts}
    metadata = {name: dict(artifact.metadata or {}) for name, artifact in artifacts.items()}
    said = metadata["report"]
    verdict = {
        "decision": said.get("decision", ""),
        "reasons": [said.get("reasons", "")],
        "checked": bool(said.get("checked", True)),
    }
    found = {"metrics": numeric_metrics(metadata.get("metrics", {})), "metric": said.get("metric", "accuracy")}
    return {**found, "verdict": verdict, "report": artifacts["report"].uri}


def evaluated(job: PipelineJob) -> JsonObject:
    """Return what a job's step evaluate found, see `evaluation`; {} if it has not finished."""
    task = next((task for task in job.job_detail.task_details if task.task_name == "evaluate"), None)
    return evaluation(task) if task and "report" in task.outputs else {}


def results(job: PipelineJob) -> JsonObject:
    """Return the results of a job's steps that have finished, as fields of a Notice."""
    tasks = {task.task_name: task for task in job.job_detail.task_details}
    found: JsonObject = {}
    if measured := evaluated(job):
        verdict = measured["verdict"]
        found |= {"metrics": measured["metrics"], "report": measured["report"]}
        found |= {"decision": verdict["decision"], "reasons": tuple(verdict["reasons"])}
    if "register-version" in tasks and "registered" in tasks["register-version"].outputs:
        artifact = tasks["register-version"].outputs["registered"].artifacts[0]
        found["model"] = dict(artifact.metadata or {}).get("resourceName")
    return found


def numeric_metrics(metadata: Mapping[str, object]) -> dict[str, float]:
    """Return the metrics in an artifact's metadata by name, whose order there is arbitrary."""
    return {name: value for name, value in sorted(metadata.items()) if isinstance(value, int | float)}


def _first_failed(job: PipelineJob, step_of: Callable[[str], str | None]) -> PipelineTaskDetail | None:
    """Return the task that failed first; not a condition, which fails only because of a task in it."""
    failed = [task for task in job.job_detail.task_details if task.state.name == "FAILED"]
    known = [task for task in failed if step_of(task.task_name)] or failed
    return min(known, key=lambda task: task.end_time, default=None)


def _failed_job(connection: Connection, names: Iterable[str]) -> _FailedJob | None:
    """Return the first failed job; `names` has the jobs that a task created before those that executed it."""
    reader = LogReader(connection)
    candidates = []
    for name in names:
        if is_search(name):
            if (trial := _failed_trial(connection, reader, name)) is not None:
                return trial
            continue
        try:
            job = retried(lambda name=name: connection.jobs.get_custom_job(name=name))  # type: ignore[misc]
        except Exception as error:
            if status_of(error) == 404:
                continue
            raise
        lines, unread = _log(reader, name)
        candidates.append(_FailedJob(name, job.error.message, lines, unread, _waited(job)))
        if job.state.name == FAILED:
            return candidates[-1]
    return next((found for found in candidates if found.lines), None)


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


def _failed_trial(connection: Connection, reader: LogReader, name: str) -> _FailedJob | None:
    """Return the custom job of a search's first trial without a result; None if all have one."""
    search = retried(lambda: connection.jobs.get_hyperparameter_tuning_job(name=name))
    trial = next((trial for trial in search.trials if trial.state.name == INFEASIBLE), None)
    if trial is None:
        return None
    job = retried(lambda: connection.jobs.get_custom_job(name=trial.custom_job)) if trial.custom_job else search
    lines, unread = _log(reader, name)
    own = [line for line in lines if line.trial == trial.id]
    message = job.error.message or trial.infeasible_reason or search.error.message
    return _FailedJob(trial.custom_job or name, message, own, unread, trial=trial.id)


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
    """Return the replica that the service names, else the last that logged a traceback, else the last with an error.

    A replica that asked for another try is not to blame if another one logged a traceback.
    """
    blamed = REPLICA.search(message)
    own = [line for line in lines if line.replica != SERVICE]
    traced = [line.replica for line in own if TRACEBACK in line.text]
    if blamed:
        return traced[-1] if traced and _asked_again(message) else blamed["replica"]
    erred = [line.replica for line in own if line.severity in ("ERROR", "CRITICAL")]
    return next((found[-1] for found in (traced, erred) if found), None)


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


def _traceback(lines: list[LogLine], replica: str | None, quoted: str | None) -> str | None:
    """Return the last traceback of `replica`, else of any replica, else the one `quoted` by the service, else the last
    lines; None without a log.
    """
    own = [line for line in lines if line.replica != SERVICE]
    for some in ([line for line in own if replica and line.replica.startswith(replica)], own):
        starts = [number for number, line in enumerate(some) if TRACEBACK in line.text]
        if starts:
            return "\n".join(_until_the_exception(some[starts[-1] :]))
    if quoted:
        return quoted
    rest = [line for line in own if replica and line.replica.startswith(replica)] or own
    return "\n".join(line.text for line in rest[-TAIL_LINES:]) or None


def _until_the_exception(lines: list[LogLine]) -> list[str]:
    """Return the lines of one replica's traceback, up to the line that names the exception."""
    first = lines[0]
    texts = [first.text]
    for line in lines[1:LONGEST_TRACEBACK]:
        if line.replica != first.replica:
            continue
        texts.append(line.text)
        if line.text and not line.text.startswith((" ", "\t")):
            break
    return texts


def _parts(message: str) -> tuple[str, str | None]:
    """Return the service's message in one line, and the end of the traceback that it quotes, if it does.

    Without its link to the logs; `slipway logs` prints them.
    """
    text, start, rest = LINK.sub("", message).partition(TRACEBACK)
    return " ".join(text.split()), (start + rest).rstrip() or None
