"""The summary table printed at the end of training: one row per epoch, from the run's history."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

from slipway.core.formatting import decimals, number
from slipway.trainer.metrics.history import Record
from slipway.trainer.tasks import MONITORS, in_words

ROWS = 12
WIDTH = 78  # columns of a terminal, without the indentation


def table(
    history: Sequence[Record], metric: str, best_step: int | None = None, exported_step: int | None = None
) -> list[str]:
    """Return the table's lines, header first: at most `ROWS` epochs, evenly spaced, with the last and the marked one.

    Loss and metric are means over the epoch's steps, measured while the weights changed. A header that is too wide has
    a line for each word.

    Args:
        history: The records of metrics.jsonl.
        metric: The name of the task's metric, such as accuracy.
        best_step: Step of the best validation, marked in the table.
        exported_step: Step of the exported weights, marked in the table.
    """
    marks = {best_step: "best", exported_step: "exported"}  # the second, if they are the same
    training = {record["step"]: record for record in history if record["kind"] == "train"}
    validations = {record["step"]: record for record in history if record["kind"] == "validation"}
    ends = sorted(validations) or _epoch_ends(training)
    name = in_words(metric)
    rows = [("epoch", "step", "loss", name, "validation loss", f"validation {name}", "steps/s", "")]
    chosen = [(step, training.get(step, {}), validations.get(step, {})) for step in _chosen(ends, best_step)]
    measured = [
        (trained.get("epoch_loss"), trained.get(f"epoch_{metric}"), validated.get("loss"), validated.get(metric))
        for _, trained, validated in chosen
    ]
    values = zip(*map(_numbers, zip(*measured, strict=True)), strict=True)
    for (step, trained, validated), texts in zip(chosen, values, strict=True):
        rows.append(
            (
                f"{(trained or validated)['epoch']:.2f}",
                f"{step:,}",
                *texts,
                f"{trained['steps_per_second']:,.1f}" if trained.get("steps_per_second") else "",
                marks.get(step, ""),
            )
        )
    kept = [number for number, column in enumerate(zip(*rows[1:], strict=True)) if any(column)]
    shown = [tuple(row[number] for number in kept) for row in rows]
    lines = _aligned(shown)
    if max(map(len, lines)) > WIDTH:
        words = zip_longest(*(reversed(name.split()) for name in shown[0]), fillvalue="")
        lines = _aligned([*reversed(list(words)), *shown[1:]])
    return lines


def better_epoch(history: Sequence[Record], monitor: str, exported_step: int) -> str | None:
    """Return a sentence that names the epoch with the best validation, if its weights are not the exported ones."""
    validations = (record for record in history if record["kind"] == "validation")
    measured = {record["step"]: record for record in validations if math.isfinite(record.get(monitor, math.nan))}
    minimized = MONITORS[monitor] == "minimize"
    best = (min if minimized else max)(measured.values(), key=lambda record: record[monitor], default=None)
    exported = measured.get(exported_step)
    if best is None or (exported and exported[monitor] == best[monitor]):
        return None
    extreme = "lowest" if minimized else "highest"
    return (
        f"validation {in_words(monitor)} was {extreme} in epoch {best['epoch']:g}; --set train.export=best exports it"
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]


def _epoch_ends(training: dict[int, Record]) -> list[int]:
    """Return the steps at the end of an epoch, and the last step."""
    ends = [step for step, record in training.items() if float(record["epoch"]).is_integer()]
    return sorted({*ends, *list(training)[-1:]})


def _chosen(ends: list[int], best_step: int | None) -> list[int]:
    if len(ends) <= ROWS:
        return ends
    chosen = {ends[round(number * (len(ends) - 1) / (ROWS - 1))] for number in range(ROWS)}
    if best_step in ends and best_step not in chosen:
        chosen = {*sorted(chosen)[:-2], *sorted(chosen)[-1:], best_step}
    return sorted(chosen)


def _numbers(column: Sequence[float | None]) -> list[str]:
    """Format the values of a column with the same decimals; None is nothing."""
    places = decimals(*column)
    return ["" if value is None else number(value, places) for value in column]
