"""A Keras network whose intermediate values are computed again for their gradient (`train.remat`).

On TensorFlow and PyTorch. The graph of each functional or Sequential model is divided into segments, at the places
where the fewest values are still needed: as many as the root of its products, by which the memory grows with the root
of the depth (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, https://arxiv.org/abs/1604.06174). A
segment is a pure function: it is computed again with the statistics and random numbers that it had before, and its
changes of these are made once.
"""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import keras
from keras import ops

from slipway.core.errors import UserError
from slipway.trainer.config import ModelSettings

# A tensor of the backend.
Tensor: TypeAlias = Any
# Calls a function with tensors, and computes it again for the gradient.
Checkpoint = Callable[[Callable[..., list[Tensor]], list[Tensor]], list[Tensor]]
# A context in which a network keeps less for its gradient.
Recomputing = Callable[[], AbstractContextManager[None]]


def cuts(needed: Sequence[int], made: Sequence[int], count: int) -> list[int]:
    """Return where to divide operations into about `count` segments, of about as many bytes each.

    Args:
        needed: How many bytes are still needed before each operation.
        made: How many each makes.
        count: The number of segments.
    """
    total, boundaries = [0, *accumulate(made)], set()
    for number in range(1, count):
        low, high = (bisect_left(total, (2 * number + side) * total[-1] / (2 * count)) for side in (-1, 1))
        if low < (high := min(high, len(needed))):
            boundaries.add(min(range(low, high), key=needed.__getitem__))
    return sorted(boundaries - {0})


def still_needed(results: Sequence[Sequence[tuple[int, int]]]) -> list[int]:
    """Return how many bytes are still needed before each operation.

    Args:
        results: Of each operation, the bytes of what it makes and which operation reads that last.
    """
    changes = [0] * (len(results) + 2)  # from one operation to the next
    for number, made in enumerate(results):
        for size, last in made:
            changes[number + 1] += size
            changes[last + 1] -= size
    return list(accumulate(changes))[: len(results)]


class Rematerialization:
    """The segments of a network.

    Args:
        settings: The network's.
        model: The network.
        checkpoint: The backend's function.
        explicit: Whether `checkpoint` computes the gradients of nothing but its arguments.

    Raises:
        UserError: It has no segments.
    """

    def __init__(self, settings: ModelSettings, model: keras.Model, checkpoint: Checkpoint, *, explicit: bool) -> None:
        self._checkpoint, self._explicit = checkpoint, explicit
        self._graphs = {id(graph): (graph, _segments(graph)) for graph in _graphs(model)}
        if not self._graphs:
            raise refused(settings, "build it with keras.Model(inputs, outputs) or keras.Sequential")
        self._call = _Call(name="segment")

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Within this context, the network keeps only what its segments read."""
        for graph, segments in self._graphs.values():
            vars(graph)["_run_through_graph"] = _Run(self, graph, segments)
        try:
            yield
        finally:
            for graph, _ in self._graphs.values():
                del vars(graph)["_run_through_graph"]

    def run(self, segment: _Segment, graph: keras.Model, values: dict[int, Tensor], operation_fn: Any) -> None:
        """Add a segment's results to the values, by the identity of Keras' symbolic tensors."""
        read = {key: values[key] for key in segment.inputs}
        masks = {key: getattr(value, "_keras_mask", None) for key, value in read.items()}
        differentiable = [key for key, value in read.items() if _is_float(value)]
        trained = segment.trained if self._explicit else ()
        before = [ops.copy(variable._value) for variable in segment.state]
        training = graph._get_call_context().get_value("training")
        made: list[tuple[dict[int, Tensor], list[Tensor], int]] = []  # by the first call only, else it would be kept
        is_first = True

        def compute(*arguments: Tensor) -> list[Tensor]:
            nonlocal is_first
            computed = read | dict(zip(differentiable, arguments, strict=False))
            for key, mask in masks.items():
                if mask is not None:
                    computed[key]._keras_mask = mask
            state = [*zip(segment.state, before, strict=True)]
            state += zip(trained, arguments[len(differentiable) :], strict=True)
            with keras.StatelessScope(state, collect_losses=True, initialize_variables=False) as scope:
                self._call(function=lambda: segment.compute(computed, operation_fn), training=training)
            results = {key: computed[key] for key in segment.outputs}
            if is_first:
                is_first = False
                made.append(
                    (
                        results,
                        [scope.get_current_value(state_variable) for state_variable in segment.state],
                        len(scope.losses),
                    )
                )
            floating = [tensor for tensor in results.values() if _is_float(tensor)]
            return [*floating, *scope.losses]

        tensors = [read[key] for key in differentiable] + [ops.convert_to_tensor(weight._value) for weight in trained]
        outputs = self._checkpoint(compute, tensors)
        results, after, losses = made.pop()
        returned = iter(outputs)
        for key, result in results.items():
            values[key] = next(returned) if _is_float(result) else result
            if (mask := getattr(result, "_keras_mask", None)) is not None:
                values[key]._keras_mask = mask
        for variable, value in zip(segment.state, after, strict=True):
            variable.assign(value)
        if losses:
            keras.Layer.add_loss(graph, list(returned))  # a functional model refuses it


@dataclass(frozen=True)
class _Segment:
    """Nodes of a graph; symbolic tensors are known by their identity.

    Attributes:
        nodes: Keras' nodes, in the order of their calls, and what no later one needs.
        inputs: What they read of earlier ones.
        outputs: What later ones, or the graph's outputs, need of theirs.
        trained: The variables of their layers that can be trained.
        state: The others, and those of random generators.
        is_kept: Whether it is not computed again: one nested model, which has segments of its own, or no calculation.
    """

    nodes: tuple[tuple[Any, tuple[int, ...]], ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    trained: tuple[keras.Variable, ...]
    state: tuple[keras.Variable, ...]
    is_kept: bool

    def compute(self, values: dict[int, Tensor], operation_fn: Any) -> None:
        """Add to the values what the nodes return that is still needed."""
        for node, used in self.nodes:
            args, kwargs = node.arguments.fill_in(values)
            outputs = operation_fn(node.operation)(*args, **kwargs)
            values |= zip(map(id, node.outputs), keras.tree.flatten(outputs), strict=True)
            del args, kwargs, outputs
            for key in used:
                del values[key]


@dataclass(frozen=True)
class _Run:
    """Replaces a model's `_run_through_graph`."""

    remat: Rematerialization
    graph: keras.Model
    segments: Sequence[_Segment]

    def __call__(self, inputs: Any, operation_fn: Any) -> Any:
        values = dict(zip(map(id, self.graph.inputs), keras.tree.flatten(inputs), strict=True))
        for segment in self.segments:
            if segment.is_kept:
                segment.compute(values, operation_fn)
            else:
                self.remat.run(segment, self.graph, values, operation_fn)
        outputs = [values[id(tensor)] for tensor in self.graph.outputs]
        return keras.tree.pack_sequence_as(self.graph._outputs_struct, outputs)


class _Call(keras.Layer):
    """Calls a function whose layers are called with `training`, also when the network's own call is over."""

    def build(self, *_shapes: object) -> None:
        """Has no variables."""

    def call(self, function: Callable[[], None], training: bool | None = None) -> None:  # noqa: ARG002
        """Call it."""
        function()


def refused(settings: ModelSettings, fix: str) -> UserError:
    """Return the error for a network without segments."""
    return UserError(
        f"The network of {settings.builder} has a call of its own, which cannot be divided into segments.",
        setting="train.remat",
        value=True,
        nearest="false",
        fix=f"{fix}, or --set train.remat=false",
    )


def _graphs(model: keras.Model) -> Iterator[keras.Model]:
    """Yield the functional models in a model, with those of Sequential ones."""
    graph = model._functional if isinstance(model, keras.Sequential) else model
    if not hasattr(graph, "_nodes_by_depth"):
        return
    yield graph
    for node in _nodes(graph):
        if isinstance(node.operation, keras.Model):
            yield from _graphs(node.operation)


def _nodes(graph: keras.Model) -> list[Any]:
    """Return the calls of a functional model in their order."""
    known, nodes = {id(tensor) for tensor in graph.inputs}, []
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
            if node.operation and not node.is_input and all(id(tensor) in known for tensor in node.input_tensors):
                nodes.append(node)
                known |= {id(tensor) for tensor in node.outputs}
    return nodes


def _segments(graph: keras.Model) -> list[_Segment]:
    nodes = _nodes(graph)
    last = {id(tensor): number for number, node in enumerate(nodes) for tensor in node.input_tensors}
    last |= dict.fromkeys(map(id, graph.outputs), len(nodes))
    made = [sum(map(_size, node.outputs)) for node in nodes]
    needed = still_needed([
        [(_size(tensor), last.get(id(tensor), number)) for tensor in node.outputs] for number, node in enumerate(nodes)
    ])  # fmt: skip
    is_nested = [isinstance(node.operation, keras.Model) and any(_graphs(node.operation)) for node in nodes]
    ends = {len(nodes)}
    for number, nested in enumerate(is_nested):
        ends |= {number, number + 1} if nested else set()
    segments, start = [], 0
    for end in sorted(ends - {0}):
        count = round(math.sqrt(sum(map(_products, nodes[start:end]))))
        inner = [start + cut for cut in cuts(needed[start:end], made[start:end], count)]
        for low, high in zip([start, *inner], [*inner, end], strict=True):
            segments.append(_segment(nodes, low, high, last, is_nested=is_nested[low]))
        start = end
    return segments


def _segment(nodes: Sequence[Any], start: int, end: int, last: dict[int, int], *, is_nested: bool) -> _Segment:
    segment_nodes = nodes[start:end]
    made = dict.fromkeys(key for node in segment_nodes for key in _ids(node))
    read = {id(tensor): None for node in segment_nodes for tensor in node.input_tensors if id(tensor) not in made}
    outputs = tuple(key for key in made if last.get(key, -1) >= end)
    ends = {
        key: max(number, last.get(key, number))
        for number, node in enumerate(segment_nodes, start)
        for key in _ids(node)
    }
    ends |= {key: last[key] for key in read}
    used = [tuple(key for key, at in ends.items() if at == number) for number in range(start, end)]
    layers = [layer for node in segment_nodes for layer in _layers(node)]
    state = [variable for layer in layers for variable in layer._non_trainable_variables]
    state += [generator.state for layer in layers for generator in layer._seed_generators]
    trained = [variable for layer in layers for variable in layer._trainable_variables]
    return _Segment(
        tuple(zip(segment_nodes, used, strict=True)),
        tuple(read),
        outputs,
        tuple({id(variable): variable for variable in trained}.values()),
        tuple({id(variable): variable for variable in state}.values()),
        is_nested
        or not any(id(tensor) in outputs and _is_float(tensor) for node in segment_nodes for tensor in node.outputs),
    )


def _ids(node: Any) -> list[int]:
    return [id(tensor) for tensor in node.outputs]


def _size(tensor: keras.KerasTensor) -> int:
    return math.prod(side or 1 for side in tensor.shape[1:])


def _layers(node: Any) -> list[keras.Layer]:
    return node.operation._flatten_layers() if isinstance(node.operation, keras.Layer) else []


def _products(node: Any) -> int:
    """Return about how many matrix products or convolutions a node has."""
    return sum(len(variable.shape) > 1 for layer in _layers(node) for variable in layer._trainable_variables)


def _is_float(value: Tensor) -> bool:
    return bool(keras.backend.is_float_dtype(keras.backend.standardize_dtype(value.dtype)))
