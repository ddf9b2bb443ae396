"""The pytorch engine's training step: forward, backward, all-reduce, update."""

from __future__ import annotations

import contextlib
import hashlib
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from slipway.trainer.config import TrainSettings
from slipway.trainer.data.features import each
from slipway.trainer.distributed.shared_sums import SharedSums
from slipway.trainer.engines.keras import augment
from slipway.trainer.engines.keras.augment import Custom, Labels
from slipway.trainer.engines.keras.objective import Objective
from slipway.trainer.engines.keras.remat import Recomputing
from slipway.trainer.engines.pytorch.devices import Devices
from slipway.trainer.engines.pytorch.network import Network
from slipway.trainer.engines.pytorch.tensors import Tensors, scaled
from slipway.trainer.hyperparameters import Precision


@dataclass(frozen=True)
class Step:
    """One training step.

    Args:
        network: The Network.
        wrapped: `network` in DistributedDataParallel if that sums the gradients of several processes, else `network`.
        optimizer: The optimizer made by `optimizer.make`.
        scaler: A torch.amp.GradScaler, enabled only in mixed_float16.
        objective: The loss and the metric.
        train: The settings.
        precision: The compute precision.
        batch: This process's examples per step.
        devices: This process's Devices.
        own_augmentation: The user's augmentation, or None.
        recomputing: The context of a forward pass.
        sums: Sums the gradients of all processes; None if nothing does, or DistributedDataParallel.
    """

    network: Network
    wrapped: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    objective: Objective
    train: TrainSettings
    precision: Precision
    batch: int
    devices: Devices
    own_augmentation: Custom | None = None
    recomputing: Recomputing = contextlib.nullcontext
    sums: SharedSums | None = None

    def run(self, decoded: Tensors, labels: torch.Tensor, number: int, rate: float) -> torch.Tensor:
        """Run one update; return this process's mean loss and metric before it, float32 [2] on the device.

        Args:
            decoded: This process's part of the batch, on the device.
            labels: Its labels, on the device.
            number: The step's number in the run, from 0.
            rate: The learning rate.
        """
        self._seed(number)
        inputs = scaled(decoded)
        if self.train.augment.is_on:
            numbers = (self.train.seed, number, self.devices.cluster.rank, "function")
            inputs, labels = augment.augmented(
                inputs,
                labels,
                self.train.augment,
                self.own_augmentation,
                self._drawing(number),
                lambda count: torch.tensor([_seed(*numbers, count), 0]),
            )
        metrics = torch.zeros(2, device=self.devices.device)
        parts = self.train.accumulation
        size = self.batch // parts
        for part in range(parts):
            chosen = slice(part * size, (part + 1) * size)
            with self._without_all_reduce() if part < parts - 1 else contextlib.nullcontext():
                metrics += self._backward(
                    *(each(lambda tensor, chosen=chosen: tensor[chosen], of) for of in (inputs, labels))
                )
        if self.sums:
            self._average(self.sums)
        self._update(rate)
        return metrics

    def _backward(self, inputs: Tensors, labels: Labels) -> torch.Tensor:
        with self.autocast(), self.recomputing():
            outputs = self.wrapped(inputs)
        losses, metrics = self.objective.training(outputs, labels)
        loss = losses.sum() / self.batch
        for extra in self.network.extra_losses():
            loss = loss + extra / self.train.accumulation
        if loss.requires_grad:
            self.scaler.scale(loss).backward()
        return torch.stack([loss.detach(), (metrics.detach().sum() / self.batch).to(loss.dtype)])

    def _average(self, sums: SharedSums) -> None:
        """Average the gradients over all processes, as DistributedDataParallel does with find_unused_parameters.

        A parameter that no process used keeps no gradient.
        """
        parameters = self.network.trained()
        processes = self.devices.cluster.world_size
        gradients = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.div_(processes)
            for parameter in parameters
        ]
        used = np.array([parameter.grad is not None for parameter in parameters], gradients[0].numpy().dtype)
        *totals, users = sums.add([*(gradient.numpy() for gradient in gradients), used])
        for parameter, total, count in zip(parameters, totals, users, strict=True):
            parameter.grad = torch.from_numpy(total) if count else None

    def _update(self, rate: float) -> None:
        parameters = self.network.trained()
        if not parameters:
            return
        if self.train.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, self.train.clip_norm)
        if self.train.momentum:  # as in Keras, each gradient keeps its own rate
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(rate)
        for group in self.optimizer.param_groups:
            group["lr"] = 1.0 if self.train.momentum else rate
        if self.train.decay:
            with torch.no_grad():
                for parameter in parameters:
                    if parameter.dim() >= 2:
                        parameter.mul_(1 - rate * self.train.decay)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def autocast(self) -> AbstractContextManager[None]:
        """Return the autocast context of a torch Module; a Keras network handles precision itself."""
        if self.network.is_keras or self.precision == "float32":
            return contextlib.nullcontext()
        kind = torch.bfloat16 if self.precision == "mixed_bfloat16" else torch.float16
        return torch.autocast(self.devices.device.type, kind)

    def _without_all_reduce(self) -> AbstractContextManager[None]:
        return self.wrapped.no_sync() if self.wrapped is not self.network else contextlib.nullcontext()

    def _seed(self, number: int) -> None:
        """Seed all random generators from seed, step and rank, so that no random state has to be saved."""
        seed = _seed(self.train.seed, number, self.devices.cluster.rank)
        torch.manual_seed(seed)
        for index, generator in enumerate(self.network.seed_generators()):
            generator.state.assign(np.array([(seed + index) % 2**31, 0], np.int64))

    def _drawing(self, number: int) -> tuple[augment.Draw, augment.Draw]:
        def generator(change: int) -> torch.Generator:
            source = torch.Generator(self.devices.device)
            return source.manual_seed(_seed(self.train.seed, number, self.devices.cluster.rank, change))

        def uniform(change: int, shape: tuple[int, ...], low: float, high: float) -> torch.Tensor:
            drawn = torch.rand(shape, generator=generator(change), device=self.devices.device)
            return low + (high - low) * drawn

        def integers(change: int, shape: tuple[int, ...], low: int, high: int) -> torch.Tensor:
            return torch.randint(low, high, shape, generator=generator(change), device=self.devices.device)

        return uniform, integers


CLASSIFICATION = Objective(
    losses=lambda logits, labels: cross_entropy(logits, labels, reduction="none"),
    metric=lambda logits, labels: (logits.argmax(dim=-1) == labels).float(),
    take=lambda values, indices: torch.from_numpy(values).to(indices.device)[indices],
)


def _seed(*numbers: int | str) -> int:
    """Return a seed below 2**31 derived from a hash of `numbers`."""
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:4], "big") >> 1
