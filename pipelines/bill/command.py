"""`slipway runs bill`: what each second of a training was spent on, and what it cost."""

from __future__ import annotations

from rich.markup import escape

from slipway.pipelines.options import Json, Run
from slipway.pipelines.terminal import console, print_json, user_errors


@user_errors
def bill(run_id: Run = "latest", as_json: Json = False) -> None:
    """Show what each second of a training was spent on, what it cost, and the setting that would save most."""
    from slipway.pipelines.bill.bill import of_run
    from slipway.pipelines.runs import record as runs
    from slipway.pipelines.selection import selection

    charged = of_run(selection.read(runs.find(run_id)))
    if as_json:
        print_json(charged.as_dict())
        return
    for line in charged.lines():
        console.print(escape(line))
