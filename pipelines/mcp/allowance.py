"""What the runs of a server may cost, and how many there may be: reserved before a run starts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from slipway.core.errors import UserError
from slipway.pipelines.hardware.prices import dollars


@dataclass(eq=False)
class Reservation:
    """What a run may cost at most in US dollars; once it has ended, what it has cost.

    `run_id` is "" until it has started.
    """

    amount: float
    run_id: str = ""
    has_ended: bool = False


@dataclass
class Allowance:
    """The limits of a server's runs, and what is reserved of them.

    `reserve` checks and reserves without giving way to another task, so two calls at once never share dollars.
    """

    budget: float
    max_runs: int
    reservations: list[Reservation] = field(default_factory=list)

    @property
    def left(self) -> float:
        """What is not reserved of the budget, in US dollars."""
        return self.budget - math.fsum(reservation.amount for reservation in self.reservations)

    def __str__(self) -> str:
        runs = self.max_runs - len(self.reservations)
        return f"{dollars(self.left)} of {dollars(self.budget)} and {runs} of {self.max_runs} runs are left"

    def reserve(self, worst_case: float | None, of: str) -> Reservation:
        """Reserve a run's worst case in US dollars; `of` says how it was computed.

        Raises:
            UserError: It is not known, it exceeds what is left, or no run is left.
        """
        if len(self.reservations) >= self.max_runs:
            raise UserError(f"This server has started {self.max_runs} of {self.max_runs} runs, and starts no more.")
        if worst_case is None:
            raise UserError(f"The run may cost an unknown amount, and {dollars(self.left)} is left: {of}.")
        if not worst_case <= self.left + 1e-9:
            amounts = f"{dollars(worst_case)}, and {dollars(self.left)} of the budget of {dollars(self.budget)} is left"
            raise UserError(f"The run may cost {amounts}: {of}.")
        reservation = Reservation(worst_case)
        self.reservations.append(reservation)
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Return what was reserved for a run that was refused."""
        self.reservations.remove(reservation)

    def unsettled(self) -> Iterator[Reservation]:
        """Yield what is reserved for runs that cost money and may have ended."""
        yield from (r for r in self.reservations if r.run_id and r.amount and not r.has_ended)

    def has_started(self, run_id: str) -> bool:
        """Return whether this server has started the run."""
        return any(reservation.run_id == run_id for reservation in self.reservations)
