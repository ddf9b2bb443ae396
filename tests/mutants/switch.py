"""The switch that rewritten sites call: `_mutant(17)`, a builtin of every interpreter of the copy's environment.

The copy's site-packages have this file, and a .pth file that imports it: subprocesses and forks have the switch too.
"""

from __future__ import annotations

import builtins
from os import O_APPEND, O_CREAT, O_WRONLY, close, environ, open, write  # tests patch `os`

_recorded: set[tuple[int, str]] = set()


def _mutant(number: int) -> bool:
    """Return whether a mutant is active; with MUTANT_HITS, record that the test in MUTANT_TEST runs it."""
    if hits := environ.get("MUTANT_HITS"):
        test = environ.get("MUTANT_TEST", "")
        if (number, test) not in _recorded:
            _recorded.add((number, test))
            descriptor = open(hits, O_WRONLY | O_APPEND | O_CREAT, 0o666)
            write(descriptor, f"{number}\t{test}\n".encode())
            close(descriptor)
    return environ.get("MUTANT") == str(number)


builtins._mutant = _mutant  # type: ignore[attr-defined]
