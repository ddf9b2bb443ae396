"""Whether what an engine needs is installed; nothing is imported for that."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass

from trainer.errors import UserError


@dataclass(frozen=True)
class Needs:
    """What an engine needs: the extra of the package that installs it, and the modules that it imports."""

    extra: str
    modules: tuple[str, ...]


# TensorFlow reads the data for every engine.
NEEDS = {
    "tensorflow": Needs("training", ("tensorflow", "keras")),
    "jax": Needs("jax", ("tensorflow", "keras", "jax", "jaxlib")),
    "pytorch": Needs("pytorch", ("tensorflow", "keras", "torch")),
}


def verify(engine: str) -> None:
    """Check that the engine's libraries are there.

    Raises:
        UserError: One is not; with the command that installs it.
    """
    needs = NEEDS[engine]
    missing = [name for name in needs.modules if not _is_there(name)]
    if missing:
        there = [name for name in NEEDS if all(map(_is_there, NEEDS[name].modules))]
        raise UserError(
            f"The engine {engine} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            f"installed.",
            setting="train.engine",
            value=engine,
            allowed=f"installed here: {', '.join(there)}" if there else "none is installed here",
            mend=f"pip install 'slipway[{needs.extra}]'",
        )


def _is_there(module: str) -> bool:
    return module in sys.modules or importlib.util.find_spec(module) is not None
