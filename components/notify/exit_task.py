"""The work of a pipeline's exit task: find out how the run ended, and send the notice. It never fails."""

from __future__ import annotations

import re

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.explanation import explain, results
from slipway.components.cloud.retries import retried
from slipway.components.notify.channels import send
from slipway.components.notify.notice import Notice
from slipway.components.notify.settings import ExitTask
from slipway.core.values import JsonObject

JOB = re.compile(r"projects/[^/]+/locations/[^/]+/pipelineJobs/[^/]+")


def notify(settings: str, run: str, page: str, *, state: str, job: str | None, message: str | None) -> list[str]:
    """Send the notice about a run whose steps have ended; return what went wrong.

    Args:
        settings: An ExitTask as JSON.
        run: The run's id.
        page: The URL of its page.
        state: The final state of its steps: SUCCEEDED, FAILED or CANCELLED.
        job: The name of its job, as the platform passes it.
        message: The platform's error message, if any.
    """
    task = ExitTask.model_validate_json(settings)
    status = state.lower()
    found: JsonObject = {}
    problems = []
    if status == "failed":
        found = {"error": message or "The platform gave no reason.", "fix": f"slipway explain {run}"}
    if task.region and job and JOB.fullmatch(job):
        try:
            found |= _details(task, run, job, status)
        except Exception as error:
            problems.append(f"The job's details could not be read ({type(error).__name__}).")
    notice = Notice(
        run=run, name=task.name, where=task.where, hardware=task.hardware, status=status, page=page or None, **found
    )
    return problems + send(task.notify, notice, task.endpoints)


def _details(task: ExitTask, run: str, name: str, status: str) -> JsonObject:
    """Return what Vertex AI knows about the run, as fields of a Notice."""
    connection = Connection(str(task.facts["project"]), str(task.region), task.endpoints)
    job = retried(lambda: connection.pipelines.get_pipeline_job(name=name))
    found = results(job)
    if status == "failed":
        why = explain(connection, job, run, task.facts, task.steps.get)
        if why.step is not None:
            found |= {"step": why.step, "replica": why.replica, "error": why.message, "fix": why.fix}
    return found
