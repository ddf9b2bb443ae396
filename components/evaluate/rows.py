"""The rows of the report's tables of metrics: this model's, the baseline's, the champion's, and their difference."""

from __future__ import annotations

from collections.abc import Iterator

from slipway.components.evaluate.evaluate import Evaluation
from slipway.components.evaluate.gate import SIGNIFICANCE
from slipway.components.evaluate.measures.base import comparisons
from slipway.components.evaluate.settings import known
from slipway.core import formatting
from slipway.core.manifest import Manifest
from slipway.core.values import JsonObject
from slipway.trainer.tasks import TASKS


def of_split(evaluation: Evaluation, manifest: Manifest) -> Iterator[JsonObject]:
    """Yield the rows of the metrics table: this model, the baseline, the champion, the difference and its trend."""
    model, champion = evaluation.model, evaluation.champion
    assert model.measures is not None
    assert model.compared is not None
    champion_metrics, intervals = (champion.metrics, champion.intervals) if champion else ({}, {})
    compared, without_interval = model.compared.metrics(), model.measures.without()
    tested = comparisons(model.compared, champion.measures) if champion and champion.measures else {}
    alpha = evaluation.settings.gate.tested or SIGNIFICANCE
    for name, metric in TASKS[manifest.task].metrics.items():
        if name not in model.metrics:
            continue
        shown = [model.metrics[name], evaluation.baseline.get(name), champion_metrics.get(name)]
        places = formatting.decimals(*shown)
        value, trivial, beaten = (formatting.number(number, places) for number in shown)
        ends, their_ends = (
            bounds and formatting.interval(*bounds, places)
            for bounds in (by_name.get(name) for by_name in (model.intervals, intervals))
        )
        test = tested.get(name)
        row = {
            "label": _capitalized(metric.title),
            "meaning": metric.meaning,
            "value": value,
            "interval": ends,
            "no_interval": without_interval.get(name),
            "baseline": trivial,
            "champion": beaten,
            "champion_interval": their_ends,
            "significant": test is not None and test.is_significant(alpha),
            "doubt": "not tested" if test is None or test.p_value is None else "not significantly",
        }
        minimized = metric.direction == "minimize"
        yield row | _difference(compared.get(name), champion_metrics.get(name), places, minimized=minimized)


def by_slice(evaluation: Evaluation, manifest: Manifest) -> Iterator[JsonObject]:
    """Yield each metric with its rows by slice, the worst first; the gate's metric is the first one."""
    alpha, champion = evaluation.settings.gate.tested or SIGNIFICANCE, evaluation.champion
    champion_measures = {part.name: part.measures for part in champion.slices} if champion else {}
    tested = {
        part.name: comparisons(part.compared, champion_measures[part.name])
        for part in evaluation.model.slices
        if part.name in champion_measures and part.compared.examples
    }
    metrics = TASKS[manifest.task].metrics
    for name in sorted(metrics, key=lambda name: name != evaluation.settings.gate.name):
        minimized, rows = metrics[name].direction == "minimize", []
        for part in evaluation.model.slices:
            value = part.measures.metrics().get(name)
            if value is None:
                continue
            beaten = champion_measures[part.name].metrics().get(name) if part.name in tested else None
            places, ends = formatting.decimals(value, beaten), part.measures.intervals().get(name)
            test = tested.get(part.name, {}).get(name)
            ours = part.compared.metrics().get(name) if part.compared.examples else None
            row: JsonObject = {"name": part.name, "examples": part.measures.examples, "sorted": value}
            row |= {"value": formatting.number(value, places), "interval": ends and formatting.interval(*ends, places)}
            row |= {
                "champion": formatting.number(beaten, places),
                "compared": part.compared.examples if champion else None,
            }
            row |= {"significant": test is not None and test.is_significant(alpha)}
            rows.append(row | _difference(ours, beaten, places, minimized=minimized))
        rows.sort(key=lambda row: row["sorted"], reverse=minimized)
        if rows:
            yield {"label": _capitalized(metrics[name].title), "rows": rows}


def of_importance(evaluation: Evaluation) -> Iterator[JsonObject]:
    """Yield the rows of the table of inputs: by how much the gate's metric gets worse without each, and on slices."""
    importances = evaluation.importance
    ends = [end for importance in importances for end in importance.interval or ()]
    places = formatting.decimals(*(importance.loss for importance in importances), *ends)
    largest = max((importance.loss for importance in importances), default=0.0)
    for importance in importances:
        yield {
            "input": importance.input,
            "loss": formatting.number(importance.loss, places),
            "interval": importance.interval and formatting.interval(*importance.interval, places),
            "share": max(0.0, importance.loss / largest) if largest > 0 else 0.0,
            "slices": {name: formatting.number(loss, places) for name, loss in importance.slices.items()},
        }


def _capitalized(title: str) -> str:
    return title[0].upper() + title[1:]


def of_custom(evaluation: Evaluation) -> Iterator[JsonObject]:
    """Yield the rows of the metrics table, the gate's metric first; only known directions have a trend."""
    gate, ours = evaluation.settings.gate, evaluation.model.metrics
    champion_metrics = evaluation.champion.metrics if evaluation.champion else {}
    for name in sorted(ours, key=lambda name: name != gate.name):
        places, metric = formatting.decimals(ours[name], champion_metrics.get(name)), known(name)
        row: JsonObject = {
            "label": name,
            "meaning": "",
            "value": formatting.number(ours[name], places),
            "interval": None,
        }
        row |= {"champion": formatting.number(champion_metrics.get(name), places), "champion_interval": None}
        row |= {"significant": False, "doubt": ""}
        minimized = None if metric is None else metric.direction == "minimize"
        if name == gate.name:
            minimized = gate.minimized
        yield row | _difference(ours[name], champion_metrics.get(name), places, minimized=minimized)


def _difference(
    value: float | None, champion_value: float | None, places: int, *, minimized: bool | None
) -> JsonObject:
    """Return the difference of a metric from the champion's, and whether it is better, "" if nobody knows."""
    if value is None or champion_value is None:
        return {"difference": "–", "trend": ""}
    gain = formatting.difference(value, champion_value, places)
    trend = "same" if gain[0] not in f"+{formatting.MINUS}" else "better" if (gain[0] == "+") != minimized else "worse"
    return {"difference": gain, "trend": "" if minimized is None else trend}
