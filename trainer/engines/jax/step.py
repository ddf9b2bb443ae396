"""The jax engine's compiled functions: many training steps in one call, and the evaluation of a batch.

All are written for the global batch; XLA partitions the work over the devices and inserts the all-reduces.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.flatten_util import ravel_pytree
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from slipway.core.manifest import Manifest
from slipway.trainer.config import TrainSettings
from slipway.trainer.data.features import Tensors, blank, each, in_order
from slipway.trainer.distributed.shared_sums import SharedSums
from slipway.trainer.engines.jax.devices import AXIS, Devices
from slipway.trainer.engines.jax.remat import rematerialized
from slipway.trainer.engines.jax.sharding import GATHERED, Gathering
from slipway.trainer.engines.keras import augment
from slipway.trainer.engines.keras.augment import Custom, Labels
from slipway.trainer.engines.keras.objective import Objective

if TYPE_CHECKING:
    import keras

# Keras' layers that call functions of others.
_WITH_FUNCTIONS = ("Lambda", "TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer")

# Variables as arrays: the network's trainable ones, its others (random state, moving statistics), the optimizer's.
Arrays: TypeAlias = list[jax.Array]
Variables = tuple[Arrays, Arrays, Arrays]
# The layout of each of them.
Layouts = tuple[list[NamedSharding], list[NamedSharding], list[NamedSharding]]
# The arrays that a call's steps read, of a split in memory or of batches: the network's inputs, then others.
Inputs = Sequence[Tensors]
# The network's inputs and labels.
Batch = tuple[Tensors, Labels]
# The function (variables, inputs, first, rates, count) -> (variables, metrics) that runs `count` steps, `first` being
# the first one's number in the run, `rates` float32 [rows] their learning rates. The metrics are arrays [n, 2] or [2]
# with the steps' loss and metric, perhaps of more than `count` steps. The variables that go in are used up.
Steps = Callable[[Variables, Inputs, int, NDArray[np.float32], int], tuple[Variables, Arrays]]
# What is compiled for them, of the same arguments; the last one is the number of steps, or that of a single step.
Program: TypeAlias = "jax.stages.Wrapped"


@dataclass(frozen=True)
class Step:
    """One training step.

    Args:
        model: The keras.Model.
        optimizer: Its Keras optimizer, possibly a LossScaleOptimizer.
        objective: The loss and the metric.
        manifest: The data set's manifest.
        rate: The index of the learning rate among the optimizer's variables.
        loss_scale: The index of the loss scale among them; None without loss scaling.
        train: The settings.
        devices: The job's Devices.
        layouts: The layouts of sharded variables; None if all are whole on each device.
        gathering: Gathers the trainable variables; None if all are whole.
        is_loop_fast: Whether the steps of a call run in one compiled loop; else each is a separate call.
        own_augmentation: The user's augmentation, or None.
        sums_together: Whether the devices' gradients are summed as one vector; requires `looks_at_one_example`.
        sums: Sums that vector over processes with one device each; None if XLA does.
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    objective: Objective
    manifest: Manifest
    rate: int
    loss_scale: int | None
    train: TrainSettings
    devices: Devices
    layouts: Layouts | None
    gathering: Gathering | None
    is_loop_fast: bool
    own_augmentation: Custom | None = None
    sums_together: bool = False
    sums: SharedSums | None = None

    def from_memory(self) -> Steps:
        """Return steps on (inputs, labels, order).

        The decoded inputs and the labels are each device's copy of its process's examples (Devices.on_each), `order`
        int32 [rows, batch] their indices step by step.
        """
        return self._calls(self.memory_program())

    def from_stream(self) -> Steps:
        """Return steps on batches: decoded inputs [rows, batch, …], labels [rows, batch, …]."""
        return self._calls(self.stream_program())

    def memory_program(self) -> Program:
        """Return what `from_memory` compiles."""

        def fetch_on_device(inputs: Tensors, labels: jax.Array, order: jax.Array, step: jax.Array) -> Batch:
            return self._prepared(each(lambda values: values[order], inputs), labels[order], step)

        fetch = self._on_devices(fetch_on_device, 3)
        return self._program(lambda inputs, number, step: fetch(inputs[0], inputs[1], inputs[2][number], step))

    def stream_program(self) -> Program:
        """Return what `from_stream` compiles."""
        prepare = self._on_devices(self._prepared, 2)
        return self._program(
            lambda inputs, number, step: prepare(
                each(lambda values: values[number], inputs[0]), inputs[1][number], step
            )
        )

    def measuring(self) -> Callable[..., jax.Array]:
        """Return the compiled function (trained, others, decoded inputs, labels, weights) -> sums (Objective.sums)."""

        def measure(
            trained: Arrays, non_trainable: Arrays, inputs: Tensors, labels: jax.Array, weights: jax.Array
        ) -> jax.Array:
            outputs = self.model.stateless_call(trained, non_trainable, self._scaled(inputs), training=False)[0]
            return self.objective.sums(outputs.astype(jnp.float32), labels, weights)

        gathering = measure if self.gathering is None else self.gathering(measure)
        return jax.jit(gathering, out_shardings=self.devices.whole_layout)

    def gradient_flops(self, variables: Variables) -> float | None:
        """Return the FLOPs of one step's forward and backward pass over all devices; None if XLA has no estimate."""
        inputs, labels = jax.eval_shape(lambda inputs, labels: (self._scaled(inputs), labels), *blank(self.manifest, 1))
        inputs, labels = jax.tree.map(
            lambda array: jax.ShapeDtypeStruct((self.train.batch_size, *array.shape[1:]), array.dtype), (inputs, labels)
        )
        function = jax.jit(jax.grad(self._loss, has_aux=True))
        trained, non_trainable = jax.tree.map(
            lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), variables[:2]
        )
        costs = function.lower(trained, non_trainable, inputs, labels, jnp.float32(1.0)).cost_analysis()
        flops = costs.get("flops") if isinstance(costs, dict) else None
        return float(flops) if flops and flops > 0 else None

    # The parts

    def _program(self, fetch: Callable[[Inputs, jax.Array, jax.Array], Batch]) -> Program:
        """Return the function that is compiled: of all steps of a call where loops are fast, else of one step.

        `fetch` is (inputs, step number in the call, step number in the run) -> (inputs, labels).
        """
        whole = self.devices.whole_layout
        layouts = (self.layouts or whole, whole)

        def one(
            variables: Variables, inputs: Inputs, first: jax.Array, rates: jax.Array, number: jax.Array
        ) -> tuple[Variables, jax.Array]:
            return self._step(variables, *fetch(inputs, number, first + number), rates[number])

        def many(
            variables: Variables, inputs: Inputs, first: jax.Array, rates: jax.Array, count: jax.Array
        ) -> tuple[Variables, jax.Array]:
            def body(number: jax.Array, carry: tuple[Variables, jax.Array]) -> tuple[Variables, jax.Array]:
                variables, metrics = carry
                variables, row = one(variables, inputs, first, rates, number)
                return variables, metrics.at[number].set(row)

            # The number of steps is an input, so that calls of every length share one compiled program.
            return jax.lax.fori_loop(0, count, body, (variables, jnp.zeros((rates.shape[0], 2), jnp.float32)))

        return jax.jit(many if self.is_loop_fast else one, donate_argnums=0, out_shardings=layouts)

    def _calls(self, program: Program) -> Steps:
        def run_many(
            variables: Variables, inputs: Inputs, first: int, rates: NDArray[np.float32], count: int
        ) -> tuple[Variables, Arrays]:
            variables, metrics = program(variables, inputs, np.int32(first), rates, np.int32(count))
            return variables, [metrics]

        def run_each(
            variables: Variables, inputs: Inputs, first: int, rates: NDArray[np.float32], count: int
        ) -> tuple[Variables, Arrays]:
            rows = []
            for number in range(count):
                variables, row = program(variables, inputs, np.int32(first), rates, np.int32(number))
                rows.append(row)
            return variables, rows

        return run_many if self.is_loop_fast else run_each

    def _on_devices(self, function: Callable[..., Batch], split: int) -> Callable[..., Batch]:
        """Map `function` over every device's part of its first `split` arguments; the last one is the step's number.

        Its results, [accumulation, part of the batch, …], are combined to [accumulation, batch, …].
        """
        arguments = (*[PartitionSpec(AXIS)] * split, PartitionSpec())
        parts = (PartitionSpec(None, AXIS), PartitionSpec(None, AXIS))
        return jax.shard_map(function, mesh=self.devices.mesh, in_specs=arguments, out_specs=parts)

    def _prepared(self, decoded: Tensors, labels: jax.Array, step: jax.Array) -> Batch:
        """Scale, augment and split a device's part of a batch into micro-batches: [accumulation, size, …]."""
        inputs = self._scaled(decoded)
        size = labels.shape[0] // self.train.accumulation
        settings = self.train.augment
        if settings.is_on:
            key = jax.random.fold_in(jax.random.key(self.train.seed), step)
            key = jax.random.fold_in(key, jax.lax.axis_index(AXIS))
            # One key for each transformation, enabled or not, so that toggling one does not change the others' draws.
            keys = jax.random.split(key, augment.TRANSFORMATIONS)
            drawing: tuple[augment.Draw, augment.Draw] = (
                lambda change, shape, low, high: jax.random.uniform(keys[change], shape, minval=low, maxval=high),
                lambda change, shape, low, high: jax.random.randint(keys[change], shape, low, high),
            )
            inputs, labels = augment.augmented(
                inputs,
                labels,
                settings,
                self.own_augmentation,
                drawing,
                lambda number: jax.random.key_data(jax.random.fold_in(key, number)),
            )
        return jax.tree.map(
            lambda values: values.reshape(self.train.accumulation, size, *values.shape[1:]), (inputs, labels)
        )

    def _step(
        self, variables: Variables, inputs: Tensors, labels: Labels, rate: jax.Array
    ) -> tuple[Variables, jax.Array]:
        """Run one update; return its loss and metric over the global batch before it, float32 [2].

        `inputs` and `labels` are the batch in micro-batches, [accumulation, batch / accumulation, …].
        """
        trained, non_trainable, kept = variables
        scale = jnp.float32(1.0) if self.loss_scale is None else kept[self.loss_scale]
        gradient = self._gradient()

        def part(
            carry: tuple[Arrays, Arrays, jax.Array], batch: Batch
        ) -> tuple[tuple[Arrays, Arrays, jax.Array], None]:
            carried, sums, metrics = carry
            gradients, (carried, more) = gradient(trained, carried, *batch, scale)
            return (carried, [a + b for a, b in zip(sums, gradients, strict=True)], metrics + more), None

        if self.train.accumulation == 1:
            first = (each(lambda values: values[0], stacked) for stacked in (inputs, labels))
            gradients, (non_trainable, metrics) = gradient(trained, non_trainable, *first, scale)
        else:
            start = (non_trainable, [jnp.zeros_like(array) for array in trained], jnp.zeros(2, jnp.float32))
            (non_trainable, gradients, metrics), _ = jax.lax.scan(
                part, start, (inputs, labels), unroll=not self.is_loop_fast
            )
        kept = list(kept)
        kept[self.rate] = rate.astype(kept[self.rate].dtype)
        trained, kept = self.optimizer.stateless_apply(kept, gradients, trained)
        return (list(trained), list(non_trainable), list(kept)), metrics

    def _gradient(self) -> Callable[..., tuple[Arrays, tuple[Arrays, jax.Array]]]:
        """Return the gradient of `_loss`, sharded as the variables are."""
        loss = self._loss if self.gathering is None else self.gathering(self._loss)
        if self.train.remat:
            loss = rematerialized(loss)
        elif self.gathering is not None and not any(layer._remat_mode for layer in self.model._flatten_layers()):
            # Else XLA would keep what it gathered until the backward pass.
            policy = jax.checkpoint_policies.save_anything_except_these_names(GATHERED)
            loss = jax.checkpoint(loss, policy=policy)
        gradient = jax.grad(loss, has_aux=True)
        return self._summed(gradient) if self.sums_together else gradient

    def _summed(self, gradient: Callable[..., tuple[Arrays, tuple[Arrays, jax.Array]]]) -> Callable[..., Any]:
        """Compute a gradient on each device's part of the batch, and sum the devices' results as one vector.

        XLA would hand gloo each array on its own, which takes milliseconds, however small it is.
        """

        def of_part(*arguments: Any) -> tuple[Arrays, tuple[Arrays, jax.Array]]:
            gradients, (non_trainable, metrics) = gradient(*arguments)
            vector, divided = ravel_pytree((gradients, metrics))
            gradients, metrics = divided(self._over_processes(vector))
            return gradients, (non_trainable, metrics)

        whole, part = PartitionSpec(), PartitionSpec(AXIS)
        arguments = (whole, whole, part, part, whole)
        # Checked, JAX would sum each array itself.
        return jax.shard_map(of_part, mesh=self.devices.mesh, in_specs=arguments, out_specs=whole, check_vma=False)

    def _over_processes(self, vector: jax.Array) -> jax.Array:
        # Micro-batches could be summed in any order: nothing that they compute depends on those before.
        if self.sums is None or self.train.accumulation > 1:
            return jax.lax.psum(vector, AXIS)
        add = self.sums.add
        total = jax.ShapeDtypeStruct(vector.shape, vector.dtype)
        return io_callback(lambda part: add([np.asarray(part)])[0], total, vector)

    def _loss(
        self, trained: Arrays, non_trainable: Arrays, inputs: Tensors, labels: Labels, scale: jax.Array
    ) -> tuple[jax.Array, tuple[Arrays, jax.Array]]:
        """Return a micro-batch's part of the global mean loss, times `scale`, and (other variables, metrics)."""
        outputs, non_trainable, extra = self.model.stateless_call(
            trained, non_trainable, in_order(inputs, self.manifest), training=True, return_losses=True
        )
        outputs = outputs.astype(jnp.float32)
        losses, metrics = self.objective.training(outputs, labels)
        parts = self.train.accumulation * (len(self.devices.all) if self.sums_together else 1)
        loss = jnp.sum(losses) / self.train.batch_size + sum(extra) / parts
        return loss * scale, (non_trainable, jnp.stack([loss, jnp.sum(metrics) / self.train.batch_size]))

    def _scaled(self, decoded: Tensors) -> Tensors:
        def scaled(array: jax.Array) -> jax.Array:
            return array.astype(jnp.float32) * np.float32(1.0 / 255.0) if array.dtype == jnp.uint8 else array

        return in_order(each(scaled, decoded), self.manifest)


def looks_at_one_example(model: keras.Model) -> bool:
    """Whether a network's outputs and losses for an example certainly do not depend on the batch's other examples.

    That is known of graphs of Keras' own layers without random numbers and statistics.
    """
    return not model.non_trainable_variables and all(map(_looks_at_one_example, model._flatten_layers()))


def _looks_at_one_example(layer: keras.Layer) -> bool:
    if type(layer).__module__.partition(".")[0] != "keras" or type(layer).__name__ in _WITH_FUNCTIONS:
        return False
    axes = [getattr(layer, name, None) for name in ("axis", "axes")]
    nodes = itertools.chain.from_iterable(getattr(layer, "_nodes_by_depth", {}).values())  # of a model
    return (
        layer.activity_regularizer is None
        and all(axis == -1 or axis > 0 for setting in axes if setting is not None for axis in np.ravel(setting))
        and all(hasattr(node.operation, "weights") for node in nodes)  # others are functions of keras.ops
    )


def has_convolutions(model: keras.Model) -> bool:
    """Whether the network has convolutions, which on CPUs XLA runs over ten times slower inside a compiled loop."""
    names = [type(layer).__name__ for layer in model._flatten_layers()]
    return any("Conv" in name for name in names)


CLASSIFICATION = Objective(
    losses=lambda logits, labels: -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1)[:, 0],
    metric=lambda logits, labels: (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32),
    take=lambda values, indices: jnp.asarray(values)[indices],
)
