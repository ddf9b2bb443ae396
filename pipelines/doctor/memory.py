"""Whether the model fits the memory of what is to train it."""

from __future__ import annotations

from pathlib import Path

from slipway.core import manifest
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.pipelines.doctor.check import NotConcernedError, Subject
from slipway.pipelines.hardware.memory import fits_memory
from slipway.trainer.engines import networks


class ModelMemory:
    """The model's variables, gradients and optimizer state fit a device; the model is built for that."""

    name = "model memory"
    of_run = False

    def look(self, subject: Subject) -> str:
        config = subject.config
        hardware = config.parsed_hardware
        if hardware.accelerator_row is None:
            raise NotConcernedError("the hardware has no accelerators")
        if config.model is None:
            raise NotConcernedError(f"{config.train.module} makes its network itself")
        prepared = _prepared(Path(config.data.store), config.data.source)
        if prepared is None:
            raise NotConcernedError(
                f"no set of {config.data.source} is prepared in {config.data.store}, which would tell the images' size"
            )
        engine = config.train.engine
        needed = networks.size(networks.build(engine, config.model, prepared.image_shape, len(prepared.classes)))
        need = fits_memory(
            hardware,
            needed.variables,
            config.train.optimizer_kind,
            trainable_bytes=needed.trainable,
            engine=engine,
        )
        return f"{need} a device of {hardware.accelerator_row.title}; activations come on top"


def _prepared(store: Path, source: str) -> Manifest | None:
    """The newest prepared set of a source, if there is one."""
    paths = sorted(store.glob(f"*/*/{manifest.FILE_NAME}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in paths:
        try:
            found = manifest.read(path.parent)
        except UserError:
            continue
        if found.source == source:
            return found
    return None
