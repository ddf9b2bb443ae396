"""Batch normalization on several devices: each would keep other moving statistics, which nothing would tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipway.core.errors import UserError
from slipway.trainer.config import ModelSettings

KERAS_INSTEAD = "keras.layers.GroupNormalization or keras.layers.LayerNormalization"
TORCH_INSTEAD = "torch.nn.GroupNorm or torch.nn.LayerNorm"
_NAMED = 5  # of the layers, in the message


@dataclass(frozen=True)
class BatchNormalization:
    """The layers of a network that normalize over their own device's part of a batch.

    `kind` is what its library calls them, `layers` their names, `instead` what would do.
    """

    kind: str
    layers: Sequence[str]
    instead: str


def refuse(found: BatchNormalization, settings: ModelSettings, replicas: int) -> None:
    """Check that a network on `replicas` devices has no such layers.

    Raises:
        UserError: It has.
    """
    if replicas == 1 or not found.layers:
        return
    names = ", ".join(found.layers[:_NAMED]) + (", …" if len(found.layers) > _NAMED else "")
    raise UserError(
        f"The network of {settings.builder} has {found.kind} ({names}), whose moving statistics would differ on each "
        f"of {replicas} devices.",
        setting="model.builder",
        value=settings.builder,
        allowed="on several devices: normalization that does not look across the batch",
        nearest=found.instead,
        fix="replace those layers, or train on one device (hardware: cpu)",
    )
