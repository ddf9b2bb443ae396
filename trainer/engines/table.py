"""The table of engines: what each one imports, exports, supports and runs on.

Adding an engine takes a row in `ENGINES`, a folder trainer/engines/NAME, and its tests. The folder has `engine.py` with
`make()`, which returns a `slipway.trainer.engines.base.Engine`, and `export.py` with `write_custom()`, which exports a
custom program's network, and `load()` if the engine exports a format of its own. Imports nothing heavy: the command
line reads this table before it imports pydantic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from slipway.trainer.optimizers import OPTIMIZERS

SAVED_MODEL_FILE = "saved_model.pb"
# TensorFlow reaches TPUs from v5e on, those that are chosen by topology, through PJRT:
# https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/training-with-tpu-vm
PLUGGABLE_VARIABLE = "NEXT_PLUGGABLE_DEVICE_USE_C_API"
# From 9.11 on, cuDNN has no device code for GPUs before Turing; the images of tensorflow and jax have 9.28
# (requirements/trainer-gpu*.txt). Its support matrix begins at 7.5:
# https://docs.nvidia.com/deeplearning/cudnn/backend/v9.24.0/reference/support-matrix.html
# Reported: convolutions fail on a V100, or the process crashes: https://github.com/conda-forge/jaxlib-feedstock/pull/330
# and https://github.com/jax-ml/jax/issues/30663. (TensorFlow's own kernels would run from 6.0 on.)
CUDNN_COMPUTE_CAPABILITY = 7.5


@dataclass(frozen=True)
class Unsupported:
    """A setting of the section `train` that an engine does not support if `is_requested` is true of its value.

    `why` continues a sentence that begins with the engine's name.
    """

    setting: str
    is_requested: Callable[[Any], bool]
    why: str
    allowed: str
    nearest: str | None = None


@dataclass(frozen=True, kw_only=True)
class EngineRow:
    """The facts about one engine.

    Attributes:
        libraries: The libraries that it imports, as a title for messages.
        modules: The modules that it needs besides those of every engine (`READERS`).
        extra: The extra of the distribution that installs them; "" for none.
        keras_backend: The name of Keras's backend.
        imported_first: Modules that must be imported before TensorFlow.
        imported_first_if_installed: The same for optional modules.
        networks: The module that checks and measures the networks that the engine trains: `checked`, `size` and
            `output_elements` as in `slipway.trainer.engines.keras.model`.
        model_file: The exported model's main file: a SavedModel's, or that of a format of the engine's own, which
            only the engine's library can run.
        one_device_per_process: Whether a process trains on one device, so a replica has as many processes as devices.
        shards: Whether it can train with variables that are sharded over the devices (`train.sharding: fsdp`).
        custom_optimizer: The library of the optimizers that the user's functions return.
        compute_capability: The lowest of the GPUs that the build in Slipway's images supports.
        cuda_packages: The packages by which its library uses GPUs, with the CUDA version for which they are built;
            empty for PyTorch, whose own package says it.
        tpus: The TPU slices that it trains on; the catalogue of hardware names the TPU generations without support.
        topology_variables: The environment variables that it needs on TPUs that are chosen by topology.
        slices: The module whose `join` makes this process one of a slice's hosts, if it trains on several machines.
        not_prebuilt: Why Google's prebuilt prediction images (TensorFlow 2.15 at most) cannot serve its models, as the
            end of a sentence; "" if they can.
        ahead: How its step for GPUs is known ahead of time: compiled by XLA, or traced; "" for kernels of
            its own. For TPUs, XLA compiles the steps of all engines.
        compiles_each_batch: Whether the exported model's computation is compiled for each batch size.
        unsupported: The settings that it does not support.
    """

    libraries: str
    modules: tuple[str, ...] = ()
    extra: str = ""
    keras_backend: str
    imported_first: tuple[str, ...] = ()
    imported_first_if_installed: tuple[str, ...] = ()
    networks: str = "slipway.trainer.engines.keras.model"
    model_file: str = SAVED_MODEL_FILE
    one_device_per_process: bool = False
    shards: bool = False
    custom_optimizer: Literal["keras", "torch"] = "keras"
    compute_capability: float = CUDNN_COMPUTE_CAPABILITY
    cuda_packages: Mapping[str, int] = field(default_factory=dict)
    tpus: Literal["none", "one machine", "all"] = "one machine"
    topology_variables: Mapping[str, str] = field(default_factory=dict)
    slices: str = ""
    not_prebuilt: str = ""
    ahead: Literal["compiled", "traced", ""] = ""
    compiles_each_batch: bool = False
    unsupported: tuple[Unsupported, ...] = ()

    @property
    def exports_saved_model(self) -> bool:
        """Whether the exported model is a SavedModel, which TensorFlow runs without the engine's library."""
        return self.model_file == SAVED_MODEL_FILE


# TensorFlow reads the data for every engine; every engine trains Keras networks.
READERS = ("tensorflow", "keras")

ENGINES: dict[str, EngineRow] = {
    "tensorflow": EngineRow(
        libraries="TensorFlow",
        keras_backend="tensorflow",
        cuda_packages={"nvidia-cudnn-cu12": 12, "nvidia-cudnn-cu13": 13},
        topology_variables={PLUGGABLE_VARIABLE: "true"},
        unsupported=(
            Unsupported(
                "sharding",
                lambda value: value == "fsdp",
                "keeps all variables on each device",
                "auto, replicated",
                "auto",
            ),
        ),
    ),
    "jax": EngineRow(
        libraries="JAX and TensorFlow",
        modules=("jax", "jaxlib"),
        extra="jax",
        keras_backend="jax",
        ahead="compiled",
        imported_first=("jax.experimental.sparse",),
        cuda_packages={"jax-cuda12-plugin": 12, "jax-cuda13-plugin": 13},
        tpus="all",
        shards=True,
        slices="slipway.trainer.engines.jax.slices",
        # Measured with the wheels; the SavedModel contains XlaCallModule of version 10.
        not_prebuilt="TensorFlow 2.15 and 2.17 load its SavedModels but fail at the first prediction",
        compiles_each_batch=True,
        unsupported=(
            Unsupported("xla", lambda value: value is False, "always compiles with XLA", "auto, true", "auto"),
        ),
    ),
    "pytorch": EngineRow(
        libraries="PyTorch and TensorFlow",
        modules=("torch",),
        extra="pytorch",
        keras_backend="torch",
        # Triton is part of PyTorch's GPU builds, which import it lazily. After TensorFlow (2.20 and later) that crashes
        # with SIGSEGV, since TensorFlow exports its LLVM symbols:
        # https://github.com/tensorflow/tensorflow/issues/124205
        imported_first_if_installed=("triton",),
        imported_first=("torch",),
        networks="slipway.trainer.engines.pytorch.network",
        model_file="model.pt2",
        one_device_per_process=True,
        shards=True,
        custom_optimizer="torch",
        ahead="traced",
        # torch 2.13 for CUDA 13 has kernels from 7.5 on, and needs driver 580 or later:
        # https://github.com/pytorch/pytorch/issues/172352
        compute_capability=7.5,
        # torch_xla 2.9, the last release, is built for torch 2.9.
        tpus="none",
        not_prebuilt="its models are not SavedModels but model.pt2",
        unsupported=(
            Unsupported("xla", lambda value: value is True, "does not compile with XLA", "auto, false", "false"),
            Unsupported(
                "optimizer",
                lambda name: name in OPTIMIZERS and OPTIMIZERS[name].torch is None,
                "does not have this optimizer",
                ", ".join(name for name, row in OPTIMIZERS.items() if row.torch),
                "adam",
            ),
        ),
    ),
}


def model_files() -> list[str]:
    """Return the main files of all engines' exported models, a SavedModel's first."""
    return list(dict.fromkeys([SAVED_MODEL_FILE, *(row.model_file for row in ENGINES.values())]))


def readers(engine: str, replicas: int, devices: int) -> int:
    """Return how many processes read the data set, with `devices` per replica (0: only CPUs)."""
    return replicas * max(1, devices) if ENGINES[engine].one_device_per_process else replicas
