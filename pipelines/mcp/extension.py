"""Serve a project to assistants that speak the Model Context Protocol."""

from slipway.extensions import Command, Extension

EXTENSION = Extension(
    "mcp",
    commands=(
        Command(
            "Prepare", "mcp", "slipway.pipelines.mcp.command:mcp",
            "Serve this project to an assistant over the Model Context Protocol. It reads; runs need --allow-runs.",
            ("slipway mcp", "slipway mcp --folder ~/digits --allow-runs --budget 20 --max-runs 5"),
            extra="mcp",
        ),
    ),
)  # fmt: skip
