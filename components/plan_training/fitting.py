"""The largest batch that a rehearsal can train on the machine at hand, estimated from the built model."""

from __future__ import annotations

import math
from typing import Any

from trainer import builder
from trainer.config import ModelSettings
from trainer.errors import UserError
from trainer.quick_import import import_tensorflow

# Beside each layer's output a step keeps its gradient and about as much again to work in.
COPIES = 3
FLOAT_BYTES = 4


def largest_batch(
    model: ModelSettings, image_shape: tuple[int, int, int], classes: int, *, batch: int, workers: int, memory: int
) -> int:
    """`batch`, or the largest multiple of `workers` below it whose activations fit in `memory` bytes.

    Args:
        model: The network; it is built.
        image_shape: Height, width, channels of an image.
        classes: How many there are.
        batch: The global batch that was asked for.
        workers: How many devices share it, all of them on this machine.
        memory: The bytes that they have together.

    Raises:
        UserError: Not even one example a device fits.
    """
    import_tensorflow()
    each = example_bytes(builder.build(model, image_shape, classes), image_shape)
    if batch * each <= memory:
        return batch
    fitting = memory // each // workers * workers
    if not fitting:
        raise UserError(
            f"This machine can not rehearse the model: an example takes about {each / 2**20:,.0f} MiB, "
            f"and {workers} devices have {memory / 2**20:,.0f} MiB together.",
            setting="model.builder",
            value=model.builder,
            mend="rehearse on a machine with more memory, or with fewer replicas",
        )
    return int(fitting)


def example_bytes(model: Any, image_shape: tuple[int, int, int]) -> int:
    """About how many bytes one example takes in a training step: the input and every layer's output, kept thrice."""
    elements = math.prod(image_shape)
    for layer in model._flatten_layers(include_self=False):
        try:
            outputs = layer.output
        except (AttributeError, ValueError):  # a layer that is not part of a graph of layers
            continue
        for output in outputs if isinstance(outputs, list | tuple) else [outputs]:
            elements += math.prod(size for size in output.shape[1:] if size)
    return elements * FLOAT_BYTES * COPIES
