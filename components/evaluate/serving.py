"""Loading of models as functions from encoded images to class names and probabilities.

A SavedModel decodes the images itself. A model in an engine's own format accepts pixels; images are decoded for it as
in the SavedModel, to the size and channels in its model.json.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway.core.manifest import Manifest
from slipway.trainer.engines import installed
from slipway.trainer.engines.table import ENGINES, SAVED_MODEL_FILE

SIGNATURE = "serving_default"

# Maps encoded images (a string tensor [batch]) to class names and probabilities [batch, classes].
Serve = Callable[[Any], tuple[list[str], NDArray[np.floating[Any]]]]


class NotServable(Exception):
    """The model in the folder cannot be served; the message says why."""


def load(folder: Path, data: Manifest) -> Serve:
    """Load the model in `folder`.

    Args:
        folder: The model's folder.
        data: The manifest of a data set. A model in an engine's own format may have another image size and channels.

    Raises:
        UserError: It is in the format of an engine that is not installed.
        NotServable: The SavedModel has no serving signature.
        Exception: Anything that the library raises for a damaged file.
    """
    if not (folder / SAVED_MODEL_FILE).is_file():
        for engine, row in ENGINES.items():
            if (folder / row.model_file).is_file():
                installed.verify(engine)
                return _program(engine, folder, data)
    return _saved_model(folder)


def _saved_model(folder: Path) -> Serve:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder))
    if SIGNATURE not in loaded.signatures:
        raise NotServable(f"its SavedModel has no signature {SIGNATURE!r}")

    def serve(images: Any) -> tuple[list[str], NDArray[np.floating[Any]]]:
        # Access through `loaded` keeps the object alive; the signature alone would not.
        result = loaded.signatures[SIGNATURE](image_bytes=images)
        names = [name.decode(errors="replace") for name in result["classes"][0].numpy()]
        return names, result["probabilities"].numpy()

    return serve


def _program(engine: str, folder: Path, data: Manifest) -> Serve:
    """Load a model in the engine's own format; see `load` in slipway/trainer/engines/ENGINE/export.py."""
    from slipway.trainer.data.images import decode_images

    description = json.loads((folder / "model.json").read_bytes())
    classes = [str(name) for name in description["classes"]]
    shape = {"image_size": tuple(description["image_size"]), "channels": description["channels"]}
    own = data.model_copy(update=shape)
    probabilities = importlib.import_module(f"slipway.trainer.engines.{engine}.export").load(folder)

    def serve(images: Any) -> tuple[list[str], NDArray[np.floating[Any]]]:
        return classes, probabilities(decode_images(images, own).numpy())

    return serve
