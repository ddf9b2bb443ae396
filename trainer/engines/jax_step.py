"""The jax engine's compiled functions: many training steps in one call, and the measuring of a batch.

All are written for the global batch; XLA shares the work among the devices and puts the all-reduces in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from numpy.typing import NDArray

from trainer.config import AugmentSettings
from trainer.engines import keras_augment
from trainer.engines.jax_devices import AXIS, Devices

# Variables as arrays: the network's trained ones, its others (random state, moving statistics), the optimizer's.
Variables = tuple[list[Any], list[Any], list[Any]]


@dataclass(frozen=True)
class Step:
    """What one training step is.

    Args:
        model: The keras.Model.
        optimizer: Its keras optimizer, maybe one that scales the loss.
        rate: The place of the learning rate among the optimizer's variables.
        loss_scale: The place of the loss's scale among them; None where the loss is not scaled.
        batch: The global batch's examples.
        accumulation: In how many parts the batch is worked through.
        class_weights: A factor for each class, float32 [classes], or None.
        augment: The changes to images.
        seed: Of the run.
        devices: The job's.
    """

    model: Any
    optimizer: Any
    rate: int
    loss_scale: int | None
    batch: int
    accumulation: int
    class_weights: NDArray[np.float32] | None
    augment: AugmentSettings
    seed: int
    devices: Devices

    def from_memory(self) -> Callable[..., Any]:
        """The compiled function (variables, images, labels, order, first, rates, count) -> (variables, figures).

        `images` uint8 and `labels` int32 are each device's copy of its process's examples (Devices.on_each), `order`
        int32 [most, batch] their indices step by step.
        """

        def fetch_on_device(images: Any, labels: Any, order: Any, step: Any) -> tuple[Any, Any]:
            return self._prepared(images[order], labels[order], step)

        fetch_everywhere = self._on_devices(fetch_on_device, 3)

        def steps(
            variables: Variables, images: Any, labels: Any, order: Any, first: Any, rates: Any, count: Any
        ) -> tuple[Variables, Any]:
            def fetch(number: Any) -> tuple[Any, Any]:
                return fetch_everywhere(images, labels, order[number], first + number)

            return self._loop(variables, fetch, rates, count)

        return self._compiled(steps)

    def from_stream(self) -> Callable[..., Any]:
        """The compiled function (variables, images, labels, first, rates, count) -> (variables, figures).

        `images` uint8 [most, batch, height, width, channels] and `labels` int32 [most, batch] are the batches.
        """
        prepare = self._on_devices(self._prepared, 2)

        def steps(
            variables: Variables, images: Any, labels: Any, first: Any, rates: Any, count: Any
        ) -> tuple[Variables, Any]:
            def fetch(number: Any) -> tuple[Any, Any]:
                return prepare(images[number], labels[number], first + number)

            return self._loop(variables, fetch, rates, count)

        return self._compiled(steps)

    def measuring(self) -> Callable[..., Any]:
        """The compiled function (trained, others, images uint8, labels, weights) -> sums, float32 [3].

        The sums of losses, of right answers and of weights over the global batch, each example by its weight.
        """

        def measure(trained: Any, others: Any, images: Any, labels: Any, weights: Any) -> Any:
            logits = self.model.stateless_call(trained, others, _scaled(images), training=False)[0]
            losses, correct = _losses(logits.astype(jnp.float32), labels)
            return jnp.stack([jnp.sum(losses * weights), jnp.sum(correct * weights), jnp.sum(weights)])

        return jax.jit(measure, out_shardings=self.devices.whole_layout)

    def gradient_flops(self, variables: Variables, image_shape: tuple[int, int, int]) -> float | None:
        """The floating-point operations of one step's forward and backward computation, all devices together."""
        images = jax.ShapeDtypeStruct((self.batch, *image_shape), jnp.float32)
        labels = jax.ShapeDtypeStruct((self.batch,), jnp.int32)
        function = jax.jit(jax.grad(self._loss, has_aux=True))
        costs = function.lower(variables[0], variables[1], images, labels, jnp.float32(1.0)).cost_analysis()
        flops = costs.get("flops") if isinstance(costs, dict) else None
        return float(flops) if flops and flops > 0 else None

    # The parts

    def _compiled(self, steps: Callable[..., Any]) -> Callable[..., Any]:
        whole = self.devices.whole_layout
        return jax.jit(steps, donate_argnums=0, out_shardings=(whole, whole))

    def _on_devices(self, function: Callable[..., Any], split: int) -> Callable[..., Any]:
        """`function` on every device's part of its first `split` arguments; the last one is the step's number.

        What it gives, [accumulation, part of the batch, …], becomes [accumulation, batch, …].
        """
        arguments = (*[PartitionSpec(AXIS)] * split, PartitionSpec())
        parts = (PartitionSpec(None, AXIS), PartitionSpec(None, AXIS))
        return jax.shard_map(function, mesh=self.devices.mesh, in_specs=arguments, out_specs=parts)

    def _prepared(self, images: Any, labels: Any, step: Any) -> tuple[Any, Any]:
        """A device's part of a batch as the network is given it, in its parts: float32 [accumulation, share, …]."""
        images = _scaled(images)
        if self.augment.is_on:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.seed), step), jax.lax.axis_index(AXIS))
            # One key for each change, whether on or off: switching one leaves the others' draws as they are.
            keys = jax.random.split(key, 4)
            draws = keras_augment.draw(
                self.augment,
                images.shape[0],
                lambda change, shape, low, high: jax.random.uniform(keys[change], shape, minval=low, maxval=high),
                lambda change, shape, low, high: jax.random.randint(keys[change], shape, low, high),
            )
            images = keras_augment.change(images, self.augment, draws)
        share = images.shape[0] // self.accumulation
        return (
            images.reshape(self.accumulation, share, *images.shape[1:]),
            labels.reshape(self.accumulation, share),
        )

    def _loop(
        self, variables: Variables, fetch: Callable[[Any], tuple[Any, Any]], rates: Any, count: Any
    ) -> tuple[Variables, Any]:
        """The first `count` steps of `rates` [most]: the variables after them, and each one's loss and accuracy.

        The number of steps is an input, so that calls of every length share one compiled program.
        """

        def body(number: Any, carry: Any) -> Any:
            variables, figures = carry
            images, labels = fetch(number)
            variables, row = self._step(variables, images, labels, rates[number])
            return variables, figures.at[number].set(row)

        return jax.lax.fori_loop(0, count, body, (variables, jnp.zeros((rates.shape[0], 2), jnp.float32)))

    def _step(self, variables: Variables, images: Any, labels: Any, rate: Any) -> tuple[Variables, Any]:
        """One update; its loss and accuracy over the global batch before it, float32 [2].

        `images` and `labels` are the batch in its parts, [accumulation, batch / accumulation, …].
        """
        trained, others, kept = variables
        scale = jnp.float32(1.0) if self.loss_scale is None else kept[self.loss_scale]
        gradient = jax.grad(self._loss, has_aux=True)

        def part(carry: Any, batch: Any) -> Any:
            others, sums, figures = carry
            gradients, (others, more) = gradient(trained, others, *batch, scale)
            return (others, [a + b for a, b in zip(sums, gradients, strict=True)], figures + more), None

        if self.accumulation == 1:
            gradients, (others, figures) = gradient(trained, others, images[0], labels[0], scale)
        else:
            start = (others, [jnp.zeros_like(each) for each in trained], jnp.zeros(2, jnp.float32))
            (others, gradients, figures), _ = jax.lax.scan(part, start, (images, labels))
        kept = list(kept)
        kept[self.rate] = rate.astype(kept[self.rate].dtype)
        trained, kept = self.optimizer.stateless_apply(kept, gradients, trained)
        return (list(trained), list(others), list(kept)), figures

    def _loss(self, trained: Any, others: Any, images: Any, labels: Any, scale: Any) -> Any:
        """A part's share of the global batch's mean loss, times `scale`; beside it, (other variables, figures)."""
        logits, others, extra = self.model.stateless_call(trained, others, images, training=True, return_losses=True)
        losses, correct = _losses(logits.astype(jnp.float32), labels)
        if self.class_weights is not None:
            losses *= jnp.asarray(self.class_weights)[labels]
        loss = jnp.sum(losses) / self.batch + sum(extra) / self.accumulation
        return loss * scale, (others, jnp.stack([loss, jnp.sum(correct) / self.batch]))


def _scaled(pixels: Any) -> Any:
    """Pixels uint8 as float32 in [0, 1], what a network is given."""
    return pixels.astype(jnp.float32) * np.float32(1.0 / 255.0)


def _losses(logits: Any, labels: Any) -> tuple[Any, Any]:
    """Each example's cross-entropy and whether its most probable class is the label (1 or 0), float32 [batch]."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1)[:, 0]
    return -chosen, (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
