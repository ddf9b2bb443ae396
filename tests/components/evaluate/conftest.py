"""Small data sets and models in the format of the other steps: scikit-learn digits, and softmax regressions on them."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests.components.evaluate.tables import write_records

DIGITS = [str(digit) for digit in range(10)]


def png(pixels: np.ndarray) -> bytes:
    """Gray pixels [height, width] in 0..255 as a PNG's bytes."""
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8), mode="L").save(buffer, "PNG")
    return buffer.getvalue()


def write_data_set(
    folder: Path, images: Sequence[bytes], labels: Sequence[int], classes: Sequence[str], shards: int = 2
) -> Path:
    """A prepared data set whose test split holds these images, keys being `class/index.png`."""
    records = [
        {"image": image, "label": label, "key": f"{classes[label]}/{index:05d}.png"}
        for index, (image, label) in enumerate(zip(images, labels, strict=True))
    ]
    first = Image.open(io.BytesIO(images[0])) if len(images) else None
    return write_records(
        folder,
        records,
        shards,
        {name: list(labels).count(index) for index, name in enumerate(classes)},
        name="small",
        fingerprint="0123456789abcdef" * 4,
        source="digits",
        settings={"source": "digits", "check": "decode", "seed": 0},
        classes=list(classes),
        image_size=(first.height, first.width) if first else (8, 8),
        encodings=["png"],
    )


def export_model(
    folder: Path,
    weights: np.ndarray,
    bias: np.ndarray,
    classes: Sequence[str] = DIGITS,
    history: Sequence[dict[str, Any]] = (),
) -> Path:
    """A model folder whose SavedModel is softmax(pixels / 255 @ weights + bias); weights [pixels, classes]."""
    import tensorflow as tf

    module = tf.Module()
    module.weights = tf.Variable(weights.astype(np.float32))
    module.bias = tf.Variable(bias.astype(np.float32))
    names = tf.constant(list(classes))
    pixels = weights.shape[0]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
    def serve(image_bytes: Any) -> dict[str, Any]:
        def decode(image: Any) -> Any:
            decoded = tf.io.decode_image(image, channels=1, expand_animations=False)
            return tf.reshape(tf.cast(decoded, tf.float32) / 255, [pixels])

        images = tf.map_fn(decode, image_bytes, fn_output_signature=tf.TensorSpec([pixels], tf.float32))
        probabilities = tf.nn.softmax(images @ module.weights + module.bias)
        rows = tf.broadcast_to(names, tf.shape(probabilities))
        label = tf.gather(names, tf.argmax(probabilities, axis=1))
        return {"classes": rows, "probabilities": probabilities, "label": label}

    module.serve = serve
    tf.saved_model.save(module, str(folder), signatures={"serving_default": serve})
    checksum = hashlib.sha256(weights.tobytes() + bias.tobytes()).hexdigest()
    description = {
        "classes": list(classes),
        "image_size": [8, 8],
        "channels": 1,
        "builder": "slipway.trainer.models.digits:build",
        "arguments": {},
        "engine": "tensorflow",
        "steps": history[-1]["step"] if history else 0,
        "weights_checksum": checksum,
        "data_fingerprint": "0123456789abcdef" * 4,
        "seed": 0,
    }
    (folder / "model.json").write_text(json.dumps(description))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in history))
    return folder


@dataclass(frozen=True)
class Regression:
    """A trained softmax regression and its history, as metrics.jsonl holds it."""

    weights: np.ndarray
    bias: np.ndarray
    history: list[dict[str, Any]]

    def probabilities(self, images: np.ndarray) -> np.ndarray:
        """[batch, 10] from pixels [batch, 64] in 0..1."""
        logits = images @ self.weights.astype(np.float32) + self.bias.astype(np.float32)
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        return exponentials / exponentials.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class Digits:
    """The digits: pixels [examples, 64] in 0..255 and labels, for training and for the test."""

    train_pixels: np.ndarray
    train_labels: np.ndarray
    test_pixels: np.ndarray
    test_labels: np.ndarray

    @property
    def test_images(self) -> list[bytes]:
        return [png(pixels.reshape(8, 8)) for pixels in self.test_pixels]


@pytest.fixture(scope="session")
def digits() -> Digits:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    pixels = np.floor(images * 15.9375)[order].astype(np.uint8)
    return Digits(pixels[360:], labels[order][360:], pixels[:360], labels[order][:360])


def train_regression(digits: Digits, steps: int, batch_size: int = 64) -> Regression:
    """Plain gradient descent on the cross-entropy."""
    generator = np.random.default_rng(1)
    weights, bias = np.zeros((64, 10)), np.zeros(10)
    model = Regression(weights, bias, [])
    images, labels = digits.train_pixels / 255.0, digits.train_labels
    for step in range(1, steps + 1):
        chosen = generator.integers(0, len(labels), batch_size)
        probabilities = model.probabilities(images[chosen])
        right = probabilities[np.arange(batch_size), labels[chosen]]
        record = {"step": step, "epoch": step * batch_size / len(labels), "time": time.time()}
        if step % 10 == 0:
            accuracy = float((probabilities.argmax(axis=1) == labels[chosen]).mean())
            metrics = {"loss": float(-np.log(right).mean()), "accuracy": accuracy, "learning_rate": 0.5}
            model.history.append({"kind": "train", **record, **metrics, "steps_per_second": 900.0})
        if step % 50 == 0:
            probabilities_all = model.probabilities(images[:300])
            right_all = probabilities_all[np.arange(300), labels[:300]]
            accuracy = float((probabilities_all.argmax(axis=1) == labels[:300]).mean())
            metrics = {"loss": float(-np.log(right_all).mean()), "accuracy": accuracy}
            model.history.append({"kind": "validation", **record, **metrics})
        probabilities[np.arange(batch_size), labels[chosen]] -= 1
        weights -= 0.5 * images[chosen].T @ probabilities / batch_size
        bias -= 0.5 * probabilities.mean(axis=0)
    return model


@pytest.fixture(scope="session")
def regression(digits: Digits) -> Regression:
    return train_regression(digits, 600)


@pytest.fixture(scope="session")
def weak_regression(digits: Digits) -> Regression:
    return train_regression(digits, 30)


@pytest.fixture(scope="session")
def data_set(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits' 360 test images in two shards."""
    folder = tmp_path_factory.mktemp("data") / "digits"
    return write_data_set(folder, digits.test_images, digits.test_labels.tolist(), DIGITS)


@pytest.fixture(scope="session")
def model_folder(regression: Regression, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "good"
    return export_model(folder, regression.weights, regression.bias, history=regression.history)


@pytest.fixture(scope="session")
def weak_folder(weak_regression: Regression, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "weak"
    return export_model(folder, weak_regression.weights, weak_regression.bias, history=weak_regression.history)


@pytest.fixture(scope="session")
def make_data_set() -> Callable[..., Path]:
    return write_data_set


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Path]:
    return export_model
