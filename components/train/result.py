"""The model in a finished training job's base output directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.components.step import WorkFailed
from slipway.core.atomic import json_lines
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


@dataclass(frozen=True)
class TrainedModel:
    """A model's folder, its metadata, and its loss and accuracy on the validation split."""

    folder: Path
    metadata: dict[str, Any]
    validation: dict[str, float]


def trained_model(output: Path) -> TrainedModel:
    """Return the model in `output`/model: Slipway's own format, or a SavedModel of a custom training module.

    Raises:
        WorkFailed: The job wrote no model.
    """
    folder = output / "model"
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
    return TrainedModel(folder, metadata, _validation(folder / "metrics.jsonl", description.get("weights_step")))


def _validation(path: Path, step: int | None) -> dict[str, float]:
    """Return the validation metrics at `step`, or the last ones if `step` is None."""
    last: dict[str, float] = {}
    for record in json_lines(path.read_bytes()) if path.is_file() else ():
        if record["kind"] == "validation" and step in (None, record["step"]):
            last = {"loss": record["loss"], "accuracy": record["accuracy"]}
    return last
