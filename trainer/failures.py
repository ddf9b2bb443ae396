"""Training failures that the user can fix (NaN loss, out of memory, a full disk …), and those that are temporary."""

from __future__ import annotations

import errno
import math
import os
import re
from pathlib import Path

import numpy as np

from slipway.core.atomic import FULL
from slipway.core.errors import UserError, system_error
from slipway.core.manifest import prepare_again
from slipway.trainer.config import JobConfig
from slipway.trainer.engines.base import Measured, OutOfMemory, StepMetrics
from slipway.trainer.plan import stage_of


def check_finite(metrics: StepMetrics, first: int, job: JobConfig) -> None:
    """Raise UserError if a loss is NaN or infinite, since every later step would be too."""
    bad = np.flatnonzero(~np.isfinite(metrics.losses))
    if not bad.size:
        return
    step = first + int(bad[0]) + 1
    problem = "not a number (NaN)" if math.isnan(metrics.losses[bad[0]]) else "infinite"
    sources = " and ".join(["the network", *(name for name in job.train.functions.values())])
    stage = stage_of(job.train, job.plan, step - 1)
    lower, setting = f"{stage.learning_rate / 10:g}", "train.learning_rate"
    fix = f"--set train.learning_rate={lower}"
    if job.train.stages and job.train.stages[stage.number].learning_rate is not None:
        setting, fix = f"train.stages.{stage.number}.learning_rate", f"set learning_rate: {lower} for this stage"
    raise UserError(
        f"The loss is {problem} at step {step} of {job.plan.steps} (epoch {step / job.plan.steps_per_epoch:.2f}).",
        setting=setting,
        value=stage.learning_rate,
        allowed="a learning rate at which the loss stays finite",
        nearest=lower,
        fix=f"{fix}; also check divisions and logarithms in {sources}",
    )


def check_measured(measured: Measured, job: JobConfig) -> None:
    """Raise UserError if the user's loss or a metric is NaN or infinite for the validation split."""
    functions = job.train.functions
    values = {"train.loss": measured.loss}
    values |= {f"train.metrics.{name}": value for name, value in measured.metrics.items()}
    for setting, value in values.items():
        if setting in functions and not math.isfinite(value):
            raise UserError(
                f"The function {functions[setting]} returned {value} as the validation split's mean.",
                setting=setting,
                value=functions[setting],
                allowed="a finite number for each example",
                fix="check divisions and logarithms in the function",
            )


def too_large(error: OutOfMemory, job: JobConfig, devices: int) -> UserError:
    """Return the error for a batch that exceeds a device's memory, with the largest batch that fits if known.

    Args:
        error: The engine's error.
        job: The job.
        devices: Number of devices of the whole job.
    """
    batch, per_device = job.train.batch_size, job.train.batch_size // devices
    message = f"A step of {per_device // job.train.accumulation} examples does not fit in a device's memory: {error}."
    if error.fits is None:
        return UserError(
            message, setting="train.batch_size", value=batch, allowed=f"less than {batch}",
            fix=f"--set train.accumulation={2 * job.train.accumulation}, or a smaller train.batch_size",
        )  # fmt: skip
    if error.fits == 0:
        return UserError(
            message, setting="model.builder", value=job.model.builder, allowed="a network that fits with one example",
            fix="use a smaller network, smaller images (data.image_size) or a device with more memory",
        )  # fmt: skip
    parts = next(
        count for count in range(1, per_device + 1) if per_device % count == 0 and per_device // count <= error.fits
    )
    largest = error.fits * devices
    return UserError(
        message,
        setting="train.batch_size",
        value=batch,
        allowed=f"at most {largest} examples, or micro-batches of at most {error.fits} per device",
        nearest=str(largest),
        fix=f"--set train.accumulation={parts} (same batch size), or --set train.batch_size={largest}",
    )


# Messages of TensorFlow's image operations, which every engine sees because all read through tf.data.
_BAD_IMAGE = re.compile(r"Invalid (?:PNG|JPEG|GIF|BMP)[^.\n]*")
# Messages of TensorFlow's TFRecordDataset, which reads streamed splits.
_BAD_RECORD = re.compile(r"(?:corrupted|truncated) record at \d+")
# A line of TensorFlow's UnimplementedError for an operation that only has implementations with varying results.
_NOT_DETERMINISTIC = re.compile(r"[^\n]*determinis(?:tic|m)[^\n]*", re.IGNORECASE)


def of_library(error: Exception, data: Path) -> UserError | None:
    """Return the error for a failure of a library that the user can fix; None if `error` is none.

    An image of the data set in the folder `data` cannot be decoded, a record of a streamed split has a wrong checksum,
    or an operation of the network has no deterministic implementation.
    """
    text = str(error)
    if match := _BAD_IMAGE.search(text):
        return UserError(
            f"An image of the data set cannot be decoded ({match[0]}). Data preparation validated only the headers "
            "of the images.",
            fix="--set data.check=decode, which excludes such images when the data set is prepared",
        )
    if match := _BAD_RECORD.search(text):
        return UserError(
            f"A shard of the data set in {data} is damaged: {match[0]}.",
            fix=prepare_again(data),
        )
    match = _NOT_DETERMINISTIC.search(text)
    if match and type(error).__name__ == "UnimplementedError":
        reason = match[0].strip().rstrip(".")
        return UserError(
            f"An operation of the network has no implementation for this device with reproducible results: {reason}.",
            fix="--set train.xla=false, if it is true; or replace the operation in the network",
        )
    return None


def full_disk(error: Exception) -> UserError | None:
    """Return the error for a full disk, if `error` comes from the operating system or an engine; otherwise None."""
    if getattr(error, "errno", None) not in FULL and os.strerror(errno.ENOSPC) not in str(error):
        return None
    return UserError(
        f"No space is left on the disk: {str(error).strip().splitlines()[0]}",
        fix="free disk space, then run: slipway run --resume latest",
    )


# Errors of a mounted bucket or network file system while its server or the network is unavailable.
_STORAGE_UNAVAILABLE = (
    errno.EIO,
    errno.ESTALE,
    errno.ENOTCONN,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.ECONNABORTED,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
)


def storage_unavailable(error: BaseException) -> UserError | None:
    """Return the error for storage that is temporarily unavailable, if `error` or what it was raised from says so.

    The engines' errors contain the operating system's text instead of its number. An error that is not recognized
    here will recur.
    """
    cause: BaseException | None = error
    while cause is not None:
        is_known = isinstance(cause, OSError) and cause.errno in _STORAGE_UNAVAILABLE
        if is_known or any(os.strerror(number) in str(cause) for number in _STORAGE_UNAVAILABLE):
            first = str(cause).strip().partition("\n")[0]
            return system_error(cause) or UserError(
                f"The storage is unavailable: {first}",
                fix="check the disk or mount, then: slipway run --resume latest",
            )
        cause = cause.__cause__
    return None
