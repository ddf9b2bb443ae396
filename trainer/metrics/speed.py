"""How fast an epoch goes: steps and examples a second, the wait for input, the share of the devices' peak."""

from __future__ import annotations

from dataclasses import dataclass

from slipway.trainer.engines.base import Work
from slipway.trainer.metrics.peaks import share_of_peak


@dataclass
class Speed:
    """Steps and seconds inside of engine calls since the epoch began: no warm-up, no validation, no saving.

    `waited` are the seconds of these in which steps waited for input; None where the engine cannot tell.
    """

    steps: int = 0
    seconds: float = 0.0
    waited: float | None = 0.0

    def add(self, steps: int, seconds: float, waited: float | None) -> None:
        """Count a call."""
        self.steps += steps
        self.seconds += seconds
        self.waited = None if waited is None or self.waited is None else self.waited + waited

    @property
    def steps_per_second(self) -> float | None:
        """None before the first call that counts."""
        return self.steps / self.seconds if self.seconds else None

    def figures(self, batch_size: int, work: Work) -> dict[str, float | None]:
        """By the names of the history: rates, and shares between 0 and 1; None where one is not known."""
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
        """The same in words; "" before the first call that counts."""
        figures = self.figures(batch_size, work)
        if not figures:
            return ""
        text = f"{figures['steps_per_second']:.1f} steps/s, {figures['examples_per_second_per_device']:,.0f} examples/s"
        text += " a device" if work.devices > 1 else ""
        if figures["waiting_for_input"] is not None:
            text += f", waiting for input {figures['waiting_for_input']:.0%} of the time"
        if figures["share_of_peak"] is not None:
            text += f", {figures['share_of_peak']:.1%} of the peak of {work.device} in {work.precision}"
        return text
