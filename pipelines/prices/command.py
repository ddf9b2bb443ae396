"""`slipway config prices`: write a table of today's list prices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipway.core.errors import UserError
from slipway.pipelines.options import Configuration, Json, Overrides, check_folder_of, configured
from slipway.pipelines.terminal import console, print_json, say, user_errors

SHOWN_CHANGES = 12


@user_errors
def prices(
    config: Configuration = None,
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The table to write; default: the project's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Read Google Cloud's list prices, with the project of the configuration, and write the table that costs use."""
    from slipway.components.cloud.settings import CloudSettings
    from slipway.core.atomic import replace_file
    from slipway.core.paths import in_project
    from slipway.pipelines.hardware import prices as used
    from slipway.pipelines.prices import billing

    configuration = configured(None, config, overrides)
    settings = configuration.section(CloudSettings)
    if settings is None:
        raise UserError(
            "The list prices are read with a project of Google Cloud, and the configuration names none.",
            setting="vertex.project",
            fix="--set vertex.project=PROJECT --set vertex.region=REGION --set vertex.bucket=gs://BUCKET",
        )
    target = output or in_project(used.OWN_FILE)
    check_folder_of(target)
    before, after = used.table(), billing.fetch(settings.connection, say)
    unknown = [name for kind in ("machines", "accelerators") for name, row in after[kind].items() if not row]
    changed = billing.changes(before, after)
    replace_file(target, billing.as_text(after).encode())
    if as_json:
        print_json({"file": str(target), "date": after["date"], "changes": changed, "unknown": unknown})
        return
    for line in changed[:SHOWN_CHANGES]:
        console.print(line)
    if len(changed) > SHOWN_CHANGES:
        console.print(f"… and {len(changed) - SHOWN_CHANGES:,} more (--json)")
    if unknown:
        say(f"no prices found: {', '.join(unknown)}")
    say(f"{target}: list prices of {after['date']}, {len(changed):,} of them not those of {before['date']}")
