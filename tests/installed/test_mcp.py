"""`slipway mcp` as a client starts it: each tool by the SDK's own client, over stdio, against the installed command."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

import anyio
import yaml
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult
from typer.testing import CliRunner

from slipway.pipelines.cli.app import app
from tests.installed.case import BIN, Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.extension("mcp", "vertex")]

READING = ["doctor", "compile", "status", "list", "explain", "hardware", "prices", "data_check"]
L4 = {"target": "vertex", "hardware": "l4x1+timeout=1h"}


class Session:
    """A server in a process of its own, and the SDK's client."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.folder = folder

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool that succeeds; return its result."""
        result = await self._called(tool, arguments)
        assert not result.is_error, result.content
        assert result.structured_content is not None
        return result.structured_content.get("result", result.structured_content)

    async def refused(self, tool: str, **arguments: Any) -> str:
        """Call a tool that refuses; return the error's text."""
        result = await self._called(tool, arguments)
        assert result.is_error, result.content
        (content,) = result.content
        assert content.type == "text"
        return content.text

    async def _called(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        result = await self.client.call_tool(tool, arguments)
        assert isinstance(result, CallToolResult)
        return result


def serve(project: Project, use: Callable[[Session], Awaitable[None]], *options: str, elsewhere: bool = True) -> None:
    """Start a server of a project, as some clients do in another folder, and use it."""
    environment = {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(project.folder.parent),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "HTTPS_PROXY": "http://127.0.0.1:9",  # nobody listens there: no call leaves this machine
        "NO_PROXY": "localhost,127.0.0.1",
        "SLIPWAY_RETRY_SECONDS": "0.01",
        **project.services.environment,
    }
    server = StdioServerParameters(
        command=str(BIN / "slipway"), args=["mcp", "--folder", str(project.folder), *options], env=environment, cwd="/"
    )

    async def main() -> None:
        with (project.folder.parent / "server.log").open("w") as log:
            async with Client(stdio_client(server, errlog=log)) as client:
                await use(Session(client, project.folder))

    anyio.run(main)


def test_a_server_reads_and_starts_nothing(make_project: Callable[..., Project]) -> None:
    project = make_project()

    async def use(session: Session) -> None:
        tools = (await session.client.list_tools()).tools
        assert [tool.name for tool in tools] == READING
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        assert tools[0].input_schema["properties"]["target"]["enum"][0] == "local"
        before = sorted(project.folder.rglob("*"))
        findings = await session.call("doctor")
        assert {finding["status"] for finding in findings} <= {"pass", "skipped"}, findings
        compiled = await session.call("compile", hardware="cpu*2", with_spec=True)
        assert compiled["cost"] == {"worst_case": 0.0, "bills": [], "unpriced": []}
        assert "exec-train" in yaml.safe_load(compiled["spec"])["deploymentSpec"]["executors"]
        assert (await session.call("hardware", choice="l4x4*2"))["machine"] == "g2-standard-48"
        assert (await session.call("prices", choice="l4x1", region="europe-west4"))["regions"]["europe-west4"]["spot"]
        assert (await session.call("data_check"))["splits"]["train"] == 1438
        assert await session.call("list") == []
        assert "There is no run latest" in await session.refused("status")
        assert "There is no run --all" in await session.refused("explain", run="--all")
        assert "fix:      --set train.epochs=3" in await session.refused("doctor", settings={"train.epoch": 3})
        assert "'x=1 #' is not the name of a setting" in await session.refused("doctor", settings={"x=1 #": 3})
        assert "Extra inputs are not permitted" in await session.refused("doctor", confg="slipway.yaml")
        unchanged = [path for path in sorted(project.folder.rglob("*")) if "__pycache__" not in path.parts]
        assert unchanged == [path for path in before if "__pycache__" not in path.parts]

    serve(project, use)


def test_paths_outside_of_the_folder_are_refused(make_project: Callable[..., Project]) -> None:
    project = make_project()
    outside = project.folder.parent / "outside"
    outside.mkdir()
    (outside / "a.csv").write_text("label,x\na,1\n")
    (project.folder / "link").symlink_to(outside)

    async def use(session: Session) -> None:
        for source in (f"csv:{outside}/a.csv", "csv:../outside/a.csv", "csv:link/a.csv", "images:~", "link"):
            refused = await session.refused("data_check", settings={"data.source": source})
            assert f"{source} is outside of {project.folder.resolve()}, and this server works in" in refused
        assert "is outside of" in await session.refused("compile", config="../outside/slipway.yaml")
        nested = {"data": {"source": [f"csv:{outside}/a.csv"]}}
        assert "is outside of" in await session.refused("doctor", settings=nested)

    serve(project, use)


def test_runs_on_this_machine_are_limited_in_number(make_project: Callable[..., Project]) -> None:
    project = make_project()

    async def use(session: Session) -> None:
        assert [tool.name for tool in (await session.client.list_tools()).tools] == [*READING, "run", "cancel"]
        assert "train.epoch is not a setting" in await session.refused("run", settings={"train.epoch": 1})
        started = await session.call("run", settings={"train.epochs": 100_000})
        assert started["left"] == "$0.00 of $0.00 and 0 of 1 runs are left"
        run = started["run"]["run_id"]
        assert (started["run"]["status"], (await session.call("status"))["run_id"]) == ("running", run)
        assert (await session.call("cancel", run=run))["status"] == "cancelled"
        assert await session.call("explain", run=run) is None
        assert "has started 1 of 1 runs, and starts no more" in await session.refused("run")
        assert "has not started a run latest" in await session.refused("cancel", run="latest")

    serve(project, use, "--allow-runs", "--budget", "0", "--max-runs", "1")


def test_a_budget_is_spent_once(make_project: Callable[..., Project]) -> None:
    """Two runs at once, of which it covers one; then what the first has cost counts in place of its worst case."""
    project = make_project("vertex")

    async def use(session: Session) -> None:
        cost = (await session.call("compile", **L4))["cost"]
        assert 2.5 < cost["worst_case"] < 5
        results: list[CallToolResult] = []

        async def start() -> None:
            results.append(await session._called("run", dict(L4)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start)
            tasks.start_soon(start)
        refused, started = sorted(results, key=lambda result: not result.is_error)
        assert refused.is_error and not started.is_error, results
        (text,) = refused.content
        assert text.type == "text" and "\n" not in text.text
        left = 5 - cost["worst_case"]
        assert f"may cost ${cost['worst_case']:.2f}, and ${left:.2f} of the budget of $5.00 is left" in text.text
        assert started.structured_content is not None
        run = started.structured_content["run"]["run_id"]
        assert (await session.call("cancel", run=run))["status"] == "cancelled"
        record = await session.call("status", run=run)
        assert record["at_most"] == pytest.approx(cost["worst_case"], abs=0.01)
        unpriced = await session.refused("run", settings={"data.beam": {"runner": "DataflowRunner"}}, **L4)
        assert "The run may cost an unknown amount" in unpriced and "the price of data.beam is not known" in unpriced
        assert "budget limits what runs cost" in await session.refused("run", settings={"budget": None}, **L4)

    serve(project, use, "--allow-runs", "--budget", "5", "--max-runs", "9")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--allow-runs --max-runs 3", "Runs need a limit: --budget is missing"),
        ("--allow-runs --budget 3", "Runs need a limit: --max-runs is missing"),
        ("--allow-runs --budget nan --max-runs 3", "The budget is not a number of dollars"),
        ("--budget 3", "limits runs, and none are allowed"),
        ("--folder nowhere", "There is no folder nowhere"),
    ],
)
def test_a_server_needs_limits_for_runs(options: str, text: str) -> None:
    started = time.monotonic()
    result = CliRunner().invoke(app, ["mcp", *options.split()])
    assert (result.exit_code, time.monotonic() - started < 5) == (2, True)
    assert text.casefold() in result.output.casefold()
