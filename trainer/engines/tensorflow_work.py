"""What a Keras network on TensorFlow computes: its floating-point operations, counted, and its graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# Operations that call functions of their own, whose operations are not in the graph that is counted.
_CALLS = {"PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile", "If", "StatelessIf", "Case"}


def example_flops(model: Any) -> float | None:
    """The floating-point operations of training on one example: the loss and all gradients.

    They are counted by TensorFlow's own statistics of each operation in the traced graph (matrix products,
    convolutions and their gradients, pooling, element-wise additions and multiplications). None for a network with
    loops or functions in its graph, which can not be counted so.
    """

    def gradients(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = tf.cast(model(images, training=True), tf.float32)
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    specs = [tf.TensorSpec([1, *model.inputs[0].shape[1:]], tf.float32), tf.TensorSpec([1], tf.int32)]
    graph = tf.function(gradients).get_concrete_function(*specs).graph
    if any(operation.type in _CALLS for operation in graph.get_operations()):
        return None
    build = tf.compat.v1.profiler.ProfileOptionBuilder
    options = build(build.float_operation()).with_empty_output().build()
    return float(tf.compat.v1.profiler.profile(graph, options=options).total_float_ops)


def graph(model: Any) -> bytes:
    """The network's graph from images to logits, as a serialized tf.GraphDef."""
    specification = tf.TensorSpec([None, *model.inputs[0].shape[1:]], tf.float32, name="images")

    def logits(images: Any) -> Any:
        return model(images, training=False)

    traced = tf.function(logits).get_concrete_function(specification)
    return bytes(traced.graph.as_graph_def(add_shapes=True).SerializeToString())
