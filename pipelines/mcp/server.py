"""The server's tools: each is a command of `slipway`, and returns that command's JSON.

The docstrings and annotations of the tools are what a client shows, and an assistant reads.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Awaitable, Callable
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

from slipway.core.errors import UserError
from slipway.pipelines.cli.targets import NAMES
from slipway.pipelines.mcp.allowance import Allowance
from slipway.pipelines.mcp.calls import Report, call, options, settings_of
from slipway.pipelines.mcp.runs import Runs
from slipway.trainer.engines.installed import DISTRIBUTION

Config = Annotated[str | None, Field(description="Run configuration, a YAML file; default: slipway.yaml.")]
Settings = Annotated[
    dict[str, Any] | None, Field(description='Settings to override, by dotted name, such as {"train.epochs": 5}.')
]
Target = Annotated[str, Field(description="Where the run executes.", json_schema_extra={"enum": list(NAMES)})]
Hardware = Annotated[
    str | None, Field(description="Training hardware, such as cpu, cpu*2, l4x4*2 or tpu-v5e-2x4; default: configured.")
]
RunId = Annotated[str, Field(description="A run's id, or latest.")]
Region = Annotated[str | None, Field(description="A region of Google Cloud, such as europe-west4.")]
Function: TypeAlias = Callable[..., Awaitable[Any]]

READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=True)
STARTS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True)
STOPS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=True)
INSTRUCTIONS = (
    "Slipway trains, evaluates and registers models from a YAML configuration. Errors name the setting, its value, the "
    "closest valid one, and a fix. Before a run: doctor. After a failed one: explain."
)


def serve(folder: Path, allowance: Allowance | None) -> None:
    """Answer a client's messages on stdin until it closes it; with an allowance, runs can be started.

    Args:
        folder: The project, which is the current folder.
        allowance: What the runs may cost; None for a server that only reads.
    """
    tools = [_tool(name, function, READS) for name, function in READING.items()]
    if allowance is not None:
        runs = Runs(allowance)
        tools += [_tool("run", _run_tool(runs), STARTS), _tool("cancel", _cancel_tool(runs), STOPS)]
    instructions = f"{INSTRUCTIONS} The project is {folder}."
    server = MCPServer(
        "slipway", instructions=instructions, version=version(DISTRIBUTION), tools=tools, log_level="WARNING"
    )
    server.run("stdio")


def _tool(name: str, function: Function, annotations: ToolAnnotations) -> Tool:
    """Return a tool whose result is JSON, and which refuses unknown arguments; a user error is a result, too."""

    @wraps(function)
    async def answering(*arguments: Any, **named: Any) -> CallToolResult:
        try:
            value = await function(*arguments, **named)
        except UserError as error:
            return CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True)
        text = TextContent(type="text", text=json.dumps(value, ensure_ascii=False))
        structured = value if isinstance(value, dict) else {"result": value}
        return CallToolResult(content=[text], structured_content=structured)

    tool = Tool.from_function(answering, name=name, annotations=annotations, structured_output=False)
    model = tool.fn_metadata.arg_model
    model.model_config["extra"] = "forbid"
    model.model_rebuild(force=True)
    tool.parameters["additionalProperties"] = False
    return tool


def _reporter(context: Context[Any, Any]) -> Report:
    """Return what shows a command's lines as the progress of the client's request."""
    count = 0

    async def report(line: str) -> None:
        nonlocal count
        count += 1
        await context.report_progress(count, message=line)

    return report


async def doctor(
    context: Context[Any, Any],
    config: Config = None,
    target: Target = "local",
    hardware: Hardware = None,
    settings: Settings = None,
) -> Any:
    """Check the machine, the project and the configuration; each finding has the fix. Imports the project's code."""
    arguments = [*options({"target": target, "hardware": hardware}), *settings_of(config, settings)]
    return await call(["doctor", "--json", *arguments], _reporter(context))


async def compile_(
    context: Context[Any, Any],
    config: Config = None,
    target: Target = "local",
    hardware: Hardware = None,
    settings: Settings = None,
    with_spec: Annotated[bool, Field(description="Whether to return the pipeline spec, too: 40 KB and more.")] = False,
) -> Any:
    """Compile the pipeline spec of a run, with the checks before a run, and what it costs at most. Nothing runs."""
    arguments = [*options({"target": target, "hardware": hardware}), *settings_of(config, settings)]
    with tempfile.TemporaryDirectory(prefix="slipway-mcp-") as folder:
        spec = Path(folder) / "spec.yaml"
        facts = await call(["config", "compile", "--json", f"--output={spec}", *arguments], _reporter(context))
        del facts["file"]
        return {**facts, "spec": spec.read_text()} if with_spec else facts


async def status(context: Context[Any, Any], run: RunId = "latest") -> Any:
    """Return a run's record: steps, outputs, metrics, verdict, cost and error."""
    return await call(["status", "--json", "--", run], _reporter(context))


async def list_(
    context: Context[Any, Any],
    where: Annotated[list[str] | None, Field(description="Conditions, such as accuracy>0.97.")] = None,
    sort: Annotated[str | None, Field(description="A metric or setting; -accuracy: the highest first.")] = None,
    every: Annotated[bool, Field(description="All runs, not only the first 20.")] = False,
) -> Any:
    """List runs, newest first, with their records."""
    chosen = options({"where": where, "sort": sort})
    return await call(["list", "--json", *chosen, *["--all"] * every], _reporter(context))


async def explain(context: Context[Any, Any], run: RunId = "latest") -> Any:
    """Explain why a run failed: step, replica, traceback and fix; null if it has not failed."""
    return await call(["explain", "--json", "--", run], _reporter(context))


async def hardware(
    context: Context[Any, Any],
    choice: Annotated[str | None, Field(description="One choice, such as l4x4*2; default: list all kinds.")] = None,
    region: Region = None,
    accelerator: Annotated[str | None, Field(description="Only this kind, such as cpu, a100 or tpu-v5e.")] = None,
    engine: Annotated[str | None, Field(description="Only what this engine supports.")] = None,
) -> Any:
    """List the available hardware, or return what one choice resolves to: machines, regions, prices and quotas."""
    filters = options({"region": region, "accelerator": accelerator, "engine": engine})
    return await call(["hardware", "--json", *filters, *(["--", choice] if choice else [])], _reporter(context))


async def prices(
    context: Context[Any, Any],
    choice: Annotated[str, Field(description="Hardware, such as l4x4*2 or tpu-v5e-2x4+spot.")],
    region: Region = None,
) -> Any:
    """Return the list prices of hardware per hour by region in US dollars, and the worst case of a training on it."""
    facts = await call(["hardware", "--json", *options({"region": region}), "--", choice], _reporter(context))
    return {"hardware": facts["hardware"], **facts["prices"]}


async def check_data(context: Context[Any, Any], config: Config = None, settings: Settings = None) -> Any:
    """Read the data of a configuration as a run does, without keeping anything; return what there is and is suspect."""
    return await call(["data", "check", "--json", *settings_of(config, settings)], _reporter(context))


READING: dict[str, Function] = {
    "doctor": doctor,
    "compile": compile_,
    "status": status,
    "list": list_,
    "explain": explain,
    "hardware": hardware,
    "prices": prices,
    "data_check": check_data,
}


def _run_tool(runs: Runs) -> Function:
    async def run(
        context: Context[Any, Any],
        config: Config = None,
        target: Target = "local",
        hardware: Hardware = None,
        settings: Settings = None,
    ) -> Any:
        """Start a run and return its record at once; follow it with status.

        It is refused if its worst case is more than what is left of this server's budget.
        """
        arguments = [*options({"target": target, "hardware": hardware}), *settings_of(config, settings)]
        return await runs.start(arguments, settings or {}, _reporter(context))

    return run


def _cancel_tool(runs: Runs) -> Function:
    async def cancel(context: Context[Any, Any], run: RunId) -> Any:
        """Stop a run that this server has started; finished steps are kept."""
        return await runs.cancel(run, _reporter(context))

    return cancel
