"""Words and dates in columns of texts, as the network's inputs have them: see `slipway.core.words` and `.dates`."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from slipway.core import dates, words
from slipway.core.values import MISSING


def words_of(texts: pyarrow.StringArray) -> pyarrow.ListArray:
    """Return the words of each text."""
    spaced = pyarrow.compute.replace_substring_regex(pyarrow.compute.utf8_lower(texts), words.SPACES, " ")
    single = pyarrow.compute.replace_substring_regex(spaced, words.SINGLE, words.SPACED)
    return pyarrow.compute.ascii_split_whitespace(pyarrow.compute.ascii_trim_whitespace(single))


def count_words(texts: pyarrow.StringArray) -> tuple[dict[str, int], dict[int, int]]:
    """Return how often each word occurs, and how many texts have each number of words."""
    word_lists = words_of(texts)
    counts = pyarrow.compute.value_counts(word_lists.flatten())
    occurring = dict(zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True))
    # The split of a text without words is an empty word.
    empty = occurring.pop("", 0)
    lengths = Counter(pyarrow.compute.list_value_length(word_lists).to_pylist())
    return occurring, dict(lengths - Counter({1: empty}) + Counter({0: empty}))


def missing_cells(texts: pyarrow.StringArray) -> pyarrow.BooleanArray:
    """Return which texts stand for a missing value."""
    return pyarrow.compute.is_in(pyarrow.compute.utf8_lower(texts), pyarrow.array(sorted(MISSING)))


def date_parts(texts: pyarrow.StringArray, order: dates.Order) -> dict[str, NDArray[np.int64]] | None:
    """Return year, month, day and time of dates, or None if a text is no date."""
    matches = pyarrow.compute.extract_regex(texts, f"^(?:{dates.PATTERNS[order]})$")
    return None if matches.null_count else {name: _part(matches, name) for name in dates.PARTS}


def days_of(texts: pyarrow.StringArray, order: dates.Order) -> NDArray[np.float64]:
    """Return the days since 1970 of dates; NaN for a text that is no date."""
    matches = pyarrow.compute.extract_regex(texts, f"^(?:{dates.PATTERNS[order]})$")
    when = dates.moment(*(_part(matches, name) for name in dates.PARTS))
    known = pyarrow.compute.is_valid(matches).to_numpy(zero_copy_only=False)
    return np.where(known, when.days + when.second / dates.SECONDS, np.nan)


def _part(matches: pyarrow.StructArray, name: str) -> NDArray[np.int64]:
    """Return a part of dates; 0 for a time that is not given."""
    part = pyarrow.compute.fill_null(pyarrow.compute.struct_field(matches, name), "")
    filled = pyarrow.compute.if_else(pyarrow.compute.equal(part, ""), "0", part)
    return pyarrow.compute.cast(filled, pyarrow.int64()).to_numpy(zero_copy_only=False)
