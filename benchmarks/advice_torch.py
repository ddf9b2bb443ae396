"""ResNet-50 v1.5 of PyTorch modules: the published results of PyTorch are of such ones, not of Keras layers."""

from __future__ import annotations

import torch
from torch import nn

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))


def torch_resnet50(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return ResNet-50 with the stride in the 3x3 convolutions."""
    channels, blocks = 64, list[nn.Module]()
    for width, count, stride in STAGES:
        for number in range(count):
            blocks.append(Bottleneck(channels, width, stride if number == 0 else 1))
            channels = 4 * width
    stem = [nn.Conv2d(image_shape[2], 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1), *blocks, *head)


class Bottleneck(nn.Module):
    """Three convolutions with a residual connection."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != 4 * width:
            projection = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(4 * width))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations, [batch, 4 * width, height, width]."""
        summed: torch.Tensor = self.relu(self.layers(x) + self.shortcut(x))
        return summed
