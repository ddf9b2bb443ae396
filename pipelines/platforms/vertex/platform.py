"""Vertex AI Pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from slipway.core.errors import UserError
from slipway.pipelines.cleaning.platform import WithCleaning
from slipway.pipelines.google.platform import WithProject
from slipway.pipelines.images.platform import WithImages
from slipway.pipelines.notification.platform import WithNotification
from slipway.pipelines.platforms.base import RemotePlatform, Say
from slipway.pipelines.platforms.capabilities import BatchJob, WithBatches, WithSetup
from slipway.pipelines.tuning.platform import WithSearch

if TYPE_CHECKING:
    from slipway.components.cloud.connection import Connection
    from slipway.components.notify.settings import NotifySettings
    from slipway.components.train.tuning import SearchSettings
    from slipway.pipelines.cleaning.cleaner import Age, Cleaner
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.hardware.prices import Bill
    from slipway.pipelines.images.images import Wanted
    from slipway.pipelines.platforms.base import Check, Context
    from slipway.pipelines.platforms.vertex.settings import VertexSettings
    from slipway.pipelines.runs.record import RunFolder, RunRecord, Watcher
    from slipway.pipelines.runs.running import Running


class VertexPlatform(
    RemotePlatform, WithBatches, WithCleaning, WithImages, WithNotification, WithProject, WithSearch, WithSetup
):
    """Tasks of Vertex AI Pipelines; the training is a custom job."""

    name = "vertex"
    title = "Vertex AI"
    trains_in_image = True
    mounts_buckets = True
    extra = "cloud"

    def checks(self) -> Sequence[Check]:
        from slipway.pipelines.platforms.vertex.doctor import CHECKS

        return CHECKS

    def check_hardware(self, context: Context) -> str:
        from slipway.pipelines.platforms.base import CheckWarning
        from slipway.pipelines.platforms.vertex.submission import check_hardware

        summary, hardware = check_hardware(context.config), context.config.training_hardware
        if hardware.doubt:
            spot = replace(hardware, provisioning="spot")
            raise CheckWarning(f"{summary}: {hardware.doubt}", f"--hardware '{spot}', or +flex")
        return summary

    def candidates(self, config: RunConfig) -> Sequence[RunConfig]:
        from slipway.pipelines.platforms.vertex.candidates import candidates

        return candidates(config) if _settings(config) else (config,)

    def candidate_title(self, config: RunConfig) -> str:
        from slipway.pipelines.platforms.vertex.candidates import title_of

        return title_of(config)

    def bill(self, config: RunConfig) -> Bill | None:
        from slipway.pipelines.hardware.prices import vertex_bill

        settings = _settings(config)
        return vertex_bill(config.training_hardware, settings.region) if settings else None

    def check_notification(self, settings: NotifySettings, config: RunConfig) -> None:  # noqa: ARG002
        if settings.variable:
            raise UserError(
                f"The environment variable {settings.variable} does not exist on Vertex AI.",
                setting="notify.webhook",
                value=settings.webhook,
                allowed="projects/PROJECT/secrets/SECRET in Secret Manager, or an https:// URL",
                fix="gcloud secrets create slipway-webhook --data-file=FILE, and "
                "--set notify.webhook=projects/PROJECT/secrets/slipway-webhook",
            )

    def connection(self, config: RunConfig) -> Connection:
        from slipway.pipelines.platforms.vertex.settings import vertex_of

        return vertex_of(config).connection

    def setup(self, config: RunConfig, *, apply: bool, as_json: bool) -> bool:
        from slipway.pipelines.platforms.vertex import access

        return access.setup(access.regions_settings(self.candidates(config)), apply=apply, as_json=as_json)

    def image(self, config: RunConfig) -> str | None:
        settings = _settings(config)
        return settings.image if settings else None

    def image_context(self, context: Context) -> str:
        from slipway.pipelines.platforms.base import NotApplicableError

        settings = _settings(context.config)
        if settings is None or settings.image is not None:
            raise NotApplicableError("no image is built")
        from slipway.pipelines.images.registry import check_builder
        from slipway.pipelines.platforms.vertex.images import wanted_images

        check_builder(settings, settings.build.builder)
        images = wanted_images(context.config, lambda _line: None, without_git=not context.builds)
        return ", ".join(image.title for image in images.values())

    def builder(self, config: RunConfig) -> str:
        from slipway.pipelines.platforms.vertex.settings import vertex_of

        return vertex_of(config).build.builder

    def wanted_images(self, config: RunConfig, say: Say) -> dict[str, Wanted]:
        from slipway.pipelines.platforms.vertex.images import wanted_images

        return wanted_images(config, say)

    def build_images(self, config: RunConfig, log: TextIO, say: Say, builder: str | None) -> dict[str, str]:
        from slipway.pipelines.platforms.vertex.images import ensure_images

        return ensure_images(config, log, say, builder).by_role()

    def compile_to(self, path: Path, config: RunConfig, say: Say) -> None:
        from slipway.pipelines.platforms.vertex.images import known_images
        from slipway.pipelines.platforms.vertex.submission import compile_pipeline

        first, *remaining = self.candidates(config)
        if remaining:
            say(f"compiled for {self.candidate_title(first)}: only slipway run moves a run to another candidate")
        compile_pipeline(first, known_images(first, say), path)

    def batch(self, job: BatchJob, *, dry_run: bool, no_wait: bool, cancel: bool, strict: bool, as_json: bool) -> None:
        from slipway.pipelines.platforms.vertex import batch_command

        batch_command.run(job, dry_run=dry_run, no_wait=no_wait, cancel=cancel, strict=strict, as_json=as_json)

    def cleaner(self, age: Age, configured: Callable[[], RunConfig]) -> Cleaner:
        from slipway.pipelines.platforms.vertex.cleaning import VertexCleaner

        return VertexCleaner(configured(), age)

    def serving(self) -> Iterator[Running]:
        from slipway.pipelines.platforms.vertex.endpoints.files import FILES

        if any(FILES.folder.glob("*.yaml")):
            from slipway.pipelines.platforms.vertex.endpoints.operations import serving

            yield from serving()

    def start(self, config: RunConfig, say: Say) -> tuple[RunFolder, RunRecord]:
        from slipway.pipelines.platforms.vertex import run

        return run.start(config, say)

    def tune(self, config: RunConfig, search: SearchSettings, say: Say) -> tuple[RunFolder, RunRecord]:
        from slipway.pipelines.platforms.vertex import run

        return run.start(config, say, search)

    def resume(self, folder: RunFolder, say: Say) -> tuple[RunFolder, RunRecord]:
        from slipway.pipelines.platforms.vertex import run

        return run.resume(folder, say)

    def refresh(self, folder: RunFolder) -> RunRecord:
        from slipway.pipelines.platforms.vertex.run import VertexRun

        record = folder.read()
        return VertexRun(folder).refresh(record) if record.status == "running" else record

    def watch(self, folder: RunFolder, watcher: Watcher) -> RunRecord:
        from slipway.pipelines.platforms.vertex import moves

        return moves.watch(folder, watcher)

    def log_lines(self, folder: RunFolder, step: str | None, *, follow: bool, raw: bool) -> Iterator[str]:
        from slipway.pipelines.platforms.vertex.run import VertexRun
        from slipway.pipelines.runs import logs

        logs.check_step(folder, step)
        yield from VertexRun(folder).log_lines(step, follow=follow, raw=raw)

    def cancel(self, folder: RunFolder) -> RunRecord:
        from slipway.pipelines.platforms.vertex.run import VertexRun

        return VertexRun(folder).cancel()


def _settings(config: RunConfig) -> VertexSettings | None:
    from slipway.pipelines.platforms.vertex.settings import VertexSettings

    return config.section(VertexSettings)
