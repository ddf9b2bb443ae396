"""Valid and invalid networks, as a user might write them."""

import importlib
import json
import os
import signal
import time

import keras


def dense(image_shape, classes, units=16):
    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Flatten(),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dense(classes),
        ]
    )


def frozen(image_shape, classes):
    network = dense(image_shape, classes)
    network.trainable = False
    return network


def dropout(image_shape, classes):
    """A layer with random state, which a checkpoint must save."""
    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(classes),
        ]
    )


def normalized(image_shape, classes, synchronized=False):
    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Flatten(),
            keras.layers.BatchNormalization(synchronized=synchronized),
            keras.layers.Dense(classes),
        ]
    )


def backbone(image_shape, classes, frozen=12):
    """A classifier on the first blocks of MobileNet with 7 BatchNormalization layers, the first 3 frozen."""
    whole = keras.applications.MobileNet(image_shape, alpha=0.25, include_top=False, weights=None)
    inner = keras.Model(whole.input, whole.get_layer("conv_pw_3_relu").output, name="mobilenet")
    for layer in inner.layers[:frozen]:
        layer.trainable = False
    return keras.Sequential(
        [
            keras.Input(image_shape),
            inner,
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(classes, name="head"),
        ]
    )


def fine_tuned(image_shape, classes, frozen=False):
    """A small backbone with BatchNormalization, and a head with random state."""
    backbone = keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Conv2D(5, 2, name="conv"),
            keras.layers.BatchNormalization(name="normalization", momentum=0.5),
            keras.layers.BatchNormalization(name="statistics", momentum=0.5, center=False, scale=False),
        ],
        name="backbone",
    )
    backbone.trainable = not frozen
    head = [keras.layers.Flatten(), keras.layers.Dropout(0.5), keras.layers.Dense(classes, name="head")]
    return keras.Sequential([keras.Input(image_shape), backbone, *head])


def exits(image_shape, classes):
    raise SystemExit(3)


def interrupts(image_shape, classes):
    raise KeyboardInterrupt


def leaves(image_shape, classes):
    os._exit(3)


def raises(image_shape, classes):
    return {}["no such layer"]


def returns_nothing(image_shape, classes):
    return None


def too_few_outputs(image_shape, classes):
    return dense(image_shape, classes - 1)


def probabilities(image_shape, classes):
    return keras.Sequential(
        [keras.Input(image_shape), keras.layers.Flatten(), keras.layers.Dense(classes, activation="softmax")]
    )


class _Scaled(keras.layers.Dense):
    """A layer whose class, and so its name, begins with an underscore."""


def private_layer(image_shape, classes):
    inputs = keras.Input(image_shape)
    return keras.Model(inputs, _Scaled(classes)(keras.layers.Flatten()(inputs)))


def other_size(image_shape, classes):
    return dense((5, 5, 1), classes)


def built_in_batch(image_shape, classes):
    return keras.Sequential(
        [keras.Input(batch_shape=(64, *image_shape)), keras.layers.Flatten(), keras.layers.Dense(classes)]
    )


def linear(image_shape, classes, regularization=0.0):
    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Flatten(),
            keras.layers.Dense(classes, kernel_regularizer=keras.regularizers.L2(regularization)),
        ]
    )


@keras.saving.register_keras_serializable()
class Greedy(keras.layers.Layer):
    """A layer that runs out of memory on batches above a given number of examples."""

    def __init__(self, examples, **options):
        super().__init__(**options)
        self.examples = examples

    def call(self, inputs):
        import tensorflow as tf

        size = tf.where(tf.shape(inputs)[0] > self.examples, 2**62, 1)
        return inputs + tf.reduce_sum(tf.random.uniform([size])) * 0


def greedy(image_shape, classes, examples):
    return keras.Sequential(
        [keras.Input(image_shape), keras.layers.Flatten(), Greedy(examples), keras.layers.Dense(classes)]
    )


def killed_in_a_sum(image_shape, classes, sums=200):
    """A worker is killed as it comes to a sum through shared memory, for which the chief then waits."""
    from slipway.trainer.distributed.shared_sums import SharedSums

    if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "worker":
        add, numbers = SharedSums.add, iter(range(sums))

        def add_or_end(self, arrays):
            if next(numbers, None) is None:
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGKILL)
            return add(self, arrays)

        SharedSums.add = add_or_end
    return dense(image_shape, classes)


def none_on_a_worker(image_shape, classes):
    if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "worker":
        raise RuntimeError("not on a worker")
    return dense(image_shape, classes)


def wide_on_a_small_machine(image_shape, classes):
    """The network `wide`, larger than what the engine thinks that the machine has."""
    engine = {"jax": "jax", "torch": "pytorch"}[keras.backend.backend()]
    importlib.import_module(f"slipway.trainer.engines.{engine}.devices").available_bytes = lambda: 2**20
    return wide(image_shape, classes)


def wide(image_shape, classes):
    """Layers of 1 MiB, which the engine pytorch shards on their own, with everything that depends on their values."""
    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Flatten(),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(512, activation="relu", kernel_regularizer=keras.regularizers.L2(0.001), name="middle"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(classes, name="head"),
        ]
    )


class Noisy(keras.layers.Layer):
    """A layer whose call does not take `training`, which those in it get all the same, and which makes a mask."""

    def __init__(self):
        super().__init__()
        self.dense, self.dropout = keras.layers.Dense(8, activation="tanh"), keras.layers.Dropout(0.3)

    def call(self, values):
        return self.dropout(self.dense(values))

    def compute_mask(self, values, previous=None):
        later = keras.ops.any(values[:, 1:] > 0.2, axis=-1)
        return keras.ops.concatenate([keras.ops.any(values[:, :1] >= 0, axis=-1), later], axis=-1)


def nested(image_shape, classes):
    """A graph with all that segments have to hand on: masks, losses, statistics, random numbers, models in models."""
    inputs = keras.Input(image_shape)
    convolution = keras.layers.Conv2D(3, 3, padding="same", use_bias=False)
    block = keras.Sequential([convolution, keras.layers.BatchNormalization()])
    rows = keras.layers.Reshape((image_shape[0], -1))(block(block(keras.layers.Conv2D(3, 1)(inputs))))
    rows = keras.layers.Dense(8, activation="relu", activity_regularizer=keras.regularizers.L2(0.01))(rows)
    shared = keras.layers.Dense(8)
    values = keras.layers.ReLU()(shared(shared(rows)) - 0.2)
    values = Noisy()(values)
    values = keras.layers.add([values, keras.layers.MultiHeadAttention(2, 4, dropout=0.2)(values, values)])
    values = keras.layers.GlobalAveragePooling1D()(values)
    first = keras.layers.LayerNormalization()(values)
    for _ in range(3):
        values = keras.layers.add([values, keras.layers.Dense(8, activation="gelu")(values)])
    return keras.Model(inputs, keras.layers.Dense(classes)(keras.layers.concatenate([first, values])))


class Called(keras.Model):
    """A network without a graph."""

    def __init__(self, classes):
        super().__init__()
        self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(classes)

    def call(self, images):
        return self.dense(self.flatten(images))


def called(image_shape, classes):
    return Called(classes)


def penalized(image_shape, classes, function=False):
    """A network that looks at one example at a time, with a loss of its weights; with `function`, that is not known."""
    inputs = keras.Input(image_shape)
    values = keras.layers.Dense(16, kernel_regularizer=keras.regularizers.L2(0.01))(keras.layers.Flatten()(inputs))
    values = keras.layers.LayerNormalization()(keras.layers.ReLU()(values))
    values = keras.ops.negative(values) if function else keras.layers.Rescaling(-1.0)(values)
    return keras.Model(inputs, keras.layers.Dense(classes)(values))
