"""`slipway runs clean`: list or delete what is old and not needed, say why the rest is kept, and restore."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from slipway.core.errors import UserError
from slipway.core.paths import short
from slipway.pipelines.cleaning.platform import WithCleaning
from slipway.pipelines.cli.targets import target_option
from slipway.pipelines.options import Configuration, Json, Overrides, Registry, configured
from slipway.pipelines.platforms.table import DEFAULT, PLATFORMS, platform_of
from slipway.pipelines.terminal import print_results, say, user_errors

CLEANED = [DEFAULT, *(name for name, platform in PLATFORMS.items() if isinstance(platform, WithCleaning))]


@user_errors
def clean(
    config: Configuration = None,
    target: Annotated[
        str, target_option("Where to clean: this machine, or a project of Google Cloud.", CLEANED)
    ] = DEFAULT,
    older: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Delete what ended this long ago, such as 30d or 12h.")
    ] = "30d",
    apply: Annotated[
        bool, typer.Option("--apply", help="Delete; without it, only list what would be deleted.")
    ] = False,
    why: Annotated[
        str | None,
        typer.Option("--why", metavar="PATH", help="Delete nothing; say why what is in a folder is kept."),
    ] = None,
    restore: Annotated[
        str | None,
        typer.Option("--restore", metavar="PATH", help="Put back a run or data set that was deleted within a day."),
    ] = None,
    overrides: Overrides = None,
    registry: Registry = Path("models"),
    store: Annotated[Path, typer.Option("--store", metavar="FOLDER", help="Folder of the prepared data sets.")] = Path(
        "datasets"
    ),
    as_json: Json = False,
) -> None:
    """Delete old runs, data sets, images, schedules and TPUs that no model, search or other run refers to."""
    from slipway.core import formatting
    from slipway.pipelines.cleaning.cleaner import Age, Cleaner, Unneeded
    from slipway.pipelines.cleaning.local import LocalCleaner

    parsed = re.fullmatch(r"(\d{1,5})([dh])", older)
    if parsed is None:
        raise UserError(
            f"{older} is not an age.", setting="--older-than", value=older, allowed="days or hours, such as 30d or 12h",
            fix="--older-than 30d",
        )  # fmt: skip
    if registry != Path("models") and not registry.is_dir():
        raise UserError(
            f"There is no registry {registry}.", setting="--registry", value=str(registry), fix="--registry models"
        )
    least = timedelta(days=int(parsed[1])) if parsed[2] == "d" else timedelta(hours=int(parsed[1]))
    age = Age(least, registry, store, older)
    platform = platform_of(target)
    cleaner: Cleaner = (
        platform.cleaner(age, lambda: configured(None, config, overrides))
        if isinstance(platform, WithCleaning)
        else LocalCleaner(age)
    )
    if restore is not None:
        say(f"restored {short(str(cleaner.restore(restore)))}")
        return
    if why is not None:
        print_results(cleaner.kept(why), as_json=as_json)
        return
    is_here = target == DEFAULT
    if not is_here:
        say(f"asking {platform.title} and its bucket what is there and what is needed")
    unneeded, deleted = cleaner.unneeded(), list[Unneeded]()
    try:
        for removed in cleaner.delete(unneeded) if apply else ():
            deleted.append(removed)
            if not as_json:
                print_results([removed], as_json=False)
    finally:
        if as_json or not apply:
            print_results(deleted if apply else unneeded, as_json=as_json)
        size = formatting.size(sum(resource.size for resource in (deleted if apply else unneeded)))
        if apply and unneeded:
            say(f"{len(deleted):,} deleted, {size}")
        if deleted and is_here:
            say("in .trash for a day, until the next clean; to put one back: slipway runs clean --restore PATH")
    if running := cleaner.in_progress():
        say(f"no data set is deleted while a run is in progress: {', '.join(running[:3])}; see slipway status")
    for left in cleaner.left():
        say(f"not deleted: {left.lines()[0]}")
    if not unneeded:
        say(f"nothing is older than {older} and not needed")
    elif not apply:
        why_kept = "; why others are kept: slipway runs clean --why ." if is_here else ""
        say(f"{len(unneeded):,} can be deleted, {size}: add --apply{why_kept}")
