"""How a text is divided into words and subwords, by preparation and by the network's inputs.

A text is in lower case; a word is a run of letters, digits and marks. Any other character, such as a comma, is a word
of its own, and so is each character of scripts that are written without spaces. Both patterns are of RE2, the regular
expressions of TensorFlow and of Arrow, so a text has the same words in both.

If a vocabulary has entries that continue a word, a word is divided into entries from its start on, each the longest
that fits (WordPiece): with token, ##i and ##zation, tokenization is token ##i ##zation. It is unknown as a whole if a
part has no entry, or if it is longer than `MAX_CHARACTERS`.
"""

from __future__ import annotations

from collections.abc import Iterable

# Characters that separate words, besides spaces.
SPACES = r"[\p{Z}\p{Cc}]+"
# Characters that are words, surrounded by spaces.
SINGLE = r"([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]|[^\p{L}\p{N}\p{M} ])"
SPACED = r" \1 "
# The start of an entry that continues a word; a word has no such character, unless it is one.
CONTINUED = "##"
MAX_CHARACTERS = 100


def longest_subword(vocabulary: Iterable[str]) -> int:
    """Return the number of characters of the longest entry; 0 if words are not divided."""
    entries = list(vocabulary)
    continued = any(entry.startswith(CONTINUED) for entry in entries)
    return max(len(entry.removeprefix(CONTINUED)) for entry in entries) if continued else 0
