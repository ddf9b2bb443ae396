"""The largest batch that a rehearsal can train on the machine at hand, estimated from the built model."""

from __future__ import annotations

from typing import Any

from slipway.core.errors import UserError
from slipway.trainer.config import ModelSettings
from slipway.trainer.engines import networks

# Beside each layer's output a step keeps its gradient and about as much again to work in.
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
    """`batch`, or the largest that can be shared below it whose activations fit in `memory` bytes.

    Args:
        engine: What executes the training step.
        model: The network; it is built.
        image_shape: Height, width, channels of an image.
        classes: How many there are.
        batch: The global batch that was asked for.
        workers: How many devices share it, all of them on this machine.
        memory: The bytes that they have together.
        parts: In how many parts each works through its share, one after the other.

    Raises:
        UserError: Not even one example a device fits.
    """
    each = example_bytes(networks.build(engine, model, image_shape, classes), image_shape)
    if batch * each <= memory * parts:
        return batch
    fitting = memory // each // workers * workers * parts
    if not fitting:
        raise UserError(
            f"This machine cannot rehearse the model: an example takes about {each / 2**20:,.0f} MiB, "
            f"and {workers} devices have {memory / 2**20:,.0f} MiB together.",
            setting="model.builder",
            value=model.builder,
            fix="rehearse on a machine with more memory, or with fewer replicas",
        )
    return int(fitting)


def example_bytes(model: Any, image_shape: tuple[int, int, int]) -> int:
    """About how many bytes one example takes in a training step: the input and every layer's output, kept thrice."""
    return networks.example_elements(model, image_shape) * FLOAT_BYTES * COPIES
