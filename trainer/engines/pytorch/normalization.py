"""BatchNorm over several processes: statistics of the global batch, so that all processes have the same ones.

torch.nn.SyncBatchNorm would do the same, but not on CPUs.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as distributed
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from slipway.trainer.engines.keras import normalization as keras_normalization
from slipway.trainer.engines.keras.normalization import Gather
from slipway.trainer.engines.pytorch.network import Network, batch_norms

if TYPE_CHECKING:
    from slipway.trainer.engines.pytorch.devices import Devices


def synchronize(network: Network, devices: Devices) -> None:
    """Make all BatchNorm layers or modules use the statistics of the global batch."""
    cluster = devices.cluster
    gather = functools.partial(_gather, cluster.rank, cluster.world_size) if cluster.world_size > 1 else None
    if network.is_keras:
        keras_normalization.synchronize(network.inner, gather)
    for module in batch_norms(network):
        if gather is not None or isinstance(module, torch.nn.SyncBatchNorm):  # which requires a GPU
            module.forward = functools.partial(_forward, module, gather)


def _forward(module: _BatchNorm, gather: Gather | None, inputs: torch.Tensor) -> torch.Tensor:
    """Return what `module` returns for the global batch: the forward function of a module."""
    tracked = module.running_mean is not None
    if gather is None or not module.training:
        return batch_norm(
            inputs, module.running_mean, module.running_var, module.weight, module.bias,
            training=module.training or not tracked, momentum=_momentum(module), eps=module.eps,
        )  # fmt: skip
    axes = [axis for axis in range(inputs.dim()) if axis != 1]
    values = inputs.float()
    local_variance, mean = torch.var_mean(values, axes, correction=0)
    mean, variance = keras_normalization.combined(mean, local_variance, torch.ones_like(mean), gather)
    if tracked:
        examples = inputs.numel() / inputs.shape[1] * distributed.get_world_size()
        momentum = _momentum(module)
        with torch.no_grad():
            module.running_mean.lerp_(mean.to(module.running_mean.dtype), momentum)
            unbiased = variance * (examples / max(1.0, examples - 1))
            module.running_var.lerp_(unbiased.to(module.running_var.dtype), momentum)
    shape = [-1 if axis == 1 else 1 for axis in range(inputs.dim())]
    outputs = (values - mean.view(shape)) * torch.rsqrt(variance + module.eps).view(shape)
    if module.affine:
        outputs = outputs * module.weight.view(shape) + module.bias.view(shape)
    return outputs.to(inputs.dtype)


def _momentum(module: _BatchNorm) -> float:
    """Return the weight of a new batch in the running statistics, and count the batch."""
    if module.training and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        if module.momentum is None:  # a cumulative average
            return 1.0 / float(module.num_batches_tracked)
    return module.momentum or 0.0


def _gather(rank: int, processes: int, values: torch.Tensor) -> torch.Tensor:
    one_hot = torch.zeros(processes, *[1] * values.dim(), dtype=values.dtype, device=values.device)
    one_hot[rank] = 1
    gathered: torch.Tensor = _Sum.apply(one_hot * values)
    return gathered


class _Sum(torch.autograd.Function):
    """The differentiable sum over all processes: the gradients of their losses are summed, too."""

    @staticmethod
    def forward(_context: Any, values: torch.Tensor) -> torch.Tensor:
        values = values.contiguous().clone()
        distributed.all_reduce(values)
        return values

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous().clone()
        distributed.all_reduce(gradient)
        return gradient
