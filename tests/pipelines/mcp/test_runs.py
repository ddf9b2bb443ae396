"""What a server's runs may cost: reserved at once, settled once they have ended, and returned if they are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from slipway.core.errors import UserError
from slipway.pipelines.mcp import runs
from slipway.pipelines.mcp.allowance import Allowance
from slipway.pipelines.mcp.calls import Refusal

COMPILED = {"cost": {"worst_case": 6.0, "bills": [{"text": "$1.50 per hour, 4 tries"}], "unpriced": []}}


class Commands:
    """Stands in for the commands; records their arguments."""

    def __init__(self) -> None:
        self.started: list[Sequence[str]] = []
        self.status: dict[str, Any] = {"status": "running", "cost": None}
        self.error: UserError | None = None
        self.cost = COMPILED

    async def __call__(self, arguments: Sequence[str], report: Any) -> Any:
        await anyio.sleep(0)
        if arguments[0] == "config":
            return self.cost
        if arguments[0] == "status":
            return self.status
        if self.error is not None:
            raise self.error
        self.started.append(arguments)
        return {"run_id": f"run-{len(self.started)}"}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands()
    monkeypatch.setattr(runs, "call", made)
    return made


async def ignore(line: str) -> None:
    pass


def start(allowance: Allowance, *settings: str, times: int = 1) -> list[UserError]:
    """Start runs at once; return the errors of those that were refused."""
    server, errors = runs.Runs(allowance), []

    async def one_run() -> None:
        try:
            await server.start(["--target=vertex"], settings, ignore)
        except UserError as error:
            errors.append(error)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(times):
                tasks.start_soon(one_run)

    anyio.run(main)
    return errors


def test_runs_at_once_never_exceed_the_budget_or_their_number(commands: Commands) -> None:
    errors = start(Allowance(20, 9), times=7)
    assert len(commands.started) == 3
    assert {str(error) for error in errors} == {
        "The run may cost $6.00, and $2.00 of the budget of $20.00 is left: $1.50 per hour, 4 tries."
    }
    assert all(arguments[-1] == "--set=budget=6.0" for arguments in commands.started)
    assert len(start(Allowance(100, 2), times=5)) == 3


def test_a_run_that_has_ended_counts_with_its_cost(commands: Commands) -> None:
    allowance = Allowance(10, 9)
    assert not start(allowance)
    assert start(allowance)
    commands.status = {"status": "cancelled", "cost": None}  # not known
    assert start(allowance)
    commands.status = {"status": "succeeded", "cost": {"dollars": 1.25}}
    assert not start(allowance)
    assert str(allowance) == "$2.75 of $10.00 and 7 of 9 runs are left"


def test_only_a_refusal_returns_what_was_reserved(commands: Commands) -> None:
    allowance = Allowance(10, 9)
    commands.error = Refusal("There is no quota.")
    assert start(allowance) == [commands.error]
    assert allowance.left == 10
    commands.error = UserError("This is a bug in Slipway.")  # the run may have started
    assert start(allowance) == [commands.error]
    assert allowance.left == 4


@pytest.mark.parametrize("worst_case", [None, float("nan"), float("inf")])
def test_unknown_prices_are_refused(commands: Commands, worst_case: float | None) -> None:
    commands.cost = {"cost": {"worst_case": worst_case, "bills": [], "unpriced": ["deploy"]}}
    (error,) = start(Allowance(20, 9))
    assert "the price of deploy is not known" in str(error)
    assert not commands.started


def test_the_limits_of_the_configuration_are_not_lifted(commands: Commands) -> None:
    (error,) = start(Allowance(20, 9), "train.epochs", "budget_per_month")
    assert "budget_per_month limits what runs cost, and this server does not change it" in str(error)
