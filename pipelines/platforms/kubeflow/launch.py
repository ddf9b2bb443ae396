"""Submit, watch, refresh and cancel runs on Kubeflow Pipelines."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, load
from slipway.pipelines.config.kubeflow import KubeflowSettings
from slipway.pipelines.platforms.kubeflow.checks import settings_of
from slipway.pipelines.platforms.kubeflow.server import Server
from slipway.pipelines.runs.record import ErrorRecord, RunFolder, RunRecord, Status, StepRecord, create, discard

STEPS = ("prepare_data", "plan_training", "train", "evaluate", "register_model")
POLL_SECONDS = 3.0
STATES: dict[str, Status] = {
    "RUNTIME_STATE_UNSPECIFIED": "pending",
    "PENDING": "pending",
    "RUNNING": "running",
    "PAUSED": "running",
    "CANCELING": "running",
    "SUCCEEDED": "succeeded",
    "SKIPPED": "skipped",
    "FAILED": "failed",
    "CANCELED": "cancelled",
}
ENDED = ("succeeded", "failed", "cancelled", "skipped")
EVENTS = {"running": "started", "succeeded": "finished", "failed": "failed", "cancelled": "cancelled"}


class Watcher(Protocol):
    """Receives a run's progress events."""

    def event(self, record: RunRecord, event: dict[str, Any]) -> None:
        """A step has started or ended."""


def submit(config: RunConfig) -> tuple[RunFolder, RunRecord]:
    """Start the run on the cluster; its folder, and its record with the server's id of it.

    Raises:
        UserError: The configuration cannot run there, no server answers, or it refuses; no run is left of it.
    """
    settings = settings_of(config)
    server = Server(settings)
    server.check()
    folder = create(config)
    names = [name for name in STEPS if settings.registers or name != "register_model"]
    record = RunRecord(
        run_id=folder.run_id,
        name=config.name,
        platform="kubeflow",
        hardware=config.hardware,
        created=datetime.now(UTC),
        steps=[StepRecord(name=name) for name in names],
    )
    try:
        _start(folder, record, config, server)
    except UserError:
        discard(folder)
        raise
    return folder, record


def resume(folder: RunFolder) -> RunRecord:
    """Start a run again that failed or was stopped, with the same output directory; as `submit`."""
    config = load(folder.configuration_file)
    server = Server(settings_of(config))
    server.check()
    earlier, record = folder.read(), folder.read()
    record.tries += 1
    record.status, record.error, record.ended, record.seconds, record.verdict = "running", None, None, None, None
    record.steps = [StepRecord(name=step.name) for step in record.steps]
    try:
        _start(folder, record, config, server)
    except UserError:
        folder.write(earlier)
        raise
    return record


def _start(folder: RunFolder, record: RunRecord, config: RunConfig, server: Server) -> None:
    """Compile and submit; a submission whose answer is lost is found by the name in the record."""
    record.job = record.console = None
    folder.write(record)
    compile_to(folder.specification_file, config)
    parameters = parameters_of(server.settings, record.run_id)
    record.job = server.submit(_name(record), folder.specification_file, parameters).run_id
    record.console = server.page(str(record.job))
    folder.write(record)


def _name(record: RunRecord) -> str:
    """Return the run's name on the server, which is unique for each attempt."""
    return record.run_id if record.tries == 1 else f"{record.run_id}-{record.tries}"


def compile_to(path: Path, config: RunConfig) -> None:
    """Write the pipeline spec with its Kubernetes platform spec."""
    from kfp import compiler

    from slipway.pipelines.platforms.kubeflow.steps import pipeline

    compiler.Compiler().compile(pipeline(config), str(path))


def parameters_of(settings: KubeflowSettings, run_id: str) -> dict[str, Any]:
    """The values of the pipeline's parameters; without a volume the output directory is left to the step train."""
    return {"run_id": run_id, "output": settings.place(f"runs/{run_id}")}


def refresh(folder: RunFolder) -> RunRecord:
    """The run's record with what the server knows now, written down."""
    record = folder.read()
    if record.status != "running":
        return record
    server = Server(settings_of(load(folder.configuration_file)))
    if _identify(record, server):
        _take(record, server.get(str(record.job)), server)
    folder.write(record)
    return record


def watch(folder: RunFolder, record: RunRecord, watcher: Watcher) -> RunRecord:
    """Follow the run to its end. An interruption leaves it going: it is the cluster's."""
    while True:
        before = {step.name: step.status for step in record.steps}
        record = refresh(folder)
        for step in record.steps:
            if step.status != before[step.name]:
                if before[step.name] == "pending" and step.status in ("succeeded", "failed"):
                    watcher.event(record, {"event": "started", "step": step.name})
                if step.status in EVENTS:
                    watcher.event(record, {"event": EVENTS[step.status], "step": step.name})
        if record.status != "running":
            return record
        time.sleep(POLL_SECONDS)


def cancel(folder: RunFolder) -> RunRecord:
    """Ask the server to end the run; the record says cancelled once the server does.

    Raises:
        UserError: The run has ended already.
    """
    record = refresh(folder)
    if record.status != "running" or record.job is None:
        raise UserError(f"Run {record.run_id} is not running; its status is {record.status}.", fix="slipway list")
    Server(settings_of(load(folder.configuration_file))).terminate(record.job)
    return refresh(folder)


def log_command(folder: RunFolder, record: RunRecord, only: str | None = None) -> str:
    """What prints the log of a step, by default of the one that runs or ran last.

    It is the run's page where the server names no pod.
    """
    server = Server(settings_of(load(folder.configuration_file)))
    details = _details(server.get(str(record.job))) if record.job else {}
    started = [
        details[name]
        for step in record.steps
        if (name := _task_name(step.name)) in details and only in (None, step.name)
    ]
    pods = [pod for task in started if str(task.state) != "PENDING" for pod in _pods(task)]
    return _kubectl(server, pods[-1]) if pods else server.page(str(record.job))


def _details(run: Any) -> dict[str, Any]:
    """What the server says of a run's tasks, by the task's name."""
    tasks = (run.run_details.task_details if run.run_details else None) or []
    return {str(task.display_name): task for task in tasks}


def _task_name(step: str) -> str:
    return step.replace("_", "-")


def _pods(task: Any) -> list[str]:
    return [child.pod_name for child in task.child_tasks or [] if child.pod_name]


def _kubectl(server: Server, pod: str) -> str:
    return f"kubectl -n {server.settings.namespace or 'kubeflow'} logs {pod} -c main"


def _identify(record: RunRecord, server: Server) -> bool:
    """Whether the server has the run; one whose submission was broken off is found by its name."""
    if record.job is None:
        found = server.find(_name(record))
        if found is None:
            record.status = "failed"
            record.error = ErrorRecord(
                step=None, message="The run was never submitted.", fix="slipway run --target kubeflow"
            )
            return False
        record.job = found.run_id
        record.console = server.page(record.job)
    return True


def _take(record: RunRecord, run: Any, server: Server) -> None:
    """Put what the server says of a run (V2beta1Run) into its record."""
    details = _details(run)
    for step in record.steps:
        task = details.get(_task_name(step.name))
        if task is not None:
            step.status = STATES.get(str(task.state), "pending")
            step.seconds = _seconds(task.start_time or task.create_time, task.end_time)
    record.status = STATES.get(str(run.state), "running")
    if record.status == "pending":
        record.status = "running"
    if record.status not in ENDED:
        return
    record.ended = run.finished_at
    record.seconds = _seconds(run.created_at, run.finished_at)
    for step in record.steps:
        if step.status == "pending":
            step.status = "skipped"
    if record.status == "failed":
        record.error = _error(record, run, details, server)
    elif record.status == "succeeded" and server.settings.registers:
        record.verdict = _verdict(record)


def _verdict(record: RunRecord) -> dict[str, Any]:
    """The gate's, as it shows in what ran: the server gives no step's outputs."""
    if record.step("register_model").status == "succeeded":
        return {"decision": "promote", "reasons": ["The step register_model was run."]}
    return {"decision": "reject", "reasons": ["The step register_model was skipped; the report says why."]}


def _error(record: RunRecord, run: Any, details: dict[str, Any], server: Server) -> ErrorRecord:
    """Why the run failed, as far as the server knows; the pod's own log says more."""
    failed = next((step.name for step in record.steps if step.status == "failed"), None)
    task = details.get(_task_name(failed)) if failed else None
    told = (task.error if task is not None else None) or run.error
    message = str(told.message) if told and told.message else "The server returned no reason."
    pods = _pods(task) if task is not None else []
    fix = _kubectl(server, pods[-1]) if pods else server.page(str(record.job))
    return ErrorRecord(step=failed, message=message, fix=fix)


def _seconds(start: datetime | None, end: datetime | None) -> float | None:
    """The seconds between two times, None where one is not known or is the server's zero."""
    if start is None or end is None or end.year < 2000:
        return None
    return round((end - start).total_seconds(), 3)
