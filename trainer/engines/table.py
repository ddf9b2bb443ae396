"""Engine capabilities. A setting that an engine would ignore is rejected before anything is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slipway.core.errors import UserError
from slipway.trainer.config import TrainSettings


@dataclass(frozen=True)
class Unable:
    """A setting of the section `train` that an engine does not support if `asked` is true of its value."""

    setting: str
    asked: Callable[[Any], bool]
    why: str
    allowed: str
    nearest: str | None = None


# The unsupported settings of each engine; everything else is supported.
UNABLE: dict[str, tuple[Unable, ...]] = {
    "tensorflow": (),
    "jax": (Unable("xla", lambda value: value is False, "always compiles with XLA", "auto, true", "auto"),),
    "pytorch": (Unable("xla", lambda value: value is True, "does not compile with XLA", "auto, false", "false"),),
}

# Engines that train on one device per process: a replica has as many processes as devices.
ONE_DEVICE_A_PROCESS = frozenset({"pytorch"})

# Engines whose exported model requires their own library; the others export a SavedModel.
RUN_THEIR_OWN_MODELS = frozenset({"pytorch"})


def readers(engine: str, replicas: int, devices: int) -> int:
    """Return how many processes read the data set, with `devices` per replica (0: only CPUs)."""
    return replicas * max(1, devices) if engine in ONE_DEVICE_A_PROCESS else replicas


def refuse(train: TrainSettings) -> None:
    """Check that the engine supports the settings.

    Raises:
        UserError: It does not support one.
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
