"""The page that compares hardware: the answer, a chart of prices and times, all choices, and what they rest on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from markupsafe import Markup

from slipway.components import page
from slipway.core import durations
from slipway.core.formatting import binary_size
from slipway.core.values import JsonObject
from slipway.pipelines.advice import chart

TEMPLATE = Path(__file__).with_name("comparison.html")
NOT_KNOWN = "not known"
NAMES = {"cuda": "GPUs", "tpu": "TPUs", "cpu": "CPUs"}
SPACE = "\N{NO-BREAK SPACE}"


def written(comparison: JsonObject, title: str) -> str:
    """Return the page of a comparison, as `Comparison.as_dict` returns it, as HTML.

    With a key `measured`, the page has a table of earlier trainings: a list of dicts with the keys `hardware`,
    `estimated_seconds`, `measured_seconds` and `run`.
    """
    choices: list[JsonObject] = comparison["choices"]
    deadline, budget = comparison.get("deadline"), comparison.get("budget")
    return page.render(
        TEMPLATE,
        title=title,
        comparison=comparison,
        answer=_answer(comparison),
        deadline=deadline,
        budget=budget,
        chart=chart.draw(choices, deadline, budget),
        height=chart.HEIGHT,
        fitting=[choice for choice in choices if choice["fits"]],
        too_large=[choice for choice in choices if not choice["fits"]],
        bases=_bases(choices),
        unknown={NAMES[name]: reason for name, reason in comparison["unknown"].items()},
        measured=comparison.get("measured", []),
        day=f"{date.fromisoformat(comparison['prices_of']):%d %B %Y}".lstrip("0"),
        duration=duration, dollars=dollars, memory=_memory, ends=ends, price_tick=chart.price_tick,
        not_known=NOT_KNOWN,
    )  # fmt: skip


def duration(seconds: float) -> str:
    """Format a time whose unit stays on its line."""
    return durations.duration(seconds, SPACE)


def ends(times: JsonObject) -> str:
    """Format the ends of a range of times in the unit of its middle: "3.1 to 5.2 h"."""
    size, unit = durations.unit_of(times["middle"])
    return f"{durations.two_digits(times['low'] / size)} to {durations.two_digits(times['high'] / size)}{SPACE}{unit}"


def dollars(amount: float) -> str:
    """Format an amount with cents, and below a dollar with three significant digits: "$12.30", "$0.0028"."""
    if amount >= 1:
        return f"${amount:,.2f}"
    whole, _, cents = f"{float(f'{amount:.3g}'):.10f}".rstrip("0").partition(".")
    return f"${whole}.{cents:0<2}"


def _memory(count: int | None) -> str:
    return NOT_KNOWN if count is None else binary_size(count)


def _limits(comparison: JsonObject) -> str:
    """Return deadline and budget as "6.0 h and $20.00", "" without both."""
    deadline, budget = comparison.get("deadline"), comparison.get("budget")
    texts = [duration(deadline) if deadline else "", dollars(budget) if budget else ""]
    return " and ".join(filter(None, texts))


def _answer(comparison: JsonObject) -> Markup:
    """Return what is cheapest and what is fastest, or what comes nearest to deadline and budget, as a sentence."""
    fitting = [choice for choice in comparison["choices"] if choice["fits"]]
    meeting = [choice for choice in fitting if choice["meets"]]
    if not fitting:
        return Markup("No hardware that could be compared can train this run.")
    if not meeting:
        return _nearest(comparison, fitting)
    limits = _limits(comparison)
    within = f"Within {limits}, " if limits else ""
    fastest = min(meeting, key=lambda choice: (choice["seconds"]["middle"], _price(choice)))
    cheapest = min(meeting, key=lambda choice: (_price(choice), choice["seconds"]["middle"]))
    if cheapest["cost"] is None:
        return Markup("{}{} is fastest: {}. No price is known.").format(within, _code(fastest), _time(fastest))
    if cheapest is fastest:
        return Markup("{}{} is both cheapest and fastest: {} for {}.").format(
            within, _code(cheapest), _time(cheapest), _cost(cheapest)
        )
    return Markup("{}{} is cheapest: {} in {}; {} is fastest: {} for {}.").format(
        within, _code(cheapest), _cost(cheapest), _time(cheapest), _code(fastest), _time(fastest), _cost(fastest)
    )


def _nearest(comparison: JsonObject, fitting: Sequence[JsonObject]) -> Markup:
    """Return which choice exceeds deadline and budget least, and by how much, as a sentence."""
    nearest = next((choice for choice in fitting if choice["hardware"] == comparison["nearest"]), fitting[0])
    deadline, budget = comparison.get("deadline"), comparison.get("budget")
    longest, cost = nearest["seconds"]["high"], nearest["cost"]
    over = [f"{duration(longest - deadline)} too long"] if deadline and longest > deadline else []
    if budget and cost and cost["high"] > budget:
        over.append(f"{dollars(cost['high'] - budget)} too expensive")
    price = f"costs up to {dollars(cost['high'])}" if cost else "has a price that is not known"
    sentence = Markup("Nothing is certain to stay within {}; {} comes nearest: it takes up to {} and {}{}.")
    by = f", {' and '.join(over)}" if over else ""
    return sentence.format(_limits(comparison) or "the limits", _code(nearest), duration(longest), price, by)


def _price(choice: JsonObject) -> float:
    return float(choice["cost"]["middle"]) if choice["cost"] else float("inf")


def _code(choice: JsonObject) -> Markup:
    return Markup("<code>{}</code>").format(choice["hardware"])


def _time(choice: JsonObject) -> str:
    return duration(choice["seconds"]["middle"])


def _cost(choice: JsonObject) -> str:
    return dollars(choice["cost"]["middle"]) if choice["cost"] else "a price that is not known"


def _bases(choices: Sequence[JsonObject]) -> dict[str, list[str]]:
    """Return the kinds of hardware by what their estimates rest on."""
    bases: dict[str, dict[str, None]] = {}
    for choice in choices:
        bases.setdefault(choice["based_on"], {})[chart.kind_of(choice["hardware"])] = None
    return {text: list(kinds) for text, kinds in bases.items()}
