"""The training step as the compiler of a TPU or GPU sees it, without one: its memory, largest batch and least time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Literal

from slipway.core import manifest as manifests
from slipway.core.durations import between
from slipway.core.errors import UserError
from slipway.core.parent_death import dying_with_parent
from slipway.pipelines.hardware.catalogue import Accelerator
from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.hardware.estimate import Estimate, Training, estimate, product
from slipway.pipelines.hardware.memory import GIB, device_bytes, larger
from slipway.trainer.config import JobConfig, ModelSettings, Plan, TrainSettings
from slipway.trainer.engines import ahead
from slipway.trainer.engines.ahead import Answer, Costs, Profile
from slipway.trainer.engines.installed import is_installed, package
from slipway.trainer.engines.jax import ahead as jax_ahead
from slipway.trainer.engines.jax.ahead import Topology
from slipway.trainer.engines.pytorch import ahead as pytorch_ahead
from slipway.trainer.engines.table import ENGINES
from slipway.trainer.plan import whole_length

Platform = Literal["cuda", "tpu"]
# The modules that compile for each, and the extra that installs them.
COMPILERS = {
    "tpu": (("jax", "libtpu"), "jax,compile-tpu"),
    "cuda": (("jax", "jax_cuda12_plugin", "jax_plugins"), "jax,compile-gpu"),
}
LIMIT_SECONDS = 900
# Of a device's memory; the rest is reserved.
_USABLE = 0.98
# How the chips of a machine are arranged.
BOUNDS = {1: (1, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)}


def missing(hardware: Hardware, engine: str) -> str | None:
    """Return why an engine's step cannot be compiled for this hardware here, as a phrase; None if it can."""
    row = hardware.accelerator_row
    if row is None:
        return "this is for accelerators"
    if _is_traced(hardware, engine) and row.compute_capability is None:
        return f"the memory of a {row.title} of any kind is not known"
    if _is_traced(hardware, engine):
        return None if is_installed("torch") else f"without torch: pip install {package('pytorch')}"
    if not row.is_tpu and row.chip is None:
        return f"XLA's description of {row.title} is not known"
    if not row.is_tpu and ENGINES[engine].ahead != "compiled":
        return (
            f"{engine} has kernels of its own on GPUs; slipway hardware --compare estimates them as JAX compiles them"
        )
    if row.is_tpu and hardware.topology is None and hardware.chips & (hardware.chips - 1):
        return f"the arrangement of {hardware.chips} chips is not known"
    modules, extras = COMPILERS[_platform(hardware)]
    lacking = [name for name in modules if not is_installed(name)]
    return f"without {' and '.join(lacking)}: pip install {package(extras)}" if lacking else None


def program(platform: Platform, engine: str) -> str:
    """Return how a step is known: "compiled" by XLA, as jax's steps are, or "traced" by PyTorch, as its own on GPUs."""
    return "traced" if platform == "cuda" and ENGINES[engine].ahead == "traced" else "compiled"


def _is_traced(hardware: Hardware, engine: str) -> bool:
    return program(_platform(hardware), engine) == "traced"


def _program(hardware: Hardware, engine: str) -> ModuleType:
    """Return the module that is executed, with what it says of itself."""
    return pytorch_ahead if _is_traced(hardware, engine) else jax_ahead


def _request(hardware: Hardware, job: JobConfig, *, largest: bool) -> ahead.Request:
    row = hardware.accelerator_row
    assert row is not None
    asked = {"job": job, "memory": device_bytes(hardware) or 0, "product": product(row), "largest": largest}
    if not _is_traced(hardware, job.train.engine):
        return jax_ahead.Request(topology=topology(hardware), **asked)
    major, minor = map(int, str(row.compute_capability).split("."))
    return pytorch_ahead.Request(devices=hardware.count * hardware.replicas, capability=(major, minor), **asked)


def _platform(hardware: Hardware) -> Platform:
    return "tpu" if hardware.is_tpu else "cuda"


def topology(hardware: Hardware) -> Topology:
    """Return the devices of all replicas as their compiler names them."""
    row = hardware.accelerator_row
    assert row is not None
    return _tpu_topology(hardware) if hardware.is_tpu else gpu_topology(row, hardware.replicas, hardware.count)


def gpu_topology(row: Accelerator, machines: int, count: int) -> Topology:
    """Return GPUs, `count` in each machine, by XLA's GpuTargetConfigProto, as text, and as slices x machines x GPUs.

    https://github.com/openxla/xla/blob/main/xla/stream_executor/device_description.proto; what is not the product's own
    is the same for all GPUs of these generations.
    """
    chip, capability = row.chip, str(row.compute_capability).split(".")
    assert chip is not None
    described = f"""
        gpu_device_info {{
          threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: {chip.threads}
          shared_memory_per_block: 49152 shared_memory_per_core: {chip.shared_bytes}
          shared_memory_per_block_optin: {chip.block_shared_bytes}
          core_count: {chip.multiprocessors} fpus_per_core: {chip.fpus} clock_rate_ghz: {chip.ghz}
          block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
          memory_bandwidth: {chip.bandwidth} l2_cache_size: {chip.l2_bytes} device_memory_size: {row.memory_gb * GIB}
          cuda_compute_capability {{ major: {capability[0]} minor: {capability[1]} }}
          registers_per_core_limit: 65536 registers_per_block_limit: 65536
        }}
        platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }}
        runtime_version {{ major: 12 minor: 8 }} device_description_str: "{row.title}"
    """
    size = f"1x{machines}x{count}"
    return Topology(name=row.name, platform="cuda", options={"target_config": described, "topology": size})


def _tpu_topology(hardware: Hardware) -> Topology:
    """Return a TPU's topology as its compiler names it.

    Chips of v2 and v3, which the catalogue counts in cores, form squares or rectangles of two squares. The two cores of
    a chip of v4 work as one device.
    """
    row = hardware.accelerator_row
    assert row is not None
    shape = hardware.topology
    if shape is None:
        side = 2 ** ((hardware.chips.bit_length() - 1) // 2)
        shape = f"{side}x{hardware.chips // side}"
    per_host = hardware.chips // hardware.machines_per_replica
    options: dict[str, object] = {"chips_per_host_bounds": BOUNDS[per_host]}
    if row.name == "tpu-v4":
        options["chip_config_name"] = "megacore"
    return Topology(name=f"{row.name.removeprefix('tpu-')}:{shape}", options=options)


def job_of(model: ModelSettings, train: TrainSettings, data: Path) -> JobConfig:
    """Return the job of a training in one process with a prepared data set, a folder of this machine."""
    batch = train.batch_size
    steps_per_epoch = max(1, manifests.read(data).splits["train"].examples // batch)
    steps = whole_length(train, batch, steps_per_epoch)
    plan = Plan(replicas=1, batch_per_replica=batch, steps_per_epoch=steps_per_epoch, steps=steps)
    return JobConfig(data=str(data), model=model, train=train, plan=plan)


def compiled(hardware: Hardware, job: JobConfig, *, largest: bool = False) -> Answer:
    """Compile a job's step for accelerators that are not there; PyTorch's is traced for GPUs.

    Takes 10 to 30 seconds of CPU, and 5 more for each other batch. A step that a GPU has too little memory for is not
    refused: its estimate has not been compared with measurements.

    Args:
        hardware: The accelerators.
        job: The job; its data set is a folder of this machine.
        largest: Whether to search the largest batch that fits, if the job's does.

    Raises:
        UserError: The network cannot be built with JAX, or the step does not fit; says which batch does.
    """
    program, request = _program(hardware, job.train.engine), _request(hardware, job, largest=largest)
    command = dying_with_parent([sys.executable, "-m", program.__name__, request.model_dump_json()])
    ended = executed(command, {**os.environ, **program.ENVIRONMENT})
    if isinstance(ended, str):
        if _is_traced(hardware, job.train.engine):  # not every step that PyTorch executes can be traced
            return Answer(devices=0, kind=request.product, fits=True, unknown=ended)
        raise _failed(job, ended)
    answer = Answer.model_validate_json(ended.stdout.splitlines()[-1])
    if not answer.fits and hardware.is_tpu:
        raise _too_large(hardware, job, answer)
    return answer


def executed(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str] | str:
    """Return a program that has ended well, or why it has not."""
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"it took longer than {LIMIT_SECONDS} s"
    if ended.returncode < 0:
        return f"{signal.Signals(-ended.returncode).name} ended it; SIGKILL does for a lack of memory"
    if ended.returncode:
        lines = ended.stderr.strip().splitlines()
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]  # XLA's have more lines
        return (errors or lines or [f"exit code {ended.returncode}"])[-1]
    return ended


def _failed(job: JobConfig, why: str) -> UserError:
    return UserError(
        f"The step could not be compiled: {why}",
        setting="model.builder",
        value=job.model.builder,
        fix="correct the network, or train without this check by uninstalling libtpu or jax-cuda12-plugin",
    )


def _too_large(hardware: Hardware, job: JobConfig, answer: Answer) -> UserError:
    """Return the error for a step that does not fit, with the batch or the accumulation that does."""
    most = answer.largest_batch
    return UserError(
        f"The training step does not fit on {title(hardware)}: {answer.refusal}",
        setting="train.batch_size",
        value=job.train.batch_size,
        allowed=f"about {most} at most" if most else "no batch fits",
        nearest=str(most) if most else None,
        fix=fixes(hardware, job, answer),
    )


def fixes(hardware: Hardware, job: JobConfig, answer: Answer) -> str:
    """Return the settings, and the hardware, with which a step fits that does not."""
    asked, parts, most = job.train.batch_size, job.train.accumulation, answer.largest_batch
    proposals = [f"--set train.batch_size={most}"] if most else []
    savings = sorted(answer.savings.items(), key=lambda pair: pair[1])
    proposals[:0] = [f"--set {change}, which takes {taken / GIB:.2f} GiB per device" for change, taken in savings]
    times = next(
        (times for times in range(2, asked + 1) if asked % (times * parts) == 0 and asked / times <= (most or 0)), 0
    )
    if times:
        proposals.append(f"--set train.accumulation={times * parts}, which keeps the batch")
    part = _program(hardware, job.train.engine).GPU_MEMORY
    needed = (answer.peak_bytes or 0) / part if not hardware.is_tpu else _used(answer.refusal)
    candidates = larger(hardware, job.train.engine) if needed else []
    if near := next((other for other in candidates if needed <= _USABLE * (device_bytes(other) or 0)), None):
        proposals.append(f"--hardware '{near}'")
    return ", or ".join(proposals) or "a smaller model, or hardware with more memory: slipway hardware"


def _used(refusal: str) -> float:
    """Return the bytes that a step needs by a TPU compiler's refusal; 0 if that does not say."""
    match = re.search(r"([\d.]+)([MG])\)? (?:of|exceeds)", refusal)
    return float(match[1]) * {"M": 2**20, "G": GIB}[match[2]] if match else 0.0


def title(hardware: Hardware) -> str:
    """Return the accelerators' name with the number of a TPU's chips, or of GPUs."""
    row = hardware.accelerator_row
    assert row is not None
    if not row.is_tpu:
        return f"{hardware.count * hardware.replicas} {row.title}"
    return f"{row.title} with {hardware.chips} chip{'s' if hardware.chips > 1 else ''}"


def sentences(hardware: Hardware, job: JobConfig, answer: Answer, *, steps: int = 0) -> list[str]:
    """Return what the compiler found as sentences for people; `steps` are those of the whole run, 0 if unknown."""
    row, peak, has = hardware.accelerator_row, answer.peak_bytes or 0, device_bytes(hardware) or 0
    assert row is not None
    if answer.unknown:
        return [f"the step was not traced: {answer.unknown}"]
    is_traced = _is_traced(hardware, job.train.engine)
    used = f"{peak / GIB:.2f}" if peak >= GIB / 100 else f"{peak / 2**20:.1f} MiB"
    device = "GPU" if not row.is_tpu else "core" if row.cores_per_chip > 1 else "chip"
    lines = [
        f"{'traced' if is_traced else 'compiled'} for {title(hardware)}: {used} of {has / GIB:.0f} GiB per {device}"
        + (", without CUDA's context and workspaces" if is_traced else "")
    ]
    if not answer.fits:
        largest = f"the largest batch is about {answer.largest_batch:,}" if answer.largest_batch else "no batch fits"
        why = "CUDA needs the rest" if is_traced else "JAX takes no more"
        part = _program(hardware, job.train.engine).GPU_MEMORY
        lines.append(f"the step does not fit by this estimate in {part:.0%} of a GPU, as {why}: {largest}")
    elif most := answer.largest_batch:
        examples = manifests.read(Path(job.data)).splits["train"].examples
        is_all = most > examples - answer.devices * job.train.accumulation
        fits = "every batch of the training split fits" if is_all else f"largest batch about {most:,}"
        lines.append(f"{fits}; {job.train.batch_size:,} is set")
    if (known := estimated(hardware, job, answer)) is not None:
        step = known.step
        whole = step.times(steps)
        lines.append(
            f"{between(step.low, step.high)} a step, limited by {known.limit}"
            + (f": {steps:,} steps in {between(whole.low, whole.high)}, without input and checkpoints" if steps else "")
        )
    if ENGINES[job.train.engine].ahead != "compiled" and not is_traced:
        lines.append(f"compiled through JAX; {job.train.engine} compiles the same network by itself")
    return lines


def estimated(hardware: Hardware, job: JobConfig, answer: Answer) -> Estimate | None:
    """Return the estimate of the step that was compiled for these devices; None if it is not known."""
    if not answer.flops:
        return None
    costs = Costs(
        batch=job.train.batch_size, peak_bytes=answer.peak_bytes or 0, flops=answer.flops,
        traffic_bytes=answer.traffic_bytes, kernels=answer.kernels,
    )  # fmt: skip
    known = Profile(devices=hardware.accelerators_per_replica * hardware.replicas, costs=costs)
    training = Training(train=job.train, manifest=manifests.read(Path(job.data)), examples_per_core=None)
    return estimate(hardware, training, known, program(_platform(hardware), job.train.engine))
