"""How long a training takes on machines without accelerators, from its step on this machine."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slipway.core.cores import available_cores
from slipway.core.parent_death import dying_with_parent
from slipway.pipelines.hardware import compiled, profile
from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.hardware.estimate import Estimate, Range, Training, between_machines, network
from slipway.pipelines.hardware.memory import GIB
from slipway.pipelines.hardware.rules import parse
from slipway.trainer.engines import measured
from slipway.trainer.engines.installed import is_installed, package
from slipway.trainer.engines.measured import Rates, Request
from slipway.trainer.engines.table import ENGINES

if TYPE_CHECKING:
    from slipway.trainer.config import JobConfig

# A core of this machine does what a vCPU of another one does within this factor; no two kinds were compared.
UNLIKE = 2.0
# Longer steps of a few examples use all cores.
SHORT_SECONDS = 0.2
# The memory of a process is estimated higher than measured by this factor: no two trainings take the same.
MARGIN = 1.1
# What a step of a run takes besides that of the network: the loop, the records of its metrics, and the processes that
# watch it; measured with three small projects (`python -m benchmarks.advice_cpus`).
LOOP_SECONDS = 0.3e-3
# What a step of several processes on one machine takes besides their steps alone, in seconds, and the bytes per second
# that they sum through shared memory: benchmarks/README.md, "Processes and accelerators".
PER_STEP = {"tensorflow": 0.15e-3, "jax": 0.4e-3}
SHARED_RATE = 16e6 / 2.7e-3
BASED_ON = (
    "the step measured on one and on all of this machine's cores; not measured: a vCPU elsewhere does half to twice as "
    "much, and more of them help as these do"
)


@dataclass(frozen=True)
class Speed:
    """How fast this machine's CPUs train: on all of its cores, and on one, if there are several."""

    whole: Rates
    single: Rates | None = None

    @property
    def unknown(self) -> str:
        """Why nothing is known, as a phrase; "" if it is."""
        return self.whole.unknown or (self.single.unknown if self.single else "")

    @property
    def examples_per_core(self) -> float | None:
        """Examples that a core reads and decodes per second; None for a split that is decoded once."""
        return self.whole.examples and self.whole.examples / self.whole.cores

    def step(self, batch: float, cores: float) -> float:
        """Return the seconds of a step of `batch` examples on so many cores, as those of one and of all compare."""
        if self.single is None:
            return self.whole.step(batch) * self.whole.cores / cores
        one, several = self.single.step(batch), self.whole.step(batch)
        helps = max(0.0, min(1.0, math.log(one / several) / math.log(self.whole.cores / self.single.cores)))
        return float(one * (self.single.cores / cores) ** helps)

    def peak(self, batch: float) -> float | None:
        """Return the memory of a process with a batch, in bytes, from what fewer examples took."""
        if not self.whole.peaks:
            return None
        (few, small), *_, (many, large) = [*self.whole.peaks.items(), *self.whole.peaks.items()]
        slope = (large - small) / (many - few) if many > few else 0.0
        return MARGIN * max(small, large + slope * (batch - many))


def rates(job: JobConfig, say: Callable[[str], None]) -> Speed:
    """Return how fast this machine's CPUs train and read, measured for some seconds; what was measured is kept."""
    lacking = [name for name in ENGINES[job.train.engine].modules if not is_installed(name)]
    if lacking:
        extra = package(ENGINES[job.train.engine].extra)
        return Speed(Rates(cores=1, unknown=f"without {' and '.join(lacking)}: pip install {extra}"))

    def measured_on(request: Request) -> Rates:
        return profile.kept(request, Rates, lambda: _measured(request, say))

    whole, single = _requests(job)
    on_all = measured_on(whole)
    return Speed(on_all, measured_on(single) if _is_worthwhile(on_all) else None)


def kept(job: JobConfig) -> Speed | None:
    """Return what is kept of a job's step on this machine's CPUs; None if nothing is."""
    whole, single = (profile.look_up(request, Rates) for request in _requests(job))
    if whole is None or (single is None and _is_worthwhile(whole)):
        return None
    return Speed(whole, single)


def _is_worthwhile(rates: Rates) -> bool:
    """Whether a step is so short that it does not take as many times as long on one core as there are cores."""
    return rates.cores > 1 and not rates.unknown and next(iter(rates.steps.values())) < SHORT_SECONDS


def _requests(job: JobConfig) -> tuple[Request, Request]:
    """Return what is measured: a step on all cores, and on one."""
    job, cores = profile.of_step(job), available_cores()
    plan = job.plan.model_copy(update={"steps": 1})
    job = job.model_copy(update={"plan": plan})
    return Request(job=job), Request(job=job, parts=cores)


def _measured(request: Request, say: Callable[[str], None]) -> Rates:
    cores = "one of this machine's cores" if request.parts > 1 else "this machine's CPUs"
    say(f"measuring the step on {cores}, some seconds")
    command = dying_with_parent([sys.executable, "-m", measured.__name__, request.model_dump_json()])
    ended = compiled.executed(command, {**os.environ, **measured.ENVIRONMENT})
    if isinstance(ended, str):
        return Rates(cores=1, unknown=ended)
    return Rates.model_validate_json(ended.stdout.splitlines()[-1])


def estimate(hardware: Hardware, training: Training, speed: Speed) -> Estimate | None:
    """Return the estimate for machines without accelerators, whose vCPUs are taken to be as this machine's cores.

    None for several machines whose network is not known.
    """
    if hardware.replicas > 1 and network(hardware) is None:
        return None
    vcpus, replicas, batch = hardware.machine_row.vcpus or 1, hardware.replicas, training.train.batch_size
    compute = speed.step(batch / replicas, vcpus)
    summed = between_machines(hardware, speed.whole.trainable)
    reading = 0.0 if training.examples_per_core is None else batch / replicas / (training.examples_per_core * vcpus)
    parts = {"compute": compute, "all-reduce": summed, "input": reading}
    middle = compute + summed + reading  # the same cores do all of it
    peak = speed.peak(batch / replicas)
    memory = hardware.machine_row.memory_gb
    return Estimate(
        hardware=hardware,
        devices=replicas,
        peak_bytes=peak,
        fits=memory is None or peak is None or peak <= memory * GIB,
        largest_batch=None,
        step=Range(middle / UNLIKE, middle, middle * UNLIKE),
        limit=max(parts, key=lambda part: parts[part]),
        parts=parts,
        based_on=BASED_ON,
    )


def here(training: Training, speed: Speed, replicas: int) -> Estimate:
    """Return the estimate for replicas on this machine's CPUs, each on its part of the cores.

    More replicas than cores take turns.
    """
    batch, cores = training.train.batch_size, max(1.0, speed.whole.cores / replicas)
    turns = max(1.0, replicas / speed.whole.cores)
    compute = turns * (speed.step(batch / replicas, cores) + LOOP_SECONDS)
    extra = PER_STEP.get(training.train.engine, 0.0) + speed.whole.trainable / SHARED_RATE
    summed = turns * extra if replicas > 1 else 0.0
    reading = 0.0 if training.examples_per_core is None else batch / (training.examples_per_core * speed.whole.cores)
    parts = {"compute": compute, "all-reduce": summed, "input": reading}
    middle = compute + summed + reading
    return Estimate(
        hardware=replace(parse("cpu"), replicas=replicas),
        devices=replicas,
        peak_bytes=speed.peak(batch / replicas),
        fits=None,
        largest_batch=None,
        step=Range(middle * 0.7, middle, middle * 1.3),
        limit=max(parts, key=lambda part: parts[part]),
        parts=parts,
        based_on="the step measured on this machine's cores",
    )
