"""What each engine cannot do. An option that an engine would ignore is refused, before anything is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slipway.core.errors import UserError
from slipway.trainer.config import TrainSettings


@dataclass(frozen=True)
class Unable:
    """A setting of the section `train` that an engine cannot follow where `asked` is true of its value."""

    setting: str
    asked: Callable[[Any], bool]
    why: str
    allowed: str
    nearest: str | None = None


# What is missing from an engine's row it can do.
UNABLE: dict[str, tuple[Unable, ...]] = {
    "tensorflow": (),
    "jax": (Unable("xla", lambda value: value is False, "is compiled by XLA always", "auto, true", "auto"),),
    "pytorch": (Unable("xla", lambda value: value is True, "does not compile with XLA", "auto, false", "false"),),
}

# A process of theirs trains on one device: a replica of several devices has as many processes.
ONE_DEVICE_A_PROCESS = frozenset({"pytorch"})

# Their exported model takes their own library to run; that of the others is a SavedModel.
RUN_THEIR_OWN_MODELS = frozenset({"pytorch"})


def readers(engine: str, replicas: int, devices: int) -> int:
    """How many processes read the data set: those of all replicas, which have `devices` each (0: only CPUs)."""
    return replicas * max(1, devices) if engine in ONE_DEVICE_A_PROCESS else replicas


def refuse(train: TrainSettings) -> None:
    """Check that the engine can do all that the settings ask for.

    Raises:
        UserError: It cannot.
    """
    for row in UNABLE[train.engine]:
        value: Any = train
        for name in row.setting.split("."):
            value = getattr(value, name)
        if row.asked(value):
            raise UserError(
                f"The engine {train.engine} {row.why}.",
                setting=f"train.{row.setting}",
                value=value if isinstance(value, str | int | float | bool) else str(value),
                allowed=row.allowed,
                nearest=row.nearest,
                fix=f"--set train.{row.setting}={row.nearest}" if row.nearest else "--set train.engine=tensorflow",
            )
