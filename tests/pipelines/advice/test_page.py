"""The page that compares hardware: its answer, chart and tables, also without prices, and with nothing that fits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import pytest

from slipway.core.values import JsonObject
from slipway.pipelines.advice import chart
from slipway.pipelines.advice.comparison import Comparison, Filters, Offer, _best_machines, _with_front
from slipway.pipelines.advice.page import SPACE, dollars, duration, ends, written
from slipway.pipelines.hardware import parse
from slipway.pipelines.hardware.choice import choices
from slipway.pipelines.hardware.estimate import Estimate, Range

STEPS = 1000


def offer(
    hardware: str, hours: float, per_hour: float | None, *, fits: bool = True, largest: int | None = 512
) -> Offer:
    """A choice whose training takes half to twice as many hours."""
    step = Range(0.5, 1, 2).times(3600 * hours / STEPS)
    estimate = Estimate(
        hardware=parse(hardware), devices=1, peak_bytes=3 * 2.0**30, fits=fits, largest_batch=largest, step=step,
        limit="memory bandwidth", parts={}, based_on="published results" if "tpu" in hardware else "not measured",
    )  # fmt: skip
    return Offer(estimate=estimate, steps=STEPS, region="southamerica-west1" if per_hour else "", per_hour=per_hour)


OFFERS = [
    offer("t4x1", 8, 0.5), offer("l4x1", 4, 0.8), offer("l4x4*2", 3, 8.5), offer("tpu-v5e-2x4", 1, 9.6),
    offer("a100x8", 0.5, 30), offer("h100x8", 0.4, 88), offer("gb200x4", 0.3, None),
    offer("cpu@e2-standard-8", 300, 0.27),
    offer("p4x1", 9, 0.6, fits=False, largest=128), offer("v100x1", 9, 2.5, fits=False, largest=None),
]  # fmt: skip


def compared(
    offers: Sequence[Offer] = OFFERS, deadline: float | None = None, budget: float | None = None
) -> JsonObject:
    """The comparison of choices, as plain values."""
    comparison = Comparison(
        offers=_with_front(_best_machines(offers)),
        refused={"tpu-v3-96": "A batch of 256 examples cannot be split evenly."},
        unknown={"cpu": "without torch"},
        examples=50_000,
        batch=256,
        steps=STEPS,
        filters=Filters(deadline=deadline, budget=budget),
    )
    return comparison.as_dict() | {"deadline": deadline, "budget": budget}


def answer(comparison: JsonObject) -> str:
    match = re.search(r'<p class="answer">(.*?)</p>', written(comparison, "digits"))
    assert match
    return re.sub("<.*?>", "", match[1]).replace(SPACE, " ")


@pytest.mark.parametrize(
    ("deadline", "budget", "sentence"),
    [
        (None, None, "l4x1 is cheapest: $3.20 in 4.0 h; gb200x4 is fastest: 18 min for a price that is not known."),
        (3 * 3600, None, "Within 3.0 h, tpu-v5e-2x4 is cheapest: $9.60 in 1.0 h; "
         "gb200x4 is fastest: 18 min for a price that is not known."),
        (3 * 3600, 25, "Within 3.0 h and $25.00, tpu-v5e-2x4 is both cheapest and fastest: 1.0 h for $9.60."),
        (1800, 60, "Nothing is certain to stay within 30 min and $60.00; h100x8 comes nearest: it takes up to 48 min "
         "and costs up to $70.40, 18 min too long and $10.40 too expensive."),
        (None, 0.5, "Nothing is certain to stay within $0.50; l4x1 comes nearest: it takes up to 8.0 h and costs up to "
         "$6.40, $5.90 too expensive."),
    ],
)  # fmt: skip
def test_the_answer_comes_first(deadline: float | None, budget: float | None, sentence: str) -> None:
    assert answer(compared(deadline=deadline, budget=budget)) == sentence


def test_without_prices_the_fastest_is_the_answer_and_there_is_no_chart() -> None:
    comparison = compared([offer("l4x1", 4, None), offer("a100x1", 1, None)])
    assert answer(comparison) == "a100x1 is fastest: 1.0 h. No price is known."
    html = written(comparison, "digits")
    assert '<h2 id="price-and-time">' not in html
    assert html.count('<td class="price">not known</td>') == 2
    late = compared([offer("l4x1", 4, None)], deadline=3600)
    assert "takes up to 8.0 h and has a price that is not known, 7.0 h too long." in answer(late)


@pytest.mark.parametrize("offers", [[], OFFERS[-2:]])
def test_without_a_choice_that_fits_the_page_says_so(offers: list[Offer]) -> None:
    comparison = compared(offers, deadline=60)
    assert answer(comparison) == "No hardware that could be compared can train this run."
    html = written(comparison, "digits")
    assert "<p>None.</p>" in html
    assert "CPUs: without torch" in html
    assert ("2 choices on which the batch does not fit" in html) == bool(offers)


def test_the_page_has_a_row_for_each_choice_and_marks_the_front_by_a_word() -> None:
    html = written(compared(), "digits")
    fitting, too_large, refused = html.split("<tbody>")[1:]
    assert fitting.count("<tr ") == 8
    assert fitting.count("Pareto front") == 4
    assert re.findall(r"<td>(128|none)</td>", too_large) == ["128", "none"]
    assert "cannot be split evenly" in refused
    assert re.findall(r'<a class="point[^>]*href="#(.*?)"', html) == [f"choice-{row}" for row in range(1, 8)]
    assert "published results" in html and "l4, t4" in html
    assert html.count("3.0 GiB") == 10


def test_measured_runs_are_a_table_of_their_own() -> None:
    run = {"hardware": "l4x1", "estimated_seconds": 100.0, "measured_seconds": 125.0, "run": "digits-20261125"}
    assert "Estimated and measured" not in written(compared(), "digits")
    html = written(compared() | {"measured": [run]}, "digits")
    assert "<td>1.7 min</td><td>2.1 min</td><td>1.25</td>" in html.replace(SPACE, " ")


def test_texts_from_elsewhere_are_escaped() -> None:
    hostile = '"><script>alert(1)</script>'
    comparison = compared()
    comparison["choices"][0] |= {"hardware": hostile, "region": hostile, "limit": hostile, "based_on": hostile}
    comparison |= {"refused": {hostile: hostile}, "unknown": {"tpu": hostile}}
    comparison["measured"] = [{"hardware": hostile, "estimated_seconds": 1, "measured_seconds": 1, "run": hostile}]
    html = written(comparison, hostile)
    assert "<script" not in html and '"">' not in html
    assert "&lt;script&gt;" in html


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12, "12 s"), (204, "3.4 min"), (59.99, "1.0 min"), (18_360, "5.1 h"), (9.96, "10 s"),
     (360_000, "100 h"), (3e-4, "300 µs")],
)  # fmt: skip
def test_times_have_two_digits(seconds: float, text: str) -> None:
    assert duration(seconds).replace(SPACE, " ") == text


def test_a_range_has_the_unit_of_its_middle() -> None:
    assert ends({"low": 1800, "middle": 3600, "high": 7200}) == f"0.5 to 2.0{SPACE}h"


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0.0028, "$0.0028"), (0.00284986, "$0.00285"), (12.3, "$12.30"), (0.3, "$0.30"), (0.9999, "$1.00"),
     (1234, "$1,234.00"), (0, "$0.00")],
)  # fmt: skip
def test_amounts_have_cents_or_three_digits(amount: float, text: str) -> None:
    assert dollars(amount) == text


def test_the_kind_of_hardware_is_its_accelerator() -> None:
    for hardware in choices():
        assert chart.kind_of(str(hardware)) == (hardware.accelerator or "cpu")


def test_labels_do_not_overlap_and_lines_far_away_do_not_squeeze_the_marks() -> None:
    comparison = compared()
    drawn = chart.draw(comparison["choices"], deadline=3600, budget=1e6)
    assert drawn and drawn.deadline is not None and drawn.budget is None
    assert len({shape.path + str(shape.is_hollow) for shape in drawn.shapes}) == len(drawn.shapes)
    assert [mark.label for mark in drawn.front] == ["l4x1", "tpu-v5e-2x4", "a100x8", "h100x8"]
    for name, width in chart.WIDTHS.items():
        labels = drawn.labels[name]
        assert len(labels) == 4
        for earlier, later in pairwise(labels):
            start = later.mark.x * width / 100 - chart.LETTER * len(later.mark.label)
            is_right = start > earlier.mark.x * width / 100 - chart.LABEL_GAP
            assert is_right or abs(later.top - earlier.top) >= chart.LABEL_HEIGHT
