"""The variants that `benchmarks.step_rate` runs, each in its own process; all but trainer print rates as the last line.

dense FOLDER STEPS_PER_CALL [cached]    Keras fit on small images: steps/s
flowers FOLDER EPOCHS                   the codelab's code on JPEG files: examples per second and per CPU second
layers                                  the codelab's layers alone: the same units
trainer FILE JOB WITHOUT                Slipway's trainer; writes wall and CPU seconds to FILE, from the first file read
                                        to the end of the last epoch; WITHOUT is one of OMISSIONS
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FLOWERS_BATCH = 32
FLOWERS_SIZE = (180, 180)
DENSE_BATCH = 32
CLASSES = 5
# Measured steps of `fit`, by steps per call; one call runs before them as a warm-up.
STEPS = {1: 1500, 50: 6000}
LAYERS_STEPS = 60


def dense(image_shape: tuple[int, int, int], classes: int) -> Any:
    """A small dense network, used by both sides."""
    import keras

    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(classes),
        ]
    )


def flowers(image_shape: tuple[int, int, int], classes: int) -> Any:
    """The codelab's network without Resizing and Rescaling, which Slipway has already done."""
    from slipway.trainer.models import flowers

    return flowers.build(image_shape, classes)


def convolutional(image_shape: tuple[int, int, int], classes: int) -> Any:
    """Two convolutions with 32 filters: enough work per step to benefit from two processes."""
    import keras

    layers = [keras.Input(image_shape)]
    layers += [keras.layers.Conv2D(32, 3, activation="relu") for _ in range(2)]
    return keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(classes)])


def make_images(folder: Path, count: int) -> None:
    """Write 28x28 grayscale PNG files (seed 0), one folder per class."""
    import numpy as np
    from PIL import Image

    draws = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"class_{number % CLASSES}" / f"{number:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (28, 28), np.uint8)).save(path)


def make_photographs(folder: Path, count: int) -> None:
    """Write 320x240 JPEG files cropped from scikit-learn's two photographs (seed 0), one folder per class."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    draws = np.random.default_rng(0)
    for number in range(count):
        pixels = photographs[number % len(photographs)]
        top, left = draws.integers(0, pixels.shape[0] - 239), draws.integers(0, pixels.shape[1] - 319)
        path = folder / f"class_{number % CLASSES}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[top : top + 240, left : left + 320]).save(path, quality=90)


def fit_dense(folder: Path, steps_per_call: int, cached: bool) -> float:
    """Return steps/s of Keras `fit` as in the TPU guide; `cached`: on precomputed batches."""
    import keras
    import numpy as np
    import tensorflow as tf
    from PIL import Image

    paths = sorted(folder.glob("*/*.png"))
    images = np.stack([np.asarray(Image.open(path)) for path in paths])[..., np.newaxis]
    labels = np.array([int(path.parent.name.removeprefix("class_")) for path in paths])

    def scale(image: Any, label: Any) -> Any:
        return tf.cast(image, tf.float32) / 255.0, label

    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).map(scale)
    if cached:
        dataset = dataset.batch(DENSE_BATCH, drop_remainder=True).cache().shuffle(1000).repeat().prefetch(2)
    else:
        dataset = dataset.shuffle(10000).repeat().batch(DENSE_BATCH)
    model = dense((28, 28, 1), CLASSES)
    model.compile(
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["sparse_categorical_accuracy"],
        steps_per_execution=steps_per_call,
    )
    model.fit(dataset, epochs=1, steps_per_epoch=max(100, 2 * steps_per_call), verbose=0)
    started = time.perf_counter()
    model.fit(dataset, epochs=1, steps_per_epoch=STEPS[steps_per_call], verbose=0)
    return STEPS[steps_per_call] / (time.perf_counter() - started)


class Watch:
    """Wall and CPU seconds of this process since creation."""

    def __init__(self) -> None:
        self._clock, self._processor = time.perf_counter(), time.process_time()

    def seconds(self) -> tuple[float, float]:
        return time.perf_counter() - self._clock, time.process_time() - self._processor


def fit_flowers(folder: Path, epochs: int) -> list[float]:
    """Return examples per second and per CPU second of the codelab's code, from first file to last epoch."""
    import keras
    import tensorflow as tf

    tf.data.Dataset.range(1).reduce(0, lambda one, _: one)  # excludes TensorFlow's startup
    watch = Watch()
    training, validation = (
        keras.utils.image_dataset_from_directory(
            folder, validation_split=0.2, subset=subset, seed=123, image_size=FLOWERS_SIZE, batch_size=FLOWERS_BATCH
        )
        for subset in ("training", "validation")
    )
    examples = len(training.file_paths)
    training = training.cache().shuffle(1000).prefetch(buffer_size=tf.data.AUTOTUNE)
    validation = validation.cache().prefetch(buffer_size=tf.data.AUTOTUNE)
    with tf.distribute.MirroredStrategy().scope():
        layers = [keras.layers.Resizing(*FLOWERS_SIZE), keras.layers.Rescaling(1.0 / 255)]
        for filters in (16, 32, 64):
            layers += [keras.layers.Conv2D(filters, 3, padding="same", activation="relu"), keras.layers.MaxPooling2D()]
        layers += [keras.layers.Flatten(), keras.layers.Dense(128, activation="relu")]
        model = keras.Sequential([*layers, keras.layers.Dense(CLASSES, activation="softmax")])
        model.compile(
            optimizer=keras.optimizers.Adam(),
            loss=keras.losses.SparseCategoricalCrossentropy(),
            metrics=["accuracy"],
        )
    model.fit(training, validation_data=validation, epochs=epochs, verbose=0)
    return [examples * epochs / seconds for seconds in watch.seconds()]


def flowers_layers() -> list[float]:
    """Return examples per second and per CPU second of the flowers network's forward and backward pass."""
    import tensorflow as tf

    model = flowers((*FLOWERS_SIZE, 3), CLASSES)
    variables = [variable.value for variable in model.trainable_variables]
    images = tf.random.uniform([FLOWERS_BATCH, *FLOWERS_SIZE, 3], seed=0)
    labels = tf.random.uniform([FLOWERS_BATCH], 0, CLASSES, tf.int32, seed=0)

    def step(number: Any, _sums: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        # The sums ensure that every gradient is computed.
        return number + 1, [tf.reduce_sum(gradient) for gradient in tape.gradient(loss, variables)]

    @tf.function(autograph=False)
    def steps(count: Any) -> Any:
        first = [tf.constant(0), [tf.constant(0.0)] * len(variables)]
        return tf.while_loop(lambda number, _: number < count, step, first)

    steps(tf.constant(2))
    watch = Watch()
    steps(tf.constant(LAYERS_STEPS))
    return [FLOWERS_BATCH * LAYERS_STEPS / seconds for seconds in watch.seconds()]


def _without_all_reduce(engine: str) -> None:
    """Let every replica keep its own gradients; on jax, only where they are summed through shared memory."""
    from slipway.trainer.distributed.shared_sums import SharedSums

    SharedSums.add = lambda _self, arrays: list(arrays)  # type: ignore[method-assign]
    if engine == "jax":
        return
    if engine == "pytorch":
        from slipway.trainer.engines.pytorch.engine import PyTorchEngine

        PyTorchEngine._wrapped = lambda self, *_: self._network  # type: ignore[method-assign]
        return
    import tensorflow as tf

    reduce = tf.distribute.ReplicaContext.all_reduce

    # Gradients are the only list that the engine reduces.
    def all_reduce(self: Any, operation: Any, values: Any, *options: Any) -> Any:
        return values if isinstance(values, list) else reduce(self, operation, values, *options)

    tf.distribute.ReplicaContext.all_reduce = all_reduce


def _on_the_same_batch(_engine: str) -> None:
    """Train on the first examples in every step: nothing is drawn, and they stay in the cache."""
    import numpy as np

    from slipway.trainer.data import inputs

    def order(self: Any, _step: int, count: int) -> Any:
        return np.tile(np.arange(self.batch, dtype=np.int32), (count, 1))

    inputs.MemoryTraining.order = order  # type: ignore[method-assign]


# What a training can omit, to show how long that takes.
OMISSIONS: dict[str, Callable[[str], None]] = {
    "nothing": lambda _engine: None, "no_all_reduce": _without_all_reduce, "same_batch": _on_the_same_batch,
}  # fmt: skip


def run_trainer(file: Path, job: str, without: str) -> int:
    """Run Slipway's trainer; write its seconds from the first read to the end of the last epoch to `file`."""
    from slipway.trainer import __main__ as worker

    import_libraries = worker.import_tensorflow

    def imported(engine: str) -> None:  # not earlier than the trainer imports them
        import_libraries(engine)
        OMISSIONS[without](engine)
        _watch(file)

    worker.import_tensorflow = imported  # type: ignore[assignment]
    return worker.main(["--config", job])


def _watch(file: Path) -> None:
    """Write the wall and CPU seconds of the training to `file` when it ends."""
    from slipway.trainer import loop
    from slipway.trainer.data import inputs

    read, train = inputs.training, loop.Trainer.train
    watches = []

    def begun(*arguments: Any, **options: Any) -> Any:
        watches.append(Watch())
        return read(*arguments, **options)

    def ended(self: Any) -> None:
        train(self)
        file.write_text("{} {}".format(*watches[0].seconds()))

    inputs.training = begun  # type: ignore[assignment]
    loop.Trainer.train = ended  # type: ignore[method-assign]


def main() -> None:
    """Run one variant."""
    side, *arguments = sys.argv[1:]
    if side == "trainer":
        sys.exit(run_trainer(Path(arguments[0]), *arguments[1:]))
    if side == "dense":
        print(fit_dense(Path(arguments[0]), int(arguments[1]), "cached" in arguments[2:]))
    elif side == "layers":
        print(*flowers_layers())
    else:
        print(*fit_flowers(Path(arguments[0]), int(arguments[1])))


if __name__ == "__main__":
    main()
