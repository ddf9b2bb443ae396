"""What a finished training job left in its base output directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.components.step import WorkFailed
from slipway.core.atomic import json_lines
from slipway.trainer.export.export import SAVED_MODEL_FILE

# What of model.json goes along with the model as its metadata.
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
    """The model in `output`/model: what Slipway's trainer writes, or a SavedModel that another has put there.

    Raises:
        WorkFailed: The job ended well and yet left no model there.
    """
    folder = output / "model"
    try:
        description = json.loads((folder / "model.json").read_text())
    except FileNotFoundError:
        if not (folder / SAVED_MODEL_FILE).is_file():
            raise WorkFailed(
                f"The training job ended without an error but left no model in {folder}. A training module of your own "
                "writes a SavedModel into the folder that AIP_MODEL_DIR names."
            ) from None
        description = {}
    metadata = {key: description[key] for key in METADATA if key in description}
    return TrainedModel(folder, metadata, _validation(folder / "metrics.jsonl", description.get("weights_step")))


def _validation(path: Path, step: int | None) -> dict[str, float]:
    """What was measured of the weights after `step` steps; of the last ones where that is not known."""
    last: dict[str, float] = {}
    for record in json_lines(path.read_bytes()) if path.is_file() else ():
        if record["kind"] == "validation" and step in (None, record["step"]):
            last = {"loss": record["loss"], "accuracy": record["accuracy"]}
    return last
