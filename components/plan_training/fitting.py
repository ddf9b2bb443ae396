"""Estimate the largest batch size that a rehearsal can train on this machine."""

from __future__ import annotations

from slipway.core.errors import UserError
from slipway.trainer.config import ModelSettings
from slipway.trainer.engines.builder import example_elements

# Per layer output: the output itself, its gradient and about as much workspace.
COPIES = 3
FLOAT_BYTES = 4


def largest_batch(
    engine: str,
    model: ModelSettings,
    image_shape: tuple[int, int, int],
    classes: int,
    *,
    batch: int,
    workers: int,
    memory: int,
    parts: int = 1,
) -> int:
    """Return `batch`, or the largest smaller multiple of the device count whose activations fit in `memory`.

    Args:
        engine: The training engine.
        model: The network, which is built to measure it.
        image_shape: Height, width, channels of an image.
        classes: Number of classes.
        batch: The requested global batch size.
        workers: Number of devices, all on this machine.
        memory: Their total memory in bytes.
        parts: Micro-batches per device per step.

    Raises:
        UserError: Not even one example per device fits.
    """
    each = example_bytes(engine, model, image_shape, classes)
    if batch * each <= memory * parts:
        return batch
    fitting = memory // each // workers * workers * parts
    if not fitting:
        raise UserError(
            f"This machine cannot rehearse the model: an example needs about {each / 2**20:,.0f} MiB, "
            f"and {workers} devices have {memory / 2**20:,.0f} MiB together.",
            setting="model.builder",
            value=model.builder,
            fix="rehearse on a machine with more memory, or with fewer replicas",
        )
    return int(fitting)


def example_bytes(engine: str, model: ModelSettings, image_shape: tuple[int, int, int], classes: int) -> int:
    """Estimate the bytes that one example needs in a training step, from the sizes of input and layer outputs."""
    return example_elements(engine, model, image_shape, classes) * FLOAT_BYTES * COPIES
