"""Whether a batch can be shared evenly by the devices that train on it."""

from __future__ import annotations

from slipway.core.errors import UserError
from slipway.trainer.config import TrainSettings


def check_shared_evenly(train: TrainSettings, replicas: int, devices: int) -> None:
    """See that every device of every replica gets as many examples of a batch, in parts of one size.

    Raises:
        UserError: It does not; the nearest batch that does.
    """
    workers, batch, parts = replicas * devices, train.batch_size, train.accumulation
    if batch % workers:
        near = max(workers, round(batch / workers) * workers)
        raise UserError(
            f"A batch of {batch} examples cannot be shared evenly by {_layout(replicas, devices)}.",
            setting="train.batch_size",
            value=batch,
            allowed=f"a multiple of {workers}",
            nearest=str(near),
            fix=f"--set train.batch_size={near}",
        )
    share = batch // workers
    if share % parts:
        near = min((count for count in range(1, share + 1) if share % count == 0), key=lambda count: abs(count - parts))
        raise UserError(
            f"A device's {share} examples of a step cannot be worked through in {parts} equal parts.",
            setting="train.accumulation",
            value=parts,
            allowed=f"a divisor of {share}" + (f", train.batch_size by {workers} devices" if workers > 1 else ""),
            nearest=str(near),
            fix=f"--set train.accumulation={near}",
        )


def _layout(replicas: int, devices: int) -> str:
    if devices == 1:
        return f"{replicas} replicas"
    return f"{replicas} replica{'s' if replicas > 1 else ''} of {devices} devices"
