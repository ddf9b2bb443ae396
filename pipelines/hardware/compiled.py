"""The training step as a TPU's compiler sees it, without a TPU: its memory, its largest batch and its least time."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from slipway.core import manifest as manifests
from slipway.core.errors import UserError
from slipway.core.parent_death import dying_with_parent
from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.hardware.memory import GIB, device_bytes
from slipway.trainer.config import JobConfig, ModelSettings, Plan, TrainSettings
from slipway.trainer.engines.installed import package
from slipway.trainer.engines.jax.ahead import ENVIRONMENT, Answer, Request, Topology
from slipway.trainer.stages import whole_length

PROGRAM = "slipway.trainer.engines.jax.ahead"
EXTRAS = "jax,compile-tpu"
LIMIT_SECONDS = 900
# Real steps take this many times the compiler's estimate: ResNet-50 on v3 1.01, on v2 1.65, against published results.
LONGEST = 2
# How the chips of a machine are arranged.
BOUNDS = {1: (1, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)}


def missing(hardware: Hardware) -> str | None:
    """Return why a step cannot be compiled for this hardware here, as a phrase; None if it can."""
    if not hardware.is_tpu:
        return "only the compiler of TPUs needs no accelerator"
    if hardware.topology is None and hardware.chips & (hardware.chips - 1):
        return f"the arrangement of {hardware.chips} chips is not known"
    lacking = [name for name in ("jax", "libtpu") if importlib.util.find_spec(name) is None]
    return f"without {' and '.join(lacking)}: pip install {package(EXTRAS)}" if lacking else None


def topology(hardware: Hardware) -> Topology:
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
    """Return the job of a training on one TPU with a prepared data set, a folder of this machine."""
    batch = train.batch_size
    steps_per_epoch = max(1, manifests.read(data).splits["train"].examples // batch)
    steps = whole_length(train, batch, steps_per_epoch)
    plan = Plan(replicas=1, batch_per_replica=batch, steps_per_epoch=steps_per_epoch, steps=steps)
    return JobConfig(data=str(data), model=model, train=train, plan=plan)


def compiled(hardware: Hardware, job: JobConfig, *, largest: bool = False) -> Answer:
    """Compile a job's step for a TPU that is not there; takes 10 to 30 seconds of CPU, and 5 more for each other batch.

    Args:
        hardware: The TPU.
        job: The job; its data set is a folder of this machine.
        largest: Whether to search the largest batch that fits, if the job's does.

    Raises:
        UserError: The network cannot be built with JAX, or the step does not fit; says which batch does.
    """
    request = Request(job=job, topology=topology(hardware), memory=device_bytes(hardware) or 0, largest=largest)
    command = dying_with_parent([sys.executable, "-m", PROGRAM, request.model_dump_json()])
    try:
        ended = subprocess.run(
            command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise _failed(job, f"it took longer than {LIMIT_SECONDS} s") from None
    if ended.returncode:
        lines = ended.stderr.strip().splitlines()
        raise _failed(job, lines[-1] if lines else f"exit code {ended.returncode}")
    answer = Answer.model_validate_json(ended.stdout.splitlines()[-1])
    if not answer.fits:
        raise _too_large(hardware, job, answer)
    return answer


def _failed(job: JobConfig, why: str) -> UserError:
    return UserError(
        f"The step could not be compiled for the TPU: {why}",
        setting="model.builder",
        value=job.model.builder,
        fix="correct the network, or train without this check by uninstalling libtpu",
    )


def _too_large(hardware: Hardware, job: JobConfig, answer: Answer) -> UserError:
    """Return the error for a step that does not fit, with the batch or the accumulation that does."""
    asked, most, parts = job.train.batch_size, answer.largest_batch, job.train.accumulation
    fixes = []
    if most:
        times = next(
            (times for times in range(2, asked + 1) if asked % (times * parts) == 0 and asked / times <= most), 0
        )
        fixes = [f"--set train.batch_size={most}"]
        fixes += [f"--set train.accumulation={times * parts}, which keeps the batch"] if times else []
    return UserError(
        f"The training step does not fit on {title(hardware)}: {answer.refusal}",
        setting="train.batch_size",
        value=asked,
        allowed=f"about {most} at most" if most else "no batch fits",
        nearest=str(most) if most else None,
        fix=" or ".join(fixes) or "a smaller model, or hardware with more memory: slipway hardware",
    )


def title(hardware: Hardware) -> str:
    """Return a TPU's name with the number of its chips."""
    row = hardware.accelerator_row
    assert row is not None
    return f"{row.title} with {hardware.chips} chip{'s' if hardware.chips > 1 else ''}"


def sentences(hardware: Hardware, job: JobConfig, answer: Answer, *, steps: int = 0) -> list[str]:
    """Return what the compiler found as sentences for people; `steps` are those of the whole run, 0 if unknown."""
    row, peak, has = hardware.accelerator_row, answer.peak_bytes or 0, device_bytes(hardware) or 0
    assert row is not None
    used = f"{peak / GIB:.2f}" if peak >= GIB / 100 else f"{peak / 2**20:.1f} MiB"
    of = f"of {has / GIB:.0f} GiB per {'core' if row.cores_per_chip > 1 else 'chip'}"
    found = [f"compiled for {title(hardware)}: {used} {of}"]
    if most := answer.largest_batch:
        examples = manifests.read(Path(job.data)).splits["train"].examples
        is_all = most > examples - answer.devices * job.train.accumulation
        fits = "every batch of the training split fits" if is_all else f"largest batch about {most:,}"
        found.append(f"{fits}; {job.train.batch_size:,} is set")
    if answer.seconds:
        least = answer.seconds * steps
        whole = f": {steps:,} steps in {_time(least)} to {_time(LONGEST * least)}, without input and checkpoints"
        found.append(
            f"at least {_time(answer.seconds)} a step by the compiler's estimate; real ones take 1 to {LONGEST} times "
            f"that{whole if steps else ''}"
        )
    if job.train.engine != "jax":
        found.append(f"compiled through JAX; {job.train.engine} compiles the same network by itself")
    return found


def _time(seconds: float) -> str:
    for size, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.2g} µs"
