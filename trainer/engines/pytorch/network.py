"""The pytorch engine's network, wrapping a builder's keras.Model (on torch) or torch.nn.Module.

A keras.Model receives images float32 in [0, 1], [batch, height, width, channels]; any other Module receives them
channels first, [batch, channels, height, width]. With several inputs, both receive a dict by name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection

import keras
import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm

from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.trainer.config import ModelSettings
from slipway.trainer.data.features import blank
from slipway.trainer.engines import builder
from slipway.trainer.engines.base import ModelSize
from slipway.trainer.engines.keras import model as keras_model
from slipway.trainer.engines.pytorch.tensors import Tensors, scaled, tensors
from slipway.trainer.tasks import TASKS
from slipway.trainer.weights import matches


class Network(torch.nn.Module):
    """A network from the inputs to float32 [batch, outputs].

    It receives images as float32 in [0, 1], [batch, height, width, channels].

    Args:
        inner: The builder's network.
        manifest: The data set's manifest, which says which inputs are images.
    """

    def __init__(self, inner: torch.nn.Module, manifest: Manifest) -> None:
        super().__init__()
        self.inner = inner
        self.images = {name for name, feature in manifest.all_inputs.items() if feature.kind == "image"}
        self.is_keras = isinstance(inner, keras.Model)
        self.frozen: set[torch.nn.Module] = set()  # by the stage; see `freezer`

    def train(self, mode: bool = True) -> Network:
        """Set training mode, except for BatchNorm modules whose parameters are frozen, as Keras does."""
        super().train(mode)
        for module in batch_norms(self.inner):
            parameters = list(module.parameters())
            if module in self.frozen or (parameters and not any(parameter.requires_grad for parameter in parameters)):
                module.eval()
        return self

    def forward(self, inputs: Tensors) -> torch.Tensor:
        if self.is_keras:
            return self.inner(inputs, training=self.training).float()
        if isinstance(inputs, dict):
            first = {
                name: _channels_first(tensor) if name in self.images else tensor for name, tensor in inputs.items()
            }
            return self.inner(first).float()
        return self.inner(_channels_first(inputs)).float()

    def extra_losses(self) -> list[torch.Tensor]:
        """Return a Keras network's additional losses, such as regularization."""
        losses = self.inner.losses if self.is_keras else []
        return [loss.full_tensor() if isinstance(loss, DTensor) else loss for loss in losses]

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

    def checksum(self, kept: dict[str, torch.Tensor] | None = None) -> str:
        """Return the SHA-256 (hex) of all variables in order, and add them to `kept`, on the host.

        If they are sharded, all processes must call it.
        """
        digest = hashlib.sha256()
        for name, tensor in self.variables().items():
            whole = gathered(tensor)
            digest.update(np.ascontiguousarray(whole.numpy()).tobytes())
            if kept is not None:
                kept[name] = whole
        return digest.hexdigest()

    def trained(self) -> list[torch.nn.Parameter]:
        """Return the trainable parameters."""
        return [tensor for tensor in self.variables().values() if tensor.requires_grad]

    def seed_generators(self) -> list[keras.random.SeedGenerator]:
        """Return a Keras network's random generators, in layer order."""
        if not self.is_keras:
            return []
        generators = [
            generator for layer in self.inner._flatten_layers() for generator in getattr(layer, "_seed_generators", [])
        ]
        return list({id(generator): generator for generator in generators}.values())


class Adapted(Network):
    """A custom program's network, whose images are multiplied by `factor`, and which may return probabilities."""

    def __init__(self, inner: torch.nn.Module, manifest: Manifest, factor: float, *, from_logits: bool) -> None:
        super().__init__(inner, manifest)
        self._factor, self._from_logits = factor, from_logits

    def forward(self, inputs: Tensors) -> torch.Tensor:
        outputs = super().forward(inputs * self._factor)
        return outputs if self._from_logits else outputs.log()


def build_network(settings: ModelSettings, manifest: Manifest) -> Network:
    """Return the builder's network, from the data set's inputs to what its task needs, [batch, outputs].

    Raises:
        UserError: The builder failed (`builder.build`), or its network is not such a network.
    """
    model = checked(builder.build(settings, manifest), settings)
    if isinstance(model, keras.Model):
        return Network(keras_model.check_network(model, settings, manifest), manifest)
    network = Network(model, manifest)
    height, width, channels = manifest.image_shape
    try:
        with torch.no_grad():
            output = network.eval()(scaled(tensors(blank(manifest, 2)[0])))
    except Exception as error:
        raise keras_model.refused_inputs(
            settings,
            manifest,
            error,
            allowed=f"a Module with input [batch, {channels}, {height}, {width}]: channels first, any batch size",
            fix="use image_shape, which is (height, width, channels), in the builder",
            named_fix="use inputs[name].shape in the builder, and the dict of inputs by name in forward",
        ) from error
    if tuple(output.shape) != (2, manifest.outputs):
        result = f"[batch, {', '.join(map(str, output.shape[1:]))}]"
        raise keras_model.wrong_head(settings, manifest, result, f"end in torch.nn.Linear(…, {manifest.outputs})")
    last = type(list(model.modules())[-1]).__name__.lower().removeprefix("log")
    if last in TASKS[manifest.task].squashing:
        expected = "standardized values" if manifest.task == "regression" else "logits"
        raise _wrong(settings, f"ends in a {last}; it must return {expected}", f"remove the {last}")
    return network


def _channels_first(images: torch.Tensor) -> torch.Tensor:
    return images.permute(0, 3, 1, 2).contiguous()


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
    tensors = [*model.parameters(), *model.buffers()]
    return ModelSize(_bytes(tensors), _bytes([tensor for tensor in tensors if tensor.requires_grad]))


def layers(model: torch.nn.Module) -> dict[str, bool]:
    """Return the path of each Keras layer or module with variables, and whether it is trainable."""
    if isinstance(model, keras.Model):
        return keras_model.layers(model)
    by_path = {path: list(module.parameters(recurse=False)) for path, module in _modules(model).items()}
    return {
        path: any(parameter.requires_grad for parameter in parameters)
        for path, parameters in by_path.items()
        if parameters
    }


def freezer(network: Network) -> Callable[[Collection[str]], None]:
    """Return a function that freezes all layers or modules of `network` but those that match its patterns.

    Parameters that are frozen already stay so.
    """
    if network.is_keras:
        return keras_model.freezer(network.inner)
    modules = _modules(network.inner)
    left = {parameter for parameter in network.inner.parameters() if parameter.requires_grad}

    def freeze_others(patterns: Collection[str]) -> None:
        chosen = [module for path, module in modules.items() if matches(path, patterns)]
        trained = {parameter for module in chosen for parameter in module.parameters(recurse=False)}
        for parameter in left:
            parameter.requires_grad_(parameter in trained)
        network.frozen = set(modules.values()) - set(chosen)

    return freeze_others


def _modules(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    return {path.replace(".", "/"): module for path, module in model.named_modules(remove_duplicate=False)}


def output_elements(model: torch.nn.Module, manifest: Manifest) -> int:
    """Return the number of elements in the outputs of all Keras layers or leaf modules for one example."""
    if isinstance(model, keras.Model):
        return keras_model.output_elements(model, manifest)
    count = 0

    def add(_module: torch.nn.Module, _inputs: object, output: object) -> None:
        nonlocal count
        if isinstance(output, torch.Tensor):
            count += math.prod(output.shape[1:])

    hooks = [module.register_forward_hook(add) for module in model.modules() if not list(module.children())]
    try:
        with torch.no_grad():
            Network(model, manifest).eval()(scaled(tensors(blank(manifest, 2)[0])))
    finally:
        for hook in hooks:
            hook.remove()
    return count


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _wrong(settings: ModelSettings, problem: str, fix: str) -> UserError:
    return UserError(
        f"The network of {settings.builder} {problem}.",
        setting="model.builder",
        value=settings.builder,
        allowed="a keras.Model or a torch.nn.Module from the inputs to one logit per class or label, or one number",
        fix=fix,
    )


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a tensor on the host. All processes must call it."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()


def batch_norms(network: torch.nn.Module) -> list[_BatchNorm]:
    """Return the BatchNorm modules of a network, frozen ones too."""
    return [module for module in network.modules() if isinstance(module, _BatchNorm)]
