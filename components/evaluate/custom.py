"""Models measured by the user's own function, or by a custom program; any data, format and metric.

The function is `evaluate.module`; it receives a model's folder and the data, and measures challenger and champion.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from slipway.components.evaluate.gate import Opponent
from slipway.components.evaluate.measured import (
    MAY_INCLUDE,
    SPLIT,
    UNRECORDED,
    Data,
    Measured,
    Measurement,
    unseen_by,
)
from slipway.components.evaluate.settings import EvaluateSettings
from slipway.components.train.result import reported, trainer_record
from slipway.core import events, integrity, manifest, seen
from slipway.core.errors import UserError
from slipway.trainer import hooks
from slipway.trainer.engines import builder
from slipway.trainer.metrics.history import METRICS_FILE

Function: TypeAlias = Callable[[Path, Data], object]

logger = logging.getLogger(__name__)

SETTING = "evaluate.module"
CONTRACT = "a function of (model: Path, data: Path | str | None) that returns its metrics, such as {'rmse': 0.4}"
METRICS, PLOTS, TABLES = "metrics", "plots", "tables"
PLOT_FILES = (".png", ".jpg", ".jpeg", ".svg", ".html", ".htm")


def measure(settings: EvaluateSettings, model: Path, data: Data, champion: Path | None) -> Measurement:
    """Measure both models by `evaluate.module`, or else take the metrics that their programs reported.

    Raises:
        UserError: A model is damaged; a function cannot be called, fails, or returns no finite metrics; metrics.json
            is missing or malformed.
    """
    if settings.slices:
        raise UserError(
            "evaluate.slices needs Slipway's own evaluation of a prepared test split, and this model has another one.",
            setting="evaluate.slices",
            value=settings.slices,
            allowed=f"[] with {settings.module or METRICS_FILE}",
            fix="--set evaluate.slices='[]'; report the metrics of slices beside the others",
        )
    for folder in filter(None, (model, champion)):
        integrity.verify(folder)
    module, beaten = settings.module, None
    if module is not None:
        events.phase(f"loading {module}")
        function: Function = builder.load(module, SETTING, CONTRACT)
        with contextlib.suppress(ValueError):  # a C function without a signature
            check_signature(module, inspect.signature(function))
        events.phase("evaluating the model")
        challenger = _called(module, function, model, data)
        if champion is not None:
            events.phase("evaluating the champion")
            beaten = _called(module, function, champion, data)
    else:
        challenger = Measured(model, trainer_record(model), _reported(model, settings.gate.name))
        if champion is not None:
            earlier: dict[str, float] = {}  # if none or malformed, the gate says which one is missing
            with contextlib.suppress(FileNotFoundError, ValueError):
                earlier = reported(champion).metrics
            beaten = Measured(champion, trainer_record(champion), earlier)
    opponent = None
    if beaten is not None:
        caveat = _seen_by_champion(module, data, beaten.folder)
        opponent = Opponent(beaten.name, beaten.metrics, beaten.has_weights_of(challenger), caveat=caveat)
    return Measurement(
        settings=settings.model_copy(update={"gate": settings.gate.among(challenger.metrics)}),
        data=data,
        model=challenger,
        champion=beaten,
        opponent=opponent,
        how=f"that {module} returned" if module else "that the program reported",
    )


def _seen_by_champion(module: str | None, data: Data, champion: Path) -> str:
    """Return the sentence on test examples that the champion has seen, "" if it is known to have seen none."""
    if module is None:
        return f"{MAY_INCLUDE}the metrics are those that its program reported."
    hashes = seen.of_split(data, manifest.read(data), SPLIT) if isinstance(data, Path) else None
    if hashes is None or seen.seen_by(champion) is None:
        return UNRECORDED
    unseen = unseen_by(hashes, champion)
    if unseen is None:
        return ""
    return (
        f"The comparison includes {int((~unseen).sum()):,} of the {len(unseen):,} test examples on which the champion "
        f"was trained or selected: Slipway cannot exclude examples from the metrics of {module}."
    )


def check_signature(module: str, signature: inspect.Signature) -> None:
    """Raise UserError if a function with this signature cannot be called with (model, data)."""
    hooks.check_call(SETTING, module, signature, ("model", "data"), CONTRACT)


def _called(module: str, function: Function, model: Path, data: Data) -> Measured:
    """Return what the function measured of a model."""
    try:
        with builder.user_code():
            returned = function(model, data)
    except UserError:
        raise
    except Exception as error:
        cause = builder.origin(error)
        trace = cause.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, builder.__file__):
            trace = trace.tb_next
        raise UserError(
            f"The function {module} {builder.what_happened(error)}",
            setting=SETTING,
            value=module,
            fix=f"fix the function; it was called with {model} and {data if data is None else str(data)!r}",
            traceback="".join(traceback.format_exception(type(cause), cause, trace)),
        ) from cause
    try:
        return _checked(model, returned)
    except ValueError as error:
        raise UserError(
            f"The function {module} {error}.",
            setting=SETTING,
            value=module,
            allowed=CONTRACT,
            fix="return a mapping of the metrics, or of metrics, plots and tables",
        ) from None


def _checked(model: Path, returned: object) -> Measured:
    """Return what the function returned for a model.

    Raises:
        ValueError: It is not a mapping of metrics, or of `metrics`, `plots` and `tables`; the text says why.
    """
    if returned is None:
        raise ValueError("returned nothing")
    if not isinstance(returned, Mapping):
        raise ValueError(f"returned {_kind(returned)}, not a mapping of metrics")
    parts = returned if isinstance(returned.get(METRICS), Mapping) else {METRICS: returned}
    if unknown := [name for name in parts if name not in (METRICS, PLOTS, TABLES)]:
        raise ValueError(f"returned the key {unknown[0]!r} beside {METRICS}, where only {PLOTS} and {TABLES} may be")
    plots, tables = parts.get(PLOTS) or {}, parts.get(TABLES) or {}
    for name, part in ((PLOTS, plots), (TABLES, tables)):
        if not isinstance(part, Mapping):
            raise ValueError(f"returned {name} that are {_kind(part)}, not a mapping by title")
    for title, plot in plots.items():
        _check_plot(title, plot)
    return Measured(
        model,
        trainer_record(model),
        metrics(parts[METRICS], "returned"),
        plots={str(title): plot for title, plot in plots.items()},
        tables={str(title): _rows(title, table) for title, table in tables.items()},
    )


def metrics(values: Mapping[Any, Any], verb: str) -> dict[str, float]:
    """Return metrics as floats by name; numbers may be of any library.

    Raises:
        ValueError: There are none, or one is not a finite number; the text begins with `verb`.
    """
    if not values:
        raise ValueError(f"{verb} no metrics")
    floats = {}
    for name, value in values.items():
        try:
            if isinstance(value, str | bool | bytes):
                raise TypeError
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{verb} {name} = {value!r:.60}, which is {_kind(value)}, not a number") from None
        if not math.isfinite(number):
            raise ValueError(f"{verb} {name} = {number}, which is not finite")
        floats[str(name)] = number
    return floats


def _check_plot(title: object, plot: object) -> None:
    if hasattr(plot, "savefig"):  # a matplotlib figure
        return
    if not isinstance(plot, str | Path):
        raise ValueError(f"returned the plot {title!r}, which is {_kind(plot)}, not a matplotlib figure or a file")
    if Path(plot).suffix.lower() not in PLOT_FILES:
        raise ValueError(f"returned the plot {title!r} as {plot}; its name must end with {', '.join(PLOT_FILES)}")
    if not Path(plot).is_file():
        raise ValueError(f"returned the plot {title!r} as {plot}, a file that does not exist")


def _rows(title: object, table: Any) -> list[Mapping[str, object]]:
    """Return a table's rows, each a mapping by column; a pandas DataFrame has them, too."""
    rows = table.to_dict("records") if hasattr(table, "to_dict") else table
    if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
        raise ValueError(f"returned the table {title!r}, which is {_kind(table)}, not a list of rows (mappings)")
    return list(rows)


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _reported(model: Path, metric: str) -> dict[str, float]:
    """Return the metrics that the program wrote, and say what else is in the file.

    Raises:
        UserError: The file is missing, or has no metrics.
    """
    path = model / METRICS_FILE
    fix = (
        f'write them to {path}, such as {{"{metric}": 0.9}}, and slipway run --resume RUN; or correct the program, and '
        "run it again; or --set evaluate.module=MODULE:FUNCTION"
    )
    try:
        report = reported(model)
    except FileNotFoundError:
        raise UserError(
            f"The program wrote no {METRICS_FILE} to AIP_MODEL_DIR, and there is no other evaluation of its model.",
            setting=SETTING,
            value=None,
            allowed=f"{METRICS_FILE}, a JSON object of names and finite numbers; evaluate.module; or, for images that "
            "Slipway prepares, a SavedModel",
            fix=fix,
        ) from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}.", fix=fix) from None
    if not report.metrics:
        ignored = f", but {', '.join(report.ignored)}" if report.ignored else ""
        raise UserError(f"{path} has no metric that is a finite number{ignored}.", fix=fix)
    if report.note:
        logger.warning(report.note)
        events.message(report.note)
    return report.metrics
