"""Runs with all that they are selected, sorted and compared by: metrics, settings, status, time, data and code."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from slipway import extensions
from slipway.core.errors import UserError, nearest
from slipway.core.values import JsonObject, by_option, dotted, number
from slipway.pipelines.runs import provenance
from slipway.pipelines.runs.record import RunFolder, RunRecord
from slipway.pipelines.selection import captured

# Longer operators first: they begin with a shorter one.
OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
CONDITION = re.compile(rf"\s*([\w.-]+?)\s*({'|'.join(OPERATORS)})\s*(.+?)\s*")
# What a run is selected by beside its metrics and settings.
FACTS = ("run", "status", "verdict", "seconds", "cost", "created", "platform", "data", "commit")


@dataclass(frozen=True)
class Row:
    """A run: its record, its settings and `RunRecord.arguments` by dotted name, and what it was made with."""

    folder: RunFolder
    record: RunRecord
    settings: JsonObject
    made_with: JsonObject

    @property
    def metric(self) -> str:
        """The gate's metric; "" before the evaluation."""
        return str(self.outputs("evaluate").get("metric", "accuracy")) if self.record.metrics else ""

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The metrics' confidence intervals."""
        return dict(self.outputs("evaluate").get("intervals") or {})

    @property
    def validation(self) -> dict[str, float]:
        """The metrics on the validation split at the end of the training."""
        return dict(self.outputs("train").get("validation") or {})

    @property
    def data(self) -> str:
        """The start of the fingerprint of its data set; "" if it prepared none."""
        return str(self.outputs("prepare_data").get("fingerprint", ""))[:12]

    @property
    def weights(self) -> str:
        """The start of the checksum of its model's weights; "" if there is none."""
        return str(self.outputs("train").get("weights_checksum") or "")[:12]

    @property
    def commit(self) -> str:
        """The start of the commit of its code, with "-dirty" for modified files; "" if it is not known."""
        commit, _, dirty = str(self.made_with.get("commit") or "").partition("-")
        return commit[:12] + ("-dirty" if dirty else "")

    @property
    def values(self) -> JsonObject:
        """All that it can be selected by."""
        record = self.record
        return {
            **self.settings,
            **{f"validation.{name}": value for name, value in self.validation.items()},
            **record.metrics,
            "run": record.run_id,
            "status": record.status,
            "verdict": (record.verdict or {}).get("decision"),
            "seconds": record.seconds,
            "cost": record.cost and record.cost.dollars,
            "created": record.created.isoformat(),
            "platform": record.platform,
            "data": self.data,
            "commit": self.commit or None,
        }

    @property
    def history_file(self) -> Path:
        """The history of its training; see `RunFolder.history_file`."""
        return self.folder.history_file(self.record)

    def outputs(self, step: str) -> JsonObject:
        """Return what a step returned; {} if it did not."""
        return self.record.outputs(step)


def read(folder: RunFolder, record: RunRecord | None = None) -> Row:
    """Return the run in `folder`.

    Raises:
        UserError: It has no readable record.
    """
    file = folder.configuration_file
    # Slipway wrote the file, so the C parser reads it, which is 15 times faster than `load_yaml`.
    settings = yaml.load(file.read_bytes(), yaml.CSafeLoader) if file.is_file() else {}
    flat: JsonObject = {name: value for name, value in dotted(settings) if value != {}}
    record = record or folder.read()
    flat |= dict(dotted(record.arguments))
    options = by_option(flat.pop("train.arguments", None) or ())
    flat |= {f"train.arguments.{name}": value for name, value in options.items()}
    flat["hardware"] = record.hardware  # of several in the configuration, the one on which it ran
    return Row(folder, record, flat, provenance.read(folder.path))


def select(rows: Iterable[Row], conditions: Iterable[str], order: str | None) -> list[Row]:
    """Return the runs that meet all conditions, such as accuracy>0.97, sorted by a value, descending after a dash.

    Runs without the value that is compared are not selected, and are sorted last.

    Raises:
        UserError: A condition is not valid, or no run has the value.
    """
    rows = list(rows)
    known = sorted({name for row in rows for name in row.values})
    for text in conditions:
        parsed = CONDITION.fullmatch(text)
        if parsed is None:
            raise UserError(
                f"{text!r} is not a condition.",
                setting="--where",
                value=text,
                allowed=f"a metric, setting or {', '.join(FACTS)}; one of {' '.join(OPERATORS)}; and a value",
                fix="--where 'accuracy>0.97'",
            )
        name, sign, operand = parsed[1], parsed[2], yaml.safe_load(parsed[3])
        operand = number(operand) if isinstance(operand, str) else operand  # YAML's 1e-3 is a text
        _check_known(name, known, "--where", rows)
        rows = [row for row in rows if _holds(row.values.get(name), OPERATORS[sign], operand)]
    if order is not None:
        name = order.removeprefix("-")
        _check_known(name, known, "--sort", rows)
        having = [row for row in rows if row.values.get(name) is not None]
        having.sort(key=lambda row: _sortable(row.values[name]), reverse=order.startswith("-"))
        rows = [*having, *(row for row in rows if row.values.get(name) is None)]
    return rows


def described(rows: Sequence[Row]) -> list[Row]:
    """Return the runs with settings in which captured functions can be compared; see `captured.described`."""
    newest = sorted(rows, key=lambda row: row.record.created, reverse=True)
    settings = captured.described([row.settings for row in newest], [row.folder.path.parent.parent for row in newest])
    by_run = {row.record.run_id: row_settings for row, row_settings in zip(newest, settings, strict=True)}
    return [replace(row, settings=by_run[row.record.run_id]) for row in rows]


def differences(settings: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names of the settings that are not the same in all runs, also of those that only some have."""
    irrelevant = {section.name for section in extensions.sections() if not section.affects_training}
    names = sorted({name for values in settings for name in values if name.partition(".")[0] not in irrelevant})
    return [name for name in names if len({repr(row_settings.get(name)) for row_settings in settings}) > 1]


def _check_known(name: str, known: list[str], option: str, rows: list[Row]) -> None:
    if not rows or name in known:
        return
    metrics = sorted({metric for row in rows for metric in row.record.metrics})
    near = nearest(name, known)
    raise UserError(
        f"No run has {name!r}.",
        setting=option,
        value=name,
        allowed=f"a metric ({', '.join(metrics)}), a setting such as train.epochs, or {', '.join(FACTS)}",
        nearest=near,
        fix=f"{option} {near}" if near else "slipway list",
    )


def _holds(value: object, compare: Callable[[Any, Any], bool], operand: object) -> bool:
    try:
        return value is not None and compare(value, operand)
    except TypeError:  # a number and a text
        return False


def _sortable(value: Any) -> tuple[bool, Any]:
    """Return a key that sorts numbers before texts."""
    is_number = isinstance(value, int | float)
    return not is_number, value if is_number else str(value)
