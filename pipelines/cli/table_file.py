"""What `slipway init --table` and `slipway data check` say about a table, and the configuration that init writes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from slipway.core.formatting import brief
from slipway.extensions import load
from slipway.pipelines.cli.scanned import aligned, balance, fitting_batch, imbalance, lines, listed, quoted
from slipway.trainer.tasks import PAIR

if TYPE_CHECKING:
    from slipway.components.prepare_data.scan_table import TableScan
    from slipway.core.manifest import Input
    from slipway.core.values import JsonObject
    from slipway.extensions import Template

MAX_COLUMNS = 40
MAX_CHARACTERS = 24
MAX_WIDTH = 30
EXAMPLES = 3
# Settings of training, by whether an input is a text: epochs, batch size, learning rate and patience.
TRAINING = {False: (200, 64, 0.002, 15), True: (30, 32, 0.002, 5)}
# Of more rows, a network of a table has less than the full weight decay.
DECAYED_ROWS = 5000
METRICS = {
    "classification": ("accuracy", "minimum: 0.9"),
    "multilabel": ("macro_average_precision", "minimum: 0.9"),
    "regression": ("rmse", "maximum: 1"),
}


def summary(name: str, scan: TableScan) -> str:
    """Return what a scan found, one line for each subject."""
    return "\n".join([f"{name}: {scan.rows:,} rows", *lines(_rows(scan))])


def facts(scan: TableScan) -> JsonObject:
    """Return what a scan found as plain values, for JSON."""
    about = scan.manifest
    return {
        "examples": scan.rows, "task": about.task, "label": scan.settings.label or "label", "labels": _labels(scan),
        "splits": {name: split.examples for name, split in about.splits.items()}, "skipped": about.skipped_count,
        "inputs": {name: feature.kind for name, feature in _inputs(scan).items()}, "notes": list(about.notes),
    }  # fmt: skip


def split_summary(scan: TableScan) -> str:
    """Return all that was measured to find out whether the split flatters."""
    measured = [finding.sentence for finding in scan.split_findings]
    nothing = "Neither names nor likeness suggest that it flatters."
    return "\n".join(lines([("split", text) for text in measured or [nothing]]))


def _rows(scan: TableScan) -> Iterator[tuple[str, str]]:
    about = scan.manifest
    yield "label", f"{scan.settings.label or 'label'}, for the task {about.task}"
    labels = _labels(scan)
    yield "labels", f"{len(labels):,}: {balance(labels)}" if labels else ""
    if about.target:
        yield "target", f"mean {brief(about.target.mean[0])}, standard deviation {brief(about.target.deviation[0])}"
    yield "splits", listed((split, split_info.examples) for split, split_info in about.splits.items())
    yield "skipped", about.skipped_text
    names = list(dict.fromkeys([*_inputs(scan), *scan.columns]))
    width = min(max(map(len, names), default=0), MAX_WIDTH)
    for position, name in enumerate(names[:MAX_COLUMNS]):
        yield "" if position else "columns", f"{name.ljust(width)}  {_column(name, scan)}"
    yield "", f"and {len(names) - MAX_COLUMNS:,} more" if len(names) > MAX_COLUMNS else ""
    for note in about.notes:
        yield "note", note


def _labels(scan: TableScan) -> dict[str, int]:
    splits = scan.manifest.splits.values()
    return {label: sum(split.classes[label] for split in splits) for label in scan.manifest.classes}


def _inputs(scan: TableScan) -> dict[str, Input]:
    """Return the inputs by the names of their columns; records have other names of a few, such as label."""
    return {scan.manifest.sources[name]: feature for name, feature in scan.manifest.inputs.items()}


def _column(name: str, scan: TableScan) -> str:
    """Return a column's kind, examples and gaps."""
    column, used = scan.columns.get(name), _inputs(scan).get(name)
    kind = used.kind if used else "no input"
    if column is None:
        return kind
    shown = [text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…" for text in column.texts[:EXAMPLES]]
    parts = [kind.ljust(8), ", ".join(" ".join(text.split()) for text in shown)]
    return "  ".join(parts) + (f"; {column.missing:,} missing" if column.missing else "")


def configuration(name: str, source: str, scan: TableScan, template: Template | None = None) -> str:
    """Return a configuration, with comments, that trains on the table without another setting.

    Args:
        name: The project's name.
        source: The setting `data.source`.
        scan: What the table has.
        template: What trains on it; None for the network in model.py.
    """
    about, labels, inputs = scan.manifest, _labels(scan), _inputs(scan)
    used = [column for column, feature in inputs.items() if template is None or feature.kind in template.kinds]
    data = [("source", quoted(source), f"{scan.rows:,} rows"), ("label", quoted(scan.settings.label or "label"), "")]
    if scan.settings.skip_corrupt:
        data.append(("skip_corrupt", f"{scan.settings.skip_corrupt:.4g}", "allowed fraction of rows without a label"))
    if formats := scan.settings.number_format:
        data.append(("number_format", json.dumps(formats, ensure_ascii=False), "how these columns write 1234.56"))
    if scan.settings.order_by:
        data.append(("order_by", quoted(scan.settings.order_by), "the latest rows test; null: divided at random"))
    if features := scan.settings.features:
        data.append(("features", json.dumps(features, ensure_ascii=False), "how this column writes dates"))
    unequal = imbalance(labels) if about.task == "classification" else ""
    metric, limit = METRICS[about.task]
    rare = unequal if len(labels) == PAIR else ""
    if unequal:
        metric = "macro_f1"
    beaten = "the mean" if about.task == "regression" else "the most frequent class"
    return "\n".join(
        [
            "# yaml-language-server: $schema=schema.json",
            f"name: {name}",
            f"task: {about.task}",
            "data:",
            *aligned(data),
            "  inputs:",
            *(_input(column, scan, used) for column in dict.fromkeys([*inputs, *scan.columns])),
            *(load(template.sections) if template else _network)(scan, rare),
            "evaluate:",
            "  gate:",
            f"    metric: {metric}  # promoted is what beats {beaten} and the champion",
            f"    # {limit}  # and reaches this, if you set it",
        ]
    ) + "\n"  # fmt: skip


def _network(scan: TableScan, rare: str) -> list[str]:
    """Return the sections of a network; `rare` says which of two classes is rare."""
    has_text = any(feature.kind == "text" for feature in scan.manifest.inputs.values())
    epochs, batch, rate, patience = TRAINING[has_text]
    batch = fitting_batch(scan.manifest.splits["train"].examples, batch)
    about = f"ends when the validation loss has not improved in {patience} epochs"
    decay = f"{min(1, DECAYED_ROWS / scan.rows):.2g}"
    train = [
        ("epochs", str(epochs), "at most"),
        ("batch_size", str(batch), ""),
        *(
            []
            if has_text
            else [("optimizer", "adamw", ""), ("weight_decay", decay, "the more, the fewer the rows are")]
        ),
        ("learning_rate", str(rate), ""),
        ("early_stop", f"{{patience: {patience}}}", about),
        ("export", "best", "the weights with the lowest validation loss"),
        *([("threshold", "f1", rare)] if rare else []),
    ]
    return ["model:", "  builder: model:build  # the function build in model.py", "train:", *aligned(train)]


def _input(column: str, scan: TableScan, used: Collection[str]) -> str:
    """Return the line of a column among the inputs; one that is not used is a comment."""
    about = " ".join(_column(column, scan).split())
    return f"    {'' if column in used else '# '}- {quoted(column)}  # {about}"
