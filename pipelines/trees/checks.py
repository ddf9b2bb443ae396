"""The check of programs that train trees."""

from __future__ import annotations

from slipway.core.errors import UserError
from slipway.pipelines.platforms.base import Check, Context, NotApplicableError
from slipway.pipelines.programs.source import read_program
from slipway.trainer.engines.installed import verify_extra

PACKAGE = "slipway.trainer.trees"
EXTRA = "trees"


def trees(context: Context) -> str:
    """A program of trees trains on one replica, and LightGBM is installed where it runs."""
    module = context.config.train.module
    files = read_program(context.folder, module) if module and not context.config.train.image else []
    if not any(use.name.startswith(PACKAGE) for file in files for use in file.uses):
        raise NotApplicableError("the run trains no trees")
    hardware = context.config.training_hardware
    count = hardware.replicas
    if count != 1:
        raise UserError(
            f"The program {module} trains trees on one replica; the hardware has {count}.",
            setting="hardware",
            value=str(hardware),
            allowed="hardware of one replica, of which all cores are used",
            fix=f"--hardware {hardware.base}",
        )
    if context.platform.trains_here and context.runner == "process":
        verify_extra(EXTRA)
    return "one replica"


CHECKS = (Check("trees", trees, of_run=True, each="hardware"),)
