"""Export of the pytorch engine: a torch.export program that plain PyTorch can load, without Slipway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from slipway.core.manifest import Manifest
from slipway.trainer.engines.pytorch.network import Network
from slipway.trainer.engines.pytorch.step import scaled
from slipway.trainer.export.export import PROGRAM_FILE


class _Served(torch.nn.Module):
    """The served module, from uint8 pixels [batch, height, width, channels] to probabilities [batch, classes]."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Any) -> Any:
        return torch.softmax(self.network(scaled(pixels)), dim=-1)


def write(folder: Path, network: Network, manifest: Manifest) -> None:
    """Write model.pt2, and model.keras for a Keras network.

    The program accepts `pixels`, uint8 [batch, height, width, channels] of any batch size, and returns probabilities
    float32 [batch, classes] in the order of model.json's classes. It equals the SavedModel's function after decoding.

    Args:
        folder: An existing folder.
        network: The network, on the CPU.
        manifest: The data set's manifest, for the image shape.
    """
    example = torch.zeros(2, *manifest.image_shape, dtype=torch.uint8)
    program = torch.export.export(
        _Served(network).eval(), (example,), dynamic_shapes={"pixels": {0: torch.export.Dim("batch")}}
    )
    torch.export.save(program, str(folder / PROGRAM_FILE))
    if network.is_keras:
        network.inner.save(folder / "model.keras")
