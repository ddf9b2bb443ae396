"""Training failures that the user can fix: a loss that is no number, too little memory, a bad image, a full disk."""

from __future__ import annotations

import errno
import math
import os
import re

import numpy as np

from slipway.core.atomic import FULL
from slipway.core.errors import UserError
from slipway.trainer.config import JobConfig
from slipway.trainer.engines.base import OutOfMemory, StepFigures


def check_finite(figures: StepFigures, first: int, job: JobConfig) -> None:
    """Stop at a loss that is NaN or infinite: what follows would be too, and nothing of it is worth saving."""
    bad = np.flatnonzero(~np.isfinite(figures.losses))
    if not bad.size:
        return
    step = first + int(bad[0]) + 1
    what = "not a number (NaN)" if math.isnan(figures.losses[bad[0]]) else "infinite"
    lower = job.train.learning_rate / 10
    raise UserError(
        f"The loss is {what} at step {step} of {job.plan.steps} (epoch {step / job.plan.steps_per_epoch:.2f}).",
        setting="train.learning_rate",
        value=job.train.learning_rate,
        allowed="one at which the loss stays finite",
        nearest=f"{lower:g}",
        fix=f"--set train.learning_rate={lower:g}; else look for divisions and logarithms in the network",
    )


def too_large(error: OutOfMemory, job: JobConfig, devices: int) -> UserError:
    """The error of a batch that a device's memory does not hold, with the largest that it would where that is known.

    Args:
        error: What the engine met.
        job: What was trained.
        devices: How many the whole job has.
    """
    batch, share = job.train.batch_size, job.train.batch_size // devices
    message = f"A device's memory does not hold a step of {share // job.train.accumulation} examples: {error}."
    if error.fits is None:
        return UserError(
            message, setting="train.batch_size", value=batch, allowed=f"less than {batch}",
            fix=f"--set train.accumulation={2 * job.train.accumulation}, or a smaller train.batch_size",
        )  # fmt: skip
    if error.fits == 0:
        return UserError(
            message, setting="model.builder", value=job.model.builder, allowed="a network that one example fits in",
            fix="a smaller network or smaller images (data.image_size), or a device with more memory",
        )  # fmt: skip
    parts = next(count for count in range(1, share + 1) if share % count == 0 and share // count <= error.fits)
    largest = error.fits * devices
    return UserError(
        message,
        setting="train.batch_size",
        value=batch,
        allowed=f"at most {largest} examples, or in parts of at most {error.fits} a device",
        nearest=str(largest),
        fix=f"--set train.accumulation={parts} keeps the batch, in parts; or --set train.batch_size={largest}",
    )


# What TensorFlow's image operations say; engines that read through tf.data meet the same.
_BAD_IMAGE = re.compile(r"Invalid (?:PNG|JPEG|GIF|BMP)[^.\n]*")


def bad_image(error: Exception) -> UserError | None:
    """The error of an image that cannot be decoded, where that is what `error` says."""
    found = _BAD_IMAGE.search(str(error))
    if found is None:
        return None
    return UserError(
        f"An image of the data set cannot be decoded ({found[0]}): when the set was prepared, not every image was "
        "decoded, but only its header looked at.",
        fix="--set data.check=decode, which prepares a set without such images",
    )


def full_disk(error: Exception) -> UserError | None:
    """Return the error of a full disk, where `error` says so in the words of the operating system or an engine."""
    if getattr(error, "errno", None) not in FULL and os.strerror(errno.ENOSPC) not in str(error):
        return None
    return UserError(
        f"No space is left on the disk: {str(error).strip().splitlines()[0]}",
        fix="free disk space there, then slipway run --resume latest",
    )
