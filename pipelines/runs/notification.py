"""Notify of the outcome of a run on this machine."""

from __future__ import annotations

import socket

from slipway.components.notify.notice import DriftNotice, Notice
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.runs.record import RunRecord

NO_MAIL = "E-mail is sent only for runs on Vertex AI."


def notify(config: RunConfig, record: RunRecord) -> list[str]:
    """Send the notice about a local run that has succeeded or failed; return what went wrong.

    Whoever rehearses or cancels a run is in front of it, so that nobody is notified. A run that ends before the last
    step, such as a trial of a search, is a part of something larger.
    """
    is_part = record.part is not None and record.part.last != record.steps[-1].name
    if config.notify is None or record.rehearsal or is_part or record.status not in ("succeeded", "failed"):
        return []
    return notify_of(config, notice_of(record))


def notify_of(config: RunConfig, notice: Notice | DriftNotice) -> list[str]:
    """Send a notice from this machine to those whom a configuration names; return what went wrong."""
    if config.notify is None:
        return []
    from slipway.components.notify.channels import send

    endpoints = config.vertex.endpoints if config.vertex else {}
    problems = [NO_MAIL] if config.notify.email else []
    return problems + send(config.notify, notice, endpoints)


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
