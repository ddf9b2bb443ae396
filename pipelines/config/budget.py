"""The setting `budget`: what a training may cost in dollars, and how long it may do nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from pydantic import Field

from slipway.core.errors import UserError
from slipway.pipelines.hardware import Hardware
from slipway.pipelines.hardware.grammar import read_time
from slipway.trainer.config import TrainSettings
from slipway.trainer.settings import Settings

TIME_PATTERN = r"^[1-9]\d{0,3}[mhd]$"


class BudgetSettings(Settings):
    """What a training may cost."""

    dollars: float | None = Field(
        default=None,
        gt=0,
        description="Maximum cost of the training on Google Cloud in US dollars, by list prices: a run whose worst "
        "case is higher or not known is refused before anything is submitted; null: any.",
    )
    idle: str | None = Field(
        default=None,
        pattern=TIME_PATTERN,
        examples=["30m"],
        description="How long the training may do nothing, such as 30m, until it is ended: no step ends, nothing is "
        "evaluated, saved or exported, and all replicas use no CPU and no GPU; null: forever. Not of `train.command` "
        "and `train.image`.",
    )

    @property
    def idle_seconds(self) -> int | None:
        """How long the training may do nothing, in seconds; None: forever."""
        return read_time(self.idle) if self.idle else None


Budget: TypeAlias = Annotated[float, Field(gt=0)] | BudgetSettings


def check_idle(budget: Budget | None, train: TrainSettings, hardware: Sequence[Hardware]) -> None:
    """Check that the training's processes are ones that can see whether it is idle.

    Raises:
        UserError: It is a program that Slipway does not start, or one on a TPU slice, whose hosts know each other only
            through the TPU's runtime.
    """
    if not (isinstance(budget, BudgetSettings) and budget.idle and train.program):
        return
    on_slice = any(choice.machines_per_replica > 1 for choice in hardware)
    if train.module is None or train.image is not None or on_slice:
        raise UserError(
            f"budget.idle does not apply to {train.program}{' on a TPU slice' if on_slice else ''}: only Slipway's "
            "launcher sees that a program does nothing.",
            setting="budget.idle",
            value=budget.idle,
            allowed="Slipway's trainer, or a program of train.module without train.image and TPU slices",
            fix="--set budget.idle=null",
        )
