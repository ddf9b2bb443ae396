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
