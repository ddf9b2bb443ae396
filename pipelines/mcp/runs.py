"""Runs that the server starts and stops, within its allowance."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.mcp.allowance import Allowance
from slipway.pipelines.mcp.calls import Refusal, Report, call


class Runs:
    """The runs of a server."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance

    async def start(self, arguments: Sequence[str], settings: Iterable[str], report: Report) -> JsonObject:
        """Start a run with these arguments of `slipway run`; return its record, and what is left.

        The run itself is limited to what is reserved for it, by the setting `budget`: it is refused if its
        configuration has changed since, and costs more.

        Raises:
            UserError: The run is refused, or its worst case exceeds what is left.
        """
        import anyio

        for name in settings:
            if name.startswith("budget"):
                raise UserError(
                    f"{name} limits what runs cost, and this server does not change it.", setting=name,
                    fix=f"remove {name}; a person sets it in the configuration, or --budget of slipway mcp",
                )  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="slipway-mcp-") as folder:
            output = f"--output={Path(folder) / 'spec.yaml'}"
            cost = (await call(["config", "compile", "--json", output, *arguments], report))["cost"]
        await self._settle(report)
        bills = "; ".join(bill["text"] for bill in cost["bills"])
        unpriced = f"the price of {' and '.join(cost['unpriced'])} is not known" if cost["unpriced"] else ""
        reservation = self._allowance.reserve(cost["worst_case"], unpriced or bills or "no price is known there")
        limit = [f"--set=budget={reservation.amount!r}"] if reservation.amount else []
        with anyio.CancelScope(shield=True):  # what starts is counted, also for a client that left
            try:
                record: JsonObject = await call(["run", "--no-wait", "--json", *arguments, *limit], report)
            except Refusal:
                self._allowance.release(reservation)
                raise
        reservation.run_id = record["run_id"]
        return {"run": record, "left": str(self._allowance)}

    async def cancel(self, run_id: str, report: Report) -> JsonObject:
        """Stop a run that this server has started; return its record.

        Raises:
            UserError: It has not started it, or it cannot be stopped.
        """
        if not self._allowance.has_started(run_id):
            raise UserError(
                f"This server has not started a run {run_id}, and stops only those that it has.", setting="run",
                value=run_id, fix=f"slipway cancel {run_id}, in a terminal",
            )  # fmt: skip
        record: JsonObject = await call(["cancel", "--json", "--", run_id], report)
        return record

    async def _settle(self, report: Report) -> None:
        """Replace the worst case of runs that have ended by what they have cost, if that is known."""
        for reservation in list(self._allowance.unsettled()):
            record: Any = await call(["status", "--json", "--", reservation.run_id], report)
            if record["status"] in ("succeeded", "failed", "cancelled") and record.get("cost"):
                reservation.amount = min(reservation.amount, float(record["cost"]["dollars"]))
                reservation.has_ended = True
