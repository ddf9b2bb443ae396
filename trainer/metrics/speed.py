"""Throughput of an epoch: steps and examples per second, time waiting for input, fraction of the devices' peak."""

from __future__ import annotations

from dataclasses import dataclass

from slipway.trainer.engines.base import Work
from slipway.trainer.metrics.peaks import share_of_peak


@dataclass
class Speed:
    """Steps and seconds spent in engine calls since the epoch began, without warm-up, validation and saving.

    `waited` is the part of `seconds` spent waiting for input; None if the engine does not measure it.
    """

    steps: int = 0
    seconds: float = 0.0
    waited: float | None = 0.0

    def add(self, steps: int, seconds: float, waited: float | None) -> None:
        """Add one engine call."""
        self.steps += steps
        self.seconds += seconds
        self.waited = None if waited is None or self.waited is None else self.waited + waited

    @property
    def steps_per_second(self) -> float | None:
        """Steps per second; None before the first measured call."""
        return self.steps / self.seconds if self.seconds else None

    def figures(self, batch_size: int, work: Work) -> dict[str, float | None]:
        """Return the metrics under their names in the history; fractions are 0 to 1, unknown values None."""
        rate = self.steps_per_second
        if rate is None:
            return {}
        peak = share_of_peak(work, rate)
        return {
            "steps_per_second": round(rate, 3),
            "examples_per_second": round(rate * batch_size, 1),
            "examples_per_second_per_device": round(rate * batch_size / work.devices, 1),
            "waiting_for_input": None if self.waited is None else round(min(1.0, self.waited / self.seconds), 4),
            "share_of_peak": None if peak is None else round(peak, 4),
        }

    def describe(self, batch_size: int, work: Work) -> str:
        """Return the metrics as text; "" before the first measured call."""
        figures = self.figures(batch_size, work)
        if not figures:
            return ""
        text = f"{figures['steps_per_second']:.1f} steps/s, {figures['examples_per_second_per_device']:,.0f} examples/s"
        text += " per device" if work.devices > 1 else ""
        if figures["waiting_for_input"] is not None:
            text += f", waiting for input {figures['waiting_for_input']:.0%} of the time"
        if figures["share_of_peak"] is not None:
            text += f", {figures['share_of_peak']:.1%} of the peak of {work.device} in {work.precision}"
        return text
