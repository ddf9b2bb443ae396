"""Where the seconds of a training went, by activity, and what would shorten it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from slipway.core import idle
from slipway.core.manifest import Manifest
from slipway.trainer.config import JobConfig
from slipway.trainer.engines.base import Work
from slipway.trainer.metrics.speed import peak_flops

# In the folder of metrics.jsonl, and in that of the model: `seconds` by activity, and `text`.
FILE_NAME = "spent.json"
STEPS, INPUT, COMPILING = "steps", "waiting for input", "compiling"
REPLICAS, VALIDATION = "waiting for other replicas", "validation"
CHECKPOINTS, FUNCTION, OTHER = "checkpoints", "on_epoch_end", "other"
# They may last without using the CPU of this machine.
_LONG = (VALIDATION, CHECKPOINTS)
# An activity that took less, in seconds or of the whole, is not worth a change.
_WORTH_SECONDS = 2.0
_WORTH = 0.15
# Of a device's peak; below it, a step is too small for the device.
_LOW_MFU = 0.05
# The same of a device whose peak is not known: a step of so few seconds and examples.
_SHORT, _FEW = 0.005, 16
# Examples to validate on for each to train on, of which more cost more than they tell.
_VALIDATION = 0.15


class Spent:
    """A stopwatch for each activity of a training, of this process. `seconds` are those measured so far."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._started = time.perf_counter()

    def add(self, activity: str, seconds: float) -> None:
        """Add seconds to an activity."""
        self.seconds[activity] = self.seconds.get(activity, 0.0) + seconds

    @contextlib.contextmanager
    def on(self, activity: str) -> Iterator[None]:
        """Add the duration of the context to an activity."""
        started = time.perf_counter()
        if activity in _LONG:
            idle.sign(activity, busy=True)
        try:
            yield
        finally:
            self.add(activity, time.perf_counter() - started)
            idle.sign(activity)

    def by_activity(self) -> dict[str, float]:
        """Return the seconds since the beginning by activity, the longest first; they sum to the whole."""
        other = time.perf_counter() - self._started - sum(self.seconds.values())
        seconds = {**self.seconds, OTHER: max(other, 0.0)}
        return {name: round(seconds[name], 3) for name in sorted(seconds, key=lambda name: -seconds[name])}


def told(
    seconds: Mapping[str, float],
    job: JobConfig,
    manifest: Manifest,
    work: Work,
    last: Mapping[str, Any],
    waits: Mapping[str, float],
) -> list[str]:
    """Return sentences: what took at least 1 %, and the setting that would save most; none for no time.

    Args:
        seconds: The seconds by activity.
        job: The job.
        manifest: Manifest of the data set.
        work: The computation of a step.
        last: The history's entry of the last steps: `mfu` (0 to 1) and `steps_per_second`, None or absent if unknown.
        waits: The seconds that each replica waited for input.
    """
    whole = sum(seconds.values())
    if not whole:
        return []
    fractions = [f"{name} {value / whole:.0%}" for name, value in seconds.items() if value >= 0.01 * whole]
    advice = _slow_replica(waits, job, manifest, whole) or _advice(seconds, job, manifest, work, last)
    return [f"the training took {whole:.1f} s: {', '.join(fractions)}", *([advice] if advice else [])]


def _slow_replica(waits: Mapping[str, float], job: JobConfig, manifest: Manifest, whole: float) -> str | None:
    """Return which replica made all others wait by waiting for its input; None if none did."""
    name = max(waits, key=waits.__getitem__, default="")
    shorter = sorted(waits.values())[:-1]
    if not shorter or waits[name] - shorter[-1] < max(_WORTH_SECONDS, _WORTH * whole):
        return None
    fix = _fix(INPUT, job, manifest, whole)
    return (
        f"all waited for {name}, which waited {waits[name]:.1f} s for input, others at most {shorter[-1]:.1f} s: {fix}"
    )


def _advice(
    seconds: Mapping[str, float], job: JobConfig, manifest: Manifest, work: Work, last: Mapping[str, Any]
) -> str | None:
    whole = sum(seconds.values())
    for activity, value in sorted(seconds.items(), key=lambda item: -item[1]):
        if value < max(_WORTH_SECONDS, _WORTH * whole):
            break
        if activity == STEPS:
            if (faster := _faster_steps(job, work, last)) is not None:
                return f"the steps took most of it: {faster}"
        elif (fix := _fix(activity, job, manifest, whole)) is not None:
            return f"without {activity}, it would take {whole - value:.1f} s: {fix}"
    return None


def _fix(activity: str, job: JobConfig, manifest: Manifest, whole: float) -> str | None:
    epochs = math.ceil(job.plan.steps / job.plan.steps_per_epoch)
    after = f"after each of {epochs:,} epochs" if epochs > 1 else "once"
    if activity == INPUT and manifest.resize and not isinstance(manifest.settings.get("resize"), dict):
        return f"--set 'data.resize={{size: {max(manifest.image_size)}}}' resizes larger images once, while preparing"
    if activity == INPUT:
        return "a machine with more cores for each accelerator reads faster, and a local disk faster than a bucket"
    if activity == VALIDATION:
        return _less_validation(manifest) or f"it validates {after}; data.split.validation makes the split smaller"
    if activity == CHECKPOINTS:
        return _fewer_checkpoints(job, whole) or (
            f"it saves {after}; optimizers with fewer variables, such as sgd, save less"
        )
    if activity == COMPILING and job.train.xla is True:
        return "--set train.xla=false"
    if activity == REPLICAS:
        return "the log of the slowest replica says how long it waited for what"
    return f"see {job.train.on_epoch_end}" if activity == FUNCTION else None


def _less_validation(manifest: Manifest) -> str | None:
    """Return what makes a large validation split smaller; None if it is not, or the source has its own."""
    split, examples = manifest.settings.get("split"), {name: part.examples for name, part in manifest.splits.items()}
    if not isinstance(split, dict) or examples["validation"] <= _VALIDATION * examples["train"]:
        return None
    validation = round(0.1 * (1.0 - float(split["test"])), 4)
    parts = {"train": round(1.0 - float(split["test"]) - validation, 4), "validation": validation}
    chosen = ", ".join(f"{name}: {part:g}" for name, part in {**parts, "test": split["test"]}.items())
    return (
        f"--set 'data.split={{{chosen}}}' validates on fewer than {examples['validation']:,} examples for "
        f"{examples['train']:,} to train on"
    )


def _fewer_checkpoints(job: JobConfig, whole: float) -> str | None:
    """Return what has fewer checkpoints in `whole` seconds; None if most of them end epochs."""
    settings, epochs = job.train.checkpoint, job.plan.steps / job.plan.steps_per_epoch
    by_steps = job.plan.steps / settings.every_steps if settings.every_steps else 0.0
    by_seconds = whole / settings.every_seconds if settings.every_seconds else 0.0
    if settings.every_steps and by_steps >= max(by_seconds, epochs):
        return f"--set train.checkpoint.every_steps={10 * settings.every_steps}"
    if settings.every_seconds and by_seconds >= epochs:
        return f"--set train.checkpoint.every_seconds={10 * settings.every_seconds:g}"
    return None


def _faster_steps(job: JobConfig, work: Work, last: Mapping[str, Any]) -> str | None:
    """Return what makes steps faster, or examples; None if nothing is known."""
    peak = peak_flops(work.device, work.precision)
    lower = peak_flops(work.device, "mixed_bfloat16")
    mfu, rate, examples = last.get("mfu"), last.get("steps_per_second"), job.train.batch_size / work.devices
    if peak is None:
        if not rate or 1 / rate > _SHORT or examples > _FEW:
            return None
        return (
            f"{1000 / rate:.2g} ms each with {examples:g} examples per device, for which larger batches take little "
            f"longer; try --set train.batch_size={4 * job.train.batch_size}"
        )
    if work.precision == "float32" and lower is not None and lower > peak:
        return f"--set train.precision=mixed_bfloat16 has {lower / peak:.0f} times the peak on {work.device}"
    if mfu is not None and mfu < _LOW_MFU:
        return (
            f"they reach {mfu:.1%} of the peak of {work.device} with {examples:,.0f} examples per device; "
            f"try --set train.batch_size={4 * job.train.batch_size}"
        )
    return None
