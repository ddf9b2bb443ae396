"""The pytorch engine's model format: a torch.export program that plain PyTorch can load, without Slipway.

Imports no Keras, which `load` does without.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from slipway.core.manifest import Manifest
from slipway.trainer.engines.table import ENGINES

if TYPE_CHECKING:
    from slipway.trainer.engines.pytorch.network import Network


def scaled(pixels: torch.Tensor) -> torch.Tensor:
    """Convert uint8 pixels to the network's input, float32 in [0, 1]."""
    return pixels.to(torch.float32) * np.float32(1.0 / 255.0).item()


class _Served(torch.nn.Module):
    """The served module, from uint8 pixels [batch, height, width, channels] to probabilities [batch, classes]."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
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
    torch.export.save(program, str(folder / ENGINES["pytorch"].model_file))
    if network.is_keras:
        network.inner.save(folder / "model.keras")


def load(folder: Path) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
    """Return the program in `folder` as a function from pixels to probabilities, as in `write`."""
    program = torch.export.load(str(folder / ENGINES["pytorch"].model_file)).module()

    def probabilities(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        with torch.no_grad():
            return program(torch.tensor(pixels)).numpy()

    return probabilities
