"""The GPUs of this machine, as its driver names them, and whether a run on this machine can train on them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from slipway.core.errors import UserError
from slipway.pipelines.hardware.catalogue import Accelerator
from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.hardware.grammar import HERE
from slipway.trainer.engines.installed import package
from slipway.trainer.engines.table import ENGINES

QUERY = ("index", "uuid", "name", "memory.total", "compute_cap", "driver_version")
TIMEOUT = 30.0
VENDOR = re.compile(r"(?i)\b(?:nvidia|geforce|tesla|quadro)\b")
# The oldest Linux drivers of CUDA's major versions:
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
OLDEST_DRIVER = {12: "525.60.13", 13: "580.65.06"}


@dataclass(frozen=True)
class Gpu:
    """A GPU that programs on this machine see; its memory in MiB. What the driver does not know is None."""

    index: int
    uuid: str
    title: str
    memory: float | None
    compute_capability: float | None
    driver: str

    @property
    def kind(self) -> str:
        """Its name as in a choice: "rtx4090" is NVIDIA GeForce RTX 4090, "a100" is NVIDIA A100-SXM4-80GB."""
        words = VENDOR.sub("", self.title).replace("-", " ").lower().split()
        with_digits = next((number for number, word in enumerate(words, 1) if re.search(r"\d", word)), len(words))
        model = words[with_digits : with_digits + 1]
        return "".join(words[:with_digits] + [word for word in model if word in ("ti", "super", "ada")])


def find() -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA sees, in the order of CUDA_VISIBLE_DEVICES or nvidia-smi; none without NVIDIA's driver.

    Raises:
        UserError: nvidia-smi is installed and lists no GPU.
    """
    installed = _installed()
    if isinstance(installed, UserError):
        raise installed
    if not installed:
        return ()
    from slipway.trainer.distributed.accelerators import VISIBLE_GPUS_VARIABLE

    visible = os.environ.get(VISIBLE_GPUS_VARIABLE)
    if visible is None:
        return installed
    chosen: list[Gpu] = []
    for name in visible.split(","):
        gpu = _named(name.strip(), installed)
        if gpu is None:  # CUDA ignores an invalid name and all after it
            break
        chosen.append(gpu)
    return tuple(chosen)


def _named(name: str, gpus: tuple[Gpu, ...]) -> Gpu | None:
    """Return the GPU that a name in CUDA_VISIBLE_DEVICES means: an index, the start of a UUID, or a MIG device."""
    if name.startswith("MIG-") and gpus:  # nvidia-smi's query lists only whole GPUs
        return replace(gpus[0], uuid=name, title=f"MIG device of {gpus[0].title}", memory=None)
    return next(
        (gpu for gpu in gpus if name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name))),
        None,
    )


@lru_cache(maxsize=1)
def _installed() -> tuple[Gpu, ...] | UserError:
    """Return the GPUs that nvidia-smi lists; an error, too, so that a driver that hangs is waited for only once."""
    if shutil.which("nvidia-smi") is None:
        return ()
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    fix = "install or update NVIDIA's driver until nvidia-smi lists the GPUs"
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return UserError(f"nvidia-smi did not respond within {TIMEOUT:g} s.", fix=fix)
    except OSError as error:
        return UserError(f"nvidia-smi cannot be run: {error}.", fix=fix)
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines()]
    rows = [row for row in rows if len(row) == len(QUERY) and row[0].isdecimal()]
    if answer.returncode or not rows:
        output = " ".join((answer.stderr or answer.stdout).split())[:200]
        return UserError(
            f"nvidia-smi is installed but lists no GPU: {output or f'status {answer.returncode}'}", fix=fix
        )
    return tuple(
        Gpu(int(index), uuid, title, _number(memory), _number(capability), driver)
        for index, uuid, title, memory, capability, driver in rows
    )


def _number(text: str) -> float | None:
    """Return a number of nvidia-smi; None for "[N/A]", "[Not Supported]" and "[Unknown Error]"."""
    try:
        return float(text)
    except ValueError:
        return None


def kind() -> str | None:
    """Return the kind of this machine's GPUs, or None if there is none, if they differ, or nvidia-smi fails."""
    try:
        kinds = {gpu.kind for gpu in find()}
    except UserError:
        return None
    return kinds.pop() if len(kinds) == 1 else None


def describe() -> str:
    """Return this machine's GPUs in words, "" without any: "2 x NVIDIA L4, 22 GiB each, driver 580.95"."""
    texts = []
    for (title, memory, driver), count in Counter((gpu.title, gpu.memory, gpu.driver) for gpu in find()).items():
        size = f", {memory / 1024:.0f} GiB{' each' * (count > 1)}" if memory else ""
        texts.append(f"{count} x {title}{size}, driver {driver}")
    return "; ".join(texts)


def check(hardware: Hardware) -> str:
    """Return the GPUs on which a run on this machine trains, in words.

    Raises:
        UserError: This machine does not have as many of that kind.
    """
    gpus, needed = find(), hardware.accelerators_per_replica * hardware.replicas
    row = hardware.accelerator_row
    assert row is not None
    near = {0: "cpu", 1: HERE}.get(usable := min(needed, len(gpus)), f"{HERE}x{usable}")
    alike = [gpu for gpu in gpus if row.name == HERE or _is_one(gpu, row)]
    fix = f"--hardware {near}"
    if hardware.replicas > 1:
        message = f"{hardware} has {hardware.replicas} replicas; on one machine, one replica trains on all of its GPUs."
        allowed = "one replica"
    elif len(alike) == len(gpus) >= needed:
        return f"{needed} of {describe()}" if len(gpus) > needed else describe()
    else:
        kind = f"{row.title}{'s' * (needed > 1)}"
        message = f"{hardware} needs {needed} {kind} here; this machine has {describe() or 'no GPU'}."
        most = f"{HERE} to {HERE}x{len(gpus)}" if len(gpus) > 1 else HERE
        allowed = ", ".join(["cpu", "cpu*2 …", *[most] * bool(gpus)])
        fix += f"; or, to try the layout on the CPU: slipway rehearse --hardware '{hardware}'"
    raise UserError(message, setting="hardware", value=str(hardware), allowed=allowed, nearest=near, fix=fix)


def _is_one(gpu: Gpu, row: Accelerator) -> bool:
    """Whether a GPU is one of the catalogue's, whose memory the driver reports with up to a tenth less."""
    is_large_enough = gpu.memory is None or gpu.memory / 1024 > 0.9 * row.memory_gb
    return row.name.replace("-", "").startswith(gpu.kind) and is_large_enough


def check_engine(engine: str, count: int) -> str:
    """Return the CUDA version that the engine's library is built for, in words; it trains on the first `count` GPUs.

    Raises:
        UserError: The library is built for CPUs only or for newer GPUs, or needs a newer driver.
    """
    cuda = _cuda_of(engine)
    libraries = ENGINES[engine].libraries.partition(" and ")[0]
    if cuda is None:
        from slipway.trainer.distributed.libraries import LIBRARIES

        raise UserError(
            f"{libraries} is installed without support for GPUs.",
            setting="train.engine",
            value=engine,
            allowed="a build for CUDA, or --hardware cpu",
            fix=f"pip install -U {LIBRARIES[ENGINES[engine].keras_backend].packages['gpu']}",
        )
    lowest = ENGINES[engine].compute_capability
    for gpu in find()[:count]:
        if gpu.compute_capability is not None and gpu.compute_capability < lowest:
            raise UserError(
                f"{gpu.title} has compute capability {gpu.compute_capability}; {engine} needs {lowest} or later.",
                setting="hardware",
                value=HERE,
                allowed=f"GPUs of compute capability {lowest} or later",
                fix="--hardware cpu",
            )
        if _is_older(gpu.driver, OLDEST_DRIVER[cuda]):
            raise UserError(
                f"{libraries} is built for CUDA {cuda}, which needs driver {OLDEST_DRIVER[cuda]} or later; "
                f"{gpu.title} has {gpu.driver}.",
                fix=f"update NVIDIA's driver, or install {package(ENGINES[engine].extra)} for an earlier CUDA",
            )
    return f"CUDA {cuda}"


def _is_older(driver: str, oldest: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(driver) < Version(oldest)
    except InvalidVersion:  # "[N/A]"
        return False


def _cuda_of(engine: str) -> int | None:
    """Return the major CUDA version that the engine's installed library is built for; None for CPUs only."""
    if packages := ENGINES[engine].cuda_packages:
        from importlib import metadata  # `slipway hardware` does not need it

        return next((cuda for name, cuda in packages.items() if any(metadata.distributions(name=name))), None)
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    text = Path(torch.origin).with_name("version.py").read_text()  # importing it takes seconds
    built = re.search(r"^cuda\b[^=\n]*= '(\d+)", text, re.MULTILINE)
    return int(built[1]) if built else None
