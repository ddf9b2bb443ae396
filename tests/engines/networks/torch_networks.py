"""Valid and invalid PyTorch networks, as a user might write them."""

import os

import torch
from torch import nn


def dropout(image_shape, classes, width=4):
    height, wide, channels = image_shape
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(width * height * wide, classes),
    )


def fine_tuned(image_shape, classes):
    """A small backbone with BatchNorm, and a head with random state."""
    normalization = [nn.BatchNorm2d(5), nn.BatchNorm2d(5, affine=False)]
    backbone = nn.Sequential(nn.Conv2d(image_shape[2], 5, 2), *normalization)
    network = nn.Sequential()
    network.add_module("backbone", backbone)
    network.add_module("flat", nn.Sequential(nn.Flatten(), nn.Dropout(0.5)))
    network.add_module("head", nn.Linear(5 * (image_shape[0] - 1) * (image_shape[1] - 1), classes))
    return network


class Half(nn.Module):
    """Uses only the left half of the images (channels first)."""

    def __init__(self, image_shape, classes):
        super().__init__()
        height, self.width, channels = image_shape
        self.linear = nn.Linear(channels * height * self.width // 2, classes)

    def forward(self, images):
        return self.linear(images[:, :, :, : self.width // 2].flatten(1))


def normalized(image_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))


def regularized(image_shape, classes):
    layers = [nn.Conv2d(image_shape[2], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Linear(144, classes))


def channels_last(image_shape, classes):
    return nn.Sequential(nn.Conv2d(8, 4, 3), nn.Flatten(), nn.LazyLinear(classes))


def too_many(image_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes + 1))


def softmax(image_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes), nn.Softmax(dim=-1))


def no_network(image_shape, classes):
    return torch.zeros(3)


def none_on_device_1(image_shape, classes):
    if os.environ["LOCAL_RANK"] == "1":
        raise RuntimeError("not on device 1")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


class Named(torch.nn.Module):
    """A network of a dict of inputs; the image is [batch, 1, 8, 8]."""

    def __init__(self, inputs, outputs):
        super().__init__()
        name = "area (m²)"
        self.embedding = torch.nn.Embedding(inputs[name].values, 4)
        self.last = torch.nn.Linear(64 + 4 + 1 + 3, outputs)

    def forward(self, inputs):
        assert inputs["image"].shape[1:] == (1, 8, 8)
        parts = [
            inputs["image"].flatten(1),
            self.embedding(inputs["area (m²)"]),
            inputs["age"][:, None],
            inputs["track"],
        ]
        return self.last(torch.cat(parts, dim=1))


def named(inputs, outputs):
    return Named(inputs, outputs)


class Blocks(nn.Module):
    """Blocks of 1 MiB, which are sharded on their own; two share their weights, so they are not."""

    def __init__(self, image_shape, classes):
        super().__init__()
        self.first = nn.Linear(image_shape[0] * image_shape[1] * image_shape[2], 512)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(4)])
        self.blocks[3][0].weight = self.blocks[2][0].weight
        self.head = nn.Linear(512, classes)

    def forward(self, images):
        values = self.first(images.flatten(1)).relu()
        for block in self.blocks:
            values = values + block(values)
        return self.head(values)


class Residual(nn.Sequential):
    """A list with a forward pass of its own."""

    def forward(self, values):
        return values + super().forward(values)


class Deep(nn.Module):
    """Blocks with statistics and random numbers in lists in a list, and one list whose last member is large."""

    def __init__(self, image_shape, classes):
        super().__init__()
        height, width, channels = image_shape
        self.first = nn.Conv2d(channels, 4, 3, padding=1)
        block = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(6)]
        self.stages = nn.ModuleList([nn.Sequential(*block[:2], nn.Dropout(0.3)), Residual(*block[2:])])
        self.head = nn.Linear(4 * height * width, classes)

    def forward(self, images):
        values = self.first(images)
        for stage in self.stages:
            values = values + stage(values)
        return self.head(values.flatten(1))
