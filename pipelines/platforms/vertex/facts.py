"""What steps, records and messages say of a run on Vertex AI: its container for serving, its facts and its page."""

from __future__ import annotations

import re
from dataclasses import replace

from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.hardware.quotas import DEFAULT_DISK_GB
from slipway.pipelines.hardware.rules import WEEK
from slipway.pipelines.platforms.vertex.images import Images
from slipway.pipelines.platforms.vertex.settings import VertexSettings, vertex_of
from slipway.serving.settings import container_spec
from slipway.trainer.engines.table import ENGINES

# https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/predictions/pre-built-containers
PREBUILT_PREDICTION = re.compile(r"(?:[a-z0-9-]+-)?docker\.pkg\.dev/vertex-ai(?:-restricted)?/prediction/([^:@/]+)")


# A custom program's batch size in its arguments, such as --per-device-train-batch-size=64.
BATCH_OPTION = re.compile(r"(?<!\S)(--?[\w-]*batch[-_]?size)[= ](\d+)(?!\S)")


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
        subject = f"models of the engine {train.engine}: {reason}"
    elif config.serve.module is not None:
        subject = f"a model that {config.serve.module} loads: it has neither Slipway nor your code"
    else:
        return
    raise UserError(
        f"Google's prebuilt image {prebuilt[1]} cannot serve {subject}.",
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
    environment = {"env": container_spec("", module)["env"]} if module else {}
    return {"image_uri": settings.serving_image, **environment}


def facts_of(config: RunConfig) -> dict[str, str | None]:
    """Return the values of a configuration that the messages and fixes of known errors contain."""
    vertex, hardware = vertex_of(config), config.training_hardware
    option, batch = _batch(config)
    return {
        "project": vertex.project,
        "region": vertex.region,
        "bucket": vertex.bucket.removeprefix("gs://"),
        "account": vertex.service_account,
        "batch_option": option,
        "batch": batch,
        "larger_disk": str(replace(hardware, disk_gb=2 * (hardware.disk_gb or DEFAULT_DISK_GB))),
        "longer": str(replace(hardware, timeout=min(2 * (hardware.timeout or WEEK), WEEK))),
    }


def _batch(config: RunConfig) -> tuple[str | None, str | None]:
    """Return the setting or the option of a custom program that is the batch size, and its value, if it is known."""
    train = config.train
    if train.program is None:
        return "train.batch_size", str(train.batch_size)
    match = BATCH_OPTION.search(" ".join(train.arguments))
    return (match[1], match[2]) if match else (None, None)


def console_url(config: RunConfig, job_id: str) -> str:
    """Return the URL of a run's page in the console."""
    vertex = vertex_of(config)
    return (
        f"https://console.cloud.google.com/vertex-ai/locations/{vertex.region}/pipelines/runs/{job_id}"
        f"?project={vertex.project}"
    )
