"""Inputs that are texts in a record and numbers for the network: words and dates, by operations of plain TensorFlow."""

from __future__ import annotations

import math

import tensorflow as tf

from slipway.core import dates, words
from slipway.core.manifest import Input


def word_ids(texts: tf.Tensor, table: tf.lookup.StaticHashTable, length: int) -> tf.Tensor:
    """Return the first `length` words of texts, string [n], by `table`: int32 [n, length], 0 after the last word."""
    spaced = tf.strings.regex_replace(tf.strings.lower(texts, "utf-8"), words.SPACES, " ")
    found = tf.strings.split(tf.strings.regex_replace(spaced, words.SINGLE, words.SPACED))
    ids = found.with_values(table.lookup(found.values)).to_tensor(shape=[None, length])
    return tf.ensure_shape(ids, [texts.shape[0], length])


def date_features(texts: tf.Tensor, one: Input) -> tf.Tensor:
    """Return what the network receives of dates, string [n]: float32 [n, *one.shape]; see `Input`.

    A text that is no date is a missing one.
    """
    given = tf.strings.regex_full_match(texts, dates.PATTERNS[one.order])
    whole = tf.where(given, texts, dates.EPOCH[one.order])
    found = dates.moment(*tf.unstack(_parts(whole, one), axis=1))
    days = tf.cast(found.days, tf.float32) + tf.cast(found.second, tf.float32) / dates.SECONDS
    features = [(days - one.mean[0]) / one.deviation[0]]
    for position, length in found.cycles:
        angle = tf.cast(position, tf.float32) * (2 * math.pi / length)
        features += [tf.sin(angle), tf.cos(angle)]
    known = tf.cast(given, tf.float32)
    features = [each * known for each in features]
    return tf.stack([*features, 1 - known] if one.nullable else features, axis=-1)


def _parts(texts: tf.Tensor, one: Input) -> tf.Tensor:
    """Return year, month, day, hour, minute and second of dates, int32 [n, 6]."""
    groups = [*(one.order.index(letter) + 1 for letter in "ymd"), 4, 5, 6]
    listed = " ".join(rf"0\{group}" for group in groups)  # a time of day that is not given is 0
    numbers = tf.strings.split(tf.strings.regex_replace(texts, f"^(?:{dates.PATTERNS[one.order]})$", listed))
    return tf.strings.to_number(numbers.to_tensor(shape=[None, len(dates.PARTS)]), tf.int32)
