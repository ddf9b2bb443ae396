"""The pytorch engine: Keras networks (on torch) or torch.nn.Modules with DistributedDataParallel or fully_shard.

Each process trains on one device.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import keras
import numpy as np
import torch
import torch.distributed as distributed
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

from slipway.core.manifest import Manifest
from slipway.core.paths import local_path
from slipway.trainer import weights
from slipway.trainer.config import JobConfig
from slipway.trainer.data.features import Labels, blank, each
from slipway.trainer.data.inputs import DEVICE_MEMORY_FRACTION, Evaluation, MemoryTraining, TrainingData
from slipway.trainer.distributed import shared_sums
from slipway.trainer.distributed.cluster import Cluster
from slipway.trainer.engines import hooks
from slipway.trainer.engines.base import (
    Engine,
    Measured,
    ModelSize,
    State,
    StepMetrics,
    Work,
    choose_sharding,
    verify_state,
)
from slipway.trainer.engines.keras import model as keras_model
from slipway.trainer.engines.keras.objective import objective
from slipway.trainer.engines.pytorch import export, normalization, optimizer, sharding
from slipway.trainer.engines.pytorch import network as pytorch_network
from slipway.trainer.engines.pytorch.devices import Devices, errors_named
from slipway.trainer.engines.pytorch.network import Network, freezer
from slipway.trainer.engines.pytorch.remat import rematerialization
from slipway.trainer.engines.pytorch.step import CLASSIFICATION, Step
from slipway.trainer.engines.pytorch.tensors import Tensors, scaled, tensors
from slipway.trainer.export import examples, threshold
from slipway.trainer.hyperparameters import Precision
from slipway.trainer.plan import Stage, stage_of
from slipway.trainer.stages import check_patterns

# Decoded inputs and labels.
Batch = tuple[Tensors, torch.Tensor]


def make() -> Engine:
    """Create the engine."""
    return PyTorchEngine()


class PyTorchEngine:
    """See `slipway.trainer.engines.base.Engine`."""

    # Set by `open`.
    _devices: Devices
    _joined: shared_sums.SharedSums | None
    # Set by `build`.
    _job: JobConfig
    _manifest: Manifest
    _network: Network
    _is_sharded: bool
    _precision: Precision
    _freeze_others: Callable[[Collection[str]], None]
    # Set by `begin`.
    _step: Step
    # The variables to export, gathered by `weights_checksum` on the chief if they are sharded.
    _trained: dict[str, torch.Tensor]

    def __init__(self) -> None:
        self._stage: Stage | None = None
        self._batches: Iterator[Batch] | None = None
        self._position = 0
        self._waited = 0.0

    def open(self, cluster: Cluster) -> str:
        with errors_named(cluster):
            self._devices = Devices(cluster)
        self._joined = shared_sums.join(cluster, self.agree) if self._devices.kind == "CPU" else None
        several = f", one of {cluster.world_size} processes" if cluster.world_size > 1 else ""
        return f"PyTorch {torch.__version__}, one {self._devices.kind}{several}"

    def build(self, job: JobConfig, manifest: Manifest) -> None:
        devices = self._devices
        chosen = keras_model.prepare(job, manifest, job.plan.processes, devices.kind, devices.capability)
        with keras.device("cpu") if job.train.sharding == "fsdp" else contextlib.nullcontext():
            self._network = pytorch_network.build_network(job.model, manifest)
        if job.model.weights:
            load = weights.load_keras if self._network.is_keras else weights.load_torch
            load(self._network.inner, job.model.weights)
        normalization.synchronize(self._network, devices)
        workers = devices.cluster.world_size
        self._is_sharded = choose_sharding(job.train, self.size(), devices.own_memory, workers, self.agree)
        if self._is_sharded:
            with errors_named(devices.cluster):
                sharding.shard(self._network, devices)
        else:
            self._network.to(devices.device)
        check_patterns(job.train.stages, pytorch_network.layers(self._network.inner))
        self._job, self._manifest, self._precision = job, manifest, chosen
        self._freeze_others, self._stage = freezer(self._network), None
        self.begin(0)

    def begin(self, step: int) -> None:
        job, devices = self._job, self._devices
        stage = stage_of(job.train, job.plan, step)
        if stage == self._stage:
            return
        if self._stage is not None:
            del self._step
            gc.collect()  # removes the hooks of the earlier DistributedDataParallel
        self._stage = stage
        self._freeze_others(stage.trainable)
        sums = self._joined if self._can_sum() else None
        self._step = Step(
            network=self._network,
            wrapped=self._wrapped(sums),
            optimizer=optimizer.make(job.train, self._network),
            scaler=torch.amp.GradScaler(devices.device.type, enabled=self._precision == "mixed_float16"),
            objective=objective(self._manifest, CLASSIFICATION, job.train),
            train=job.train,
            precision=self._precision,
            batch=job.plan.batch_per_process,
            devices=devices,
            own_augmentation=hooks.augmentation(job.train, self._manifest),
            recomputing=rematerialization(job, self._network),
            sums=sums,
        )
        self._batches, self._position = None, 0
        # Counting gathers the parameters, so all processes do it together.
        with errors_named(devices.cluster):
            self._counted = self._flops() if self._is_sharded else None

    def _can_sum(self) -> bool:
        """Whether the step may sum gradients through shared memory: those that NumPy has, of whole parameters."""
        are_sparse = any(getattr(module, "sparse", False) for module in self._network.modules())
        trained = self._network.trained()
        has_types = all(parameter.dtype in (torch.float32, torch.float64) for parameter in trained)
        return bool(trained) and has_types and not (are_sparse or self._is_sharded)

    def _wrapped(self, sums: shared_sums.SharedSums | None) -> torch.nn.Module:
        if self._devices.cluster.world_size == 1 or self._is_sharded or not self._network.trained():
            return self._network
        if sums:
            with errors_named(self._devices.cluster), torch.no_grad():
                for tensor in itertools.chain(self._network.parameters(), self._network.buffers()):
                    distributed.broadcast(tensor, 0)
            return self._network
        # find_unused_parameters keeps the order in which gradients are summed constant, so that a resumed run gets the
        # same sums as an uninterrupted one. Buffers are equal on all processes, since BatchNorm is rejected.
        with errors_named(self._devices.cluster):
            return torch.nn.parallel.DistributedDataParallel(
                self._network, find_unused_parameters=True, forward_sync_buffers=False
            )

    def run(self, data: TrainingData, step: int, rates: NDArray[np.float32]) -> StepMetrics:
        if self._batches is None:
            self._batches, self._position = self._batches_of(data, step), step
        if step != self._position:
            raise ValueError(f"the examples are at step {self._position}, not {step}")
        self._position += len(rates)
        self._network.train()
        with errors_named(self._devices.cluster):
            metrics = torch.stack([
                self._step.run(*next(self._batches), step + number, rate) for number, rate in enumerate(rates.tolist())
            ])  # fmt: skip
            means = self._devices.reduced(metrics.double().cpu(), "SUM") / self._devices.cluster.world_size
        by_step = means.numpy()
        waited, self._waited = self._waited, 0.0
        return StepMetrics(losses=by_step[:, 0], values=by_step[:, 1], waited=waited)

    def _batches_of(self, data: TrainingData, step: int) -> Iterator[Batch]:
        """Yield each step's decoded inputs and labels on the device, starting at `step`."""
        device = self._devices.device
        if isinstance(data, MemoryTraining):
            memory = self._devices.memory
            fits = memory is None or data.decoded_bytes <= memory * DEVICE_MEMORY_FRACTION
            kept = device if fits else torch.device("cpu")
            arrays = data.arrays(whole=kept.type != "cpu")
            inputs, labels = (each(lambda tensor: tensor.to(kept), tensors(part)) for part in arrays)
            while True:
                started = time.perf_counter()
                order = torch.from_numpy(data.order(step, 1)[0]).to(kept)
                self._waited += time.perf_counter() - started
                yield (
                    each(lambda tensor, order=order: tensor[order].to(device), inputs),
                    _classes(labels[order]).to(device),
                )
                step += 1
        read = data.arrays_from(step)
        while True:
            started = time.perf_counter()
            decoded, targets = next(read)
            self._waited += time.perf_counter() - started
            yield each(lambda array: torch.tensor(array).to(device), decoded), _labels(targets).to(device)

    def evaluate(self, data: Evaluation) -> Measured:
        self._network.eval()
        metrics = self._step.objective.metrics
        sums = torch.zeros(3 + len(metrics), dtype=torch.float64)
        with errors_named(self._devices.cluster):
            with torch.no_grad():
                for inputs, labels, weights in data.batches():
                    sums += self._measure(tensors(inputs), _labels(labels), torch.from_numpy(weights))
            return Measured.of(self._devices.reduced(sums, "SUM").tolist(), metrics)

    def _measure(self, decoded: Tensors, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        device = self._devices.device
        labels, weights = labels.to(device), weights.to(device)
        with self._step.autocast():
            outputs = self._network(scaled(each(lambda tensor: tensor.to(device), decoded)))
        return self._step.objective.sums(outputs, labels, weights).double().cpu()

    def agree(self, values: Sequence[float]) -> list[float]:
        with errors_named(self._devices.cluster):
            return [float(value) for value in self._devices.reduced(torch.tensor(values, dtype=torch.float64), "MAX")]

    def state(self) -> State:
        return {name: sharding.stored(tensor, self._devices.cluster) for name, tensor in self._tensors().items()}

    def load_state(self, state: State) -> None:
        if ":" in self._step.train.optimizer:
            optimizer.create_state(self._step.optimizer, state)
        tensors = self._tensors()
        expected = {
            name: (tuple(tensor.shape), str(tensor.dtype).partition(".")[2]) for name, tensor in tensors.items()
        }
        verify_state(state, expected)
        with torch.no_grad():
            for name, tensor in tensors.items():
                if name == "optimizer/loss_scale":
                    optimizer.load_loss_scale(self._step.scaler, np.asarray(state[name], np.float32))
                else:
                    local_part = np.array(state[name][sharding.part(tensor, self._devices.cluster)])
                    sharding.local(tensor).copy_(torch.from_numpy(local_part))

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the training state by name, not copies."""
        arrays = optimizer.arrays(self._step.optimizer, self._step.scaler)
        return {
            **{f"model/{name}": tensor for name, tensor in self._network.variables().items()},
            **{f"optimizer/{name}": tensor for name, tensor in arrays.items()},
        }

    def work(self) -> Work:
        count = (lambda: self._counted) if self._is_sharded else self._flops
        return Work(self._devices.name, self._devices.cluster.world_size, self._step.precision, count)

    def _flops(self) -> float | None:
        self._network.eval()  # in training mode BatchNorm would include the zeros
        inputs = each(lambda tensor: tensor.to(self._devices.device), tensors(blank(self._manifest, 1)[0]))
        with FlopCounterMode(display=False) as counter:
            total = self._network(scaled(inputs)).sum()
            if total.requires_grad:
                total.backward()
        self._step.optimizer.zero_grad(set_to_none=True)
        flops = float(counter.get_total_flops()) * self._step.batch * self._devices.cluster.world_size
        return flops or None

    def graph(self) -> bytes | None:
        return None

    @contextlib.contextmanager
    def profile(self, folder: Path) -> Iterator[None]:
        with torch.profiler.profile(on_trace_ready=torch.profiler.tensorboard_trace_handler(str(folder))):
            yield

    def size(self) -> ModelSize:
        return pytorch_network.size(self._network.inner)

    def weights_checksum(self) -> str:
        self._trained = {}
        keeps = self._is_sharded and self._devices.cluster.is_chief
        return self._network.checksum(self._trained if keeps else None)

    def export(self, folder: Path, job: JobConfig, manifest: Manifest) -> float | None:
        with keras.device("cpu"):
            network = pytorch_network.build_network(job.model, manifest)
        trained = self._trained if self._is_sharded else self._network.variables()
        with torch.no_grad():
            for name, tensor in network.variables().items():
                tensor.copy_(trained[name])
        export.write(folder, network, manifest)
        predict = functools.partial(export.outputs, network)
        decided = threshold.choose(job.train.threshold, local_path(job.data), manifest, predict)
        examples.write(folder, local_path(job.data), manifest, predict)
        return decided

    def close(self, _wait_for_others: Callable[[], None]) -> None:
        self._devices.leave()


def _labels(array: Labels) -> torch.Tensor:
    return _classes(torch.tensor(array))


def _classes(labels: torch.Tensor) -> torch.Tensor:
    return labels.long() if labels.dtype == torch.int32 else labels
