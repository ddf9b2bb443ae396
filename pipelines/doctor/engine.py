"""The check of the training engine: installed, supports the settings, and runs on the hardware."""

from __future__ import annotations

from slipway.core.errors import UserError
from slipway.pipelines.doctor.check import Subject
from slipway.pipelines.hardware.placement import check_engine
from slipway.trainer.engines import installed, table


class TrainingEngine:
    """The engine is installed (for local runs) and supports the run's settings and hardware."""

    name = "engine"
    of_run = True

    def look(self, subject: Subject) -> str:
        train, hardware = subject.config.train, subject.config.parsed_hardware
        if subject.target == "local":
            installed.verify(train.engine)
        table.refuse(train)
        check_engine(hardware, train.engine)
        devices = hardware.accelerators_per_replica
        if table.ENGINES[train.engine].tpus == "one chip" and hardware.is_tpu and devices > 1:
            others = [name for name, row in table.ENGINES.items() if row.tpus == "all"]
            raise UserError(
                f"The engine {train.engine} supports one TPU chip per replica; {hardware} has {devices}.",
                setting="train.engine",
                value=train.engine,
                allowed=f"{train.engine} on CPUs, on GPUs and on TPUs of one chip; {', '.join(others)} on all",
                nearest=others[0],
                fix=f"--set train.engine={others[0]}",
            )
        return train.engine
