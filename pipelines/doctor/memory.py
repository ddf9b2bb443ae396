"""The check that the model fits the memory of the training hardware."""

from __future__ import annotations

from pathlib import Path

from slipway.core import manifest
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.pipelines.doctor.check import NotConcernedError, Subject
from slipway.pipelines.hardware.memory import fits_memory
from slipway.trainer.engines import builder


class ModelMemory:
    """The model's variables, gradients and optimizer state fit a device. Builds the model."""

    name = "model memory"
    of_run = False

    def look(self, subject: Subject) -> str:
        config = subject.config
        hardware = config.parsed_hardware
        if hardware.accelerator_row is None:
            raise NotConcernedError("the hardware has no accelerators")
        if config.model is None:
            raise NotConcernedError(f"{config.train.module} builds its own network")
        prepared = _prepared(Path(config.data.store), config.data.source)
        if prepared is None:
            raise NotConcernedError(
                f"the image size is unknown until {config.data.source} is prepared in {config.data.store}"
            )
        engine = config.train.engine
        needed = builder.network_size(engine, config.model, prepared.image_shape, len(prepared.classes))
        need = fits_memory(
            hardware,
            needed.variables,
            config.train.optimizer_kind,
            trainable_bytes=needed.trainable,
            engine=engine,
        )
        return f"{need} per device of {hardware.accelerator_row.title}, not counting activations"


def _prepared(store: Path, source: str) -> Manifest | None:
    """Return the manifest of the newest prepared data set of a source, or None."""
    paths = sorted(store.glob(f"*/*/{manifest.FILE_NAME}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in paths:
        try:
            found = manifest.read(path.parent)
        except UserError:
            continue
        if found.source == source:
            return found
    return None
