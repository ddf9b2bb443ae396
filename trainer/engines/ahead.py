"""What is asked and said of a training step on accelerators that are not there."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel

from slipway.trainer.config import JobConfig

# The largest batch is found to one part in this many.
RESOLUTION = 16


class Request(BaseModel):
    """What to compile: `memory` is that of a device in bytes, `product` its name for `peak_flops`.

    `largest` searches the largest batch, as is done for a batch that does not fit. With `profile`, a `Profile` is asked
    for, not an `Answer`.
    """

    job: JobConfig
    memory: int
    product: str = ""
    largest: bool = False
    profile: bool = False


class Costs(BaseModel):
    """What one step of `batch` examples takes of each device: bytes of memory, FLOPs, bytes read and written, kernels.

    `peak_bytes` is without the training split, which may be kept on the device.
    """

    batch: int
    peak_bytes: int
    flops: float
    traffic_bytes: float
    kernels: int


class Profile(BaseModel):
    """What a step takes of each of `devices` devices of a machine, and the network's size in bytes.

    `kept_bytes` is the size of the training split if the devices keep it, 0 if it is streamed.
    `files` are the SHA-256 of the project's files that were imported, by path. `unknown` is why nothing is known, as a
    phrase; "" if it is.
    """

    devices: int
    costs: Costs | None = None
    variables: int = 0
    trainable: int = 0
    kept_bytes: int = 0
    files: dict[str, str] = {}
    unknown: str = ""


class Answer(BaseModel):
    """What is known of one step on each of `devices` devices.

    Attributes:
        fits: Whether the compiler accepts the batch; on a GPU, whether its memory is enough for it.
        peak_bytes: The memory that it takes; None if the compiler refuses it, or it is not known.
        refusal: Why it does not fit: the compiler's sentence, "" on a GPU, for which nothing is refused.
        unknown: Why nothing is known of the step, as a phrase; "" if it is.
        largest_batch: The largest batch of all devices together; None if it was not searched or none fits.
        savings: The settings with which a batch that does not fit would, and the memory that it takes with each.
        flops: Floating-point operations.
        traffic_bytes: Bytes that its kernels read and write.
        kernels: The number of its kernels.
        collectives: Numbers of operations between devices, by name.
        kind: The devices' kind as JAX calls it, of a GPU its product.
    """

    devices: int
    kind: str
    fits: bool
    peak_bytes: int | None = None
    refusal: str = ""
    unknown: str = ""
    largest_batch: int | None = None
    savings: dict[str, int] = {}
    flops: float | None = None
    traffic_bytes: float = 0.0
    kernels: int = 0
    collectives: dict[str, int] = {}


def largest_batch(batch: int, known: bool, unit: int, most: int, fits: Callable[[int], bool]) -> int | None:
    """Return the largest batch that fits, to one part in `RESOLUTION`; None if none does.

    Args:
        batch: Where the search starts.
        known: Whether it fits.
        unit: The batch is a multiple of it.
        most: The largest one that is of interest.
        fits: Returns whether another batch fits.
    """

    def whole(size: int) -> int:
        return max(unit, size // unit * unit)

    low, high = 0, batch
    if known:
        low, high = batch, whole(most)
        while low < high and fits(size := min(whole(2 * low), high)):
            low = size
        high = min(whole(2 * low), high)
    while not low:
        if high <= unit:
            return None
        size = whole(high // 2)
        low, high = (size, high) if fits(size) else (0, size)
    while high - low > max(unit, high // RESOLUTION) and low < (middle := whole((low + high) // 2)):
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
