"""Choose the hardware that a configuration leaves open: the cheapest that keeps its deadline and its budget."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from slipway.core.errors import UserError
from slipway.pipelines.advice import texts
from slipway.pipelines.advice.comparison import Comparison, Filters, Offer, Say, compare, nearest
from slipway.pipelines.advice.jobs import job_of
from slipway.pipelines.hardware import prices
from slipway.pipelines.hardware.catalogue import load
from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.hardware.placement import check_engine
from slipway.pipelines.platforms.base import CheckWarning, Context

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.platforms.base import Platform

# Candidates, of which a run takes the next one when there is no quota or capacity.
CANDIDATES = 5


def choose(config: RunConfig, platform: Platform, say: Say) -> RunConfig:
    """Return a configuration with the cheapest hardware that keeps its deadline and its budget, in order.

    With a budget, each candidate has the time limit at which its worst case costs as much: a run whose estimate is
    wrong ends there.

    Raises:
        UserError: Nothing does, or the step cannot be compiled before the data are prepared here.
    """
    from slipway.components.cloud.settings import CloudSettings

    section = getattr(config, platform.name, None)
    if not isinstance(section, CloudSettings):
        raise UserError(
            f"Hardware is chosen by the list prices of Google Cloud, and those of {platform.title} are not known.",
            setting="hardware",
            value="auto",
            allowed="one choice",
            fix="--hardware cpu",
        )
    job = job_of(config, "--set hardware=auto")
    filters = Filters(
        region=section.region, deadline=config.deadline_seconds, budget=config.dollars, statuses=("offered", "tpu-vm")
    )
    compared = compare(config, job, filters, say)
    priced = [offer for offer in compared.offers if offer.cost is not None]
    offers = [offer for offer in priced if _is_possible(config.on(offer.hardware), platform)]
    limited = [(limit(offer, config.dollars), offer) for offer in offers if offer.meets(filters)]
    kept = _of_each_kind([(hardware, offer) for hardware, offer in limited if hardware is not None])[:CANDIDATES]
    if not kept:
        raise _none(config, compared, nearest(offers, filters))
    best = kept[0][1]
    choice = {
        "chosen": [str(hardware) for hardware, _ in kept],
        "compared": len(compared.offers),
        "deadline": config.deadline,
        "budget": config.dollars,
        "estimates": [offer.as_dict() for _, offer in kept],
        "why": f"the cheapest of {len(compared.offers)} that were compared: {texts.outcome(best)}",
    }
    say(f"hardware: {kept[0][0]}, {choice['why']}")
    return config.chosen_from([hardware for hardware, _ in kept], choice)


def _of_each_kind(offers: list[tuple[Hardware, Offer]]) -> list[tuple[Hardware, Offer]]:
    """Return the cheapest of each kind, which have quotas of their own, and then the others."""
    kinds: set[str] = set()
    first: list[tuple[Hardware, Offer]] = []
    rest: list[tuple[Hardware, Offer]] = []
    for hardware, offer in offers:
        family = hardware.machine_row.family
        kind = hardware.accelerator or load().cpu_quotas.get(family, family)
        (rest if kind in kinds else first).append((hardware, offer))
        kinds.add(kind)
    return first + rest


def limit(offer: Offer, budget: float | None) -> Hardware | None:
    """Return an offer's hardware with the time limit that keeps a budget in all tries; None if the training is longer.

    Without a budget, it has no limit but the platform's.
    """
    if budget is None:
        return offer.hardware
    assert offer.per_hour is not None
    seconds = int(budget / offer.per_hour * 3600 / prices.TRIES[offer.hardware.provisioning])
    seconds = min(prices.DEFAULT_TIMEOUT, seconds - seconds % 60)
    return replace(offer.hardware, timeout=seconds) if seconds >= max(60, offer.seconds.high) else None


def _is_possible(config: RunConfig, platform: Platform) -> bool:
    try:
        check_engine(config.training_hardware, config.train.engine)
        platform.check_hardware(Context(config, platform))
    except (UserError, CheckWarning):
        return False
    return True


def _none(config: RunConfig, compared: Comparison, near: Offer | None) -> UserError:
    wanted = [f"the deadline of {config.deadline}"] if config.deadline else []
    wanted += [f"the budget of {prices.dollars(config.dollars)} in all tries"] if config.dollars else []
    unknown = "; ".join(f"{name}: {why}" for name, why in compared.unknown.items())
    compare_command = f"slipway hardware --compare -c {shlex.quote(str(config.file))}"
    if near is None or not wanted:
        return UserError(
            f"No hardware in {compared.filters.region} is known to train this: {unknown or 'nothing fits'}.",
            setting="hardware",
            value="auto",
            fix=f"--hardware cpu, or {compare_command}",
        )
    fixes = []
    if config.deadline_seconds and near.seconds.high > config.deadline_seconds:
        fixes.append(f"--set deadline={int(near.seconds.high / 3600) + 1}h")
    if config.dollars and near.cost and limit(near, config.dollars) is None:
        tries = prices.TRIES[near.hardware.provisioning]
        fixes.append(f"--set budget={int(max(near.cost.high, (near.per_hour or 0) / 60) * tries) + 1}")
    return UserError(
        f"No hardware in {compared.filters.region} keeps {' and '.join(wanted)}. "
        f"The closest is {near.hardware}: {texts.outcome(near)}.",
        setting="hardware",
        value="auto",
        nearest=str(near.hardware),
        fix=" ".join(fixes) or compare_command,
    )
