"""`slipway endpoints …` and `slipway deploy`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from slipway.core.values import JsonObject
from slipway.pipelines.options import Json
from slipway.pipelines.terminal import (
    EXIT_INTERRUPTED,
    EXIT_REJECTED,
    command_group,
    console,
    interrupted,
    print_json,
    print_results,
    say,
    user_errors,
)

if TYPE_CHECKING:
    from slipway.components.deploy.rollout import Outcome
    from slipway.pipelines.platforms.vertex.endpoints.operations import DeclaredEndpoints, EndpointResult

app = command_group("Create, change, list and delete Vertex AI endpoints from the files in configs/endpoints.")

# What a day costs, or at least costs, or has: how a number and all of it are written.
LEAST = "at least"
PER_DAY = (
    ("cost_per_day", "{:.2f}", "{}"),
    ("at_least_per_day", "${:,.2f}", f"{LEAST} {{}}"),
    ("machine_hours_per_day", "{}", "{} machine hours"),
)
Name = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="Endpoint name: the file name without .yaml. Default: all endpoints."),
]
CHANGED = "the endpoint may have been changed; slipway endpoints list shows it"
EndpointName = Annotated[
    str | None,
    typer.Option("--endpoint", metavar="NAME", help="The file configs/endpoints/NAME.yaml; default: the only one."),
]


@user_errors
def deploy(
    endpoint: EndpointName = None,
    version: Annotated[
        str, typer.Option("--version", metavar="VERSION", help="Version number or alias of the registered model.")
    ] = "champion",
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="MINUTES", min=0, help="Override timeout of the endpoint's file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Deploy a registered model to an endpoint, step by step, and withdraw it if a check fails."""
    from slipway.pipelines.platforms.vertex.endpoints import operations

    try:
        outcome = operations.deploy(endpoint, version, timeout, say)
    except KeyboardInterrupt:
        say(
            "Interrupted: the endpoint stays as it is. To continue, repeat the command; to return to the previous "
            "model: slipway endpoints rollback"
        )
        raise typer.Exit(EXIT_INTERRUPTED) from None
    _show_outcome(outcome, as_json=as_json)
    if outcome.status == "rolled back":
        raise typer.Exit(EXIT_REJECTED)


@user_errors
@interrupted(CHANGED)
def rollback(
    endpoint: EndpointName = None,
    leaves: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="VERSION",
            help="Number of the version to leave; default: the one with the traffic, unless a rollback gave it that.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Return an endpoint's traffic to the previous model, in one update. Repeated, it changes nothing."""
    since = datetime.now(UTC)
    from slipway.pipelines.platforms.vertex.endpoints import operations  # takes seconds

    _show_outcome(operations.rollback(endpoint, say, since, leaves), as_json=as_json)


def _endpoints() -> type[DeclaredEndpoints]:
    from slipway.pipelines.platforms.vertex.endpoints.operations import DeclaredEndpoints  # imports much

    return DeclaredEndpoints


@app.command()
@user_errors
def diff(name: Name = None, as_json: Json = False) -> None:
    """Compare the endpoints on Vertex AI with the files, field by field."""
    print_results(_endpoints().compare(say, name), as_json=as_json)


@app.command()
@user_errors
@interrupted(CHANGED)
def apply(name: Name = None, as_json: Json = False) -> None:
    """Create or change the endpoints on Vertex AI to match the files; slipway deploy deploys the models."""
    print_results(_endpoints().apply(sys.stderr, say, name), as_json=as_json)


@app.command(name="list")
@user_errors
def list_(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="Also list those in the project and region of a run configuration."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the endpoints with traffic, versions, replicas and cost per day."""
    from slipway.pipelines.config.config import load

    _table(_endpoints().compare(say, config=load(config) if config else None), as_json=as_json)


@app.command()
@user_errors
def show(name: Name = None, as_json: Json = False) -> None:
    """Show an endpoint's deployed models, its rollout, and how it differs from its file."""
    results = _endpoints().compare(say, name)
    _table(results, as_json=as_json)
    if not as_json:
        print_results(results, as_json=False)


@app.command()
@user_errors
@interrupted(CHANGED)
def delete(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Endpoint name: the file name without .yaml.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Delete an endpoint with all its deployed models. Its file and the registered models are kept."""
    print_results(_endpoints().remove(name, say, yes=yes), as_json=as_json)


def _table(results: list[EndpointResult], *, as_json: bool) -> None:
    if as_json:
        print_results(results, as_json=True)
        return
    from rich.table import Table

    from slipway.pipelines.hardware import prices

    table = Table("endpoint", "version", "traffic", "replicas", "machine", "per day", box=None)
    for result in results:
        models = result.models()
        if not models:
            table.add_row(result.name, "absent" if result.resource is None else "no model")
        for model in models:
            version = model["version"] + (f" ({model['role']})" if model["role"] else "")
            replicas = f"{model['replicas']} ({model['min_replicas']} to {model['max_replicas']})"
            table.add_row(result.name, version, f"{model['traffic']}%", replicas, model["machine"], _per_day(model))
    console.print(table)
    if any(LEAST in _per_day(model) for result in results for model in result.models()):
        of = f"list prices of Compute Engine of {prices.table()['date']}, without Vertex AI's fee"
        say(f"{LEAST}: by {of}; price_per_hour in the endpoint's file replaces them")


def _per_day(model: JsonObject) -> str:
    """Return the cost per day by the file's price or else by list prices, or the machine hours if none is known."""
    for name, form, whole in PER_DAY:
        if model[name] is not None:
            least, most = (form.format(value) for value in model[name])
            return whole.format(least if least == most else f"{least} to {most}")
    raise AssertionError("each has hours")


def _show_outcome(outcome: Outcome, *, as_json: bool) -> None:
    if as_json:
        print_json(outcome.as_dict())
        return
    console.print(escape(f"{outcome.version}: {outcome.status}"))
    if outcome.previous and outcome.status in ("deployed", "unchanged"):
        serving = outcome.version.rpartition("@")[2]
        console.print(escape(f"  to return to {outcome.previous}: slipway endpoints rollback --from {serving}"))
