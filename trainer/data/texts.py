"""Inputs that are texts in a record and numbers for the network: words and dates.

They are converted by operations of plain TensorFlow.
"""

from __future__ import annotations

import math

import tensorflow as tf

from slipway.core import dates, words
from slipway.core.manifest import Input


def word_ids(texts: tf.Tensor, table: tf.lookup.StaticHashTable, feature: Input) -> tf.Tensor:
    """Return the first words or subwords of texts, string [n], by `table`.

    Returns:
        int32 [n, *feature.shape], 0 after the last.
    """
    spaced = tf.strings.regex_replace(tf.strings.lower(texts, "utf-8"), words.SPACES, " ")
    tokens = tf.strings.split(tf.strings.regex_replace(spaced, words.SINGLE, words.SPACED))
    if longest := words.longest_subword(feature.vocabulary):
        tokens = tokens[:, : feature.shape[0]]
        different, positions = tf.unique(tokens.values)
        ids = tokens.with_values(tf.gather(_subword_ids(different, table, longest), positions)).merge_dims(1, 2)
    else:
        ids = tokens.with_values(table.lookup(tokens.values))
    return tf.ensure_shape(ids.to_tensor(shape=[None, *feature.shape]), [texts.shape[0], *feature.shape])


def _subword_ids(tokens: tf.Tensor, table: tf.lookup.StaticHashTable, longest: int) -> tf.RaggedTensor:
    """Return the entries into which words, string [n], are divided: int32 [n, entries].

    For how, see `slipway.core.words`.
    """
    too_long = tf.strings.length(tokens, "UTF8_CHAR") > words.MAX_CHARACTERS
    tokens = tf.where(too_long, " ", tokens)  # which has no entry
    sizes = tf.strings.length(tokens, "UTF8_CHAR")

    def step(starts: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Append the next entry of each word that has not ended, the longest that fits."""
        left = tf.where(starts < sizes)
        start = tf.repeat(tf.gather_nd(starts, left)[:, None], longest, axis=1)
        length = tf.zeros_like(start) + tf.range(longest, 0, -1)
        part = tf.strings.substr(tf.repeat(tf.gather_nd(tokens, left)[:, None], longest, 1), start, length, "UTF8_CHAR")
        entries = table.lookup(tf.where(start > 0, words.CONTINUED + part, part))
        size = tf.reduce_max(tf.where(entries > 1, length, 0), axis=1)
        entry = tf.gather(entries, longest - tf.maximum(size, 1), batch_dims=1)
        ends = tf.where(size > 0, start[:, 0] + size, words.MAX_CHARACTERS)
        added = tf.scatter_nd(left, entry, tf.shape(starts, tf.int64))
        return tf.tensor_scatter_nd_update(starts, left, ends), tf.concat([ids, added[:, None]], axis=1)

    begin = tf.zeros_like(sizes), tf.zeros([tf.size(tokens), 0], tf.int32)
    shapes = tf.TensorShape([None]), tf.TensorShape([None, None])
    _, ids = tf.while_loop(
        lambda starts, _: tf.reduce_any(starts < sizes), step, begin, shape_invariants=shapes, parallel_iterations=1
    )
    unknown = tf.reduce_any(ids == 1, axis=1, keepdims=True)
    return tf.RaggedTensor.from_tensor(tf.where(unknown, tf.eye(1, tf.shape(ids)[1], dtype=tf.int32), ids), padding=0)


def date_features(texts: tf.Tensor, feature: Input) -> tf.Tensor:
    """Return what the network receives of dates, string [n]: float32 [n, *feature.shape]; see `Input`.

    A text that is no date is a missing one.
    """
    is_date = tf.strings.regex_full_match(texts, dates.PATTERNS[feature.order])
    whole = tf.where(is_date, texts, dates.EPOCH[feature.order])
    moment = dates.moment(*tf.unstack(_parts(whole, feature), axis=1))
    days = tf.cast(moment.days, tf.float32) + tf.cast(moment.second, tf.float32) / dates.SECONDS
    features = [(days - feature.mean[0]) / feature.deviation[0]]
    for position, length in moment.cycles:
        angle = tf.cast(position, tf.float32) * (2 * math.pi / length)
        features += [tf.sin(angle), tf.cos(angle)]
    known = tf.cast(is_date, tf.float32)
    features = [values * known for values in features]
    return tf.stack([*features, 1 - known] if feature.nullable else features, axis=-1)


def _parts(texts: tf.Tensor, feature: Input) -> tf.Tensor:
    """Return year, month, day, hour, minute and second of dates, int32 [n, 6]."""
    groups = [*(feature.order.index(letter) + 1 for letter in "ymd"), 4, 5, 6]
    listed = " ".join(rf"0\{group}" for group in groups)  # a time of day that is not given is 0
    numbers = tf.strings.split(tf.strings.regex_replace(texts, f"^(?:{dates.PATTERNS[feature.order]})$", listed))
    return tf.strings.to_number(numbers.to_tensor(shape=[None, len(dates.PARTS)]), tf.int32)
