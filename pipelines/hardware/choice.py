"""The typed choice of hardware, from text or a mapping, to worker pools and scheduling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveInt

from trainer.errors import UserError


class Hardware(BaseModel):
    """What trains: how many replicas of which machine, each with which accelerators."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    accelerator: str | None = None
    count: int = 0
    machine: str = "n1-standard-4"
    replicas: PositiveInt = 1

    @property
    def accelerators_per_replica(self) -> int:
        """How many devices one replica trains on beside its CPUs; 0 on a machine without accelerators."""
        return self.count

    def __str__(self) -> str:
        return "cpu" if self.replicas == 1 else f"cpu*{self.replicas}"

    def worker_pools(self) -> list[dict[str, Any]]:
        """Vertex worker pools without a container: the chief in pool 0, the other replicas in pool 1."""
        pool = {"replica_count": 1, "machine_spec": {"machine_type": self.machine}}
        if self.replicas == 1:
            return [pool]
        return [pool, {**pool, "replica_count": self.replicas - 1}]

    def scheduling(self) -> dict[str, Any]:
        """Vertex's Scheduling, where it is not the default; also keyword arguments of CustomTrainingJobOp."""
        return {}


def parse(choice: str | Mapping[str, Any]) -> Hardware:
    """The hardware that `choice` names."""
    match = re.fullmatch(r"cpu(?:\*([1-9]\d{0,3}))?", str(choice).strip().lower())
    if match is None:
        raise UserError(
            f"No hardware is called {choice!r}.",
            setting="hardware",
            value=choice,
            allowed="cpu, cpu*4",
            nearest="cpu",
            mend="slipway hardware lists what there is",
        )
    return Hardware(replicas=int(match[1] or 1))


def validate_for(hardware: Hardware, *, region: str | None = None, engine: str | None = None) -> None:
    """Check what depends on where and how the hardware is used."""
