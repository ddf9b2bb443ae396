"""Check that a batch can be split evenly over the devices."""

from __future__ import annotations

from slipway.core.errors import UserError
from slipway.trainer.config import TrainSettings


def check_shared_evenly(train: TrainSettings, replicas: int, devices: int) -> None:
    """Check that a batch splits evenly over all devices, and each device's part into equal micro-batches.

    Raises:
        UserError: It does not; names the closest value that does.
    """
    workers, batch, parts = replicas * devices, train.batch_size, train.accumulation
    if batch % workers:
        near = max(workers, round(batch / workers) * workers)
        raise UserError(
            f"A batch of {batch} examples cannot be split evenly over {_layout(replicas, devices)}.",
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
            f"{share} examples per device and step cannot be split into {parts} equal micro-batches.",
            setting="train.accumulation",
            value=parts,
            allowed=f"a divisor of {share}" + (f" (train.batch_size / {workers} devices)" if workers > 1 else ""),
            nearest=str(near),
            fix=f"--set train.accumulation={near}",
        )


def _layout(replicas: int, devices: int) -> str:
    if devices == 1:
        return f"{replicas} replicas"
    return f"{replicas} replica{'s' if replicas > 1 else ''} of {devices} devices"
