"""Create exactly one PipelineJob from a configuration, even if responses are lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import is_conflict, retried
from slipway.components.register_model.model_registry import label
from slipway.components.register_model.registry import git_commit
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, VertexSettings, vertex_of
from slipway.pipelines.images.images import Images

CONFIGURATION_LABEL = "slipway-configuration"
COMMIT_LABEL = "slipway-commit"
# How much of a fingerprint tells two configurations apart.
FINGERPRINT_LETTERS = 16
ARTIFACTS = "pipelines"


def serving_image_of(settings: VertexSettings) -> str:
    """The image that serves the registered model.

    Raises:
        UserError: None is named.
    """
    if settings.serving_image is None:
        raise UserError(
            "Registering a model requires a serving image.",
            setting="vertex.serving_image",
            value=None,
            allowed="an image that serves a SavedModel, by digest or by a tag that is never moved",
            fix="--set vertex.serving_image=IMAGE",
        )
    return settings.serving_image


def facts_of(config: RunConfig) -> dict[str, str | None]:
    """What of a configuration the sentences of known errors name."""
    vertex = vertex_of(config)
    return {
        "project": vertex.project,
        "region": vertex.region,
        "bucket": vertex.bucket.removeprefix("gs://"),
        "account": vertex.service_account,
    }


def compile_pipeline(config: RunConfig, images: Images, target: Path, run_id: str | None = None) -> None:
    """Write the pipeline's spec; `images` and `run_id` as `steps.pipeline` takes them."""
    from kfp import compiler

    from slipway.pipelines.platforms.vertex.steps import pipeline

    compiler.Compiler().compile(pipeline(config, images, run_id), str(target))


def labels_of(config: RunConfig) -> dict[str, str]:
    """A job's labels: the configuration's own, its fingerprint, and the commit that it is run from."""
    labels = {**vertex_of(config).labels, CONFIGURATION_LABEL: config.fingerprint()[:FINGERPRINT_LETTERS]}
    commit = git_commit(Path.cwd())
    return {**labels, COMMIT_LABEL: label(commit)} if commit else labels


def pipeline_job(config: RunConfig, specification: Path) -> Any:
    """The PipelineJob (aiplatform_v1) of a configuration, for a run by hand and for a schedule alike.

    Args:
        config: The run's configuration.
        specification: Its compiled pipeline.
    """
    from google.cloud import aiplatform
    from google.cloud.aiplatform_v1 import types

    vertex = vertex_of(config)
    made = aiplatform.PipelineJob(
        display_name=config.name,
        template_path=str(specification),
        # A job id has to be given here, or one with the time in it is made up.
        job_id=config.name,
        pipeline_root=f"{vertex.bucket}/{ARTIFACTS}",
        failure_policy=vertex.failure_policy,
        project=vertex.project,
        location=vertex.region,
        credentials=vertex.connection.credentials,
    )
    # Its submit() would first look for the bucket at Google's public address, make one where it sees none, swallow
    # every error of that for up to a minute, and go on. The bucket is checked before; here only the job is made.
    job = types.PipelineJob(
        display_name=config.name,
        pipeline_spec=made.pipeline_spec,
        runtime_config=made.runtime_config,
        labels=labels_of(config),
        service_account=vertex.service_account or "",
        network=vertex.network or "",
    )
    if vertex.encryption_key:
        job.encryption_spec.kms_key_name = vertex.encryption_key
    return job


def submit(connection: Connection, job: Any, job_id: str) -> Any:
    """Make the job under the id that we chose: a second try that finds it there has nothing left to do.

    Returns:
        The job as the service has it.

    Raises:
        Exception: The service refuses it, or cannot be reached: its client's own error.
    """
    request = {"parent": connection.parent, "pipeline_job": job, "pipeline_job_id": job_id}
    tried = False

    def create() -> Any:
        nonlocal tried
        again, tried = tried, True
        try:
            return connection.pipelines.create_pipeline_job(request)
        except Exception as error:
            if not (again and is_conflict(error)):
                raise
            # Only an earlier try of ours can have made it: the id is of this run alone.
            return connection.pipelines.get_pipeline_job(name=f"{connection.parent}/pipelineJobs/{job_id}")

    return retried(create)


def console_url(config: RunConfig, job_id: str) -> str:
    """Where the console shows a run."""
    vertex = vertex_of(config)
    return (
        f"https://console.cloud.google.com/vertex-ai/locations/{vertex.region}/pipelines/runs/{job_id}"
        f"?project={vertex.project}"
    )
