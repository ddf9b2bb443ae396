"""What trainings took against their estimates: kept beside each run, and used for later estimates."""

# ruff: noqa: ARG002 (an observer ignores what it does not need)

from __future__ import annotations

import contextlib
import hashlib
import json
import statistics
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.core import manifest as manifests
from slipway.core.atomic import json_lines, replace_file
from slipway.core.errors import UserError
from slipway.core.paths import in_project, local_path
from slipway.pipelines.advice import cpus
from slipway.pipelines.advice.jobs import job_of
from slipway.pipelines.hardware import compiled, profile
from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.hardware.estimate import Estimate, Range, Training, estimate
from slipway.pipelines.hardware.rules import parse
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.runs.observers import Observer, Say

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.runs.record import RunFolder, RunRecord
    from slipway.trainer.config import JobConfig

FILE = "estimate.json"
RUNS = Path("runs")
# The range around the middle after a training of the same network on the same kind of hardware.
KNOWN_LOW, KNOWN_HIGH = 0.85, 1.2


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A training that has ended, as its run's folder keeps it.

    Attributes:
        run: The run's id.
        hardware: What it trained on.
        kind: The accelerator, the family of its machines, or "here".
        network: The digest of what decides how long a step of an example takes: see `network`.
        steps: The steps that it trained.
        step_seconds: The median time of a step.
        estimated: The low, the middle and the high estimate of it, not calibrated; None if nothing was known.
    """

    run: str
    hardware: str
    kind: str
    network: str
    steps: int
    step_seconds: float
    estimated: tuple[float, float, float] | None = None

    @property
    def ratio(self) -> float | None:
        """The measured time by the middle estimate."""
        return self.step_seconds / self.estimated[1] if self.estimated else None


def network(job: JobConfig) -> str:
    """Return the SHA-256 of a job's network, its inputs, engine and precision."""
    manifest = manifests.read(local_path(job.data))
    inputs = {name: column.model_dump(mode="json") for name, column in manifest.inputs.items()}
    train = {name: getattr(job.train, name) for name in ("engine", "precision", "optimizer_kind", "remat", "xla")}
    decides = [job.model.model_dump(mode="json"), inputs, manifest.image_size, len(manifest.classes), train]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def kind(hardware: Hardware, *, here: bool) -> str:
    """Return what later estimates have in common with a training on this hardware."""
    return "here" if here else hardware.accelerator or hardware.machine_row.family


def known() -> list[Measured]:
    """Return the trainings of the project that are kept, the oldest first."""
    trainings = []
    for file in sorted(in_project(RUNS).glob(f"*/{FILE}")):
        if file.parent.is_symlink():  # runs/latest
            continue
        with contextlib.suppress(OSError, ValueError, TypeError):
            trainings.append(Measured(**json.loads(file.read_bytes())))
    return trainings


def calibrated(made: Estimate, trainings: Sequence[Measured], of: str, digest: str) -> Estimate:
    """Return an estimate with what earlier trainings took.

    Those of the same network on the same kind of hardware replace the estimate's own range. Of others on the same kind,
    half of their error is taken over.
    """
    alike = [training for training in trainings if training.kind == of and training.ratio]
    same = [training.ratio or 1.0 for training in alike if training.network == digest]
    if same:
        factor = statistics.median(same)
        middle = factor * made.step.middle
        step = Range(KNOWN_LOW * middle, middle, KNOWN_HIGH * middle)
        based_on = f"{_trainings(len(same))} of this network on {of}"
    elif alike:
        factor = statistics.median(training.ratio or 1.0 for training in alike) ** 0.5
        step, based_on = made.step.times(factor), f"{made.based_on}; {_trainings(len(alike))} of others on {of}"
    else:
        return made
    return replace(made, step=step, based_on=based_on)


def _trainings(count: int) -> str:
    return f"{count} training{'s' if count > 1 else ''}"


class Learner(Observer):
    """Keeps what a training took beside its estimate, of what is known already: nothing is compiled for it."""

    def executing(
        self, folder: RunFolder, config: RunConfig, record: RunRecord, say: Say
    ) -> AbstractContextManager[None]:
        if record.estimate is None and not record.rehearsal and config.model is not None:
            with contextlib.suppress(UserError):  # the data are not prepared yet
                job = job_of(config, "")
                made = expected(job, config.training_hardware, here=platform_of(record.platform).trains_here)
                if made is not None:
                    record.estimate = {"seconds": made.step.times(job.plan.steps)._asdict(), "cost": None}
        return contextlib.nullcontext()

    def ended(self, folder: RunFolder, config: RunConfig, record: RunRecord, say: Say) -> None:
        _keep(folder, config, record)

    def ended_elsewhere(self, folder: RunFolder, record: RunRecord, say: Say) -> None:
        from slipway.pipelines.config.config import load

        with contextlib.suppress(UserError):
            _keep(folder, load(folder.configuration_file), record)


def _keep(folder: RunFolder, config: RunConfig, record: RunRecord) -> None:

    if record.rehearsal or record.status != "succeeded" or config.model is None:
        return
    try:
        job, hardware = job_of(config, ""), parse(record.hardware)
        history = json_lines(folder.history_file(record).read_bytes())
    except (UserError, OSError, ValueError):  # the data or the history are elsewhere
        return
    rates = [entry["steps_per_second"] for entry in history if entry.get("steps_per_second")]
    if not rates:
        return
    here = platform_of(record.platform).trains_here
    made = expected(job, hardware, here=here)
    measured = Measured(
        run=record.run_id,
        hardware=record.hardware,
        kind=kind(hardware, here=here),
        network=network(job),
        steps=int(record.outputs("train").get("steps", job.plan.steps)),
        step_seconds=1 / statistics.median(rates),
        estimated=(made.step.low, made.step.middle, made.step.high) if made else None,
    )
    replace_file(folder.path / FILE, json.dumps(asdict(measured)).encode(), durable=False)


def expected(job: JobConfig, hardware: Hardware, *, here: bool) -> Estimate | None:
    """Return the estimate of a training from what is kept of its step; None if nothing is."""
    speed = cpus.kept(job)
    per_core = speed.examples_per_core if speed else None
    manifest = manifests.read(local_path(job.data))
    training = Training(train=job.train, manifest=manifest, examples_per_core=per_core)
    if hardware.accelerator_row is None:
        if speed is None:
            return None
        return cpus.here(training, speed, hardware.replicas) if here else cpus.estimate(hardware, training, speed)
    platform: compiled.Platform = "tpu" if hardware.is_tpu else "cuda"
    step = profile.known(platform, job)
    program = compiled.program(platform, job.train.engine)
    return estimate(hardware, training, step, program) if step else None
