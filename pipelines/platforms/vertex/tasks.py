"""The tasks of a pipeline job on Vertex AI as a run's steps: status, duration, outputs, custom jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from slipway.components.cloud.explanation import evaluation, numeric_metrics
from slipway.core.values import JsonObject
from slipway.pipelines.runs.record import EVENTS, RunRecord, Status, StepRecord
from slipway.pipelines.step import Task
from slipway.pipelines.table import STEPS, TASKS

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import Artifact, PipelineJob, PipelineTaskDetail

DONE = ("SUCCEEDED", "SKIPPED")
RUNNING = ("RUNNING", "CANCEL_PENDING", "CANCELLING")
RUN_STATUS: dict[str, Status] = {
    "PIPELINE_STATE_SUCCEEDED": "succeeded",
    "PIPELINE_STATE_FAILED": "failed",
    "PIPELINE_STATE_CANCELLED": "cancelled",
}
SPLITS = ("train", "validation", "test")
# The loader in C is ten times as fast; not every PyYAML has it.
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Change:
    """A step whose status has changed, and the event that tells a watcher so."""

    step: StepRecord
    event: str


def update(record: RunRecord, job: PipelineJob) -> list[Change]:
    """Update the record from a PipelineJob; return the steps whose status changed, in order."""
    tasks = {task.task_name: task for task in job.job_detail.task_details}
    record.job = job.name
    record.status = RUN_STATUS.get(job.state.name, "running")
    if record.status != "running":
        record.ended = job.end_time
        record.seconds = round((job.end_time - job.create_time).total_seconds(), 3)
    changes = []
    for step in record.steps:
        before = step.status
        details = [tasks[task.name] for task in _tasks(step.name) if task.name in tasks]
        _update_step(step, details, ended=job.end_time)
        step.reused = step.status == "succeeded" and _is_reused(step.name, details, trained=record.trained)
        if step.status != before and step.status in EVENTS:
            changes.append(Change(step, EVENTS[step.status]))
    return changes


def steps_of(specification: Path) -> list[str]:
    """Return the steps of a compiled pipeline in order."""
    components = yaml.load(specification.read_text(), Loader=YAML_LOADER)
    dags = [components["root"], *components["components"].values()]
    tasks = {task for component in dags for task in component.get("dag", {}).get("tasks", {})}
    return [name for name, step in STEPS.items() if (on := step.tasks_on("vertex")) and on[-1].name in tasks]


def _tasks(step: str) -> tuple[Task, ...]:
    return STEPS[step].tasks_on("vertex")


def _update_step(step: StepRecord, tasks: list[PipelineTaskDetail], *, ended: bool) -> None:
    step.status = _status(step, tasks, ended=ended)
    blocking = [task for task in tasks if not TASKS[task.task_name].concurrent]
    starts = [task.start_time for task in blocking if task.start_time]
    ends = [task.end_time for task in tasks if task.end_time]
    if step.status in ("succeeded", "failed", "cancelled") and starts and ends:
        step.seconds = round((max(ends) - min(starts)).total_seconds(), 3)
    if step.status == "succeeded":
        step.outputs = _outputs(step.name, {task.task_name: task for task in tasks})


def _status(step: StepRecord, tasks: list[PipelineTaskDetail], *, ended: bool) -> Status:
    states = {task.task_name: task.state.name for task in tasks}
    last = states.get(_tasks(step.name)[-1].name, "")
    if "FAILED" in states.values():
        return "failed"
    if last in DONE:
        return "succeeded"
    if "CANCELLED" in states.values():
        return "cancelled"
    if last == "NOT_TRIGGERED" or ended:
        return "skipped"
    blocking_states = [state for name, state in states.items() if not TASKS[name].concurrent]
    return "running" if any(state in (*RUNNING, *DONE) for state in blocking_states) else "pending"


@dataclass(frozen=True)
class Stored:
    """What the service stores of a step: its last task, and that task's first artifact of each output."""

    task: PipelineTaskDetail
    artifacts: Mapping[str, Artifact]

    def metadata(self, name: str) -> JsonObject:
        """Return the metadata of an artifact; {} if there is no such."""
        return dict(self.artifacts[name].metadata or {}) if name in self.artifacts else {}


def _outputs(step: str, tasks: Mapping[str, PipelineTaskDetail]) -> JsonObject:
    """Return a step's outputs in the form that local runs record, as far as the service stores them."""
    last = tasks[_tasks(step)[-1].name]
    stored = Stored(last, {name: value.artifacts[0] for name, value in last.outputs.items() if value.artifacts})
    needed, read = OUTPUTS.get(step, ("", lambda _: {}))
    return read(stored) if not needed or needed in stored.artifacts else {}


def _data(stored: Stored) -> JsonObject:
    examples = dict(stored.metadata("dataset").get("examples") or {})
    # The service sorts by name.
    names = [*(name for name in SPLITS if name in examples), *sorted(examples.keys() - set(SPLITS))]
    return {"dataset": stored.artifacts["dataset"].uri, "examples": {name: int(examples[name]) for name in names}}


def _drift(stored: Stored) -> JsonObject:
    page = stored.metadata("page")
    return {"decision": page["decision"], "reason": page["reason"], "page": stored.artifacts["page"].uri}


def _trained(stored: Stored) -> JsonObject:
    model = stored.metadata("model")
    trial = {"trial": model["trial"]} if "trial" in model else {}
    parameters = {"parameters": json.loads(model["parameters"])} if "parameters" in model else {}
    validation = numeric_metrics(stored.metadata("metrics"))
    return {"model": stored.artifacts["model"].uri, "validation": validation, **trial, **parameters}


def _evaluated(stored: Stored) -> JsonObject:
    name = "classification"
    return {**evaluation(stored.task), **({name: stored.artifacts[name].uri} if name in stored.artifacts else {})}


def _registered(stored: Stored) -> JsonObject:
    version = stored.metadata("registered")
    champion, checked = bool(version.get("champion", False)), bool(version.get("checked", True))
    return {"model": version["resourceName"], "champion": champion, "checked": checked}


def _deployed(stored: Stored) -> JsonObject:
    return {"version": str((stored.task.execution.metadata or {}).get("output:Output", ""))}


def _is_reused(step: str, tasks: list[PipelineTaskDetail], *, trained: bool) -> bool:
    """Return whether a succeeded step found its result: an existing data set, or the model of an earlier attempt."""
    if step == "prepare_data":
        outputs = next(task.outputs for task in tasks)
        pages = outputs["statistics"].artifacts if "statistics" in outputs else []
        return any((page.metadata or {}).get("reused") is True for page in pages)
    return step == "train" and trained


def _plan(task: PipelineTaskDetail) -> JsonObject:
    """Return the plan, which is part of the trainer's configuration in the first worker pool."""
    metadata: JsonObject = task.execution.metadata or {}
    try:
        pools = metadata["output:Output"]
        arguments = list(pools[0]["container_spec"]["args"])
        return dict(json.loads(arguments[arguments.index("--config") + 1])["plan"])
    except (KeyError, IndexError, TypeError, ValueError):
        return {}


# By step: the artifact without which it has no outputs, and what reads these.
OUTPUTS: Mapping[str, tuple[str, Callable[[Stored], JsonObject]]] = {
    "prepare_data": ("dataset", _data),
    "check_drift": ("page", _drift),
    "plan_training": ("", lambda stored: _plan(stored.task)),
    "train": ("model", _trained),
    "evaluate": ("report", _evaluated),
    "register_model": ("registered", _registered),
    "deploy": ("", _deployed),
}
