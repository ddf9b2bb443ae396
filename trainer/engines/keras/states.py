"""An engine's state as named arrays, and the check that a checkpoint matches the network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slipway.core.errors import UserError
from slipway.trainer.engines.base import State

Shapes = Mapping[str, tuple[tuple[int, ...], str]]


def named(group: str, names: Iterable[str]) -> list[str]:
    """Return names that contain each variable's position, identical for every build of the same network."""
    return [f"{group}/{number:04d}/{name}" for number, name in enumerate(names)]


def verify(state: State, expected: Shapes) -> None:
    """Check that `state` has exactly the expected names, shapes and data types.

    Raises:
        UserError: It belongs to a different network or optimizer.
    """
    found = {name: (tuple(array.shape), array.dtype.name) for name, array in state.items()}
    for name in [*expected, *found]:
        if expected.get(name) != found.get(name):
            raise UserError(
                f"The checkpoint is of a different network: for {name} it has {_words(found.get(name))}, "
                f"the network {_words(expected.get(name))}.",
                setting="model.builder",
                fix="restore the settings that the checkpoint was written with, or start again with an empty "
                "checkpoint folder",
            )


def _words(entry: Any) -> str:
    return "nothing" if entry is None else f"{entry[1]} {list(entry[0])}"
