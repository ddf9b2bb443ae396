"""Words and dates as the network receives them, beside other implementations."""

from __future__ import annotations

import datetime
import math
import random

import numpy as np
import pyarrow
import pytest

from slipway.components.prepare_data.encoding.subwords import learn
from slipway.components.prepare_data.encoding.texts import count_words, days_of, words_of
from slipway.core.manifest import Input
from slipway.core.words import divided, word_pattern

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


def ids(texts: list[str], vocabulary: list[str], length: int) -> list[list[int]]:
    """Return what the network receives."""
    import tensorflow as tf

    from slipway.trainer.data.features import _table
    from slipway.trainer.data.texts import word_ids

    one = Input(kind="text", shape=(length,), vocabulary=tuple(vocabulary))
    found: list[list[int]] = tf.function(word_ids)(tf.constant(texts), _table(one), one).numpy().tolist()
    return found


def test_the_words_of_a_text_are_the_same_for_preparation_and_the_network() -> None:
    listed = [[word for word in words if word] for words in words_of(pyarrow.array(TEXTS)).to_pylist()]
    assert listed[0] == ["the", "cat", ",", "the", "dog", "!", "über", "-", "x2"]
    assert listed[1:4] == [[], [], ["日", "本", "語", "and", "ไ", "ท", "ย"]]
    vocabulary = sorted({word for words in listed for word in words})
    assert [[vocabulary[each - 2] for each in row if each] for row in ids(TEXTS, vocabulary, 9)] == listed
    assert ids(["the unheard cat"], vocabulary, 2) == [[vocabulary.index("the") + 2, 1]]
    words, lengths = count_words(pyarrow.array(TEXTS))
    assert (words["the"], words["cat"], lengths[0], lengths[9]) == (2, 1, 2, 1)


def test_words_of_letters_and_digits_are_those_of_the_network() -> None:
    """By which texts with unknown words are told: of Python's regular expressions, which know no scripts."""
    texts = [
        *TEXTS,
        "हिन्दी में और 𝐚𝐛",
        "ภาษาไทย ລາວ ខ្មែរ မြန်မာ",
        "カタカナ・ひらがな 漢字x",
        "naïve Café_2 don't ÀÉ",
        "עִבְרִית العَرَبِيَّة",
    ]
    listed = words_of(pyarrow.array(texts)).to_pylist()
    expected = [[word for word in found if any(each.isalnum() for each in word)] for found in listed]
    found = [word_pattern().findall(text.lower()) for text in texts]
    assert [[word for word in each if any(map(str.isalnum, word))] for each in found] == expected


def test_words_are_divided_into_the_longest_entries() -> None:
    vocabulary = ["token", "##i", "##iza", "##zation", "to", "日", "##é", "caf"]
    one, i, iza, _, to, day, e, caf = range(2, 10)
    texts = ["Token tokeni", "tokenization", "to日", "café tokens", "", "x" * 101 + " to", "tokenizaizai"]
    assert ids(texts, vocabulary, 4) == [
        [one, one, i, 0], [1, 0, 0, 0], [to, day, 0, 0], [caf, e, 1, 0], [0] * 4, [1, to, 0, 0], [one, iza, iza, i],
    ]  # fmt: skip


def test_the_entries_of_random_texts_are_the_same_for_preparation_and_the_network() -> None:
    rng = random.Random(5)
    words = ["".join(rng.choices("abcdé", [5, 4, 3, 2, 1], k=rng.randrange(1, 12))) for _ in range(400)]
    texts = [" ".join(rng.choices(words, k=rng.randrange(12))) for _ in range(300)]
    counts, _ = count_words(pyarrow.array(texts[:100]))
    vocabulary = learn(counts, 60)
    expected = []
    for text in texts:
        entries = [divided(word, frozenset(vocabulary)) or ["?"] for word in text.split()]
        row = [vocabulary.index(entry) + 2 if entry != "?" else 1 for word in entries for entry in word]
        expected.append([*row, *[0] * 30][:30])
    assert ids(texts, vocabulary, 30) == expected
    assert any(max(row) > 1 and 1 not in row and len(set(row)) > 10 for row in expected)
