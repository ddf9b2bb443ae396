"""A training program: `train.module` in slipway.yaml names it, and every replica of a run executes it."""

from __future__ import annotations

import argparse

import keras
import tensorflow as tf

from slipway import training


def network(shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Return a network for pixels of 0 to 1 that outputs one logit per class."""
    layers = keras.layers
    return keras.Sequential(
        [keras.Input(shape), layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dense(classes)]
    )


def batches(data: training.Data, split: str) -> tf.data.Dataset:
    """Return a split's images with pixels of 0 to 1, and labels."""
    examples = data.examples(split).map(lambda image, label: (tf.cast(image, tf.float32) / 255, label)).cache()
    return (examples.shuffle(2000) if split == "train" else examples).batch(32)


def main() -> None:
    """Train on one replica; the others of a larger cluster have nothing to do in this example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    keras.utils.set_random_seed(options.seed)
    if not training.cluster().is_chief:
        return
    data = training.data()
    model = network(data.manifest.image_shape, len(data.manifest.classes))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])

    def report(epoch: int, logs: dict[str, float]) -> None:
        step = int(model.optimizer.iterations)
        training.report(step, total=step // (epoch + 1) * options.epochs, epoch=epoch + 1, **logs)

    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=report)]
    model.fit(batches(data, "train"), epochs=options.epochs, verbose=2, callbacks=callbacks)
    training.export(model)
    training.finish()


if __name__ == "__main__":
    main()
