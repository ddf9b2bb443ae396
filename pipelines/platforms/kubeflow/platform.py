"""A Kubeflow Pipelines server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.core.errors import UserError
from slipway.pipelines.notification.platform import WithNotification
from slipway.pipelines.platforms.base import RemotePlatform, Say
from slipway.pipelines.platforms.capabilities import WithSetup
from slipway.pipelines.tuning.platform import WithSearch

if TYPE_CHECKING:
    from slipway.components.notify.settings import NotifySettings
    from slipway.components.train.tuning import SearchSettings
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.platforms.base import Check, Context
    from slipway.pipelines.platforms.kubeflow.settings import KubeflowSettings
    from slipway.pipelines.runs.record import RunFolder, RunRecord, Watcher


class KubeflowPlatform(RemotePlatform, WithNotification, WithSearch, WithSetup):
    """Containers of one image on the Kubernetes cluster of a Kubeflow Pipelines server."""

    name = "kubeflow"
    title = "Kubeflow"

    def checks(self) -> Sequence[Check]:
        from slipway.pipelines.platforms.kubeflow.doctor import CHECKS

        return CHECKS

    def check_hardware(self, context: Context) -> str:
        from slipway.pipelines.platforms.kubeflow.checks import check_program, settings_of

        settings = settings_of(context.config)
        if len(context.config.hardware) > 1:
            raise UserError(
                "A run on Kubeflow has one choice of hardware; Kueue chooses among flavors of it on the cluster.",
                setting="hardware",
                value=", ".join(map(str, context.config.hardware)),
                fix=f"--hardware '{context.config.training_hardware}'",
            )
        check_program(context.config.train)
        return f"{context.config.training_hardware} on {settings.host}"

    def check_notification(self, settings: NotifySettings, config: RunConfig) -> None:
        if settings.email:
            raise UserError(
                "A run on Kubeflow sends no e-mail: only Vertex AI has a service for it.",
                setting="notify.email",
                value=", ".join(settings.email),
                allowed="notify.webhook or notify.topic",
                fix="--set notify.email=[] --set notify.webhook=env:CHAT_WEBHOOK",
            )
        ours = _settings(config)
        if settings.variable and ours is not None and ours.secret is None:
            raise UserError(
                f"The environment variable {settings.variable} does not exist on the cluster.",
                setting="kubeflow.secret",
                value=None,
                allowed=f"a Secret in the namespace with the key {settings.variable}",
                fix=f"kubectl create secret generic slipway --from-literal={settings.variable}=URL, and "
                "--set kubeflow.secret=slipway",
            )

    def setup(self, config: RunConfig, *, apply: bool, as_json: bool) -> bool:
        from slipway.pipelines.platforms.kubeflow.access import setup
        from slipway.pipelines.platforms.kubeflow.checks import settings_of

        setup(settings_of(config), create=apply, as_json=as_json)
        return True

    def compile_to(self, path: Path, config: RunConfig, say: Say) -> None:  # noqa: ARG002
        from slipway.pipelines.platforms.kubeflow import launch

        launch.compile_to(path, config)

    def start(self, config: RunConfig, say: Say) -> tuple[RunFolder, RunRecord]:
        from slipway.pipelines.platforms.kubeflow import launch

        return self._submitted(*launch.submit(config, None, say), say)

    def tune(self, config: RunConfig, search: SearchSettings, say: Say) -> tuple[RunFolder, RunRecord]:
        from slipway.pipelines.platforms.kubeflow import launch

        return self._submitted(*launch.submit(config, search, say), say)

    def resume(self, folder: RunFolder, say: Say) -> tuple[RunFolder, RunRecord]:
        from slipway.pipelines.platforms.kubeflow import launch

        return self._submitted(folder, launch.resume(folder, say), say)

    def _submitted(self, folder: RunFolder, record: RunRecord, say: Say) -> tuple[RunFolder, RunRecord]:
        from slipway.pipelines.config.config import load
        from slipway.pipelines.platforms.kubeflow.checks import settings_of

        settings = settings_of(load(folder.configuration_file))
        say(f"run {record.run_id} on {record.hardware} at {settings.host}, submitted")
        say(f"  console: {record.console}")
        if not settings.registers:
            say("  no model is registered, as kubeflow.volume is not set: it is the artifact `model` of the step train")
        return folder, record

    def refresh(self, folder: RunFolder) -> RunRecord:
        from slipway.pipelines.platforms.kubeflow import launch

        return launch.refresh(folder)

    def watch(self, folder: RunFolder, watcher: Watcher) -> RunRecord:
        from slipway.pipelines.platforms.kubeflow import launch

        return launch.watch(folder, watcher)

    def log_lines(self, folder: RunFolder, step: str | None, *, follow: bool, raw: bool) -> Iterator[str]:  # noqa: ARG002
        """Raise UserError with the command that prints the log of the pod: the client has no access to logs."""
        from slipway.pipelines.platforms.kubeflow import launch

        record = launch.refresh(folder)
        raise UserError(
            "The Kubeflow Pipelines client cannot read the logs of a run: its pods have them.",
            setting="RUN",
            value=record.run_id,
            fix=launch.log_command(folder, record, step) + (" -f" if follow else ""),
        )

    def cancel(self, folder: RunFolder) -> RunRecord:
        from slipway.pipelines.platforms.kubeflow import launch

        return launch.cancel(folder)


def _settings(config: RunConfig) -> KubeflowSettings | None:
    from slipway.pipelines.platforms.kubeflow.settings import KubeflowSettings

    return config.section(KubeflowSettings)
