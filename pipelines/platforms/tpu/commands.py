"""`slipway runs tpu …`: list and delete the TPUs that runs with `--target tpu` have requested."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from slipway.core.errors import UserError
from slipway.pipelines.options import Configuration, Json, Overrides, configured
from slipway.pipelines.terminal import command_group, confirm_deletion, console, print_json, say, user_errors

if TYPE_CHECKING:
    from slipway.components.train.tpu.service import QueuedResource
    from slipway.components.train.tpu.settings import TpuSettings

app = command_group("List and delete the Cloud TPUs that runs with --target tpu have requested.")


@app.command(name="list")
@user_errors
def list_(config: Configuration = None, overrides: Overrides = None, as_json: Json = False) -> None:
    """List the requests of all users in the configuration's zones, with their states."""
    _, resources = _listed(config, overrides)
    if as_json:
        print_json([asdict(queued) for queued in resources])
        return
    if not resources:
        say("There are no TPUs.")
        return
    for resource in resources:
        console.print(escape(_line(resource)))
    if expired := [queued for queued in resources if queued.is_expired]:
        say(f"{len(expired)} hold no TPU and count against the quota: slipway runs tpu delete")


@app.command()
@user_errors
def delete(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A TPU or a run's id; default: your requests that failed or expired."),
    ] = None,
    config: Configuration = None,
    overrides: Overrides = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Delete TPUs and wait until they no longer exist. A run that trains on one fails; its checkpoints are kept."""
    from slipway.components.train.tpu import service

    settings, resources = _listed(config, overrides)
    if name is None:
        to_delete = [queued for queued in resources if queued.is_expired and queued.owner == service.owner()]
    else:
        to_delete = [queued for queued in resources if name in (queued.name, queued.run_id)]
        if not to_delete:
            raise UserError.unknown("TPU", name, sorted({queued.name for queued in resources}), setting="NAME")
    for resource in to_delete:
        say(_line(resource))
    if to_delete and not yes:
        confirm_deletion(f"Delete {'it' if len(to_delete) == 1 else f'these {len(to_delete)}'}?")
    for resource in to_delete:
        service.delete(settings.connection, resource.zone, resource.name)
        say(f"{resource.name}: deleted")
    if not to_delete:
        say("There is no request of yours that failed or expired.")
    if as_json:
        print_json([asdict(queued) for queued in to_delete])


def _listed(config: Configuration, overrides: Overrides) -> tuple[TpuSettings, list[QueuedResource]]:
    """Return the section `tpu`, and what runs have requested in its zones."""
    from slipway.components.train.tpu import service
    from slipway.pipelines.platforms.tpu.checks import settings_of

    settings = settings_of(configured(None, config, overrides))
    return settings, list(service.listed(settings.connection, list(settings.zones)))


def _line(resource: QueuedResource) -> str:
    hardware = resource.accelerator + (" Spot" if resource.spot else "")
    since = resource.created.partition(".")[0].replace("T", " ")
    why = f": {resource.error}" if resource.error else ""
    return (
        f"{resource.name} in {resource.zone}: {resource.state}, {hardware}, since {since} UTC, of {resource.owner}{why}"
    )
