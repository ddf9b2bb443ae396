"""What a Keras network on TensorFlow computes: its floating-point operations, counted, and its graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from slipway.trainer.data.tracing import traced

# Operations that call functions of their own, whose operations are not in the graph that is counted.
_CALLS = {"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile", "If", "StatelessIf", "Case"}


def example_flops(model: Any, image_shape: tuple[int, int, int]) -> float | None:
    """The floating-point operations of training on one example: the loss and all gradients.

    They are counted by TensorFlow's own statistics of each operation in the traced graph (matrix products,
    convolutions and their gradients, pooling, element-wise additions and multiplications). None for a network with
    loops or functions in its graph, which cannot be counted so.
    """

    def gradients(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = tf.cast(model(images, training=True), tf.float32)
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    specs = [tf.TensorSpec([1, *image_shape], tf.float32), tf.TensorSpec([1], tf.int32)]
    graph = traced(gradients).get_concrete_function(*specs).graph
    if any(operation.type in _CALLS for operation in graph.get_operations()):
        return None
    build = tf.compat.v1.profiler.ProfileOptionBuilder
    options = build(build.float_operation()).with_empty_output().build()
    return float(tf.compat.v1.profiler.profile(graph, options=options).total_float_ops)


def graph(model: Any, image_shape: tuple[int, int, int]) -> bytes:
    """The network's graph from images to logits, as a serialized tf.GraphDef."""
    specification = tf.TensorSpec([None, *image_shape], tf.float32, name="images")

    def logits(images: Any) -> Any:
        return model(images, training=False)

    concrete = traced(logits).get_concrete_function(specification)
    return bytes(concrete.graph.as_graph_def(add_shapes=True).SerializeToString())


def most_that_fit(gradients: Callable[[Any, Any], Any], image_shape: tuple[int, int, int], below: int) -> int:
    """How many examples a device can work through at once, fewer than `below`: tried on it, by halving the difference.

    Args:
        gradients: What a step computes, from float32 images and int32 labels; called with zeros.
        image_shape: Height, width, channels.
        below: A number that does not fit.
    """

    def fits(examples: int) -> bool:
        try:
            traced(gradients)(tf.zeros([examples, *image_shape]), tf.zeros([examples], tf.int32))
        except tf.errors.ResourceExhaustedError:
            return False
        return True

    fitting = 0
    while below - fitting > 1:
        middle = (fitting + below) // 2
        if fits(middle):
            fitting = middle
        else:
            below = middle
    return fitting
