"""The summary table printed at the end of training: one row per epoch, from the run's history."""

from __future__ import annotations

from collections.abc import Sequence

from slipway.trainer.metrics.history import Record
from slipway.trainer.tasks import in_words

ROWS = 12


def table(history: Sequence[Record], figure: str, best_step: int | None = None) -> list[str]:
    """Return the table's lines, header first: at most `ROWS` epochs, evenly spaced, with the last and the best.

    Loss and figure are means over the epoch's steps, measured while the weights changed.

    Args:
        history: The records of metrics.jsonl.
        figure: The name of the task's figure, such as accuracy.
        best_step: Step of the best validation, marked in the table.
    """
    training = {record["step"]: record for record in history if record["kind"] == "train"}
    validations = {record["step"]: record for record in history if record["kind"] == "validation"}
    ends = sorted(validations) or _epoch_ends(training)
    name = in_words(figure)
    rows = [("epoch", "step", "loss", name, "validation loss", f"validation {name}", "steps/s", "")]
    for step in _chosen(ends, best_step):
        trained, validated = training.get(step, {}), validations.get(step, {})
        rows.append(
            (
                f"{(trained or validated)['epoch']:.2f}",
                f"{step:,}",
                _number(trained.get("epoch_loss")),
                _number(trained.get(f"epoch_{figure}")),
                _number(validated.get("loss")),
                _number(validated.get(figure)),
                f"{trained['steps_per_second']:,.1f}" if trained.get("steps_per_second") else "",
                "best" if step == best_step else "",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    kept = [number for number, column in enumerate(zip(*rows[1:], strict=True)) if any(column)]
    return ["  ".join(row[number].rjust(widths[number]) for number in kept).rstrip() for row in rows]


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


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
