"""`slipway hardware --compare`: print the comparison, or write it as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slipway.core.atomic import replace_file
from slipway.core.durations import between
from slipway.core.errors import UserError
from slipway.core.formatting import binary_size
from slipway.core.values import JsonObject
from slipway.pipelines.advice import texts
from slipway.pipelines.advice.comparison import Comparison, Filters, Offer
from slipway.pipelines.advice.comparison import compare as compare_all
from slipway.pipelines.advice.jobs import job_of
from slipway.pipelines.cli.display import in_columns
from slipway.pipelines.hardware import command as listing
from slipway.pipelines.hardware import prices, profile
from slipway.pipelines.hardware.grammar import Refusal, read_time
from slipway.pipelines.options import check_folder_of
from slipway.pipelines.terminal import console, print_json, say

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig

SHOWN = 20


def compare(config: RunConfig, limits: JsonObject, output: Path | None, *, as_json: bool) -> None:
    """Compare all hardware for a configuration, and print the table, JSON, or write a page; `limits` make `Filters`.

    Raises:
        UserError: A filter has an unknown value, the data are not prepared, or nothing is known of the step.
    """
    if output is not None:
        check_folder_of(output)
    comparison = compared(config, limits)
    if output is not None:
        from slipway.pipelines.advice.page import written

        replace_file(output, written(comparison.as_dict(), f"Hardware for {config.name}").encode())
    if as_json:
        print_json(comparison.as_dict())
        return
    show(comparison)
    if output is not None:
        say(f"{output} shows all {len(comparison.offers)} choices")


def compared(config: RunConfig, limits: JsonObject) -> Comparison:
    """Return the comparison for a configuration; see `compare`."""
    filters = filters_of(config, limits)
    listing.listing(filters.region, filters.accelerator, config.train.engine)  # refuses unknown values
    return compare_all(config, job_of(config, "--compare"), filters, say)


def filters_of(config: RunConfig, limits: JsonObject) -> Filters:
    """Return the filters that a command's options say; deadline and budget are the configuration's by default."""
    deadline = limits["deadline"]
    try:
        seconds = read_time(deadline) if deadline else config.deadline_seconds
    except Refusal as refusal:
        raise UserError(
            refusal.message, setting="--deadline", value=deadline, allowed=refusal.allowed, fix="--deadline 6h"
        ) from None
    return Filters(**{**limits, "deadline": seconds, "budget": limits["budget"] or config.dollars})


def show(comparison: Comparison) -> None:
    """Print the cheapest choices and the Pareto front, and what is not known."""
    filters, meeting = comparison.filters, comparison.meeting
    wanted = filters.deadline is not None or filters.budget is not None
    fitting = [offer for offer in comparison.offers if offer.estimate.fits]
    listed = list(meeting if wanted else fitting)
    if wanted and not meeting:
        near = comparison.nearest
        console.print("No hardware keeps the deadline and the budget by its highest estimate.")
        if near is not None:
            console.print(f"The closest is {near.hardware}: {texts.outcome(near)}.")
    shown = [offer for number, offer in enumerate(listed) if number < SHOWN or offer.on_front]
    for line in _lines(shown) if shown else ():
        console.print(line)
    rest = len(listed) - len(shown)
    too_large = len(comparison.offers) - len(fitting)
    console.print(
        f"{comparison.steps:,} steps of {comparison.batch:,} examples, by list prices of {prices.table()['date']}; "
        "without waiting for machines,\nstart, validation and checkpoints. ◆: nothing that is cheaper is faster."
    )
    if rest or too_large or comparison.refused:
        parts = [f"{rest} dearer ones"] * bool(rest) + [f"{too_large} without enough memory"] * bool(too_large)
        parts += [f"{len(comparison.refused)} of which nothing is known or that cannot split the batch"] * bool(
            comparison.refused
        )
        console.print(f"Not shown: {', '.join(parts)} (-o page.html, --json).")
    titles = {str(platform): title for platform, title in profile.TITLES.items()} | {"cpu": "CPUs"}
    for name, why in comparison.unknown.items():
        say(f"not known of {titles[name]}: {why}")


def _lines(offers: list[Offer]) -> list[str]:
    """Return the offers as lines of columns, which are as long as they have to be."""
    rows = [("", "hardware", "time", "price", "limited by", "memory", "largest batch", "region")]
    for offer in offers:
        known, cost = offer.estimate, offer.cost
        rows.append((
            "◆" if offer.on_front else "",
            str(offer.hardware),
            between(offer.seconds.low, offer.seconds.high),
            "not known" if cost is None else texts.money(cost.low, cost.high),
            known.limit,
            "" if known.peak_bytes is None else binary_size(round(known.peak_bytes)),
            "" if known.largest_batch is None else f"{known.largest_batch:,}",
            offer.region,
        ))  # fmt: skip
    return in_columns(rows)
