"""The two forms in which a trained model is kept, called alike: encoded images in, class names and probabilities out.

A SavedModel decodes the images itself. A program of torch.export takes pixels, so they are decoded here, by what its
model.json says of them and in the same way as a SavedModel does it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway.core.manifest import Manifest
from slipway.trainer.engines import installed
from slipway.trainer.export.export import PROGRAM_FILE, SAVED_MODEL_FILE

SIGNATURE = "serving_default"

# From encoded images (a string tensor [batch]) to the classes' names and probabilities [batch, classes].
Serve = Callable[[Any], tuple[list[str], NDArray[np.floating[Any]]]]


class NotServable(Exception):
    """The folder's model lacks something; the text says what."""


def load(folder: Path, data: Manifest) -> Serve:
    """The model in `folder`; `data` is the manifest of a data set, whose images' shape a program need not share.

    Raises:
        UserError: It is PyTorch's, which is not installed.
        NotServable: The SavedModel has no signature to serve by.
        Exception: Whatever a damaged file makes TensorFlow or PyTorch raise.
    """
    if (folder / PROGRAM_FILE).is_file() and not (folder / SAVED_MODEL_FILE).is_file():
        installed.verify("pytorch")
        return _program(folder, data)
    return _saved_model(folder)


def _saved_model(folder: Path) -> Serve:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder))
    if SIGNATURE not in loaded.signatures:
        raise NotServable(f"its SavedModel has no signature {SIGNATURE!r}")

    def serve(images: Any) -> tuple[list[str], NDArray[np.floating[Any]]]:
        # By `loaded`: the signature lives only as long as the object that it was loaded with.
        result = loaded.signatures[SIGNATURE](image_bytes=images)
        names = [name.decode(errors="replace") for name in result["classes"][0].numpy()]
        return names, result["probabilities"].numpy()

    return serve


def _program(folder: Path, data: Manifest) -> Serve:
    import torch

    from slipway.trainer.data.images import decode_images

    description = json.loads((folder / "model.json").read_bytes())
    classes = [str(name) for name in description["classes"]]
    shape = {"image_size": tuple(description["image_size"]), "channels": description["channels"]}
    own = data.model_copy(update=shape)
    program = torch.export.load(str(folder / PROGRAM_FILE)).module()

    def serve(images: Any) -> tuple[list[str], NDArray[np.floating[Any]]]:
        pixels = torch.tensor(decode_images(images, own).numpy())
        with torch.no_grad():
            return classes, program(pixels).numpy()

    return serve
