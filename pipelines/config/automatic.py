"""Hardware that a configuration leaves open (`hardware: auto`), before a command uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from slipway import extensions
from slipway.core.errors import UserError
from slipway.pipelines.config.config import AUTO, RunConfig

if TYPE_CHECKING:
    from slipway.pipelines.platforms.base import Platform


def chosen(config: RunConfig, platform: Platform, say: Callable[[str], None]) -> RunConfig:
    """Return a configuration with hardware: its own, or what is chosen for it, which is said.

    On this machine, that is all of its GPUs over which the batch can be split, else its CPUs.

    Raises:
        UserError: Nothing keeps the deadline and the budget, or it cannot be estimated.
    """
    if config.hardware:
        return config
    if platform.trains_here:
        return _here(config)
    choosers = extensions.references("chooser")
    if not choosers:
        raise UserError(
            "No extension is installed that chooses hardware.",
            setting="hardware",
            value=AUTO,
            allowed="one choice, or a list",
            fix="--hardware l4x1",
        )
    resolved: RunConfig = extensions.load(choosers[0])(config, platform, say)
    return resolved


def _here(config: RunConfig) -> RunConfig:
    from slipway.pipelines.hardware import parse, this_machine
    from slipway.pipelines.hardware.grammar import HERE

    gpus = len(this_machine.find())
    count = next((count for count in range(gpus, 0, -1) if config.train.batch_size % count == 0), 0)
    text = f"{HERE}x{count}" if count > 1 else HERE if count else "cpu"
    why = f"this machine has {gpus or 'no'} GPU{'s' * (gpus != 1)}"
    return config.chosen_from([parse(text)], {"chosen": [text], "why": why})
