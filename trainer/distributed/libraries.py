"""Count the accelerators that frameworks see, which train on the CPU without an error if they see none.

This file's text is also a program for any Python, with or without Slipway: `python -c TEXT gpu 4` prints what the
installed frameworks see, and exits with `UNSEEN` if there are any and none of them sees enough.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNSEEN = 3
# Where the runtime is that every framework needs for TPUs: a package, a path in a variable, or a system's library.
_TPU_RUNTIMES = ("libtpu", "torch_tpu")
_TPU_RUNTIME_VARIABLE = "TPU_LIBRARY_PATH"
_TPU_RUNTIME_FILES = (Path("/lib/libtpu.so"), Path("/usr/lib/libtpu.so"))


@dataclass(frozen=True)
class Library:
    """A framework: its title, the packages that use each kind of accelerator, and how many of a kind it sees."""

    title: str
    packages: Mapping[str, str]
    count: Callable[[Any, str], int]


def _tensorflow_count(tensorflow: Any, kind: str) -> int:
    config = tensorflow.config  # a TPU's cores are logical devices, once it is initialized
    return len(config.list_logical_devices("TPU") if kind == "tpu" else config.list_physical_devices("GPU"))


def _jax_count(jax: Any, kind: str) -> int:
    names = [device.platform for device in jax.local_devices()]
    return sum({"cpu": "cpu", "tpu": "tpu"}.get(name, "gpu") == kind for name in names)


def _torch_count(torch: Any, kind: str) -> int:
    if kind == "gpu":  # device_count alone asks NVML, which also counts GPUs whose driver is too old for this build
        return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
    runtime = sys.modules.get("torch_xla.runtime")  # on a machine without TPU, it computes on the CPU
    if runtime is not None:
        return int(runtime.addressable_device_count()) if runtime.device_type() == "TPU" else 0
    return int("torch_tpu" in sys.modules)


# By the module's name, which is that of Keras's backend.
LIBRARIES = {
    "tensorflow": Library(
        "TensorFlow",
        {"gpu": "'tensorflow[and-cuda]'", "tpu": "tensorflow-tpu"},
        _tensorflow_count,
    ),
    "jax": Library("JAX", {"gpu": "'jax[cuda13]'", "tpu": "'jax[tpu]'"}, _jax_count),
    "torch": Library("PyTorch", {"gpu": "torch", "tpu": "torch_tpu"}, _torch_count),
}


def suffices(kind: str, planned: int, seen: int) -> bool:
    """Whether that many are what was planned; the devices of a TPU chip depend on its generation and library."""
    return seen == planned if kind == "gpu" and planned else seen >= max(1, planned)


def unseen(kind: str, planned: int) -> str:
    """Return what the installed frameworks see, in words; "" if one of them sees enough, or none is installed.

    A TPU's chips are not counted, because only one process can open them, and on a slice only all hosts together.
    """
    problems = []
    for name in reversed(LIBRARIES):  # TensorFlow, which takes longest, last
        if not _installed(name):
            continue
        title = LIBRARIES[name].title
        if kind == "tpu":
            problems.append(f"{title} has no libtpu")
            continue
        answer = _counted(name, kind)
        if not answer.isdecimal():
            problems.append(f"{title} fails ({answer})")
            continue
        if suffices(kind, planned, int(answer)):
            return ""
        problems.append(f"{title} sees {answer}")
    return "" if kind == "tpu" and _has_tpu_runtime() else " and ".join(problems)


def _counted(name: str, kind: str) -> str:
    """Return how many accelerators a framework sees, or what it failed with.

    In a process of its own, because some frameworks crash beside others.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = str(LIBRARIES[name].count(importlib.import_module(name), kind))
        except BaseException as error:
            answer = str(error).partition("\n")[0] or type(error).__name__
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        reply = answers.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return reply or f"status {status}"


def _has_tpu_runtime() -> bool:
    packages = any(_installed(name) for name in _TPU_RUNTIMES)
    return packages or _TPU_RUNTIME_VARIABLE in os.environ or any(path.exists() for path in _TPU_RUNTIME_FILES)


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


if __name__ == "__main__":
    os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
    if problem := unseen(sys.argv[1], int(sys.argv[2])):
        print(problem)
        sys.exit(UNSEEN)
