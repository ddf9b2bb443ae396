"""The pytorch engine's network, wrapping a builder's keras.Model (on torch) or torch.nn.Module.

A keras.Model receives images float32 in [0, 1], [batch, height, width, channels]; any other Module receives them
channels first, [batch, channels, height, width].
"""

from __future__ import annotations

import math

import keras
import torch

from slipway.core.errors import UserError
from slipway.trainer.config import ModelSettings
from slipway.trainer.engines import builder
from slipway.trainer.engines.base import ModelSize
from slipway.trainer.engines.keras import model as keras_model
from slipway.trainer.engines.pytorch import normalization


class Network(torch.nn.Module):
    """A network from images float32 in [0, 1], [batch, height, width, channels], to logits float32 [batch, classes]."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.is_keras = isinstance(inner, keras.Model)

    def train(self, mode: bool = True) -> Network:
        """Set training mode, except for BatchNorm modules whose parameters are frozen, as Keras does."""
        super().train(mode)
        for module in normalization.modules(self.inner):
            parameters = list(module.parameters())
            if parameters and not any(each.requires_grad for each in parameters):
                module.eval()
        return self

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.is_keras:
            return self.inner(images, training=self.training).float()
        return self.inner(images.permute(0, 3, 1, 2).contiguous()).float()

    def extra_losses(self) -> list[torch.Tensor]:
        """Return a Keras network's additional losses, such as regularization."""
        return list(self.inner.losses) if self.is_keras else []

    def variables(self) -> dict[str, torch.Tensor]:
        """Return parameters and buffers by name, in order, without the state of random generators."""
        if self.is_keras:
            seeds = {id(generator.state) for generator in self.seed_generators()}
            kept = [variable for variable in self.inner.variables if id(variable) not in seeds]
            return {f"{number:04d}/{variable.name}": variable.value for number, variable in enumerate(kept)}
        return {
            f"{number:04d}/{name}": tensor
            for number, (name, tensor) in enumerate([*self.inner.named_parameters(), *self.inner.named_buffers()])
        }

    def trained(self) -> list[torch.nn.Parameter]:
        """Return the trainable parameters."""
        return [tensor for tensor in self.variables().values() if tensor.requires_grad]

    def seed_generators(self) -> list[keras.random.SeedGenerator]:
        """Return a Keras network's random generators, in layer order."""
        if not self.is_keras:
            return []
        found = [each for layer in self.inner._flatten_layers() for each in getattr(layer, "_seed_generators", [])]
        return list({id(each): each for each in found}.values())


class Adapted(Network):
    """A custom program's network, whose images are multiplied by `factor`, and which may return probabilities."""

    def __init__(self, inner: torch.nn.Module, factor: float, *, from_logits: bool) -> None:
        super().__init__(inner)
        self._factor, self._from_logits = factor, from_logits

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = super().forward(images * self._factor)
        return found if self._from_logits else found.log()


def build_classifier(settings: ModelSettings, image_shape: tuple[int, int, int], classes: int) -> Network:
    """Return the builder's network, from images [batch, *image_shape] to logits [batch, classes].

    Raises:
        UserError: The builder failed (`builder.build`), or its network is not such a classifier.
    """
    model = checked(builder.build(settings, image_shape, classes), settings)
    if isinstance(model, keras.Model):
        return Network(keras_model.check_classifier(model, settings, image_shape, classes))
    network = Network(model)
    size = " x ".join(map(str, image_shape))
    try:
        with torch.no_grad():
            output = network.eval()(torch.zeros(2, *image_shape))
    except Exception as error:
        raise UserError(
            f"The network of {settings.builder} cannot process images of {size}: {type(error).__name__}: {error}",
            setting="model.builder",
            value=settings.builder,
            allowed=f"a Module with input [batch, {image_shape[2]}, {image_shape[0]}, {image_shape[1]}]: channels "
            "first, any batch size",
            fix="use image_shape, which is (height, width, channels), in the builder",
        ) from error
    if tuple(output.shape) != (2, classes):
        given = ", ".join(map(str, output.shape[1:]))
        raise _wrong(
            settings,
            f"returns [batch, {given}]; the data set has {classes} classes",
            f"end in torch.nn.Linear(…, {classes})",
        )
    last = list(model.modules())[-1]
    if isinstance(last, torch.nn.Softmax | torch.nn.LogSoftmax):
        raise _wrong(settings, "ends in a softmax; it must return logits", "remove the softmax")
    return network


def checked(model: object, settings: ModelSettings) -> torch.nn.Module:
    """Return `model` if it is a keras.Model or a torch.nn.Module.

    Raises:
        UserError: It is neither.
    """
    if not isinstance(model, torch.nn.Module):  # includes keras.Model on the torch backend
        raise _wrong(settings, f"returned {type(model).__name__}", "return a keras.Model or a torch.nn.Module")
    return model


def size(model: torch.nn.Module) -> ModelSize:
    """Return the size of a builder's network: of its variables and of the trainable ones."""
    if isinstance(model, keras.Model):
        return keras_model.size(model)
    network = Network(model)
    return ModelSize(_bytes(list(network.variables().values())), _bytes(network.trained()))


def output_elements(model: torch.nn.Module, image_shape: tuple[int, int, int]) -> int:
    """Return the number of elements in the outputs of all Keras layers or leaf modules for one example."""
    if isinstance(model, keras.Model):
        return keras_model.output_elements(model, image_shape)
    count = 0

    def add(_module: torch.nn.Module, _inputs: object, output: object) -> None:
        nonlocal count
        if isinstance(output, torch.Tensor):
            count += math.prod(output.shape[1:])

    hooks = [module.register_forward_hook(add) for module in model.modules() if not list(module.children())]
    try:
        with torch.no_grad():
            Network(model).eval()(torch.zeros(2, *image_shape))
    finally:
        for hook in hooks:
            hook.remove()
    return count


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _wrong(settings: ModelSettings, what: str, fix: str) -> UserError:
    return UserError(
        f"The network of {settings.builder} {what}.",
        setting="model.builder",
        value=settings.builder,
        allowed="a keras.Model or a torch.nn.Module from images to logits [batch, classes]",
        fix=fix,
    )
