"""The GPUs of this machine, as its driver names them, and whether a run on this machine can train on them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from packaging.version import Version

from slipway.core.errors import UserError
from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.hardware.grammar import HERE
from slipway.trainer.distributed.accelerators import VISIBLE_GPUS_VARIABLE
from slipway.trainer.engines.installed import package
from slipway.trainer.engines.table import ENGINES

QUERY = ("index", "uuid", "name", "memory.total", "compute_cap", "driver_version")
TIMEOUT = 30.0
VENDOR = re.compile(r"(?i)\b(?:nvidia|geforce|tesla|quadro)\b")
# The packages by which an engine's library uses GPUs, with the CUDA version for which they are built. PyTorch's own
# package says it itself.
CUDA_PACKAGES = {
    "tensorflow": {"nvidia-cudnn-cu12": 12, "nvidia-cudnn-cu13": 13},
    "jax": {"jax-cuda12-plugin": 12, "jax-cuda13-plugin": 13},
}
CUDA_INSTALL = {"tensorflow": "'tensorflow[and-cuda]'", "jax": "'jax[cuda13]'", "pytorch": "torch"}
# The oldest Linux drivers of CUDA's major versions:
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
OLDEST_DRIVER = {12: "525.60.13", 13: "580.65.06"}


@dataclass(frozen=True)
class Gpu:
    """A GPU that programs on this machine see; its memory in MiB."""

    index: int
    uuid: str
    title: str
    memory: int
    compute_capability: float
    driver: str

    @property
    def kind(self) -> str:
        """Its name as in a choice: "rtx4090" is NVIDIA GeForce RTX 4090, "a100" is NVIDIA A100-SXM4-80GB."""
        words = VENDOR.sub("", self.title).replace("-", " ").lower().split()
        with_digits = next((number for number, word in enumerate(words, 1) if re.search(r"\d", word)), len(words))
        model = words[with_digits : with_digits + 1]
        return "".join(words[:with_digits] + [word for word in model if word in ("ti", "super", "ada")])


def find() -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves visible, in the driver's order; none without NVIDIA's driver.

    Raises:
        UserError: The driver is installed and does not respond.
    """
    visible = os.environ.get(VISIBLE_GPUS_VARIABLE)
    found = _installed()
    if visible is None:
        return found
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return tuple(gpu for name in names for gpu in found if name == str(gpu.index) or gpu.uuid.startswith(name))


@lru_cache(maxsize=1)
def _installed() -> tuple[Gpu, ...]:
    if shutil.which("nvidia-smi") is None:
        return ()
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    fix = "check that the driver is loaded: nvidia-smi"
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"nvidia-smi did not answer within {TIMEOUT:g} s.", fix=fix) from None
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines() if line.count(",") >= 5]
    if answer.returncode or not rows:
        said = (answer.stderr or answer.stdout).strip()[:200]
        raise UserError(f"nvidia-smi is installed but finds no GPU: {said}", fix=fix)
    return tuple(
        Gpu(int(index), uuid, title, int(memory), float(capability), driver)
        for index, uuid, title, memory, capability, driver in rows
    )


def kind() -> str | None:
    """Return the kind of this machine's GPUs, or None if there is none, or if they differ."""
    kinds = {gpu.kind for gpu in find()}
    return kinds.pop() if len(kinds) == 1 else None


def describe() -> str:
    """Return this machine's GPUs in words, "" without any: "2 x NVIDIA L4, 22 GiB each, driver 580.95"."""
    alike = Counter((gpu.title, gpu.memory, gpu.driver) for gpu in find())
    return "; ".join(
        f"{count} x {title}, {memory / 1024:.0f} GiB{' each' * (count > 1)}, driver {driver}"
        for (title, memory, driver), count in alike.items()
    )


def check(hardware: Hardware) -> str:
    """Return the GPUs on which a run on this machine trains, in words.

    Raises:
        UserError: This machine has not as many of that kind.
    """
    found, needed = find(), hardware.accelerators_per_replica * hardware.replicas
    row = hardware.accelerator_row
    assert row is not None
    if hardware.replicas > 1:
        raise UserError(
            f"{hardware} has {hardware.replicas} replicas; on one machine, one replica trains on all of its GPUs.",
            setting="hardware",
            value=str(hardware),
            allowed="one replica",
            nearest=f"{HERE}x{needed}",
            fix=f"--hardware {HERE}x{needed}",
        )
    alike = [gpu for gpu in found if row.name == HERE or row.name.replace("-", "").startswith(gpu.kind)]
    if len(alike) == len(found) >= needed:
        return f"{needed} of {describe()}" if len(found) > needed else describe()
    near = {0: "cpu", 1: HERE}.get(len(found), f"{HERE}x{len(found)}")
    rehearse = f"slipway rehearse --hardware '{hardware}'"
    raise UserError(
        f"{hardware} needs {needed} {row.title}{'s' * (needed > 1)} here; this machine has {describe() or 'no GPU'}.",
        setting="hardware",
        value=str(hardware),
        allowed=", ".join(["cpu", "cpu*2 …", *[f"{HERE} to {near}" if len(found) > 1 else HERE] * bool(found)]),
        nearest=near,
        fix=f"--hardware {near}; or, to try the layout on the CPU: {rehearse}",
    )


def check_engine(engine: str) -> str:
    """Return the CUDA version that the engine's library is built for, in words.

    Raises:
        UserError: The library is not built for GPUs, or for newer ones, or needs a newer driver.
    """
    cuda = _cuda_of(engine)
    libraries = ENGINES[engine].libraries.partition(" and ")[0]
    if cuda is None:
        raise UserError(
            f"{libraries} is installed without support for GPUs.",
            setting="train.engine",
            value=engine,
            allowed="a build for CUDA, or --hardware cpu",
            fix=f"pip install -U {CUDA_INSTALL[engine]}",
        )
    lowest = ENGINES[engine].compute_capability
    for gpu in find():
        if gpu.compute_capability < lowest:
            raise UserError(
                f"{gpu.title} has compute capability {gpu.compute_capability}; {engine} needs {lowest} or later.",
                setting="hardware",
                value=HERE,
                allowed=f"GPUs of compute capability {lowest} or later",
                fix="--hardware cpu",
            )
        if Version(gpu.driver) < Version(OLDEST_DRIVER[cuda]):
            raise UserError(
                f"{libraries} is built for CUDA {cuda}, which needs driver {OLDEST_DRIVER[cuda]} or later; "
                f"{gpu.title} has {gpu.driver}.",
                fix=f"update NVIDIA's driver, or install {package(ENGINES[engine].extra)} for an earlier CUDA",
            )
    return f"CUDA {cuda}"


def _cuda_of(engine: str) -> int | None:
    """Return the major CUDA version that the engine's installed library is built for; None for CPUs only."""
    if engine in CUDA_PACKAGES:
        return next((cuda for name, cuda in CUDA_PACKAGES[engine].items() if _is_installed(name)), None)
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    text = Path(torch.origin).with_name("version.py").read_text()  # importing it takes seconds
    built = re.search(r"^cuda\b[^=\n]*= '(\d+)", text, re.MULTILINE)
    return int(built[1]) if built else None


def _is_installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False
