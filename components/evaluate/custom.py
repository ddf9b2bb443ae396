"""Evaluation by the user's own function, or with the metrics that a custom program wrote; any data, format and metric.

The function is `evaluate.module`; it receives a model's folder and the data, and measures challenger and champion.
`render` writes the report.
"""

from __future__ import annotations

import base64
import inspect
import io
import json
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from slipway.components import page
from slipway.components.evaluate import charts, contract
from slipway.components.evaluate.evaluation import (
    MAY_INCLUDE,
    NO_CHAMPION_ASKED,
    NO_CHAMPION_YET,
    SPLIT,
    UNRECORDED,
    unseen_by,
)
from slipway.components.evaluate.gate import EvaluateSettings, Opponent, Verdict, decide, known
from slipway.components.evaluate.served_model import ModelFolder
from slipway.components.train.result import trainer_record
from slipway.core import events, integrity, manifest, seen
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.serving.model import read_json
from slipway.trainer.engines import builder
from slipway.trainer.engines.table import model_files
from slipway.trainer.metrics.history import METRICS_FILE

# The prepared data set's folder, data.uri as it is, or None if a custom program has its own data.
Data: TypeAlias = Path | str | None
Function: TypeAlias = Callable[[Path, Data], object]

TEMPLATE = Path(__file__).with_name("custom.html")
CONTRACT = "a function of (model: Path, data: Path | str | None) that returns its metrics, such as {'rmse': 0.4}"
METRICS, PLOTS, TABLES = "metrics", "plots", "tables"
PLOT_FILES = (".png", ".jpg", ".jpeg", ".svg", ".html", ".htm")


@dataclass(frozen=True)
class Result:
    """What was measured: metrics, and plots (matplotlib figures or files) and tables (rows) by title."""

    metrics: dict[str, float]
    plots: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, list[Mapping[str, object]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured(ModelFolder):
    """A model and what was measured of it. `description` is its model.json if Slipway's trainer wrote it."""

    result: Result

    @property
    def metrics(self) -> dict[str, float]:
        return self.result.metrics


@dataclass(frozen=True)
class CustomEvaluation:
    """The result of a custom evaluation; `champion` is None if there was none to compare with.

    `measured` says how, after the name of a metric: "that my_eval:evaluate returned".
    """

    model: Measured
    champion: Measured | None
    verdict: Verdict
    settings: EvaluateSettings
    data: Data
    measured: str

    def as_dict(self) -> JsonObject:
        """Return what a run's record stores, as of Slipway's own evaluation."""
        return {
            "metrics": self.model.metrics,
            "metric": self.settings.gate.name,
            "champion_metrics": self.champion.metrics if self.champion else None,
            "verdict": self.verdict.as_dict(),
        }


def is_custom(settings: EvaluateSettings, model: Path) -> bool:
    """Return whether a model is evaluated here, rather than by Slipway on the test split of the prepared data set.

    It is with `evaluate.module`, if its program reported metrics, and if Slipway could not evaluate it.
    """
    served = any((model / name).is_file() for name in model_files())
    return settings.module is not None or (model / METRICS_FILE).is_file() or not served


def evaluate(
    settings: EvaluateSettings, model: Path, data: Data, champion: Path | None, serve_module: str = ""
) -> CustomEvaluation:
    """Measure the model in folder `model`, and the champion, and apply the gate.

    Args:
        settings: How to evaluate; with `champion="none"`, the argument `champion` is ignored.
        model: The model's folder.
        data: What `evaluate.module` receives.
        champion: The folder of the registered version to beat, or None.
        serve_module: What loads the model for serving (serve.module); "" if Slipway does.

    Raises:
        UserError: A model is damaged; a function cannot be called, fails, or returns no finite metrics; metrics.json
            is missing or malformed; a metric that the gate needs is missing.
    """
    opponent_folder = champion if settings.champion == "registered" else None
    for folder in filter(None, (model, opponent_folder)):
        integrity.verify(folder)
    opponent = None
    if settings.module is not None:
        events.phase(f"loading {settings.module}")
        function = load(settings.module)
        measured = f"that {settings.module} returned"
        events.phase("evaluating the model")
        challenger = _measured(model, _call(settings.module, function, model, data))
        if opponent_folder is not None:
            events.phase("evaluating the champion")
            opponent = _measured(opponent_folder, _call(settings.module, function, opponent_folder, data))
    else:
        measured = "that the program reported"
        challenger = _measured(model, _reported(model, settings.gate.name))
        if opponent_folder is not None:
            opponent = _measured(opponent_folder, _reported_by_champion(opponent_folder))
    settings = settings.model_copy(update={"gate": settings.gate.among(challenger.metrics)})
    beaten = None
    if opponent is not None:
        caveat = _seen_by_champion(settings, data, opponent.folder)
        beaten = Opponent(opponent.name, opponent.metrics, opponent.has_weights_of(challenger), caveat=caveat)
    without = NO_CHAMPION_YET if settings.champion == "registered" else NO_CHAMPION_ASKED
    verdict = decide(settings.gate, challenger.metrics, beaten, without, measured)
    if serve_module:
        verdict = verdict.unless(contract.module_fault(model, serve_module))
    return CustomEvaluation(challenger, opponent, verdict, settings, data, measured)


def _seen_by_champion(settings: EvaluateSettings, data: Data, champion: Path) -> str:
    """Return the sentence on test examples that the champion has seen, "" if it is known to have seen none."""
    if settings.module is None:
        return f"{MAY_INCLUDE}the metrics are those that its program reported."
    hashes = seen.of_split(data, manifest.read(data), SPLIT) if isinstance(data, Path) else None
    if hashes is None or seen.seen_by(champion) is None:
        return UNRECORDED
    unseen = unseen_by(hashes, champion)
    if unseen is None:
        return ""
    return (
        f"The comparison includes {int((~unseen).sum()):,} of the {len(unseen):,} test examples on which the champion "
        f"was trained or selected: Slipway cannot exclude examples from the metrics of {settings.module}."
    )


def load(module: str) -> Function:
    """Import and return the function of `evaluate.module`.

    Raises:
        UserError: It does not exist, or cannot be called with (model, data).
    """
    function: Function = builder.load(module, "evaluate.module", CONTRACT)
    try:
        signature = inspect.signature(function)
    except ValueError:  # a C function without a signature
        return function
    check_signature(module, signature)
    return function


def check_signature(module: str, signature: inspect.Signature) -> None:
    """Raise UserError if a function with this signature cannot be called with (model, data)."""
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise UserError(
            f"The function {module} cannot be called with (model, data): {error}.",
            setting="evaluate.module",
            value=module,
            allowed=CONTRACT,
            fix=f"def {module.partition(':')[2]}(model, data): …",
        ) from None


def _call(module: str, function: Function, model: Path, data: Data) -> Result:
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
            setting="evaluate.module",
            value=module,
            fix=f"fix the function; it was called with {model} and {data if data is None else str(data)!r}",
            traceback="".join(traceback.format_exception(type(cause), cause, trace)),
        ) from cause
    try:
        return result(returned)
    except ValueError as error:
        raise UserError(
            f"The function {module} {error}.",
            setting="evaluate.module",
            value=module,
            allowed=CONTRACT,
            fix="return a mapping of the metrics, or of metrics, plots and tables",
        ) from None


def result(returned: object) -> Result:
    """Return what the function returned, validated.

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
    return Result(
        metrics(parts[METRICS], "returned"),
        {str(title): plot for title, plot in plots.items()},
        {str(title): list(_rows(title, table)) for title, table in tables.items()},
    )


def metrics(values: Mapping[Any, Any], verb: str) -> dict[str, float]:
    """Return metrics as floats by name; numbers may be of any library.

    Raises:
        ValueError: There are none, or one is not a finite number; the text begins with `verb`.
    """
    if not values:
        raise ValueError(f"{verb} no metrics")
    found = {}
    for name, value in values.items():
        try:
            if isinstance(value, str | bool | bytes):
                raise TypeError
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{verb} {name} = {value!r:.60}, which is {_kind(value)}, not a number") from None
        if not math.isfinite(number):
            raise ValueError(f"{verb} {name} = {number}, which is not finite")
        found[str(name)] = number
    return found


def _check_plot(title: object, plot: object) -> None:
    if hasattr(plot, "savefig"):  # a matplotlib figure
        return
    if not isinstance(plot, str | Path):
        raise ValueError(f"returned the plot {title!r}, which is {_kind(plot)}, not a matplotlib figure or a file")
    if Path(plot).suffix.lower() not in PLOT_FILES:
        raise ValueError(f"returned the plot {title!r} as {plot}; its name must end with {', '.join(PLOT_FILES)}")
    if not Path(plot).is_file():
        raise ValueError(f"returned the plot {title!r} as {plot}, a file that does not exist")


def _rows(title: object, table: Any) -> Iterator[Mapping[str, object]]:
    """Yield a table's rows, each a mapping by column; a pandas DataFrame has them, too."""
    rows = table.to_dict("records") if hasattr(table, "to_dict") else table
    if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
        raise ValueError(f"returned the table {title!r}, which is {_kind(table)}, not a list of rows (mappings)")
    yield from rows


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _measured(folder: Path, measured: Result) -> Measured:
    return Measured(folder, trainer_record(folder), read_json(folder / "metadata.json"), measured)


def _reported(model: Path, metric: str) -> Result:
    """Return the metrics that the program wrote.

    Raises:
        UserError: The file is missing or malformed.
    """
    path = model / METRICS_FILE
    fix = f'let the chief write it, such as {{"{metric}": 0.9}}; or --set evaluate.module=MODULE:FUNCTION'
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"The program wrote no {METRICS_FILE} to AIP_MODEL_DIR, and there is no other evaluation of its model.",
            setting="evaluate.module",
            value=None,
            allowed=f"{METRICS_FILE}, a JSON object of names and finite numbers; evaluate.module; or, for images that "
            "Slipway prepares, a SavedModel",
            fix=fix,
        ) from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}.", fix=fix) from None
    if not isinstance(values, dict):
        raise UserError(f"{path} is not a JSON object of metrics, but {_kind(values)}.", fix=fix)
    try:
        return Result(metrics(values, "has"))
    except ValueError as error:
        raise UserError(f"{path} {error}.", fix=fix) from None


def _reported_by_champion(folder: Path) -> Result:
    """Return the metrics that the champion's program wrote, {} if none: the gate says which one is missing."""
    try:
        return Result(metrics(read_json(folder / METRICS_FILE), "has"))
    except ValueError:
        return Result({})


def render(evaluation: CustomEvaluation) -> str:
    """Return the report of a custom evaluation as HTML."""
    from slipway.components.evaluate.report import gate_text

    model, gate, module = evaluation.model, evaluation.settings.gate, evaluation.settings.module
    history = charts.read_history(model.folder / "metrics.jsonl")
    names = charts.curve_names(history, model.description)
    sizes = [path.stat().st_size for path in sorted(model.folder.rglob("*")) if path.is_file()]
    provenance = {
        "Metrics": module or METRICS_FILE,
        "Data": "of the program" if evaluation.data is None else str(evaluation.data),
        "Model": f"{len(sizes):,} files, {sum(sizes):,} bytes",
        "Weights checksum": str(model.weights_checksum or ""),
    }
    return page.render(
        TEMPLATE,
        verdict=evaluation.verdict,
        gate=gate_text(gate),
        headline=f"{gate.label} {model.metrics[gate.name]:.5g}",
        source=module or "the metrics that the program reported",
        champion=evaluation.champion,
        rows=list(_table(evaluation)),
        curves=[curve for name in names if (curve := charts.learning_curve(history, name))],
        plots=[(title, *_embedded(plot)) for title, plot in model.result.plots.items()],
        tables=model.result.tables,
        provenance={label: value for label, value in provenance.items() if value},
        created=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0"),
    )


def _table(evaluation: CustomEvaluation) -> Iterator[JsonObject]:
    """Yield the rows of the metrics table, the gate's metric first; only known directions have a trend."""
    gate, ours = evaluation.settings.gate, evaluation.model.metrics
    theirs = evaluation.champion.metrics if evaluation.champion else {}
    for name in sorted(ours, key=lambda name: name != gate.name):
        row: JsonObject = {"name": name, "value": ours[name], "champion": theirs.get(name), "trend": ""}
        metric = known(name)
        if name in theirs and (name == gate.name or metric):
            minimized = gate.minimized if metric is None or name == gate.name else metric.direction == "minimize"
            gain = (theirs[name] - ours[name]) * (1 if minimized else -1)
            row["trend"] = "better" if gain > 0 else "worse" if gain < 0 else "same"
        yield row


def _embedded(plot: Any) -> tuple[str, str]:
    """Return a plot's kind, image or page, and its content: a data URI or HTML."""
    if hasattr(plot, "savefig"):
        buffer = io.BytesIO()
        plot.savefig(buffer, format="svg", bbox_inches="tight")
        kind, content = "svg+xml", buffer.getvalue()
    else:
        ending, content = Path(plot).suffix.lower(), Path(plot).read_bytes()
        if ending in (".html", ".htm"):
            return "page", content.decode(errors="replace")
        kind = {".svg": "svg+xml", ".png": "png"}.get(ending, "jpeg")
    return "image", f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
