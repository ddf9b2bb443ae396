"""The vocabulary of a text: words and subwords, learned from the training split or read from a file."""

from __future__ import annotations

import heapq
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from slipway.core.errors import UserError
from slipway.core.paths import local_path
from slipway.core.words import CONTINUED, MAX_CHARACTERS

# An entry occurs at least this often in the words from which it is learned: the most frequent ones.
FEWEST_OF_ENTRY = 2
MAX_LEARNED = 50_000
# The entry of a file for unknown words.
UNKNOWN = "[UNK]"
# An entry that no text has, which is in lower case; entries such as [CLS] are not of texts.
CAPITALS = re.compile(r"[^\[]*[A-Z]")


def by_frequency(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return words with their counts, the most frequent first."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def learn(counts: Mapping[str, int], size: int) -> list[str]:
    """Return a vocabulary for words that occur so often: at most `size` entries, the most frequent first.

    By byte-pair encoding: the entries are the characters, and then, one by one, the most frequent pair of neighbors.
    """
    words = [
        ([word[0], *(CONTINUED + character for character in word[1:])], count)
        for word, count in by_frequency(counts)[:MAX_LEARNED]
        if len(word) <= MAX_CHARACTERS
    ]
    characters = [entry for entry, count in by_frequency(_counts(words)) if count >= FEWEST_OF_ENTRY]
    entries = dict.fromkeys(characters[:size])
    pairs: Counter[tuple[str, str]] = Counter()
    having: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for number, (parts, count) in enumerate(words):
        for pair in itertools.pairwise(parts):
            pairs[pair] += count
            having[pair].add(number)
    frequent = [(-count, pair) for pair, count in pairs.items() if count >= FEWEST_OF_ENTRY]
    heapq.heapify(frequent)
    while frequent and len(entries) < size:
        negative, pair = heapq.heappop(frequent)
        if -negative != pairs[pair]:  # its count has changed since
            continue
        entry = pair[0] + pair[1].removeprefix(CONTINUED)
        entries[entry] = None
        changed: Counter[tuple[str, str]] = Counter()
        for number in having.pop(pair):
            parts, count = words[number]
            merged = _merged(parts, pair, entry)
            words[number] = merged, count
            for before in itertools.pairwise(parts):
                changed[before] -= count
            for after in itertools.pairwise(merged):
                changed[after] += count
                having[after].add(number)
        for neighbors, more in changed.items():
            pairs[neighbors] += more
            if more and pairs[neighbors] >= FEWEST_OF_ENTRY:
                heapq.heappush(frequent, (-pairs[neighbors], neighbors))
    left = _counts(words)
    return [entry for entry, _ in by_frequency({entry: left[entry] for entry in entries})]


def _counts(words: Iterable[tuple[list[str], int]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for parts, count in words:
        for part in parts:
            counts[part] += count
    return counts


def _merged(parts: list[str], pair: tuple[str, str], merged: str) -> list[str]:
    """Return the parts of a word with one instead of each two neighbors that are the pair."""
    new_parts: list[str] = []
    for part in parts:
        if new_parts and (new_parts[-1], part) == pair:
            new_parts[-1] = merged
        else:
            new_parts.append(part)
    return new_parts


def read_vocabulary(file: str) -> list[str]:
    """Return the entries in the file of `data.text.vocabulary`, one in each line.

    Raises:
        UserError: It cannot be read, or is no vocabulary of words in lower case with an entry for unknown words.
    """
    path = local_path(file).expanduser()
    try:
        entries = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except FileNotFoundError:
        raise _wrong(
            file, f"There is no file {file}.", "correct the path, which is relative to the project's folder"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(file, f"{file} cannot be read: {error}.") from None
    line_of = {entry: line for line, entry in reversed(list(enumerate(entries, 1)))}
    repeated = next(((line, entry) for line, entry in enumerate(entries, 1) if line_of[entry] != line), None)
    if "" in line_of:
        raise _wrong(file, f"Line {line_of['']:,} of {file} is empty.")
    if repeated:
        line, entry = repeated
        raise _wrong(file, f"Lines {line_of[entry]:,} and {line:,} of {file} have the same entry: {entry}")
    if UNKNOWN not in line_of:
        raise _wrong(file, f"{file} has no entry {UNKNOWN} for unknown words.")
    if capital := next(filter(CAPITALS.match, entries), None):
        message = f"{file} is of a network that distinguishes capital letters, but a text is in lower case: {capital}"
        raise _wrong(file, message, "set the vocabulary of the network's uncased variant")
    return entries


def _wrong(file: str, message: str, fix: str = "restore the file from the pretrained network's folder") -> UserError:
    return UserError(
        message, setting="data.text.vocabulary", value=file, fix=fix,
        allowed=f"an entry in each line, all different: words, subwords after {CONTINUED}, and {UNKNOWN}",
    )  # fmt: skip
