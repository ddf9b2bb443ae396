"""Tracebacks in a replica's log: the last one of each of its processes, and the exceptions that they end with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

TRACEBACK = "Traceback (most recent call last):"
CAUSE = "The above exception was the direct cause of the following exception:"
# What torch and torchrun put before each line of a process.
_PROCESS = re.compile(r"\[(?:rank|default)\d+\]: ?")
# What ends a launcher because one of its processes has failed.
_OF_LAUNCHER = re.compile(
    r"torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError|subprocess\.CalledProcessError"
)
# Lines of a traceback, and lines after the class of an exception that ended its process.
LONGEST, AFTER = 400, 250


def without_process(line: str) -> str:
    """Return a line without the name of the process that wrote it."""
    return _PROCESS.sub("", line, count=1) if _PROCESS.match(line) else line


def last_traceback(lines: Sequence[str]) -> list[str]:
    """Return the lines of the last traceback, up to the one that names the exception; that of a launcher last."""
    blocks = list(_tracebacks(lines))
    programs = [block for block in blocks if not _OF_LAUNCHER.match(_exception(block))]
    return _shown((programs or blocks)[-1]) if blocks else []


def exceptions(lines: Sequence[str]) -> list[str]:
    """Return the exceptions that ended the processes of a log, each with its direct causes, from their classes on.

    An exception's text continues in the lines after its class: up to the next traceback. A process that has logged more
    than `AFTER` lines since then had handled it.
    """
    blocks: dict[str, list[list[str]]] = {}
    for block in _tracebacks(lines):
        if not _OF_LAUNCHER.match(_exception(block)):
            blocks.setdefault(_process(block[0]), []).append(block)
    texts = []
    for tracebacks in blocks.values():
        if len(tracebacks[-1]) - len(_shown(tracebacks[-1])) > AFTER:
            continue
        for number in reversed(range(len(tracebacks))):
            texts.append(_exception(tracebacks[number]))
            if not any(CAUSE in line for line in tracebacks[number - 1]):
                break
    return texts


def _process(line: str) -> str:
    prefix = _PROCESS.match(line)
    return prefix[0].strip() if prefix else ""


def _tracebacks(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield each traceback with the lines of its process that follow, up to the process's next one."""
    starts = [number for number, line in enumerate(lines) if TRACEBACK in line]
    for start in starts:
        process = _process(lines[start])
        block = [lines[start]]
        for line in lines[start + 1 :]:
            if _process(line) != process:
                continue
            if TRACEBACK in line or len(block) > LONGEST + AFTER:
                break
            block.append(line)
        yield block


def _shown(block: Sequence[str]) -> list[str]:
    for number, line in enumerate(block):
        text = without_process(line)
        if number and text and not text.startswith((" ", "\t")):
            return list(block[: number + 1])
    return list(block)


def _exception(block: Sequence[str]) -> str:
    shown = _shown(block)
    return "\n".join(without_process(line) for line in block[len(shown) - 1 :])
