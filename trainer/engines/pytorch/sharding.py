"""Fully sharded data parallel training with torch's fully_shard: each process holds a part of each parameter.

A unit's parameters are gathered together when its forward or backward pass begins, and freed when it ends. Units are
the large ones of a Keras network's layers, or of the members of a Module's lists (ModuleList, Sequential, ModuleDict);
the network itself is the unit of all other parameters. Between steps, parameters, gradients and the optimizer's state
are DTensors, split along their first axis.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from slipway.core.errors import UserError
from slipway.trainer.checkpoint.parts import Parts
from slipway.trainer.distributed.cluster import Cluster

if TYPE_CHECKING:
    from slipway.trainer.engines.pytorch.devices import Devices
    from slipway.trainer.engines.pytorch.network import Network

# Gathering smaller units on their own costs more than it saves.
UNIT_BYTES = 2**20

# A module that holds a parameter, its name there, and the parameter while it is sharded.
_Slot: TypeAlias = tuple[torch.nn.Module, str, torch.nn.Parameter]


def shard(network: Network, devices: Devices) -> None:
    """Move a network to this process's device and shard its parameters over all processes.

    Moves one unit after another, so that the device never holds the whole network.

    Raises:
        UserError: A parameter is a number, which cannot be split.
    """
    units = list(_units(network))
    if network.is_keras:
        _register(network, units, devices.device)
    for name, parameter in network.named_parameters():
        if parameter.dim() == 0:
            raise UserError(
                f"The parameter {name} of the network is a number, which cannot be split over the devices.",
                setting="train.sharding",
                value="fsdp",
                nearest="replicated",
                fix="make it a parameter of shape [1] in the builder, or --set train.sharding=replicated",
            )
    mesh = init_device_mesh(devices.device.type, (devices.cluster.world_size,))
    for module in [*units, network]:
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
    for module in network.modules():
        if isinstance(module, FSDPModule):
            _follow(module)


def part(tensor: torch.Tensor, cluster: Cluster) -> tuple[slice, ...]:
    """Return the index of this process's part in the whole tensor."""
    if not isinstance(tensor, DTensor):
        return ()
    length = int(tensor.shape[0])
    size = -(-length // cluster.world_size)
    return (slice(min(cluster.rank * size, length), min((cluster.rank + 1) * size, length)),)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a DTensor; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def stored(tensor: torch.Tensor, cluster: Cluster) -> NDArray[np.generic] | Parts:
    """Return a copy of a tensor for a checkpoint, of a DTensor only this process's part."""
    array = np.array(local(tensor.detach()).cpu().numpy())
    if not isinstance(tensor, DTensor):
        return array
    first = part(tensor, cluster)[0].start
    return Parts.held(tuple(tensor.shape), {(first, *[0] * (tensor.dim() - 1)): array})


def _units(network: Network) -> Iterator[Any]:
    """Yield the layers or modules that are units, inner ones first.

    A unit shares no parameter with the rest of the network, which would find it sharded.
    """
    inner = network.inner
    owners: dict[int, set[int]] = defaultdict(set)
    for module in _inside(inner):
        for parameter in _own(module):
            owners[id(parameter)].add(id(module))
    taken: set[int] = set()
    candidates = _layers(inner) if network.is_keras else _members(inner)
    for candidate in {id(member): member for member in candidates}.values():
        inside = _inside(candidate)
        free = {id(tensor): tensor for module in inside for tensor in _own(module) if id(tensor) not in taken}
        is_apart = all(owners[key] <= {id(module) for module in inside} for key in free)
        if is_apart and sum(tensor.numel() * tensor.element_size() for tensor in free.values()) >= UNIT_BYTES:
            taken |= set(free)
            yield candidate


def _layers(model: keras.Model) -> Iterator[keras.Layer]:
    for layer in model._flatten_layers(include_self=False, recursive=False):
        if isinstance(layer, keras.Model):
            yield from _layers(layer)
        else:
            yield layer


def _members(module: torch.nn.Module, *, of_list: bool = False) -> Iterator[torch.nn.Module]:
    lists = (torch.nn.ModuleList, torch.nn.ModuleDict)  # without a forward pass of their own
    for child in module.children():
        yield from _members(child, of_list=isinstance(module, (*lists, torch.nn.Sequential)))
    if of_list and not isinstance(module, lists):
        yield module


def _inside(module: Any) -> list[Any]:
    """Return the layers of a Keras layer or the modules of a Module, with itself."""
    return module._flatten_layers() if isinstance(module, keras.Layer) else list(module.modules())


def _own(module: Any) -> list[torch.nn.Parameter]:
    """Return the parameters that a Module or Keras layer holds itself.

    Without Keras' variables that are never trained, such as moving statistics: these are equal on all processes.
    """
    if isinstance(module, keras.Layer):
        return [variable.value for variable in module._trainable_variables]
    return [parameter for parameter in module._parameters.values() if parameter is not None]


class _Held(keras.Variable):
    """A variable whose value is a module's parameter, also while that is gathered."""

    _holder: tuple[torch.nn.ParameterDict, str]

    @property
    def _value(self) -> torch.nn.Parameter:
        holder, name = self._holder
        return holder[name]


def _hold(layers: Sequence[keras.Layer]) -> torch.nn.ParameterDict:
    """Return the parameters of these layers, from where their variables take them from now on."""
    variables = {
        id(candidate): candidate
        for layer in layers
        for candidate in layer._trainable_variables
        if type(candidate) is not _Held
    }
    holder = torch.nn.ParameterDict({str(number): unheld.value for number, unheld in enumerate(variables.values())})
    for number, variable in enumerate(variables.values()):
        variable._holder = holder, str(number)
        del variable._value  # the whole parameter, which would be kept beside the parts
        variable.__class__ = _Held
    return holder


def _register(network: Network, units: Sequence[keras.Layer], device: torch.device) -> None:
    """Make each variable of a Keras network the parameter of its unit or of the network.

    By default, Keras makes a variable a parameter of each layer around it, and a model's layers are not its modules.
    """
    layers = _inside(network.inner)
    modules = [module for module in network.inner.modules() if isinstance(module, keras.Layer)]
    for layer in [*layers, *modules]:  # a Sequential has another model inside
        layer._torch_params = torch.nn.ParameterDict()
        for variable in layer._non_trainable_variables:
            variable.value.data = variable.value.data.to(device)
    for unit in units:
        unit._torch_params = _hold(_inside(unit))
    network.units, network.others = torch.nn.ModuleList(units), _hold(layers)


def _follow(unit: torch.nn.Module) -> None:
    """Let gathered parameters be trained if the sharded ones are, which may change with the stage."""
    slots = list(_slots(unit))

    def follow(*_hook: object) -> None:
        for holder, name, sharded in slots:
            holder.get_parameter(name).requires_grad_(sharded.requires_grad)

    unit.register_forward_pre_hook(follow)


def _slots(module: torch.nn.Module) -> Iterator[_Slot]:
    """Yield the sharded parameters of a unit, without those of the units inside of it."""
    for name, parameter in module._parameters.items():
        if isinstance(parameter, DTensor):
            yield module, name, parameter
    inner = (child for child in module.children() if not isinstance(child, FSDPModule))
    yield from itertools.chain.from_iterable(map(_slots, inner))
