"""How a text is divided into words and subwords, by preparation and by the network's inputs.

A text is in lower case; a word is a run of letters, digits and marks. Any other character, such as a comma, is a word
of its own, and so is each character of scripts that are written without spaces. Both patterns are of RE2, the regular
expressions of TensorFlow and of Arrow, so a text has the same words in both.

If a vocabulary has entries that continue a word, a word is divided into entries from its start on, each the longest
that fits (WordPiece): with token, ##i and ##zation, tokenization is token ##i ##zation. It is unknown as a whole if a
part has no entry, or if it is longer than `MAX_CHARACTERS`.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Collection, Iterable

# Characters that separate words, besides spaces.
SPACES = r"[\p{Z}\p{Cc}]+"
# Characters that are words, surrounded by spaces.
SINGLE = r"([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]|[^\p{L}\p{N}\p{M} ])"
SPACED = r" \1 "
# The start of an entry that continues a word; a word has no such character, unless it is one.
CONTINUED = "##"
MAX_CHARACTERS = 100
# Of a text, the first characters tell whether its words are known; from this share of unknown ones on, they are not.
CHARACTERS_COMPARED, MOSTLY = 1000, 0.5
# The scripts of `SINGLE` in Python's regular expressions.
SCRIPTS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"


def longest_subword(vocabulary: Iterable[str]) -> int:
    """Return the number of characters of the longest entry; 0 if words are not divided."""
    entries = list(vocabulary)
    continued = any(entry.startswith(CONTINUED) for entry in entries)
    return max(len(entry.removeprefix(CONTINUED)) for entry in entries) if continued else 0


def divided(word: str, vocabulary: Collection[str]) -> list[str]:
    """Return the entries of a word, each the longest that fits; none if it is unknown."""
    entries: list[str] = []
    start = 0
    while start < len(word) <= MAX_CHARACTERS:
        for end in range(len(word), start, -1):
            entry = CONTINUED * (start > 0) + word[start:end]
            if entry in vocabulary:
                break
        else:
            return []
        entries.append(entry)
        start = end
    return entries


def has_unknown_words(text: str, vocabulary: frozenset[str]) -> bool:
    """Return whether a text is empty, or mostly of words without an entry: of letters and digits, if it has any."""
    text = text[:CHARACTERS_COMPARED].lower()
    text_words = word_pattern().findall(text) or "".join(text.split())
    return sum(not _is_known(word, vocabulary) for word in text_words) >= MOSTLY * len(text_words)


@functools.lru_cache(maxsize=1 << 16)
def _is_known(word: str, vocabulary: frozenset[str]) -> bool:
    return bool(divided(word, vocabulary))


@functools.cache
def word_pattern() -> re.Pattern[str]:
    """Return the pattern of a word of letters and digits in a text in lower case."""
    marks = "".join(character for character in map(chr, range(0x10000)) if unicodedata.category(character)[0] == "M")
    return re.compile(rf"[{SCRIPTS}]|(?:(?![{SCRIPTS}])(?:[^\W_]|[{marks}]))+")
