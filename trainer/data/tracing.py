"""Trace functions into TensorFlow graphs without AutoGraph.

AutoGraph takes a tenth of a second per function and is needed only for Python conditions and loops on tensors. The
functions here use `tf.cond` and `tf.while_loop` instead, and Keras does not apply AutoGraph to a network's layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Used like tf.function, as a decorator or a call.
traced = functools.partial(tf.function, autograph=False)


def as_it_is(function: Callable[..., Any]) -> Any:
    """Wrap a function that tf.data traces, so that AutoGraph does not convert it."""
    return tf.autograph.experimental.do_not_convert(function)
