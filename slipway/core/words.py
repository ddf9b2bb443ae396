"""How a text is divided into words: by preparation, which counts them, and by the network's inputs.

A text is in lower case; a word is a run of letters, digits and marks. Any other character, such as a comma, is a word
of its own, and so is each character of scripts that are written without spaces. Both patterns are of RE2, the regular
expressions of TensorFlow and of Arrow, so a text has the same words in both.
"""

from __future__ import annotations

# Characters that separate words, besides spaces.
SPACES = r"[\p{Z}\p{Cc}]+"
# Characters that are words, surrounded by spaces.
SINGLE = r"([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]|[^\p{L}\p{N}\p{M} ])"
SPACED = r" \1 "
