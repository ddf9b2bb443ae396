"""What each engine can not do. An option that an engine would ignore is refused, before anything is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.config import TrainSettings
from trainer.errors import UserError


@dataclass(frozen=True)
class Unable:
    """A setting of the section `train` that an engine can not follow where `asked` is true of its value."""

    setting: str
    asked: Callable[[Any], bool]
    why: str
    allowed: str
    nearest: str | None = None


def _not_yet(setting: str, none: Any = None) -> Unable:
    return Unable(setting, lambda value: value != none, f"can not follow train.{setting} yet", str(none))


# What is missing from an engine's row it can do; an engine without a row is not there.
UNABLE: dict[str, tuple[Unable, ...]] = {
    "tensorflow": (
        _not_yet("early_stop"),
        _not_yet("export", "last"),
        _not_yet("profile_steps", 0),
        _not_yet("module"),
    ),
    "jax": (
        Unable("xla", lambda value: value is False, "is compiled by XLA always", "auto, true", "auto"),
        _not_yet("early_stop"),
        _not_yet("export", "last"),
        _not_yet("profile_steps", 0),
        _not_yet("module"),
    ),
    "pytorch": (
        Unable("xla", lambda value: value is True, "does not compile with XLA", "auto, false", "false"),
        _not_yet("early_stop"),
        _not_yet("export", "last"),
        _not_yet("profile_steps", 0),
        _not_yet("module"),
    ),
}


def refuse(train: TrainSettings) -> None:
    """Check that the engine can do all that the settings ask for.

    Raises:
        UserError: It can not.
    """
    if train.engine not in UNABLE:
        raise UserError(
            f"The engine {train.engine} is not there.",
            setting="train.engine",
            value=train.engine,
            allowed=", ".join(UNABLE),
            nearest="tensorflow",
            mend="--set train.engine=tensorflow",
        )
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
                mend=f"--set train.{row.setting}={row.nearest}" if row.nearest else "--set train.engine=tensorflow",
            )
