"""The engine interface: an engine executes training steps. All accept the same data and return numbers and arrays.

The order of calls is open, build, begin and load_state (when resuming), then any number of begin, run, evaluate and
agree, then export and close. With several processes, all must make the same calls in the same order, since most are
collective.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from slipway.core import events
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.trainer.checkpoint.parts import Parts
from slipway.trainer.config import JobConfig, TrainSettings
from slipway.trainer.distributed.cluster import Cluster
from slipway.trainer.engines import installed
from slipway.trainer.optimizers import slots

if TYPE_CHECKING:
    from slipway.trainer.data.inputs import Evaluation, TrainingData

# Named arrays; `Shapes` are their shapes and data types.
State = dict[str, NDArray[np.generic] | Parts]
Shapes = Mapping[str, tuple[tuple[int, ...], str]]


logger = logging.getLogger(__name__)


class PeerLost(Exception):
    """Another replica is lost; this one is healthy but cannot continue alone."""


@dataclass(frozen=True)
class StepMetrics:
    """Each step's mean loss and metric (TASKS[task].metric) over the global batch before its update, float64 [steps].

    The loss is the training objective, including class weights and regularizers. `waited` is how many seconds the steps
    waited for input; None if unknown.
    """

    losses: NDArray[np.float64]
    values: NDArray[np.float64]
    waited: float | None = None


@dataclass(frozen=True)
class Measured:
    """A split's mean loss and metric, its number of examples, and the custom metrics by name."""

    loss: float
    metric: float
    examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, sums: Sequence[float], metrics: Iterable[str]) -> Measured:
        """Return the means from the sums of losses, metrics, examples and the named metrics over a split."""
        loss, metric, examples, *more = map(float, sums)
        means = {name: total / examples for name, total in zip(metrics, more, strict=True)}
        return cls(loss / examples, metric / examples, round(examples), means)


class OutOfMemory(Exception):
    """A device has too little memory for a call.

    `fits` is the largest number of examples per device that trials could train on at once (with gradients); None if
    unknown, 0 if not even one fits.
    """

    def __init__(self, message: str, fits: int | None = None) -> None:
        super().__init__(message)
        self.fits = fits


@dataclass(frozen=True)
class Work:
    """The computation of one training step.

    `device` is one device's vendor name ("NVIDIA H100 80GB HBM3", "TPU v5 lite", "CPU"), `devices` the number of
    devices of the job, `precision` their compute precision. `count_flops` may take a second.
    """

    device: str
    devices: int
    precision: str
    count_flops: Callable[[], float | None]

    @functools.cached_property
    def step_flops(self) -> float | None:
        """The FLOPs of one step on all devices (a multiply-add counts as two); None if the engine cannot count them.

        Counted from the network's forward and backward pass.
        """
        return self.count_flops()


@dataclass(frozen=True)
class ModelSize:
    """The size in bytes of a network's variables, and of the trainable ones."""

    variables: int
    trainable: int


class Engine(Protocol):
    """The interface that the training loop uses."""

    def open(self, cluster: Cluster) -> str:
        """Claim the devices and join the cluster; return a short description of them. Must be called first."""

    def build(self, job: JobConfig, manifest: Manifest) -> None:
        """Create the network and the first stage's optimizer, seeded.

        Raises:
            UserError: The builder or its network is not valid, a stage's pattern matches no layer, or the batch size is
                not divisible by the devices.
        """

    def begin(self, step: int) -> None:
        """Prepare for the stage of the step number `step` (from 0): freeze its layers, create its optimizer.

        Does nothing if the engine is in that stage already.
        """

    def run(self, data: TrainingData, step: int, rates: NDArray[np.float32]) -> StepMetrics:
        """Train for exactly len(rates) steps of the current stage, starting at step `step` (from 0).

        Args:
            data: The training split.
            step: The first step's number in the run.
            rates: Each step's learning rate, float32 [steps].

        Raises:
            OutOfMemory: A step needs more memory than a device has.
            PeerLost: Another replica is lost.
        """

    def evaluate(self, data: Evaluation) -> Measured:
        """Evaluate a split over all processes, each example once."""

    def agree(self, values: Sequence[float]) -> list[float]:
        """Return the maximum of each value over all processes."""

    def state(self) -> State:
        """Return the state needed to resume training, by name: weights, optimizer, random state.

        Arrays that are sharded over the processes are the `Parts` that this one holds; all others are equal on all
        processes. They are copies that later steps do not modify.
        """

    def load_state(self, state: State) -> None:
        """Restore the result of `state`, perhaps of another number of processes; all parts can be read.

        Raises:
            UserError: It belongs to a different network, optimizer or stage.
        """

    def work(self) -> Work:
        """Return the computation of a training step; called once per stage."""

    def graph(self) -> bytes | None:
        """Return the network as a serialized tf.GraphDef, for TensorBoard; None if the engine has no such graph."""

    def profile(self, folder: Path) -> AbstractContextManager[None]:
        """Profile the devices within the context; writes TensorBoard files below `folder`. On the chief only."""

    def size(self) -> ModelSize:
        """Return the size of the network's variables."""

    def weights_checksum(self) -> str:
        """Return the SHA-256 (hex) of all weights in order."""

    def export(self, folder: Path, job: JobConfig, manifest: Manifest) -> float | None:
        """Write the model into `folder`, ready to serve, and model.keras for a Keras network. On the chief only.

        A SavedModel at the root of `folder` (`slipway.trainer.export.saved_model`), or the engine's own format
        (`EngineRow.model_file`). Returns its decision threshold, if it has one (`slipway.trainer.export.threshold`).
        """

    def close(self, wait_for_others: Callable[[], None], /) -> None:
        """Leave the cluster, after all processes have agreed that they are done.

        Args:
            wait_for_others: Blocks until all other processes have closed; for a chief that has to leave last.
        """


def choose_sharding(
    train: TrainSettings,
    size: ModelSize,
    memory: int | None,
    devices: int,
    agree: Callable[[Sequence[float]], list[float]],
) -> bool:
    """Return whether each of the job's devices holds only a part of the variables. All processes must call it.

    Args:
        train: The settings.
        size: The network's size.
        memory: A device's memory in bytes; None if unknown.
        devices: The number of devices of all processes.
        agree: `Engine.agree`.
    """
    if train.sharding != "auto" or devices == 1:
        return train.sharding == "fsdp" and devices > 1
    need = size.variables + size.trainable * (1 + slots(train.optimizer_kind))
    (exceeds,) = agree([float(memory is not None and need > memory)])
    if exceeds:
        text = (
            f"sharding the variables over {devices} devices (train.sharding: auto): with gradients and optimizer state "
        )
        text += f"they need {need / 2**30:.2f} GiB, and a device has {(memory or 0) / 2**30:.2f} GiB"
        logger.info("%s", text)
        events.message(text)
    return exceeds > 0


def load(name: str) -> Engine:
    """Load the engine called `name`, importing its libraries.

    Raises:
        UserError: The libraries are not installed.
    """
    installed.verify(name)
    engine: Engine = importlib.import_module(f"slipway.trainer.engines.{name}.engine").make()
    return engine


def verify_state(state: State, expected: Shapes) -> None:
    """Check that `state` has exactly the expected names, shapes and data types.

    Raises:
        UserError: It belongs to a different network or optimizer.
    """
    actual = {name: (tuple(array.shape), array.dtype.name) for name, array in state.items()}
    for name in [*expected, *actual]:
        if expected.get(name) != actual.get(name):
            raise UserError(
                f"The checkpoint is of a different network: for {name} it has {_words(actual.get(name))}, "
                f"the network {_words(expected.get(name))}.",
                setting="model.builder",
                fix="restore the settings that the checkpoint was written with, or start again with an empty "
                "checkpoint folder",
            )


def _words(entry: tuple[tuple[int, ...], str] | None) -> str:
    return "nothing" if entry is None else f"{entry[1]} {list(entry[0])}"
