"""Submit, watch, refresh and cancel runs on Kubeflow Pipelines."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.components.cloud.retries import paced
from slipway.components.train.tuning import SearchSettings
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig, load
from slipway.pipelines.parameters import values_of
from slipway.pipelines.platforms.base import Say
from slipway.pipelines.platforms.kubeflow.access import check_before_run
from slipway.pipelines.platforms.kubeflow.checks import settings_of
from slipway.pipelines.platforms.kubeflow.server import Server
from slipway.pipelines.runs.continuing import submitting
from slipway.pipelines.runs.record import (
    EVENTS,
    ErrorRecord,
    RunFolder,
    RunRecord,
    Status,
    StepRecord,
    Watcher,
    create,
)
from slipway.pipelines.table import STEPS, absent_steps, step_of, steps_on
from slipway.pipelines.tuning.search import settings_of as search_of

if TYPE_CHECKING:
    from kfp_server_api import V2beta1PipelineTaskDetail, V2beta1Run

POLL_SECONDS = 3.0
# MaxParameterBytes in kubeflow/pipelines' backend/src/common/util/consts.go, of all parameters of a run as JSON.
MAX_PARAMETERS = 10_000
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


def submit(config: RunConfig, search: SearchSettings | None = None, say: Say = print) -> tuple[RunFolder, RunRecord]:
    """Submit a run, whose training may be a search; return its folder and its record, which has the server's id.

    Raises:
        UserError: The configuration is not supported, or the server is unreachable or refuses; no run folder remains.
    """
    settings = settings_of(config)
    server = Server(settings)
    server.check()
    check_before_run(settings, config.training_hardware, searches=search is not None)
    folder = create(config)
    absent = {
        "" if settings.registers else "register_model",
        "" if config.prepared else "prepare_data",
        *absent_steps(config.when if search is None else ""),
    }
    record = RunRecord(
        run_id=folder.run_id,
        name=config.name,
        platform="kubeflow",
        hardware=str(config.training_hardware),
        created=datetime.now(UTC),
        steps=[StepRecord(name=name) for name in steps_on("kubeflow") if name not in absent],
        searches=search is not None,
    )
    with submitting(folder, None, say):
        say("compiling the pipeline")
        _start(folder, record, config, server)
    return folder, record


def resume(folder: RunFolder, say: Say = print) -> RunRecord:
    """Resubmit a failed or cancelled run with the same output directory; see `submit`."""
    config = load(folder.configuration_file)
    server = Server(settings_of(config))
    server.check()
    earlier, record = folder.read(), folder.read()
    record.tries += 1
    record.status, record.error, record.ended, record.seconds = "running", None, None, None
    record.steps = [StepRecord(name=step.name) for step in record.steps]
    with submitting(folder, earlier, say):
        say("compiling the pipeline")
        _start(folder, record, config, server)
    return record


def _start(folder: RunFolder, record: RunRecord, config: RunConfig, server: Server) -> None:
    """Compile and submit; if the response is lost, the run is found by its name."""
    compile_to(folder.specification_file, config, search_of(config) if record.searches else None)
    parameters = parameters_of(config, record.run_id)
    check_parameters(parameters)
    record.job, record.console, record.requested = None, None, datetime.now(UTC)
    folder.write(record)
    record.job, record.requested = server.submit(_name(record), folder.specification_file, parameters).run_id, None
    record.console = server.page(str(record.job))
    folder.write(record)


def _name(record: RunRecord) -> str:
    """Return the run's name on the server, which is unique for each attempt."""
    return record.run_id if record.tries == 1 else f"{record.run_id}-{record.tries}"


def compile_to(path: Path, config: RunConfig, search: SearchSettings | None = None) -> None:
    """Write the pipeline spec with its Kubernetes platform spec."""
    from kfp import compiler

    from slipway.pipelines.platforms.kubeflow.steps import pipeline

    compiler.Compiler().compile(pipeline(config, search), str(path))


def parameters_of(config: RunConfig, run_id: str) -> JsonObject:
    """Return the pipeline's parameters; without a volume, the step train chooses the output directory."""
    return {"run_id": run_id, "output": settings_of(config).place(f"runs/{run_id}"), **values_of(config)}


def check_parameters(parameters: JsonObject) -> None:
    """Raise UserError if the server would refuse the parameters of a run for their length."""
    sizes = {name: len(json.dumps(value, ensure_ascii=False).encode()) for name, value in parameters.items()}
    size = len(json.dumps(parameters, ensure_ascii=False, separators=(",", ":")).encode())
    if size > MAX_PARAMETERS:
        longest = max(sizes, key=lambda name: sizes[name])
        raise UserError(
            f"The pipeline's parameters have {size:,} bytes, and Kubeflow Pipelines accepts {MAX_PARAMETERS:,}: "
            f"{longest} alone has {sizes[longest]:,}.",
            setting=longest,
            value=str(parameters[longest])[:60],
            allowed=f"{MAX_PARAMETERS:,} bytes for all values together",
            fix="write long values to a file of the project, or to the volume, and pass its name",
        )


def refresh(folder: RunFolder) -> RunRecord:
    """Return the run's record, updated from the server if the run has not ended, and write it."""
    record = folder.read()
    if record.status != "running":
        return record
    server = Server(settings_of(load(folder.configuration_file)))
    if _identify(record, server):
        _update(record, server.get(str(record.job)), server)
    folder.write(record)
    return record


def watch(folder: RunFolder, watcher: Watcher) -> RunRecord:
    """Refresh the record until the run ends; the watcher receives each change of a step's status."""
    record = folder.read()
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
        time.sleep(paced(POLL_SECONDS))


def cancel(folder: RunFolder) -> RunRecord:
    """Request the end of a running run; its status becomes cancelled when the server has stopped it."""
    while (record := refresh(folder)).requested is not None:
        time.sleep(paced(POLL_SECONDS))
    if record.status == "running":
        Server(settings_of(load(folder.configuration_file))).terminate(str(record.job))
    return refresh(folder)


def log_command(folder: RunFolder, record: RunRecord, only: str | None = None) -> str:
    """Return the command that prints the log of a step, by default of the last one that started.

    If the server names no pod, return the URL of the run's page.
    """
    server = Server(settings_of(load(folder.configuration_file)))
    details = _details(server.get(str(record.job))) if record.job else {}
    names = [_task_name(step.name) for step in record.steps if only in (None, step.name)]
    started = [details[name] for name in names if name in details]
    pods = [pod for task in started if str(task.state) != "PENDING" for pod in _pods(task)]
    return _kubectl(server, pods[-1]) if pods else server.page(str(record.job))


def _details(run: V2beta1Run) -> dict[str, V2beta1PipelineTaskDetail]:
    tasks = (run.run_details.task_details if run.run_details else None) or []
    return {str(task.display_name): task for task in tasks}


def _task_name(step: str) -> str:
    return STEPS[step].tasks_on("kubeflow")[-1].name


def _pods(task: V2beta1PipelineTaskDetail) -> list[str]:
    return [child.pod_name for child in task.child_tasks or [] if child.pod_name]


def _kubectl(server: Server, pod: str) -> str:
    return f"kubectl -n {server.settings.namespace or 'kubeflow'} logs {pod} -c main"


def _identify(record: RunRecord, server: Server) -> bool:
    """Return whether the server has the run; after an interrupted submission, find it by its name."""
    if record.job is None:
        server_run = server.find(_name(record))
        if server_run is None and record.is_being_submitted():
            return False
        if server_run is None:  # of what the server has created just now, it may not know at once
            time.sleep(paced(POLL_SECONDS))
            server_run = server.find(_name(record))
        record.requested = None
        if server_run is None:
            record.status = "failed"
            record.error = ErrorRecord(
                step=None, message="The run was never submitted.", fix="slipway run --target kubeflow"
            )
            return False
        record.job = server_run.run_id
        record.console = server.page(record.job)
    return True


def _update(record: RunRecord, run: V2beta1Run, server: Server) -> None:
    record.tracked = _mlflow_run(run)
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
    record.skip_pending()
    if record.status == "failed":
        record.error = _error(record, run, details, server)
    elif record.status == "succeeded" and server.settings.registers:
        record.step("evaluate").outputs = {"verdict": _verdict(record)}


def _mlflow_run(run: V2beta1Run) -> str | None:
    """Return the run that the server's MLflow plugin has created (KEP-12862); None if it has none."""
    plugin = (run.plugins_output or {}).get("mlflow")
    root = (plugin.entries or {}).get("root_run_id") if plugin else None
    return str(root.value) if root and root.value else None


def _verdict(record: RunRecord) -> JsonObject:
    """Return the gate's verdict, inferred from which steps ran: the server does not return the steps' outputs."""
    if record.step("register_model").status == "succeeded":
        return {"decision": "promote", "reasons": ["The step register_model was run."]}
    return {"decision": "not promoted", "reasons": ["The step register_model was skipped; the report says why."]}


def _error(
    record: RunRecord, run: V2beta1Run, details: dict[str, V2beta1PipelineTaskDetail], server: Server
) -> ErrorRecord:
    """Return why the run failed, as far as the server knows; the fix prints the pod's log."""
    # Also a task that does not end its step, such as the one that finds the champion.
    task = next((detail for name, detail in details.items() if str(detail.state) == "FAILED" and step_of(name)), None)
    cause = (task.error if task is not None else None) or run.error
    message = str(cause.message) if cause and cause.message else "The server returned no reason."
    pods = _pods(task) if task is not None else []
    fix = _kubectl(server, pods[-1]) if pods else server.page(str(record.job))
    return ErrorRecord(step=step_of(str(task.display_name)) if task else None, message=message, fix=fix)


def _seconds(start: datetime | None, end: datetime | None) -> float | None:
    """Return the seconds between two times; None if one is unknown (the server writes that as year 1)."""
    if start is None or end is None or end.year < 2000:
        return None
    return round((end - start).total_seconds(), 3)
