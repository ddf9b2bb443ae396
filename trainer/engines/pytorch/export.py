"""The pytorch engine's model format: a torch.export program that plain PyTorch can load, without Slipway.

Imports no Keras, which `load` does without.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export.passes import move_to_device_pass

from slipway.core.manifest import Input, Manifest
from slipway.trainer.data.features import Inputs, blank, each
from slipway.trainer.distributed.accelerators import planned
from slipway.trainer.engines.pytorch.tensors import Tensors, scaled, tensors
from slipway.trainer.engines.table import ENGINES
from slipway.trainer.export.threshold import Decision

if TYPE_CHECKING:
    from slipway.trainer.engines.pytorch.network import Network


class _Served(torch.nn.Module):
    """The served module, see `write`; `manifest` has the statistics of numbers and of the target."""

    def __init__(self, network: Network, manifest: Manifest) -> None:
        super().__init__()
        self.network, self.task = network, manifest.task
        self.numbers = [name for name, feature in manifest.all_inputs.items() if feature.kind == "number"]
        self.nullable = {name for name in self.numbers if manifest.inputs[name].nullable}
        for number, name in enumerate(self.numbers):
            self._keep(f"number_{number}", manifest.inputs[name])
        if manifest.target is not None:
            self._keep("target", manifest.target)
            self.is_logarithmic = manifest.target.logarithmic

    def _keep(self, name: str, feature: Input) -> None:
        for statistic, values in (("mean", feature.mean), ("deviation", feature.deviation)):
            self.register_buffer(
                f"{name}_{statistic}", torch.tensor(values, dtype=torch.float32).reshape(feature.stored_shape)
            )

    def forward(self, inputs: Tensors) -> torch.Tensor:
        if isinstance(inputs, dict):
            inputs = {
                name: tensor.to(torch.int32) if tensor.dtype == torch.int64 else tensor
                for name, tensor in inputs.items()
            }
        for number, name in enumerate(self.numbers):
            mean, deviation = getattr(self, f"number_{number}_mean"), getattr(self, f"number_{number}_deviation")
            standardized = (inputs[name] - mean) / deviation
            if name in self.nullable:
                missing = torch.isnan(inputs[name])
                standardized = torch.stack([torch.where(missing, 0.0, standardized), missing.to(torch.float32)], dim=-1)
            inputs[name] = standardized
        outputs = self.network(scaled(inputs))
        if self.task == "regression":
            predicted = outputs[:, 0] * self.target_deviation + self.target_mean
            return torch.exp(predicted) if self.is_logarithmic else predicted
        return torch.sigmoid(outputs) if self.task == "multilabel" else torch.softmax(outputs, dim=-1)


def write(folder: Path, network: Network, manifest: Manifest) -> None:
    """Write model.pt2, and model.keras for a Keras network.

    The program accepts decoded inputs of any batch size, one tensor or a dict by name: images as uint8 pixels
    [batch, height, width, channels], numbers float32 as they are in the source, NaN if missing, integers int64, and
    categories int64, the position in model.json's vocabulary plus 1, or 0. It returns float32: the probabilities
    [batch, classes] in the order of model.json's classes or labels, or the prediction [batch] in the target's own
    unit. It equals the SavedModel's function after decoding.

    Args:
        folder: An existing folder.
        network: The network, on the CPU.
        manifest: The data set's manifest, for the inputs.
    """
    batch = torch.export.Dim("batch")
    example = tensors(blank(manifest, 2, standardized=False)[0])
    if isinstance(example, dict):
        example = {name: tensor.long() if tensor.dtype == torch.int32 else tensor for name, tensor in example.items()}
    shapes = {"inputs": each(lambda _one: {0: batch}, example)}
    with _without_activity_losses(network):
        program = torch.export.export(_Served(network, manifest).eval(), (example,), dynamic_shapes=shapes)
    torch.export.save(program, str(folder / ENGINES["pytorch"].model_file))
    if network.is_keras:
        from slipway.trainer.engines.keras import model as keras_model

        keras_model.save(network.inner, folder)


@contextlib.contextmanager
def _without_activity_losses(network: Network) -> Iterator[None]:
    """Disable Keras' losses of outputs, which are divided by the size of the batch as a constant."""
    layers = network.inner._flatten_layers() if network.is_keras else []
    regularizers = {layer: layer.activity_regularizer for layer in layers}
    for layer in regularizers:
        layer.activity_regularizer = None
    try:
        yield
    finally:
        for layer, regularizer in regularizers.items():
            layer.activity_regularizer = regularizer


def write_custom(
    folder: Path, model: Any, manifest: Manifest, scale: float, decide: Decision, *, from_logits: bool
) -> tuple[str, float | None]:
    """Write a custom program's network as in `write`; return the weights' checksum and the decision threshold."""
    from slipway.trainer.engines.keras.model import checksum
    from slipway.trainer.engines.pytorch.network import Adapted
    from slipway.trainer.tasks import check_outputs

    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = model.module
    network = Adapted(copy.deepcopy(model).to("cpu"), manifest, 255.0 * scale, from_logits=from_logits).eval()
    with torch.no_grad():
        check_outputs(network(torch.zeros(1, *manifest.image_shape)).shape, manifest)
    write(folder, network, manifest)
    digest = checksum(network.inner) if network.is_keras else network.checksum()
    return digest, decide(functools.partial(outputs, network))


def outputs(network: Network, inputs: Any) -> NDArray[np.float32]:
    """Return the network's outputs for scaled inputs, tensors of TensorFlow."""
    with torch.no_grad():
        result: NDArray[np.float32] = network.eval()(each(lambda tensor: torch.tensor(tensor.numpy()), inputs)).numpy()
    return result


def load(folder: Path) -> Callable[[Inputs], NDArray[np.float32]]:
    """Return the program in `folder` as a function of decoded inputs, as in `write`."""
    program = torch.export.load(str(folder / ENGINES["pytorch"].model_file))
    device = "cpu" if planned(os.environ) is None else "cuda"  # a server's; not tested on a GPU
    if device != "cpu":
        program = move_to_device_pass(program, device)
    network = program.module()

    def predictions(inputs: Inputs) -> NDArray[np.float32]:
        with torch.no_grad():
            return network(each(functools.partial(torch.tensor, device=device), inputs)).cpu().numpy()

    return predictions
