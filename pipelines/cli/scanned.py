"""What the commands that scan data say of it in a line, and how they write settings with comments."""

from __future__ import annotations

import json
from collections.abc import Iterable

LABEL_WIDTH = 12
MAX_LABELS = 8
# An epoch has at least so many batches.
FEWEST_BATCHES = 2


def lines(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each subject that has something to say."""
    return [f"{title.ljust(LABEL_WIDTH)}{text}" for title, text in rows if text]


def counted(counts: dict[str, int]) -> str:
    return listed(sorted(counts.items(), key=lambda item: -item[1]))


def listed(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts)


def balance(labels: dict[str, int]) -> str:
    """Return the labels with their numbers of examples, the most frequent first."""
    ordered = sorted(labels.items(), key=lambda item: (-item[1], item[0]))
    if len(ordered) <= MAX_LABELS:
        return listed(ordered)
    return f"{listed(ordered[: MAX_LABELS // 2])}, …, {listed(ordered[-MAX_LABELS // 2 :])}"


def imbalance(labels: dict[str, int]) -> str:
    """Return a comment if one label is much more frequent than another one."""
    ordered = sorted(labels, key=lambda label: labels[label])
    least, most = ordered[0], ordered[-1]
    if labels[most] < 3 * labels[least]:
        return ""
    return f"{most} has {labels[most]:,} examples, {least} only {labels[least]:,}"


def aligned(settings: list[tuple[str, str, str]]) -> list[str]:
    """Return lines of settings, with their comments below each other."""
    width = max(len(f"{name}: {value}") for name, value, _ in settings)
    return [
        f"  {f'{name}: {value}'.ljust(width)}  # {about}" if about else f"  {name}: {value}"
        for name, value, about in settings
    ]


def fitting_batch(examples: int, usual: int) -> int:
    """Return the batch size for so many training examples: `usual`, or what gives an epoch a few whole batches."""
    return min(usual, 1 << max((examples // FEWEST_BATCHES).bit_length() - 1, 0))


def quoted(text: str) -> str:
    """Return a text as a YAML scalar, in quotes."""
    return json.dumps(text, ensure_ascii=False)
