"""Tracing functions into TensorFlow's graphs without translating their source first.

That translation, a tenth of a second for each function that is met on the way, makes Python's conditions and loops on
tensors work. Ours have none: they say `tf.cond` and `tf.while_loop`; and Keras never translates a network's layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# As tf.function, a decorator or a call.
traced = functools.partial(tf.function, autograph=False)


def as_it_is(function: Callable[..., Any]) -> Any:
    """A function that TensorFlow does not translate where it traces it by itself, as tf.data does."""
    return tf.autograph.experimental.do_not_convert(function)
