"""The model in a finished training job's base output directory."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slipway.core import integrity, manifest, seen
from slipway.core.atomic import json_lines, sync_tree
from slipway.core.errors import UserError
from slipway.core.paths import REHEARSED_FILE, local_path
from slipway.core.values import JsonObject, dotted
from slipway.trainer.metrics.history import METRICS_FILE

# Entries of model.json that become the model artifact's metadata.
METADATA = (
    "engine",
    "steps",
    "weights_step",
    "weights_checksum",
    "data_fingerprint",
    "variables_bytes",
    "trainable_bytes",
    "went_back",
)


# Entries of a line of metrics.jsonl that are no metrics.
NO_METRICS = ("kind", "step", "epoch", "time")


class Model(Protocol):
    """The attributes of kfp's Model that are used here."""

    uri: str
    metadata: JsonObject


class Metrics(Protocol):
    """The method of kfp's Metrics that is used here."""

    def log_metric(self, metric: str, value: float) -> None: ...


def publish(output: str, model: Model, metrics: Metrics, data: Path | None = None) -> JsonObject:
    """Describe the model in `output`/model, Slipway's or a custom program's in any format, in the step's artifacts.

    A custom program's model receives checksums, and is on the disk when the step ends, as Slipway's is.

    Args:
        output: The job's base output directory: a folder or URI.
        model: Receives the model's URI and metadata.
        metrics: Receives the metrics of the last validation.
        data: The folder of the prepared data set, whose training and validation splits a custom program has read.

    Returns:
        The step's outputs: `model`, the metadata and `validation`.

    Raises:
        UserError: The job wrote no model.
    """
    folder = local_path(output) / "model"
    (folder / integrity.CHECKSUMS_FILE).unlink(missing_ok=True)  # of an earlier attempt
    if not any(path.is_file() for path in folder.rglob("*")):
        raise UserError(
            f"The training succeeded but wrote no model to {folder}.",
            allowed="files in any format in the folder AIP_MODEL_DIR, which the chief writes",
            fix="let the program save its model there, such as to Path(os.environ['AIP_MODEL_DIR'], 'model.pt')",
        )
    if data is not None and not (folder / seen.SEEN_FILE).is_file():
        seen.write_seen(data, manifest.read(data), folder)
    description = trainer_record(folder)
    if integrity.checksum(folder) is None:
        # A file without metrics can be corrected before the run is resumed.
        integrity.seal(folder, {}, integrity.CHECKSUMS_FILE, but="" if _is_usable(folder) else METRICS_FILE)
        sync_tree(folder)
    metadata = {key: description[key] for key in METADATA if key in description}
    metadata[integrity.FILES_CHECKSUM] = integrity.checksum(folder)
    validation = _validation(folder, description)
    model.uri = f"{output}/model"
    model.metadata.update(metadata)
    for name, value in validation.items():
        metrics.log_metric(name, value)
    return {"model": model.uri, **metadata, "validation": validation}


def validation_of(output: str) -> dict[str, float]:
    """Return the metrics on the validation split of the model in a job's base output directory.

    Raises:
        UserError: The model is damaged.
    """
    folder = local_path(output) / "model"
    return _validation(folder, trainer_record(folder))


def rehearsed_steps(output: str) -> JsonObject:
    """Return `rehearsed_steps`: the steps that a rehearsed program had reported when it was ended.

    None if it has run to its end.
    """
    file = local_path(output) / "checkpoints" / REHEARSED_FILE
    return {"rehearsed_steps": int(file.read_text()) if file.is_file() else None}


def trainer_record(folder: Path) -> JsonObject:
    """Return the model.json that Slipway's trainer wrote to a model's folder; {} for another program's model.

    Raises:
        UserError: The model is damaged.
    """
    integrity.verify(folder)
    try:
        record = json.loads((folder / integrity.RECORD_FILE).read_bytes())
    except FileNotFoundError:
        return {}
    is_own = isinstance(record, dict) and {"weights_checksum", "weights_step"} & record.keys()
    return integrity.unsealed(record) if is_own else {}


@dataclass(frozen=True)
class Reported:
    """The metrics that a program wrote: its finite numbers by name, and what it wrote beside them."""

    metrics: dict[str, float]
    last: list[str]
    ignored: list[str]

    @property
    def note(self) -> str:
        """What was not taken as it is, as a sentence; "" for nothing."""
        parts = [f"of {', '.join(self.last)}, the last value is taken"] if self.last else []
        parts += [f"no finite numbers are {', '.join(self.ignored)}, which are ignored"] if self.ignored else []
        return f"{METRICS_FILE}: {'; '.join(parts)}." if parts else ""


def reported(folder: Path) -> Reported:
    """Read the metrics that a program wrote to its model's folder; of a history, the last values.

    Raises:
        FileNotFoundError: It wrote none.
        ValueError: They are not JSON.
    """
    values = json.loads((folder / METRICS_FILE).read_bytes())
    report = Reported({}, [], [])
    if isinstance(values, list) and values:
        report.last.append("the list")
        values = values[-1]
    if not isinstance(values, dict):
        report.ignored.append(f"the {type(values).__name__}")
        return report
    for name, value in dotted(values):
        is_list = isinstance(value, list)
        number = (value or [None])[-1] if isinstance(value, list) else value
        if isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number):
            report.metrics[name] = float(number)
            report.last.extend([name] if is_list else [])
        else:
            report.ignored.append(name)
    return report


def _is_usable(folder: Path) -> bool:
    try:
        return bool(reported(folder).metrics)
    except (FileNotFoundError, ValueError):
        return False


def _validation(folder: Path, description: JsonObject) -> dict[str, float]:
    """Return the finite validation metrics of the exported weights, the last ones of a custom program."""
    path, step = folder / "metrics.jsonl", description.get("weights_step")
    last: dict[str, float] = {}
    for record in json_lines(path.read_bytes()) if path.is_file() else ():
        if record.get("kind") == "validation" and step in (None, record.get("step")):
            numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
            last = {name: value for name, value in numbers.items() if name not in NO_METRICS and math.isfinite(value)}
    return last
