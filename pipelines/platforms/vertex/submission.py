"""Create exactly one PipelineJob from a configuration, even if responses are lost, and add it to its experiment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from slipway.components.cloud.connection import CALL_SECONDS, Connection
from slipway.components.cloud.operations import StillRunningError
from slipway.components.cloud.quick_import import TYPES, import_module
from slipway.components.cloud.refusals import refusal
from slipway.components.cloud.retries import is_conflict, is_transient, is_unreachable, retried
from slipway.components.cloud.rules import label
from slipway.components.train.tuning import SearchSettings
from slipway.core.errors import UserError
from slipway.core.git import git_commit
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.hardware import validate_for
from slipway.pipelines.hardware.placement import check_python
from slipway.pipelines.parameters import values_of
from slipway.pipelines.platforms.vertex.bucket import ARTIFACTS
from slipway.pipelines.platforms.vertex.facts import facts_of
from slipway.pipelines.platforms.vertex.images import Images
from slipway.pipelines.platforms.vertex.settings import vertex_of
from slipway.pipelines.platforms.vertex.tasks import YAML_LOADER

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import PipelineJob

CONFIGURATION_LABEL = "slipway-configuration"
COMMIT_LABEL = "slipway-commit"
FINGERPRINT_LETTERS = 16
# The metadata of a context that is an experiment, as the console and the SDK write it.
EXPERIMENT = {"schema_title": "system.Experiment", "schema_version": "0.0.1", "metadata": {"experiment_deleted": False}}


class UnansweredError(Exception):
    """A job may have been created; the cause is the error of the last attempt."""


def check_hardware(config: RunConfig) -> str:
    """Raise UserError for hardware that the region, engine or image does not support; return hardware and region."""
    vertex, hardware = vertex_of(config), config.training_hardware
    validate_for(
        hardware,
        region=vertex.region,
        engine=config.train.engine,
        image=config.train.image or vertex.image,
        own_program=config.train.program is not None,
    )
    if vertex.image is None and config.train.image is None:
        check_python(hardware, config.train.engine)
    return f"{hardware} in {vertex.region}"


def compile_pipeline(
    config: RunConfig,
    images: Images,
    target: Path,
    run_id: str | None = None,
    defaults: RunConfig | None = None,
    *,
    trained: bool = False,
    search: SearchSettings | None = None,
) -> None:
    """Write the pipeline spec; see `steps.pipeline` for the other arguments."""
    from kfp import compiler

    from slipway.pipelines.platforms.vertex.steps import pipeline

    compiler.Compiler().compile(pipeline(config, images, run_id, defaults, trained=trained, search=search), str(target))


def labels_of(config: RunConfig) -> dict[str, str]:
    """Return a job's labels: the configured ones, the configuration's fingerprint and the git commit."""
    labels = {**vertex_of(config).labels, CONFIGURATION_LABEL: config.fingerprint()[:FINGERPRINT_LETTERS]}
    commit = git_commit(Path.cwd())
    return {**labels, COMMIT_LABEL: label(commit)} if commit else labels


def pipeline_job(config: RunConfig, specification: Path) -> PipelineJob:
    """Return the PipelineJob of a configuration, which is the same for a manual run and a schedule.

    Args:
        config: The run's configuration.
        specification: The file with its pipeline spec.
    """
    vertex = vertex_of(config)
    pipeline = yaml.load(specification.read_text(), Loader=YAML_LOADER)
    for component in (pipeline["root"], *pipeline["components"].values()):
        for task in component.get("dag", {}).get("tasks", {}).values():
            task["cachingOptions"] = {"enableCache": False}  # kfp omits false: the spec has {}
    # Not the SDK's PipelineJob: it takes a second to import, and its submit() looks for the bucket at Google's public
    # address, creates a missing one, and hides all errors of that for up to a minute. Slipway checks the bucket before.
    job = import_module(f"{TYPES}.pipeline_job").PipelineJob(
        display_name=config.name,
        pipeline_spec=pipeline,
        runtime_config={
            "gcs_output_directory": f"{vertex.bucket}/{ARTIFACTS}",
            "parameter_values": values_of(config),
            "failure_policy": f"PIPELINE_FAILURE_POLICY_FAIL_{vertex.failure_policy.upper()}",
        },
        labels=labels_of(config),
        service_account=vertex.service_account or "",
        network=vertex.network or "",
    )
    if vertex.encryption_key:
        job.encryption_spec.kms_key_name = vertex.encryption_key
    return job


def submit(
    connection: Connection,
    job: PipelineJob,
    job_id: str,
    *,
    again: bool = False,
    requesting: Callable[[], None] = lambda: None,
) -> PipelineJob:
    """Create the job with a chosen id, so that a retry after a lost response finds it instead.

    Args:
        connection: The project and region.
        job: The job.
        job_id: Its id.
        again: Whether an earlier command may have created it.
        requesting: Called before each request that may create it.

    Returns:
        The job as the service stores it.

    Raises:
        UnansweredError: It may have been created.
        Exception: The client's error if the service refuses the job or cannot be reached.
    """
    request = {"parent": connection.parent, "pipeline_job": job, "pipeline_job_id": job_id}
    sent = again

    def create() -> PipelineJob:
        nonlocal sent
        requesting()
        try:
            return connection.pipelines.create_pipeline_job(request, timeout=CALL_SECONDS)
        except Exception as error:
            if not (sent and is_conflict(error)):
                sent = sent or not is_unreachable(error)
                raise
            # The id is unique to this run, so an earlier attempt created the job.
            return connection.pipelines.get_pipeline_job(name=f"{connection.parent}/pipelineJobs/{job_id}")

    try:
        return retried(create)
    except Exception as error:
        if sent and is_transient(error):
            raise UnansweredError from error
        raise


@contextlib.contextmanager
def refusals(config: RunConfig, doing: str, needs: str) -> Iterator[None]:
    """Convert errors of Vertex AI's clients, and operations that take too long, to UserError.

    Args:
        config: The configuration with the project.
        doing: What the calls are for, as a verb phrase.
        needs: The permission that they need.
    """
    from google.api_core.exceptions import GoogleAPIError

    try:
        yield
    except StillRunningError as error:
        raise UserError(
            f"Could not {doing} in time; Vertex AI continues ({error}).",
            fix="repeat the command later; it continues",
        ) from None
    except GoogleAPIError as error:
        raise refusal(error, vertex_of(config).connection, doing, needs, facts_of(config)) from None


def add_to_experiment(connection: Connection, experiment: str, job: PipelineJob) -> bool:
    """Add a job's run to an experiment, which is created if it is missing; repeating the call has no effect.

    Returns:
        Whether it was added: a job has a context only after it has started.
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
