"""What a model looks at in the images that it confidently gets wrong: how its confidence falls if parts are covered.

As in Zeiler and Fergus, Visualizing and Understanding Convolutional Networks (https://arxiv.org/abs/1311.2901), each
part in turn is covered with the image's mean color.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from slipway.components import page
from slipway.components.evaluate.measures.base import Example
from slipway.components.prepare_data.encoding.image import encode_png
from slipway.core.manifest import Manifest

# Parts of each side of an image, and images that are examined.
GRID, MAX_IMAGES = 8, 6
# Color of the parts that matter, over the image.
COLOR, MAX_ALPHA = (255, 120, 0), 200
LONGER_SIDE = 96  # of what lies over an image, in pixels

# From encoded images to the probabilities of the classes, [images, classes].
Predict = Callable[[Sequence[bytes]], NDArray[np.floating]]
# By the key of an image: by how much the probability of the predicted class falls if a part is covered, [GRID, GRID].
Maps = Mapping[str, NDArray[np.floating]]


def maps(examples: Sequence[Example], data: Manifest, predict: Predict) -> Maps:
    """Return the maps of the first examples; an image that Pillow cannot decode has none."""
    decoded = {example.key: _pixels(example.image, data) for example in examples[:MAX_IMAGES]}
    return {key: _map(pixels, predict) for key, pixels in decoded.items() if pixels is not None}


def overlay(part: NDArray[np.floating], image: bytes) -> str:
    """Return a map as a data URI of a PNG to lay over its image: the more opaque, the more a part matters."""
    from PIL import Image

    with Image.open(io.BytesIO(image)) as opened:
        width, height = (max(1, LONGER_SIDE * side // max(opened.size)) for side in opened.size)
    strength = np.clip(part, 0, None) / max(float(part.max()), 1e-9)
    pixels = np.zeros((*part.shape, 4), np.uint8)
    pixels[..., :3], pixels[..., 3] = COLOR, np.round(MAX_ALPHA * strength)
    buffer = io.BytesIO()
    Image.fromarray(pixels, "RGBA").resize((width, height), Image.Resampling.BILINEAR).save(buffer, "PNG")
    return page.data_uri("png", buffer.getvalue())


def _map(pixels: NDArray[np.uint8], predict: Predict) -> NDArray[np.floating]:
    edges = [np.linspace(0, side, GRID + 1).round().astype(int) for side in pixels.shape[:2]]
    mean, images = pixels.mean(axis=(0, 1)).round().astype(np.uint8), [pixels]
    for row in range(GRID):
        for column in range(GRID):
            covered = pixels.copy()
            covered[edges[0][row] : edges[0][row + 1], edges[1][column] : edges[1][column + 1]] = mean
            images.append(covered)
    probabilities = predict([encode_png(image.tobytes(), *image.shape, level=1) for image in images])
    predicted = probabilities[:, probabilities[0].argmax()]
    fall: NDArray[np.floating] = (predicted[0] - predicted[1:]).reshape(GRID, GRID)
    return fall


def _pixels(image: bytes, data: Manifest) -> NDArray[np.uint8] | None:
    """Decode an image, [height, width, channels]; a larger one is shrunk until it just covers the network's size."""
    from PIL import Image

    height, width, channels = data.image_shape
    try:
        with Image.open(io.BytesIO(image)) as opened:
            decoded = opened.convert("RGB" if channels == 3 else "L")
    except OSError:
        return None
    factor = max(width / decoded.width, height / decoded.height)
    if factor < 1:  # else each covered copy would be encoded and decoded at the camera's size
        size = round(factor * decoded.width), round(factor * decoded.height)
        decoded = decoded.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(decoded).reshape(decoded.height, decoded.width, channels)
