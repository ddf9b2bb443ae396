"""`slipway setup`: show which APIs, accounts, roles and resources a run needs and the project lacks; create them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from slipway.components.cloud.policies import ACCOUNT_DOMAIN
from slipway.components.notify.settings import NotifySettings
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources import source_kind
from slipway.components.setup_access.difference import Line, blocking
from slipway.components.setup_access.settings import AccessSettings
from slipway.core.errors import UserError, lowered
from slipway.core.image_reference import ImageReference
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.vertex.settings import VertexSettings, vertex_of
from slipway.pipelines.terminal import console, print_json

if TYPE_CHECKING:
    from slipway.components.setup_access.access import Outcome

MARKS = {"there": "[green]✓[/]", "missing": "[yellow]+[/]", "wrong": "[red]✗[/]", "unseen": "[dim]?[/]"}
RESULTS = {"done": "[green]✓[/]", "later": "[dim]–[/]", "failed": "[red]✗[/]"}
BUCKET = re.compile(r"gs://([^/\s]+)")
# Texts that repeat the mark of a missing line.
PLAIN = ("to be enabled", "to be made", "to be granted")
DOUBTFUL = (
    "not visible: the role may be inherited from a folder or an organization, or held through a group, which cannot be "
    "seen here; granting it again does no harm"
)
LATER = "Google creates it with the first training job and grants its role"


def access_settings(config: RunConfig) -> AccessSettings:
    """Return what the permissions of a configuration's runs depend on.

    Raises:
        UserError: The configuration has no vertex section.
    """
    vertex, data, notify = vertex_of(config), config.prepared, config.section(NotifySettings)
    options = data.beam.options if data and data.beam and uses_dataflow(data) else {}
    written = (data.store if data else "", str(options.get("temp_location", "")))
    stores = [bucket for place in written for bucket in _buckets(place, vertex.bucket)]
    read = source_kind(data.source).located(data)[1] if data else config.data.uri if config.data else None
    return AccessSettings(
        section=VertexSettings.section,
        vertex_jobs=True,
        project=vertex.project,
        region=vertex.region,
        bucket=vertex.bucket.removeprefix("gs://"),
        stores=tuple(dict.fromkeys(stores)),
        sources=_buckets(read or "", vertex.bucket),
        repository=ImageReference.parse(vertex.image or f"{vertex.image_repository}/image").artifact_repository,
        account=vertex.service_account,
        submitters=tuple(vertex.submitters),
        tpu=config.training_hardware.is_tpu,
        builds=vertex.image is None and vertex.build.builder == "cloud-build",
        builder=vertex.build.service_account,
        build_region=vertex.build.region,
        dataflow=data is not None and uses_dataflow(data),
        **_of_bigquery(data, vertex.project),
        dataflow_worker=options.get("service_account_email"),
        encryption_key=vertex.encryption_key,
        topic=notify.topic if notify else None,
        secret=notify.secret if notify else None,
        explains=bool(notify and (notify.webhook or notify.topic)),
        endpoints=vertex.endpoints,
    )


def _of_bigquery(data: DataSettings | None, project: str) -> dict[str, bool]:
    """Return what is read in BigQuery, as far as the run's project has to do with it."""
    if data is None or not data.source.startswith("bigquery:"):
        return {}
    is_billed = data.bigquery.project in (None, project)
    is_query = data.source.lower().endswith(".sql")
    return {
        "bigquery": is_billed,
        "bigquery_query": is_billed and is_query,
        "bigquery_table": not is_query and data.source.removeprefix("bigquery:").rsplit(".", 2)[0] == project,
    }


def uses_dataflow(data: DataSettings) -> bool:
    """Return whether large data sets are prepared by Dataflow."""
    return data.beam is not None and data.beam.on_dataflow


def with_dataflow(settings: VertexSettings, data: DataSettings, image: str | None = None) -> DataSettings:
    """Return the settings with the options that Dataflow requires, unless they are set: its workers run as the run's
    account, which setup grants what they need, and in `image`."""
    assert data.beam is not None
    account, endpoint = settings.service_account, settings.endpoints.get("dataflow")
    options = {
        "project": settings.project,
        "region": settings.region,
        "temp_location": f"{settings.bucket}/dataflow",
        **({"labels": [f"{name}={value}" for name, value in settings.labels.items()]} if settings.labels else {}),
        **({"service_account_email": account} if account else {}),
        **({"dataflow_endpoint": f"https://{endpoint}"} if endpoint else {}),
        **({"sdk_container_image": image} if image else {}),
        **data.beam.options,
    }
    return data.model_copy(update={"beam": data.beam.model_copy(update={"options": options})})


def _buckets(place: str, run_bucket: str) -> tuple[str, ...]:
    """Return the bucket that a setting names, unless it is the run's own."""
    match = BUCKET.search(place)
    return (match[1],) if match and f"gs://{match[1]}" != run_bucket else ()


def regions_settings(candidates: Sequence[RunConfig]) -> list[AccessSettings]:
    """Return what the permissions of a run depend on in each of its regions."""
    tpu = any(config.training_hardware.is_tpu for config in candidates)
    regions = {vertex_of(config).region: access_settings(config) for config in candidates}
    return [settings.model_copy(update={"tpu": tpu}) for settings in regions.values()]


def setup(regions: Sequence[AccessSettings], *, apply: bool, as_json: bool) -> bool:
    """Show what is missing in each region of a run, and create it if requested; see `_setup`."""
    rows: list[JsonObject] = []
    sound = True
    for settings in regions:
        if len(regions) > 1 and not as_json:
            console.print(f"[bold]{settings.region}[/]")
        sound &= _setup(settings, rows, apply=apply, as_json=as_json)
    if as_json:
        print_json(rows)
    return sound


def _setup(settings: AccessSettings, rows: list[JsonObject], *, apply: bool, as_json: bool) -> bool:
    """Show what is missing, and create it if requested.

    Args:
        settings: The desired state of the project.
        rows: Receives the lines as plain values.
        apply: Whether to create what is missing.
        as_json: Whether to print nothing.

    Returns:
        Whether everything exists (with `apply`), or exists or can be created (without it).

    Raises:
        UserError: The run-as account, the credentials or the project are missing.
    """
    from slipway.components.setup_access import access
    from slipway.components.setup_access.difference import difference
    from slipway.components.setup_access.observed import observe

    _check_account(settings)
    lines = difference(settings, observe(settings))
    if not as_json:
        show(lines)
    if not apply or all(line.status == "there" for line in lines):
        rows += [line.as_dict() for line in lines]
        if not as_json and not apply and any(line.status == "missing" for line in lines):
            console.print("to create what is missing: run the same command with --apply")
        return not any(line.status in ("wrong", "unseen") for line in lines)

    def report(outcome: Outcome) -> None:
        if not as_json:
            console.print(f"{RESULTS[outcome.result]} {escape(str(outcome.line.item))}")

    outcomes, left = access.apply(settings, report)
    made = {str(outcome.line.item): outcome for outcome in outcomes}
    rows += [made[str(line.item)].as_dict() if str(line.item) in made else line.as_dict() for line in left]
    if not as_json:
        show_end(outcomes, left)
    sound = not any(outcome.result == "failed" for outcome in outcomes) and not blocking(left)
    return sound and not any(line.status == "unseen" for line in left)


def _check_account(settings: AccessSettings) -> None:
    if settings.account is None:
        near = f"slipway@{settings.project}{ACCOUNT_DOMAIN}"
        raise UserError(
            "The configuration names no service account; runs would act as Compute Engine's default account, which has "
            "far more permissions than a run needs.",
            setting="vertex.service_account",
            value=None,
            allowed="the e-mail of a service account; setup creates it if it does not exist",
            nearest=near,
            fix=f"--set vertex.service_account={near}, and the same in the configuration",
        )


def show(lines: list[Line]) -> None:
    """Print a table with a row for each missing or incorrect item and its reason; existing ones are only counted."""
    there = sum(line.status == "there" for line in lines)
    rest = [line for line in lines if line.status != "there"]
    if not rest:
        console.print(f"Everything that a run needs exists; {there} items checked.")
        return
    table = Table(box=None, pad_edge=False, show_edge=False)
    for heading in ("", "kind", "what", "because"):
        table.add_column(heading, overflow="fold")
    for line in rest:
        table.add_row(MARKS[line.status], line.kind, escape(str(line.item)), escape(line.item.reason))
        if line.observed not in PLAIN:
            table.add_row("", "", "", f"[yellow]{escape(line.observed)}[/]")
        if line.fix:
            table.add_row("", "", "", f"fix: {escape(line.fix)}")
    console.print(table)
    counts = {status: sum(line.status == status for line in rest) for status in ("missing", "wrong", "unseen")}
    texts = {"missing": "to create", "wrong": "incorrect", "unseen": "that cannot be read"}
    counted = [f"{count} {texts[status]}" for status, count in counts.items() if count]
    console.print(f"{there} there, {', '.join(counted)}")
    if any(line.doubtful for line in rest):
        console.print(DOUBTFUL)


def show_end(outcomes: list[Outcome], left: list[Line]) -> None:
    """Print the errors and what is still missing, each with its fix."""
    shown = set()
    for outcome in outcomes:
        if outcome.result == "later":
            console.print(f"– {escape(str(outcome.line.item))}: {LATER}")
        elif outcome.error is not None and str(outcome.error) not in shown:
            shown.add(str(outcome.error))
            console.print(f"[red]error:[/] {escape(lowered(str(outcome.error)))}")
    for line in left:
        if line.status in ("wrong", "unseen") and line.observed not in shown:
            shown.add(line.observed)
            console.print(f"[red]✗[/] {escape(str(line.item))}: {escape(line.observed)}")
            if line.fix:
                console.print(f"  fix:      {escape(line.fix)}")
    if not shown and not blocking(left):
        console.print("Everything that a run needs exists.")
