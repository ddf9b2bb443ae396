"""The engines: what executes the training step. All take the same data, and give back plain numbers and arrays.

An engine's life is open, build, load_state (when resuming), then run, evaluate and agree as often as the loop asks,
export, close. On a job of several replicas every one makes the same calls in the same order, since most are collective:
all replicas meet in them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slipway.core.manifest import Manifest
from slipway.trainer.config import JobConfig
from slipway.trainer.distributed.cluster import Cluster
from slipway.trainer.engines import installed

State = dict[str, NDArray[Any]]


class PeerLost(Exception):
    """Another replica is gone; nothing is wrong with this one, but it cannot go on alone."""


@dataclass(frozen=True)
class StepFigures:
    """What a call's steps gave, float64 [steps]: mean loss and accuracy over the global batch, before its update.

    The loss is what is minimized: class weights and regularizers are in it. `waited` are the seconds of the call in
    which the steps waited for input; None where that cannot be told.
    """

    losses: NDArray[np.float64]
    accuracies: NDArray[np.float64]
    waited: float | None = None


@dataclass(frozen=True)
class Measured:
    """A split's mean loss and accuracy, and how many examples they are means of."""

    loss: float
    accuracy: float
    examples: int


class OutOfMemory(Exception):
    """A device's memory does not hold what a call needs.

    `fits` is how many examples a device can work through at once (trained on, with their gradients), as trials on that
    device have shown; None where it is not known, 0 where not even one fits.
    """

    def __init__(self, message: str, fits: int | None = None) -> None:
        super().__init__(message)
        self.fits = fits


@dataclass(frozen=True)
class Work:
    """What a training step asks of the devices.

    `device` is the name of one of them as its maker gives it ("NVIDIA H100 80GB HBM3", "TPU v5 lite", "CPU"), `devices`
    how many the whole job has, `precision` what they compute in, `step_flops` the floating-point operations of one
    step on all of them together (a multiplication and an addition are two), counted from the network's own forward and
    backward computation; None where the engine cannot count them.
    """

    device: str
    devices: int
    precision: str
    step_flops: float | None


@dataclass(frozen=True)
class ModelSize:
    """The bytes of all of a network's variables, and of those that are trained."""

    variables: int
    trainable: int


class Engine(Protocol):
    """What the loop asks of an engine."""

    def open(self, cluster: Cluster) -> str:
        """Take the devices and join the cluster; says in a few words on what it runs. Nothing else comes before."""

    def build(self, job: JobConfig, manifest: Manifest) -> None:
        """Make the network and its optimizer, seeded.

        Raises:
            UserError: The builder's or its network's mistakes, or a batch that the devices do not divide.
        """

    def run(self, data: Any, step: int, rates: NDArray[np.float32]) -> StepFigures:
        """Train exactly len(rates) steps, the first of them number `step` (from 0).

        Args:
            data: A slipway.trainer.data.inputs.TrainingData.
            step: The first one's number in the run.
            rates: Each step's learning rate, float32 [steps].

        Raises:
            OutOfMemory: A step needs more memory than a device has.
            PeerLost: Another replica is gone.
        """

    def evaluate(self, data: Any) -> Measured:
        """Measure a slipway.trainer.data.inputs.Evaluation over all replicas, each example once."""

    def agree(self, values: Sequence[float]) -> list[float]:
        """The greatest of each value over all replicas."""

    def state(self) -> State:
        """All that training needs to go on, by name: weights, optimizer, random state. Equal on every replica.

        The arrays are copies, which no later step writes to.
        """

    def load_state(self, state: State) -> None:
        """Take over what `state` gave.

        Raises:
            UserError: It is another network's or optimizer's.
        """

    def work(self) -> Work:
        """What a training step asks of the devices; may take a second, and is asked for once."""

    def graph(self) -> bytes | None:
        """The network as a serialized tf.GraphDef, for TensorBoard; None where the engine has no such graph."""

    def profile(self, folder: Path) -> AbstractContextManager[None]:
        """Within it, what the devices do is profiled; TensorBoard's files are then below `folder`. On the chief."""

    def size(self) -> ModelSize:
        """How much memory the network's variables take."""

    def weights_checksum(self) -> str:
        """SHA-256 (hex) over all weights in order."""

    def export(self, folder: Path, job: JobConfig, manifest: Manifest) -> None:
        """Write the model into `folder`, ready to serve, and model.keras where it is one of Keras. On the chief only.

        A SavedModel at the root of `folder` (`slipway.trainer.export.saved_model`), or for pytorch model.pt2
        (`slipway.trainer.engines.pytorch.export`).
        """

    def close(self, wait_for_others: Callable[[], None], /) -> None:
        """Leave the cluster, once all have agreed that they are done.

        Args:
            wait_for_others: Returns when all other replicas have closed theirs; for a chief that has to leave last.
        """


def load(name: str) -> Engine:
    """The engine of that name; imports its libraries.

    Raises:
        UserError: They are not installed.
    """
    installed.verify(name)
    engine: Engine = importlib.import_module(f"slipway.trainer.engines.{name}.engine").make()
    return engine
