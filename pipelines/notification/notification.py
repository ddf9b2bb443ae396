"""Notify of the outcome of a run on this machine."""

from __future__ import annotations

import socket

from slipway.components.cloud.settings import CloudSettings
from slipway.components.notify.notice import DriftNotice, Notice
from slipway.components.notify.settings import NotifySettings
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.runs.observers import Observer, Say
from slipway.pipelines.runs.record import RunFolder, RunRecord

NO_MAIL = "E-mail is sent only for runs on Vertex AI."


class Notification(Observer):
    """Notifies of runs that have ended on this machine."""

    def ended(self, folder: RunFolder, config: RunConfig, record: RunRecord, say: Say) -> None:  # noqa: ARG002
        for problem in notify(config, record):
            say(f"warning: not everyone was notified: {problem}")


def notify(config: RunConfig, record: RunRecord) -> list[str]:
    """Send the notice about a local run that has succeeded or failed; return what went wrong.

    Whoever rehearses or cancels a run is in front of it, so that nobody is notified. A run that ends before the last
    step, such as a trial of a search, is a part of something larger.
    """
    is_part = record.part is not None and record.part.last != record.steps[-1].name
    if record.rehearsal or is_part or record.status not in ("succeeded", "failed"):
        return []
    return notify_of(config, notice_of(record))


def notify_of(config: RunConfig, notice: Notice | DriftNotice) -> list[str]:
    """Send a notice from this machine to those whom a configuration names; return what went wrong."""
    settings, cloud = config.section(NotifySettings), config.section(CloudSettings)
    if settings is None:
        return []
    from slipway.components.notify.channels import send

    problems = [NO_MAIL] if settings.email else []
    return problems + send(settings, notice, cloud.endpoints if cloud else {})


def notice_of(record: RunRecord) -> Notice:
    """Return the notice about a local run."""
    error, verdict = record.error, record.verdict or {}
    return Notice(
        run=record.run_id,
        name=record.name,
        where=socket.gethostname(),
        hardware=record.hardware,
        status=record.status,
        step=error.step if error else None,
        replica=error.replica if error else None,
        error=error.message if error else None,
        fix=error.fix if error else None,
        metrics=record.metrics,
        decision=verdict.get("decision"),
        reasons=tuple(verdict.get("reasons", ())),
        report=record.report,
        model=record.model,
    )
