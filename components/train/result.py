"""The model in a finished training job's base output directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

from slipway.components.step import WorkFailed
from slipway.core.atomic import json_lines
from slipway.core.paths import local_path
from slipway.core.values import JsonObject
from slipway.trainer.engines.table import SAVED_MODEL_FILE

# Entries of model.json that become the model artifact's metadata.
METADATA = (
    "engine",
    "steps",
    "weights_step",
    "weights_checksum",
    "data_fingerprint",
    "variables_bytes",
    "trainable_bytes",
)


class Model(Protocol):
    """The attributes of kfp's Model that are used here."""

    uri: str
    metadata: JsonObject


class Metrics(Protocol):
    """The method of kfp's Metrics that is used here."""

    def log_metric(self, metric: str, value: float) -> None: ...


def publish(output: str, model: Model, metrics: Metrics) -> JsonObject:
    """Describe the model in `output`/model, Slipway's or a custom module's SavedModel, in the step's artifacts.

    Args:
        output: The job's base output directory: a folder or URI.
        model: Receives the model's URI and metadata.
        metrics: Receives loss and accuracy on the validation split.

    Returns:
        The step's outputs: `model`, the metadata and `validation`.

    Raises:
        WorkFailed: The job wrote no model.
    """
    folder = local_path(output) / "model"
    try:
        description = json.loads((folder / "model.json").read_text())
    except FileNotFoundError:
        if not (folder / SAVED_MODEL_FILE).is_file():
            raise WorkFailed(
                f"The training job succeeded but wrote no model to {folder}. A custom training module must write a "
                "SavedModel to the folder in AIP_MODEL_DIR."
            ) from None
        description = {}
    metadata = {key: description[key] for key in METADATA if key in description}
    validation = _validation(folder / "metrics.jsonl", description.get("weights_step"))
    model.uri = f"{output}/model"
    model.metadata.update(metadata)
    for name, value in validation.items():
        metrics.log_metric(name, value)
    return {"model": model.uri, **metadata, "validation": validation}


def _validation(path: Path, step: int | None) -> dict[str, float]:
    """Return the validation metrics at `step`, or the last ones if `step` is None."""
    last: dict[str, float] = {}
    for record in json_lines(path.read_bytes()) if path.is_file() else ():
        if record["kind"] == "validation" and step in (None, record["step"]):
            last = {"loss": record["loss"], "accuracy": record["accuracy"]}
    return last
