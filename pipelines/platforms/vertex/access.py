"""`slipway setup`: what a run needs in a project, from its configuration; the difference shown, then made."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slipway.components.cloud.policies import ACCOUNT_DOMAIN
from slipway.components.prepare_data.sources import source_kind
from slipway.components.setup_access.difference import Line, blocking
from slipway.components.setup_access.settings import AccessSettings, repository_of
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, VertexSettings, no_place_on_vertex

MARKS = {"there": "[green]✓[/]", "missing": "[yellow]+[/]", "wrong": "[red]✗[/]", "unseen": "[dim]?[/]"}
RESULTS = {"done": "[green]✓[/]", "later": "[dim]–[/]", "failed": "[red]✗[/]"}
BUCKET = re.compile(r"gs://([^/\s]+)")
# What a line that is missing says by its mark already.
PLAIN = ("to be enabled", "to be made", "to be granted")
LATER = "Google creates it with the first training job and grants its role"


def access_settings(config: RunConfig) -> AccessSettings:
    """What the rights of a configuration's runs depend on.

    Raises:
        UserError: It does not say where on Vertex AI it runs.
    """
    vertex = config.vertex
    if vertex is None:
        raise no_place_on_vertex()
    return AccessSettings(
        project=vertex.project,
        region=vertex.region,
        bucket=vertex.bucket.removeprefix("gs://"),
        stores=_buckets(config.data.store, vertex.bucket),
        sources=_buckets(source_kind(config.data.source).located(config.data)[1], vertex.bucket),
        repository=repository_of(vertex.image or f"{vertex.image_repository}/image"),
        account=vertex.service_account,
        submitters=tuple(vertex.submitters),
        tpu=config.parsed_hardware.is_tpu,
        builds=_builds(vertex),
        builder=vertex.build.service_account,
        endpoints=vertex.endpoints,
    )


def _buckets(place: str, own: str) -> tuple[str, ...]:
    """The bucket that a setting names, where that is another than the run's."""
    found = BUCKET.search(place)
    return (found[1],) if found and f"gs://{found[1]}" != own else ()


def _builds(vertex: VertexSettings) -> bool:
    """Whether Cloud Build makes the images."""
    return vertex.image is None and vertex.build.builder == "cloud-build"


def setup(config: RunConfig, console: Console, *, make: bool, as_json: bool) -> tuple[bool, list[dict[str, Any]]]:
    """Show the difference, and make it so where that was asked for.

    Args:
        config: The run's configuration.
        console: What it is shown on.
        make: Whether to make what is missing.
        as_json: Whether it is for a program: then nothing is shown.

    Returns:
        Whether nothing stands in the way: all is there or can be made (without `make`), all is there (with it); and
        the lines as plain values.

    Raises:
        UserError: No place on Vertex AI, no run-as account, no credentials, no such project.
    """
    from slipway.components.setup_access.apply import Outcome, apply
    from slipway.components.setup_access.difference import difference
    from slipway.components.setup_access.found import look

    settings = access_settings(config)
    _check_account(settings)
    lines = difference(settings, look(settings))
    if not as_json:
        show(lines, console)
    if not make or all(line.status == "there" for line in lines):
        return not any(line.status in ("wrong", "unseen") for line in lines), [line.as_dict() for line in lines]

    def told(outcome: Outcome) -> None:
        if not as_json:
            console.print(
                f"{RESULTS[outcome.result]} {escape(str(outcome.line.item))}", highlight=False, soft_wrap=True
            )

    outcomes, left = apply(settings, told)
    if not as_json:
        show_end(outcomes, left, console)
    sound = not any(outcome.result == "failed" for outcome in outcomes) and not blocking(left)
    made = {str(outcome.line.item): outcome for outcome in outcomes}
    rows = [made[str(line.item)].as_dict() if str(line.item) in made else line.as_dict() for line in left]
    return sound and not any(line.status == "unseen" for line in left), rows


def _check_account(settings: AccessSettings) -> None:
    if settings.account is None:
        near = f"slipway@{settings.project}{ACCOUNT_DOMAIN}"
        raise UserError(
            "The configuration names no account for runs to act as; without one they act as Compute Engine's default "
            "account, which may do far more than a run needs.",
            setting="vertex.service_account",
            value=None,
            allowed="the e-mail of a service account; setup makes it where it does not exist",
            nearest=near,
            fix=f"--set vertex.service_account={near}, and the same in the configuration",
        )


def show(lines: list[Line], console: Console) -> None:
    """The difference as a table: a row for each thing with its reason; what is there is only counted."""
    there = sum(line.status == "there" for line in lines)
    rest = [line for line in lines if line.status != "there"]
    if not rest:
        console.print(f"Everything that a run needs exists; {there} items checked.", highlight=False)
        return
    table = Table(box=None, pad_edge=False, show_edge=False)
    for heading in ("", "kind", "what", "because"):
        table.add_column(heading, overflow="fold")
    for line in rest:
        table.add_row(MARKS[line.status], line.kind, escape(str(line.item)), escape(line.item.reason))
        if line.found not in PLAIN:
            table.add_row("", "", "", f"[yellow]{escape(line.found)}[/]")
        if line.fix:
            table.add_row("", "", "", f"fix: {escape(line.fix)}")
    console.print(table, highlight=False)
    counts = {status: sum(line.status == status for line in rest) for status in ("missing", "wrong", "unseen")}
    texts = {"missing": "to create", "wrong": "incorrect", "unseen": "that cannot be read"}
    told = [f"{count} {texts[status]}" for status, count in counts.items() if count]
    console.print(f"{there} there, {', '.join(told)}", highlight=False)


def show_end(outcomes: list[Any], left: list[Line], console: Console) -> None:
    """What is still not as it should be, each with its fix."""
    said = set()
    for outcome in outcomes:
        if outcome.result == "later":
            console.print(f"– {escape(str(outcome.line.item))}: {LATER}", highlight=False, soft_wrap=True)
        elif outcome.error is not None and str(outcome.error) not in said:
            said.add(str(outcome.error))
            console.print(f"[red]error:[/] {escape(str(outcome.error))}", highlight=False, soft_wrap=True)
    for line in left:
        if line.status in ("wrong", "unseen") and line.found not in said:
            said.add(line.found)
            console.print(f"[red]✗[/] {escape(str(line.item))}: {escape(line.found)}", highlight=False, soft_wrap=True)
            if line.fix:
                console.print(f"  fix:      {escape(line.fix)}", highlight=False, soft_wrap=True)
    if not said and not blocking(left):
        console.print("Everything that a run needs exists.", highlight=False)
