"""A custom training module that does not import Slipway, as described in docs/your-own-training-loop.md."""

import argparse
import json
import os
from pathlib import Path


def examples(split, manifest, folder):
    import tensorflow as tf

    def parse(record):
        features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
        example = tf.io.parse_single_example(record, features)
        image = tf.io.decode_image(example["image"], manifest["channels"], expand_animations=False)
        return tf.ensure_shape(image, [*manifest["image_size"], manifest["channels"]]), example["label"]

    files = [str(folder / shard["file"]) for shard in manifest["splits"][split]["shards"]]
    return tf.data.TFRecordDataset(files).map(parse)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--without-training", action="store_true")
    options = parser.parse_args()
    if options.fail:
        raise RuntimeError("told to fail")
    cluster = json.loads(os.environ["CLUSTER_SPEC"])
    if cluster["task"] != {"type": "workerpool0", "index": 0}:
        print("nothing to do in", cluster["task"]["type"])
        return
    if options.without_training:
        Path(os.environ["AIP_MODEL_DIR"], "model.txt").write_text("of no training")
        return

    import keras  # not before: a replica without work need not wait for it
    import tensorflow as tf

    folder = Path(os.environ["SLIPWAY_DATA"])
    manifest = json.loads((folder / "manifest.json").read_text())
    shape = [*manifest["image_size"], manifest["channels"]]
    model = keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(len(manifest["classes"])),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    model.fit(examples("train", manifest, folder).cache().batch(32), epochs=options.epochs, verbose=2)

    names = tf.constant(manifest["classes"])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
    def serve(image_bytes):
        def decode(encoded):
            return tf.ensure_shape(tf.io.decode_image(encoded, shape[2], expand_animations=False), shape)

        images = tf.map_fn(decode, image_bytes, fn_output_signature=tf.TensorSpec(shape, tf.uint8))
        probabilities = tf.nn.softmax(model(tf.cast(images, tf.float32)))
        return {
            "classes": tf.tile(names[tf.newaxis, :], [tf.shape(image_bytes)[0], 1]),
            "probabilities": probabilities,
            "label": tf.gather(names, tf.argmax(probabilities, axis=-1)),
        }

    module = tf.Module()
    module.variables_of_model = [variable.value for variable in model.variables]
    tf.saved_model.save(module, os.environ["AIP_MODEL_DIR"], signatures={"serving_default": serve})


if __name__ == "__main__":
    main()
