"""This machine, with the training on Cloud TPU VMs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from slipway.pipelines.cleaning.platform import WithCleaning
from slipway.pipelines.google.platform import WithProject
from slipway.pipelines.images.platform import WithImages
from slipway.pipelines.platforms.base import Platform, Say
from slipway.pipelines.platforms.capabilities import WithSetup, WithTrainerImage

if TYPE_CHECKING:
    from slipway.components.cloud.connection import Connection
    from slipway.components.train.tpu.settings import TpuSettings
    from slipway.pipelines.cleaning.cleaner import Age, Cleaner
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.hardware.prices import Bill
    from slipway.pipelines.images.images import Wanted
    from slipway.pipelines.platforms.base import Check, Context
    from slipway.pipelines.platforms.steps import PlatformSteps
    from slipway.pipelines.runs.record import RunFolder, RunRecord


class TpuPlatform(Platform, WithCleaning, WithImages, WithProject, WithSetup, WithTrainerImage):
    """Processes on this machine, of which the step train requests a TPU and trains on its VMs."""

    name = "tpu"
    title = "Cloud TPU"
    trains_in_image = True
    mounts_buckets = True
    extra = "cloud"
    stop_seconds = 600.0  # the service needs minutes to delete a TPU
    stopping = "a TPU that was requested is deleted first, which can take minutes"

    def checks(self) -> Sequence[Check]:
        from slipway.pipelines.platforms.tpu.doctor import CHECKS

        return CHECKS

    def check_hardware(self, context: Context) -> str:
        from slipway.pipelines.platforms.tpu.checks import request_of

        request = request_of(context.config)
        zones = ", ".join(request.settings.zones)
        return f"{context.config.training_hardware} in {zones}, with {request.runtime_version}"

    def bill(self, config: RunConfig) -> Bill | None:
        from slipway.pipelines.hardware.prices import Bill

        settings = _settings(config)
        if settings is None:
            return None
        return Bill(
            hardware=config.training_hardware,
            region=settings.region,
            seconds=3600 * settings.max_hours,
            tries=1 + config.train.restarts.at_most,
            setting="tpu.max_hours",
        )

    def training_seconds(self, folder: RunFolder, record: RunRecord) -> float:
        from slipway.components.train.tpu.job import TRAINING
        from slipway.pipelines.runs.timings import of_run

        return sum(part.seconds for part in of_run(folder, record) if part.phase.startswith(TRAINING))

    def connection(self, config: RunConfig) -> Connection:
        from slipway.pipelines.platforms.tpu.checks import settings_of

        return settings_of(config).connection

    def setup(self, config: RunConfig, *, apply: bool, as_json: bool) -> bool:
        from slipway.pipelines.platforms.tpu.checks import access_settings
        from slipway.pipelines.platforms.vertex.access import setup

        return setup([access_settings(config)], apply=apply, as_json=as_json)

    def image(self, config: RunConfig) -> str | None:
        settings = _settings(config)
        return settings.image if settings else None

    def image_context(self, context: Context) -> str:
        from slipway.pipelines.platforms.base import NotApplicableError

        settings = _settings(context.config)
        if settings is None or settings.image or context.config.train.image:
            raise NotApplicableError("no image is built")
        from slipway.pipelines.images.registry import check_builder, wanted_trainer

        check_builder(settings, settings.build.builder)
        return wanted_trainer(context.config, settings, lambda _line: None, without_git=not context.builds).title

    def builder(self, config: RunConfig) -> str:
        from slipway.pipelines.platforms.tpu.checks import settings_of

        return settings_of(config).build.builder

    def wanted_images(self, config: RunConfig, say: Say) -> dict[str, Wanted]:
        from slipway.pipelines.images.registry import wanted_trainer
        from slipway.pipelines.platforms.tpu.checks import settings_of

        return {"trainer": wanted_trainer(config, settings_of(config), say)}

    def build_images(self, config: RunConfig, log: TextIO, say: Say, builder: str | None) -> dict[str, str]:
        from slipway.pipelines.images.registry import trainer_image
        from slipway.pipelines.platforms.tpu.checks import settings_of

        return {"trainer": trainer_image(config, settings_of(config), log, say, builder)}

    def build_trainer(self, config: RunConfig, log: TextIO, say: Say) -> str:
        return self.build_images(config, log, say, None)["trainer"]

    def cleaner(self, age: Age, configured: Callable[[], RunConfig]) -> Cleaner:
        from slipway.pipelines.platforms.tpu.cleaning import TpuCleaner

        return TpuCleaner(configured(), age)

    def compile_to(self, path: Path, config: RunConfig, say: Say) -> None:
        from slipway.pipelines.images.registry import known_trainer
        from slipway.pipelines.platforms.local.steps import compile_to
        from slipway.pipelines.platforms.tpu.checks import settings_of

        compile_to(path, config, self.steps(known_trainer(config, settings_of(config), say)))

    def steps(self, trainer: str) -> PlatformSteps:
        from slipway.pipelines.platforms.tpu.steps import TpuSteps

        return TpuSteps(trainer)


def _settings(config: RunConfig) -> TpuSettings | None:
    from slipway.components.train.tpu.settings import TpuSettings

    return config.section(TpuSettings)
