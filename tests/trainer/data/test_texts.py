"""Words and dates as the network receives them, beside other implementations."""

from __future__ import annotations

import datetime
import math
import random

import numpy as np
import pyarrow
import pytest

from slipway.components.prepare_data.encoding.texts import count_words, days_of, words_of
from slipway.core.manifest import Input

WRITTEN = {"ymd": "%Y-%m-%d %H:%M:%S", "dmy": "%d.%m.%Y %H:%M:%S", "mdy": "%m/%d/%Y %H:%M:%S"}
TEXTS = ["The cat, THE\u00a0dog!\r\nÜber-x2", "", " \t", "日本語 and ไทย", "naïve नमस्ते 🚢", "don't"]


@pytest.mark.parametrize("order", WRITTEN)
def test_dates_are_days_and_cycles(order: str) -> None:
    import tensorflow as tf

    from slipway.trainer.data.texts import date_features

    rng = random.Random(3)
    start = datetime.datetime(1899, 12, 28)
    moments = [start + datetime.timedelta(seconds=rng.randrange(5 * 10**9)) for _ in range(200)]
    given = [each.strftime(WRITTEN[order]) for each in moments]
    one = Input(kind="date", shape=(8,), mean=(100.0,), deviation=(50.0,), nullable=True, order=order)
    found = date_features(tf.constant([*given, "", "no date", "13:30"]), one).numpy()
    days = [(each - datetime.datetime(1970, 1, 1)) / datetime.timedelta(days=1) for each in moments]
    np.testing.assert_allclose(found[:200, 0], (np.array(days) - 100) / 50, atol=1e-3)
    np.testing.assert_allclose(days_of(pyarrow.array([*given, "x"]), order)[:200], days, atol=1e-2)
    for at, turns in ((3, [each.weekday() / 7 for each in moments]), (5, [day % 1 for day in days])):
        angles = 2 * math.pi * np.array(turns)
        np.testing.assert_allclose(found[:200, at : at + 2], np.stack([np.sin(angles), np.cos(angles)], 1), atol=1e-3)
    assert found[200:].tolist() == [[0, 0, 0, 0, 0, 0, 0, 1]] * 3


def test_a_year_is_a_cycle() -> None:
    import tensorflow as tf

    from slipway.trainer.data.texts import date_features

    one = Input(kind="date", shape=(7,), mean=(0.0,), deviation=(1.0,))
    days = tf.constant(["2023-12-31", "2024-01-01", "2024-02-29T23:59:59Z", "2024-07-01", "2025-12-31"])
    positions = date_features(days, one).numpy()[:, 1:3]
    distances = np.linalg.norm(positions - positions[0], axis=1)
    assert distances[[1, 4]].max() < 0.03
    assert distances[3] > 1.99


def test_the_words_of_a_text_are_the_same_for_preparation_and_the_network() -> None:
    import tensorflow as tf

    from slipway.trainer.data.texts import word_ids

    listed = [[word for word in words if word] for words in words_of(pyarrow.array(TEXTS)).to_pylist()]
    assert listed[0] == ["the", "cat", ",", "the", "dog", "!", "über", "-", "x2"]
    assert listed[1:4] == [[], [], ["日", "本", "語", "and", "ไ", "ท", "ย"]]
    vocabulary = sorted({word for words in listed for word in words})
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(vocabulary, tf.range(2, len(vocabulary) + 2)), default_value=1
    )
    ids = word_ids(tf.constant(TEXTS), table, 9).numpy()
    assert [[vocabulary[each - 2] for each in row if each] for row in ids] == listed
    assert word_ids(tf.constant(["the unheard cat"]), table, 2).numpy().tolist() == [[vocabulary.index("the") + 2, 1]]
    words, lengths = count_words(pyarrow.array(TEXTS))
    assert (words["the"], words["cat"], lengths[0], lengths[9]) == (2, 1, 2, 1)
