"""A training program: `train.module` in slipway.yaml names it, and every replica of a run executes it.

It reads the prepared data from the folder SLIPWAY_DATA, and its chief writes a SavedModel to AIP_MODEL_DIR.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf


def network(shape: list[int], classes: int) -> keras.Model:
    """Return a network for pixels of 0 to 255 that outputs one logit per class."""
    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(classes),
        ]
    )


def decode(encoded: tf.Tensor, shape: list[int]) -> tf.Tensor:
    """Return the pixels of a PNG or JPEG file."""
    return tf.ensure_shape(tf.io.decode_image(encoded, shape[-1], expand_animations=False), shape)


def examples(folder: Path, manifest: dict[str, Any], split: str, shape: list[int]) -> tf.data.Dataset:
    """Return a split's images and labels."""
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        example = tf.io.parse_single_example(record, features)
        return decode(example["image"], shape), example["label"]

    files = [str(folder / shard["file"]) for shard in manifest["splits"][split]["shards"]]
    return tf.data.TFRecordDataset(files).map(parse, num_parallel_calls=tf.data.AUTOTUNE)


def export(model: keras.Model, classes: list[str], shape: list[int], folder: str) -> None:
    """Write a SavedModel that accepts the bytes of image files and returns class names and probabilities."""
    names = tf.constant(classes)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
    def serve(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        pixels = tf.TensorSpec(shape, tf.uint8)
        images = tf.map_fn(lambda encoded: decode(encoded, shape), image_bytes, fn_output_signature=pixels)
        probabilities = tf.nn.softmax(model(tf.cast(images, tf.float32)))
        return {
            "classes": tf.tile(names[tf.newaxis, :], [tf.shape(image_bytes)[0], 1]),
            "probabilities": probabilities,
            "label": tf.gather(names, tf.argmax(probabilities, axis=-1)),
        }

    module = tf.Module()
    module.variables_of_model = [variable.value for variable in model.variables]
    tf.saved_model.save(module, folder, signatures={"serving_default": serve})


def main() -> None:
    """Train on one replica; the others of a larger cluster have nothing to do in this example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    task = json.loads(os.environ["CLUSTER_SPEC"])["task"]
    if (task["type"], task["index"]) != ("workerpool0", 0):
        return
    folder = Path(os.environ["SLIPWAY_DATA"])
    manifest = json.loads((folder / "manifest.json").read_text())
    shape = [*manifest["image_size"], manifest["channels"]]
    model = network(shape, len(manifest["classes"]))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    batches = examples(folder, manifest, "train", shape).cache().shuffle(2000).batch(32)
    model.fit(batches, epochs=options.epochs, verbose=2)
    export(model, manifest["classes"], shape, os.environ["AIP_MODEL_DIR"])


if __name__ == "__main__":
    main()
