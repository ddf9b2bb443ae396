"""The job of a configuration whose hardware is compared."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from slipway.core.errors import UserError
from slipway.pipelines.hardware import compiled

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig
    from slipway.trainer.config import JobConfig


def job_of(config: RunConfig, value: str) -> JobConfig:
    """Return the job of a configuration, with its data prepared on this machine.

    Raises:
        UserError: They are not, or a program of the user's trains, whose step is not known.
    """
    from slipway.pipelines.doctor.configuration import prepared_folder

    file = shlex.quote(str(config.file))
    if config.model is None or config.prepared is None:
        raise UserError(
            f"{config.train.program} builds its own network: its step is not known before it runs.",
            setting="train.program",
            value=value,
            allowed="a network of Slipway's trainer (model.builder)",
            fix=f"slipway rehearse -c {file} --hardware cpu, which times the program's steps",
        )
    folder = prepared_folder(config)
    if folder is None:
        raise UserError(
            "The step cannot be estimated before the data are prepared on this machine.",
            setting="data.source",
            value=config.prepared.source,
            fix=f"slipway rehearse -c {file} --hardware cpu",
        )
    return compiled.job_of(config.model, config.train, folder)
