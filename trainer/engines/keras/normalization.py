"""Reject batch normalization on several devices: the moving statistics would silently differ between them."""

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
    """The layers of a network that normalize over one device's part of a batch.

    `kind` is their library's name for the type, `layers` their names, `instead` the suggested replacement.
    """

    kind: str
    layers: Sequence[str]
    instead: str


def refuse(found: BatchNormalization, settings: ModelSettings, devices: int) -> None:
    """Check that a network on several devices has no such layers.

    Raises:
        UserError: It has some.
    """
    if devices == 1 or not found.layers:
        return
    names = ", ".join(found.layers[:_NAMED]) + (", …" if len(found.layers) > _NAMED else "")
    raise UserError(
        f"The network of {settings.builder} has {found.kind} ({names}), whose moving statistics would differ between "
        f"the {devices} devices.",
        setting="model.builder",
        value=settings.builder,
        allowed="on several devices: normalization that is independent of the batch",
        nearest=found.instead,
        fix="replace these layers, or train on one device: --hardware cpu",
    )
