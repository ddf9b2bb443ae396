"""The pytorch engine's exported model: a torch.export program that plain PyTorch loads, without this code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from slipway.core.manifest import Manifest
from slipway.trainer.engines.pytorch.network import Network
from slipway.trainer.engines.pytorch.step import scaled
from slipway.trainer.export.export import PROGRAM_FILE


class _Served(torch.nn.Module):
    """From decoded pixels uint8 [batch, height, width, channels] to probabilities float32 [batch, classes]."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Any) -> Any:
        return torch.softmax(self.network(scaled(pixels)), dim=-1)


def write(folder: Path, network: Network, manifest: Manifest) -> None:
    """Write model.pt2, and model.keras where the network is one of Keras.

    The program takes `pixels`, uint8 [batch, height, width, channels] of any batch, and gives probabilities float32
    [batch, classes] in the order of model.json's classes. It is the SavedModel's serving function after decoding.

    Args:
        folder: Where; it exists.
        network: On the CPU.
        manifest: The data set's, for the images' shape.
    """
    example = torch.zeros(2, *manifest.image_shape, dtype=torch.uint8)
    program = torch.export.export(
        _Served(network).eval(), (example,), dynamic_shapes={"pixels": {0: torch.export.Dim("batch")}}
    )
    torch.export.save(program, str(folder / PROGRAM_FILE))
    if network.is_keras:
        network.inner.save(folder / "model.keras")
