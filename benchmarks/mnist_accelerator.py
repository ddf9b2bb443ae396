"""TensorFlow's TPU guide's MNIST example on an accelerator: `python -m benchmarks.mnist_accelerator --images FOLDER`.

Uses the guide's network (two convolutions with 256 filters), batch size 200 and Adam, for five epochs in bfloat16 from
the TFRecords of a prepared data set. Compares three variants, each in its own process: the jax engine, hand-written JAX
(data set in device memory, one scan per epoch) and the pytorch engine. Reports the milliseconds per step of the fastest
epoch, except the first, which includes compilation, and the final accuracy on the test split.

Without --images the data set is scikit-learn's digits; --steps shortens an epoch. Both are for trying the benchmark on
a CPU, where its results are not meaningful.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core import manifest as manifests
from slipway.trainer.config import JobConfig
from slipway.trainer.data.assignment import ShardAssignment
from slipway.trainer.distributed import cluster as clusters
from slipway.trainer.engines.quick_import import import_tensorflow

VARIANTS = {"jax": "jax engine", "by_hand": "JAX by hand", "pytorch": "pytorch engine"}
BATCH, RATE = 200, 0.001


def main() -> None:
    """Measure all variants in subprocesses, or a single one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="MNIST as split/class/*.png")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, help="steps per epoch; default: all examples")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--precision", choices=["float32", "mixed_bfloat16"], default="mixed_bfloat16")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.data:
        print(json.dumps(measure(arguments.variants[0], arguments)))
        return
    results = {}
    with tempfile.TemporaryDirectory() as store:
        source = f"images:{arguments.images.absolute()}" if arguments.images else "digits"
        data = prepare(DataSettings(source=source, store=store), 1).uri
        for variant in arguments.variants:
            command = [sys.executable, "-m", "benchmarks.mnist_accelerator", *sys.argv[1:]]
            command += ["--data", data, "--variants", variant]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            results[variant] = json.loads(output.splitlines()[-1])
            print(row(variant, **results[variant]))
    metrics: dict[str, Any] = {"precision": arguments.precision, **results}
    if {"jax", "by_hand"} <= set(results):
        metrics["jax_over_by_hand"] = results["jax"]["milliseconds"] / results["by_hand"]["milliseconds"]
    print(json.dumps(metrics))


def row(variant: str, device: str, milliseconds: float, accuracy: float) -> str:
    """Return a row of the table."""
    return f"{VARIANTS[variant]:16}{device:28}{milliseconds:10.3f} ms/step   test accuracy {accuracy:.4f}"


def measure(variant: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return one variant's device, milliseconds per step and test accuracy."""
    engine_name = "pytorch" if variant == "pytorch" else "jax"
    import_tensorflow(engine_name)
    from slipway.trainer.data import inputs
    from slipway.trainer.engines import base

    manifest = manifests.read(arguments.data)
    assignment = ShardAssignment(arguments.data, manifest, 0, 1)
    steps = arguments.steps or manifest.splits["train"].examples // arguments.batch
    training = inputs.training(assignment, arguments.batch, steps, seed=0)
    test = inputs.evaluation(assignment, "test", arguments.batch)
    if variant == "by_hand":
        return by_hand(training, test, len(manifest.classes), steps, arguments)
    job = JobConfig.model_validate(
        {
            "data": str(arguments.data),
            "model": {"builder": "slipway.trainer.models.mnist:tpu_guide"},
            "train": {
                "engine": engine_name,
                "epochs": arguments.epochs,
                "batch_size": arguments.batch,
                "learning_rate": RATE,
                "steps_per_call": 50,
                "precision": arguments.precision,
            },
            "plan": {
                "replicas": 1,
                "batch_per_replica": arguments.batch,
                "steps_per_epoch": steps,
                "steps": steps * arguments.epochs,
            },
        }
    )
    engine = base.load(engine_name)
    engine.open(clusters.read({}))
    engine.build(job, manifest)
    seconds = []
    for epoch in range(arguments.epochs):
        started = time.perf_counter()
        for first in range(0, steps, 50):  # as the training loop does it: metrics are fetched after each call
            count = min(50, steps - first)
            engine.run(training, epoch * steps + first, np.full(count, RATE, np.float32))
        seconds.append(time.perf_counter() - started)
    return {
        "device": engine.work().device,
        "milliseconds": min(seconds[1:] or seconds) / steps * 1000,
        "accuracy": engine.evaluate(test).metric,
    }


def by_hand(training: Any, test: Any, classes: int, steps: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The same network and Adam in plain JAX, with one scan per epoch."""
    import jax
    import jax.numpy as jnp

    kind = jnp.float32 if arguments.precision == "float32" else jnp.bfloat16
    height, width, channels = training.inputs.shape[1:]
    shapes = [(3, 3, channels, 256), (3, 3, 256, 256), ((height - 4) * (width - 4) * 256, 256), (256, 128)]
    keys = jax.random.split(jax.random.key(0), 5)
    initial = jax.nn.initializers.glorot_uniform()
    weights = [
        (initial(key, shape), jnp.zeros(shape[-1])) for key, shape in zip(keys, [*shapes, (128, classes)], strict=True)
    ]

    def logits_of(weights: Any, pixels: Any) -> Any:
        values = pixels.astype(kind) * kind(1 / 255)
        for kernel, bias in weights[:2]:
            values = jax.lax.conv_general_dilated(
                values, kernel.astype(kind), (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            values = jax.nn.relu(values + bias.astype(kind))
        values = values.reshape(len(values), -1)
        for kernel, bias in weights[2:-1]:
            values = jax.nn.relu(values @ kernel.astype(kind) + bias.astype(kind))
        kernel, bias = weights[-1]
        return (values @ kernel.astype(kind) + bias.astype(kind)).astype(jnp.float32)

    def loss_of(weights: Any, pixels: Any, labels: Any) -> Any:
        logits = jax.nn.log_softmax(logits_of(weights, pixels))
        return -jnp.take_along_axis(logits, labels[:, None], axis=1).mean()

    def adam(weights: Any, first: Any, second: Any, number: Any, gradients: Any) -> Any:
        first = jax.tree.map(lambda kept, new: 0.9 * kept + 0.1 * new, first, gradients)
        second = jax.tree.map(lambda kept, new: 0.999 * kept + 0.001 * new**2, second, gradients)
        rate = RATE * jnp.sqrt(1 - 0.999**number) / (1 - 0.9**number)
        weights = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-7), weights, first, second)
        return weights, first, second

    images, labels = jnp.asarray(training.inputs), jnp.asarray(training.labels)

    def step(carry: Any, chosen: Any) -> Any:
        weights, first, second, number = carry
        loss, gradients = jax.value_and_grad(loss_of)(weights, images[chosen], labels[chosen])
        return (*adam(weights, first, second, number + 1.0, gradients), number + 1.0), loss

    # On CPUs, XLA runs convolutions inside a loop over ten times slower than outside.
    unroll = jax.devices()[0].platform == "cpu"
    epoch_of = jax.jit(lambda carry, order: jax.lax.scan(step, carry, order, unroll=unroll), donate_argnums=0)
    zeros = jax.tree.map(jnp.zeros_like, weights)
    carry = (weights, zeros, jax.tree.map(jnp.copy, zeros), jnp.float32(0))
    seconds = []
    for epoch in range(arguments.epochs):
        started = time.perf_counter()
        carry, losses = epoch_of(carry, training.order(epoch * steps, steps))
        np.asarray(losses)
        seconds.append(time.perf_counter() - started)
    predict = jax.jit(lambda weights, pixels: logits_of(weights, pixels).argmax(axis=1))
    right = sum(
        float(((np.asarray(predict(carry[0], pixels)) == classes_of) * counted).sum())
        for pixels, classes_of, counted in test.batches()
    )
    return {
        "device": jax.devices()[0].device_kind,
        "milliseconds": min(seconds[1:] or seconds) / steps * 1000,
        "accuracy": right / test.assignment.examples("test"),
    }


if __name__ == "__main__":
    main()
