"""The floating-point operations of a Keras network on TensorFlow, for model FLOPs utilization."""

from __future__ import annotations

import math

import keras
import tensorflow as tf

from slipway.core.manifest import Manifest
from slipway.trainer.data.features import Tensors, specs
from slipway.trainer.data.images import traced
from slipway.trainer.engines.keras.objective import Objective

# Operations that call other functions, whose operations are not part of the counted graph.
_CALLS = {"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile", "If", "StatelessIf", "Case"}
_KERNEL_GRADIENTS = {"Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter"}
_PRODUCTS = _KERNEL_GRADIENTS | {
    "MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum",
    "Conv2D", "Conv2DBackpropInput", "Conv3D", "Conv3DBackpropInputV2",
    "DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropInput",
}  # fmt: skip


def example_flops(model: keras.Model, manifest: Manifest, objective: Objective) -> float | None:
    """Return the FLOPs of training on one example: the loss and all gradients.

    Counts the matrix products and convolutions of the traced graph, as PyTorch's FlopCounterMode does, from their
    shapes: TensorFlow's own statistics (flops_registry.py) have no Einsum, no gradient of depthwise and
    three-dimensional convolutions, and take the wrong dimension of a transposed BatchMatMul. None for a network whose
    graph has loops or function calls, or shapes that only an execution knows.
    """

    def gradients(inputs: Tensors, labels: tf.Tensor) -> list[tf.Tensor]:
        variables = [variable.value for variable in model.trainable_variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            outputs = tf.cast(model(inputs, training=True), tf.float32)
            loss = tf.reduce_sum(objective.losses(outputs, labels))
        return tape.gradient(loss, variables)

    graph = traced(gradients).get_concrete_function(*specs(manifest, 1, decoded=False)).graph
    operations = _needed([tensor.op for tensor in graph.outputs])
    if any(operation.type in _CALLS for operation in operations):
        return None
    try:
        return float(sum(map(_flops, operations)))
    except ValueError:  # a shape is unknown
        return None


def _needed(operations: list[tf.Operation]) -> set[tf.Operation]:
    """Return the operations and all that they depend on: a trace also has gradients that nothing uses."""
    needed: set[tf.Operation] = set()
    while operations:
        if (operation := operations.pop()) not in needed:
            needed.add(operation)
            operations += [tensor.op for tensor in operation.inputs]
    return needed


def _flops(operation: tf.Operation) -> int:
    """Return the FLOPs of a matrix product or a convolution: two of each multiplication; 0 of other operations.

    Raises:
        ValueError: A shape is unknown.
    """

    def elements(shape: tf.TensorShape, end: int | None = None) -> int:
        return math.prod(tf.TensorShape(shape).as_list()[:end])

    if operation.type not in _PRODUCTS:
        return 0
    shapes = [tensor.shape for tensor in (*operation.inputs, operation.outputs[0])]
    for shape in shapes:
        shape.assert_is_fully_defined()
    *_, output = shapes
    match operation.type:
        case "MatMul":
            return 2 * elements(output) * shapes[0][0 if operation.get_attr("transpose_a") else 1]
        case "BatchMatMul" | "BatchMatMulV2" | "BatchMatMulV3":
            return 2 * elements(output) * shapes[0][-2 if operation.get_attr("adj_x") else -1]
        case "Einsum":
            if len(operation.inputs) == 1:
                return 0
            return 2 * math.prod(_sizes(operation.get_attr("equation").decode(), shapes[:-1]).values())
    # A convolution: the kernel, in a gradient also the output's gradient, are the inputs; the kernel's last dimensions
    # are the channels of the output (in a depthwise one, the input's and their multiplier).
    kernel = output if operation.type in _KERNEL_GRADIENTS else shapes[1]
    convolved = shapes[2] if "Backprop" in operation.type else output
    return 2 * elements(convolved) * elements(kernel, -2 if operation.type.startswith("Depthwise") else -1)


def _sizes(equation: str, shapes: list[tf.TensorShape]) -> dict[str, int]:
    """Return the size of each label of an Einsum's inputs; an ellipsis has labels from the right."""
    sizes: dict[str, int] = {}
    for term, shape in zip(equation.split("->")[0].split(","), shapes, strict=True):
        before, _, after = term.partition("...")
        implied = [str(index) for index in range(len(shape) - len(before) - len(after), 0, -1)]
        for label, size in zip([*before, *implied, *after], shape.as_list(), strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return sizes
