"""Create exactly one PipelineJob from a configuration, even if responses are lost, and add it to its experiment."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.components.build_image.project import git_commit
from slipway.components.cloud.connection import Connection
from slipway.components.cloud.operations import StillRunningError
from slipway.components.cloud.refusals import refusal
from slipway.components.cloud.retries import is_conflict, retried
from slipway.components.register_model.model_registry import label
from slipway.components.train.tuning import SearchSettings
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig, vertex_of
from slipway.pipelines.hardware import validate_for
from slipway.pipelines.hardware.placement import check_python
from slipway.pipelines.images.images import Images
from slipway.pipelines.parameters import values_of
from slipway.pipelines.platforms.bucket import ARTIFACTS
from slipway.pipelines.platforms.vertex.settings import VertexSettings
from slipway.serving.settings import container_spec
from slipway.trainer.engines.table import ENGINES

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import PipelineJob

CONFIGURATION_LABEL = "slipway-configuration"
COMMIT_LABEL = "slipway-commit"
FINGERPRINT_LETTERS = 16
# The metadata of a context that is an experiment, as the console and the SDK write it.
EXPERIMENT = {"schema_title": "system.Experiment", "schema_version": "0.0.1", "metadata": {"experiment_deleted": False}}

# https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/predictions/pre-built-containers
PREBUILT_PREDICTION = re.compile(r"(?:[a-z0-9-]+-)?docker\.pkg\.dev/vertex-ai(?:-restricted)?/prediction/([^:@/]+)")


def check_hardware(config: RunConfig) -> str:
    """Raise UserError for hardware that the region, engine or image does not support; return hardware and region."""
    vertex, hardware = vertex_of(config), config.parsed_hardware
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


def check_serving_image(settings: VertexSettings, config: RunConfig) -> None:
    """Check that an image serves the registered model: the configured one, or one that is built.

    Raises:
        UserError: None is built, or the configured one cannot serve the model.
    """
    if settings.serving_image is None:
        if settings.image is None:
            return
        raise UserError(
            "With vertex.image no images are built, but registering a model requires one that serves it.",
            setting="vertex.serving_image",
            value=None,
            allowed="an image that serves the model, by digest or by an immutable tag; or null, without vertex.image",
            fix="--set vertex.serving_image=IMAGE",
        )
    prebuilt, train = PREBUILT_PREDICTION.match(settings.serving_image), config.train
    if prebuilt is None:
        return
    if train.program is None and (reason := ENGINES[train.engine].not_prebuilt):
        what = f"models of the engine {train.engine}: {reason}"
    elif config.serve.module is not None:
        what = f"a model that {config.serve.module} loads: it has neither Slipway nor your code"
    else:
        return
    raise UserError(
        f"Google's prebuilt image {prebuilt[1]} cannot serve {what}.",
        setting="vertex.serving_image",
        value=settings.serving_image,
        allowed="null, for Slipway's image, which is built; or a custom image that serves them",
        fix="--set vertex.serving_image=null",
    )


def serving_container(config: RunConfig, images: Images) -> JsonObject:
    """Return the container that serves the registered model.

    Raises:
        UserError: See `check_serving_image`.
    """
    settings, module = vertex_of(config), config.serve.module
    check_serving_image(settings, config)
    if settings.serving_image is None:
        assert images.serving is not None  # one of `wanted_images`
        return container_spec(images.serving, module)
    own = {"env": container_spec("", module)["env"]} if module else {}
    return {"image_uri": settings.serving_image, **own}


def facts_of(config: RunConfig) -> dict[str, str | None]:
    """Return the values of a configuration that the messages of known errors contain."""
    vertex = vertex_of(config)
    return {
        "project": vertex.project,
        "region": vertex.region,
        "bucket": vertex.bucket.removeprefix("gs://"),
        "account": vertex.service_account,
    }


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
    from google.cloud import aiplatform
    from google.cloud.aiplatform_v1 import types

    vertex = vertex_of(config)
    made = aiplatform.PipelineJob(
        display_name=config.name,
        template_path=str(specification),
        # Required: the default contains the current time.
        job_id=config.name,
        pipeline_root=f"{vertex.bucket}/{ARTIFACTS}",
        parameter_values=values_of(config),
        # Explicit in every task, where the compiled spec has {}, as kfp omits false.
        enable_caching=False,
        failure_policy=vertex.failure_policy,
        project=vertex.project,
        location=vertex.region,
        credentials=vertex.connection.credentials,
    )
    # Its submit() is not used: it looks for the bucket at Google's public address, creates a missing one, and hides
    # all errors of that for up to a minute. Slipway checks the bucket before.
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


def submit(connection: Connection, job: PipelineJob, job_id: str, *, again: bool = False) -> PipelineJob:
    """Create the job with a chosen id, so that a retry after a lost response finds it instead.

    `again` says that an earlier command may have created it.

    Returns:
        The job as the service stores it.

    Raises:
        Exception: The client's error if the service refuses the job or is unreachable.
    """
    request = {"parent": connection.parent, "pipeline_job": job, "pipeline_job_id": job_id}
    tried = again

    def create() -> PipelineJob:
        nonlocal tried
        before, tried = tried, True
        try:
            return connection.pipelines.create_pipeline_job(request)
        except Exception as error:
            if not (before and is_conflict(error)):
                raise
            # The id is unique to this run, so an earlier attempt created the job.
            return connection.pipelines.get_pipeline_job(name=f"{connection.parent}/pipelineJobs/{job_id}")

    return retried(create)


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


def console_url(config: RunConfig, job_id: str) -> str:
    """Return the URL of a run's page in the console."""
    vertex = vertex_of(config)
    return (
        f"https://console.cloud.google.com/vertex-ai/locations/{vertex.region}/pipelines/runs/{job_id}"
        f"?project={vertex.project}"
    )


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
