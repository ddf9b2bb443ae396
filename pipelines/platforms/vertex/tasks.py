"""The tasks of a pipeline job on Vertex AI, read as a run's steps: status, time, outputs, custom jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slipway.pipelines.runs.record import RunRecord, Status, StepRecord

# A step's tasks in their order; the last one ends it.
STEP_TASKS: dict[str, tuple[str, ...]] = {
    "build_image": ("build-image",),
    "setup_access": ("setup-access",),
    "prepare_data": ("prepare-data",),
    "plan_training": ("plan-training",),
    "train": ("custom-training-job", "collect-model"),
    "evaluate": ("find-champion", "evaluate"),
    "register_model": ("register-version",),
}
# Runs beside the other steps: it neither begins the step that it belongs to nor ends it, but can fail it.
ASIDE = ("find-champion",)
DONE = ("SUCCEEDED", "SKIPPED")
RUNNING = ("RUNNING", "CANCEL_PENDING", "CANCELLING")
RUN_STATUS: dict[str, Status] = {
    "PIPELINE_STATE_SUCCEEDED": "succeeded",
    "PIPELINE_STATE_FAILED": "failed",
    "PIPELINE_STATE_CANCELLED": "cancelled",
}
SPLITS = ("train", "validation", "test")
# The one in C, where there is one, is ten times as fast.
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
RESOURCES = "output:gcp_resources"


@dataclass(frozen=True)
class Change:
    """A step whose status is another than at the last look."""

    step: StepRecord
    event: str


EVENTS: dict[Status, str] = {
    "running": "started",
    "succeeded": "finished",
    "failed": "failed",
    "cancelled": "cancelled",
}


def take_in(record: RunRecord, job: Any) -> list[Change]:
    """Put what a PipelineJob says into the record, in place; the steps that have changed, in their order."""
    tasks = {task.task_name: task for task in job.job_detail.task_details}
    record.job = job.name
    record.status = RUN_STATUS.get(job.state.name, "running")
    if record.status != "running":
        record.ended = job.end_time
        record.seconds = round((job.end_time - job.create_time).total_seconds(), 3)
    changes = []
    for step in record.steps:
        before = step.status
        _take_in_step(step, [tasks[name] for name in STEP_TASKS[step.name] if name in tasks], ended=job.end_time)
        if step.status != before and step.status in EVENTS:
            changes.append(Change(step, EVENTS[step.status]))
    _take_results(record)
    return changes


def custom_jobs(task: Any) -> list[str]:
    """The resource names of the custom jobs behind a task: first the one that it made, then those that it is."""
    made = []
    # A Struct as Google's messages give it: a mapping, where there is one.
    metadata: Mapping[str, Any] = task.execution.metadata or {}
    if metadata.get(RESOURCES):
        resources = json.loads(metadata[RESOURCES]).get("resources", [])
        uris = [resource["resourceUri"] for resource in resources if resource.get("resourceType") == "CustomJob"]
        made = [uri.partition("/v1/")[2] for uri in uris]
    container = task.executor_detail.container_detail
    own = task.executor_detail.custom_job_detail
    named = [*made, own.job, *own.failed_jobs, container.main_job, *container.failed_main_jobs]
    return list(dict.fromkeys(name for name in named if name))


def steps_of(specification: Path) -> list[str]:
    """The steps of a compiled pipeline, in their order."""
    components = yaml.load(specification.read_text(), Loader=YAML_LOADER)
    dags = [components["root"], *components["components"].values()]
    tasks = {task for component in dags for task in component.get("dag", {}).get("tasks", {})}
    return [step for step, names in STEP_TASKS.items() if names[-1] in tasks]


def step_of(task: str) -> str | None:
    """The step that a task belongs to; None for the pipeline's own (conditions)."""
    return next((step for step, tasks in STEP_TASKS.items() if task in tasks), None)


def _take_in_step(step: StepRecord, tasks: list[Any], *, ended: bool) -> None:
    step.status = _status(step, tasks, ended=ended)
    starts = [task.start_time for task in tasks if task.start_time and task.task_name not in ASIDE]
    ends = [task.end_time for task in tasks if task.end_time]
    if step.status in ("succeeded", "failed", "cancelled") and starts and ends:
        step.seconds = round((max(ends) - min(starts)).total_seconds(), 3)
    step.reused = bool(tasks) and all(task.state.name == "SKIPPED" for task in tasks if task.task_name not in ASIDE)
    if step.status == "succeeded":
        step.outputs = _outputs(step.name, {task.task_name: task for task in tasks})


def _status(step: StepRecord, tasks: list[Any], *, ended: bool) -> Status:
    states = {task.task_name: task.state.name for task in tasks}
    last = states.get(STEP_TASKS[step.name][-1], "")
    if "FAILED" in states.values():
        return "failed"
    if last in DONE:
        return "succeeded"
    if "CANCELLED" in states.values():
        return "cancelled"
    if last == "NOT_TRIGGERED" or ended:
        return "skipped"
    own = [state for name, state in states.items() if name not in ASIDE]
    return "running" if any(state in (*RUNNING, *DONE) for state in own) else "pending"


def _outputs(step: str, tasks: Mapping[str, Any]) -> dict[str, Any]:
    """A step's outputs as the local platform records them, as far as the service keeps them."""
    last = tasks[STEP_TASKS[step][-1]]
    artifacts = {name: found.artifacts[0] for name, found in last.outputs.items() if found.artifacts}
    metadata = {name: dict(artifact.metadata or {}) for name, artifact in artifacts.items()}
    if step == "prepare_data" and "dataset" in artifacts:
        found = dict(metadata["dataset"].get("examples") or {})
        counts = {name: int(found[name]) for name in sorted(found, key=_split_order)}
        return {"dataset": artifacts["dataset"].uri, "examples": counts}
    if step == "plan_training":
        return _plan(last)
    if step == "train" and "model" in artifacts:
        return {"model": artifacts["model"].uri, "validation": _figures(metadata.get("metrics", {}))}
    if step == "evaluate" and "report" in artifacts:
        report = metadata["report"]
        verdict = {
            "decision": report.get("decision", ""),
            "reasons": [report.get("reasons", "")],
            "checked": bool(report.get("checked", True)),
        }
        return {"metrics": _figures(metadata.get("metrics", {})), "verdict": verdict, "report": artifacts["report"].uri}
    if step == "register_model" and "registered" in artifacts:
        registered = metadata["registered"]
        said = {name: bool(registered.get(name, default)) for name, default in (("champion", False), ("checked", True))}
        return {"model": registered["resourceName"], **said}
    return {}


def _split_order(name: str) -> tuple[int, str]:
    """Training's split first: the service gives them in the alphabet's order."""
    return (SPLITS.index(name) if name in SPLITS else len(SPLITS), name)


def _plan(task: Any) -> dict[str, Any]:
    """The plan's figures, which stand in the trainer's configuration of the first worker pool."""
    pools: Any = (task.execution.metadata or {}).get("output:Output")
    try:
        arguments = list(pools[0]["container_spec"]["args"])
        return dict(json.loads(arguments[arguments.index("--config") + 1])["plan"])
    except (KeyError, IndexError, TypeError, ValueError):
        return {}


def _figures(metadata: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metadata.items() if isinstance(value, int | float)}


def _take_results(record: RunRecord) -> None:
    """What of the steps' outputs stands in the record's own fields."""
    for step in record.steps:
        if step.name == "evaluate" and step.outputs:
            record.metrics = step.outputs["metrics"]
            record.verdict = step.outputs["verdict"]
        elif step.name == "register_model" and step.outputs:
            record.model = step.outputs["model"]
