"""A run in a Vertex AI experiment: its pipeline's context becomes a child of the experiment's."""

from __future__ import annotations

from typing import Any

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import is_conflict, retried

# What marks a context as an experiment, for the console and the SDK alike.
EXPERIMENT = {"schema_title": "system.Experiment", "schema_version": "0.0.1", "metadata": {"experiment_deleted": False}}


def list_in_experiment(connection: Connection, experiment: str, job: Any) -> bool:
    """Put a PipelineJob's run into an experiment, which is made where it is not there; doing it twice does nothing.

    Returns:
        Whether it could be done: a job has a context only once it has begun.
    """
    child = job.job_detail.pipeline_run_context.name
    if not child:
        return False
    store = f"{connection.parent}/metadataStores/default"
    context = {**EXPERIMENT, "display_name": experiment}
    try:
        retried(lambda: connection.metadata.create_context(parent=store, context=context, context_id=experiment))
    except Exception as error:
        if not is_conflict(error):
            raise
    name = f"{store}/contexts/{experiment}"
    retried(lambda: connection.metadata.add_context_children(context=name, child_contexts=[child]))
    return True
