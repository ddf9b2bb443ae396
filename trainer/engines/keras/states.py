"""An engine's state as arrays by name, and whether what a checkpoint holds is the same network's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slipway.core.errors import UserError
from slipway.trainer.engines.base import State

Shapes = Mapping[str, tuple[tuple[int, ...], str]]


def named(group: str, names: Iterable[str]) -> list[str]:
    """Names that tell each variable's place: two builds of one network give the same ones."""
    return [f"{group}/{number:04d}/{name}" for number, name in enumerate(names)]


def verify(state: State, expected: Shapes) -> None:
    """Check that `state` has exactly the arrays expected, by name: each one's shape and the name of its type.

    Raises:
        UserError: It is another network's or optimizer's.
    """
    found = {name: (tuple(array.shape), array.dtype.name) for name, array in state.items()}
    for name in [*expected, *found]:
        if expected.get(name) != found.get(name):
            raise UserError(
                f"The checkpoint is another network's: for {name} it has {_words(found.get(name))}, "
                f"the network {_words(expected.get(name))}.",
                setting="model.builder",
                fix="train with the settings that the checkpoint was made with, or start anew in an empty "
                "checkpoint folder",
            )


def _words(entry: Any) -> str:
    return "nothing" if entry is None else f"{entry[1]} {list(entry[0])}"
