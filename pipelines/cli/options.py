"""Options shared by several commands."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from slipway.core.errors import UserError

DEFAULT_CONFIGURATION = Path("configs/digits.yaml")


class Target(StrEnum):
    """Where a run executes."""

    local = "local"
    vertex = "vertex"
    kubeflow = "kubeflow"


class Runner(StrEnum):
    """How the steps of a local run execute."""

    process = "process"
    docker = "docker"


ConfigurationFile = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG]", help="Run configuration, a YAML file; same as -c.")
]
Configuration = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help=f"Run configuration; default: {DEFAULT_CONFIGURATION}."),
]
Place = Annotated[
    Target, typer.Option("--target", metavar="PLATFORM", help="Where the run executes: local, vertex or kubeflow.")
]
Hardware = Annotated[
    str | None,
    typer.Option("--hardware", metavar="CHOICE", help="Training hardware, such as cpu, cpu*2, l4x4*2 or tpu-v5e-2x4."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. train.batch_size=256. Can be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def complete_run(incomplete: str) -> list[str]:
    """Return the runs in this folder that begin with `incomplete`, for shell completion."""
    root = Path("runs")
    names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    return [name for name in names if name.startswith(incomplete)]


Run = Annotated[str, typer.Argument(help="A run's id, or latest.", autocompletion=complete_run)]


def configuration_path(file: Path | None, config: Path | None) -> Path:
    """Return the path of the configuration, given as an argument or with -c.

    Raises:
        UserError: Both are given, or the argument is a setting.
    """
    if file is not None and "=" in str(file) and not file.is_file():
        raise UserError(
            f"The argument {file} is not a configuration.",
            setting="CONFIG",
            value=str(file),
            allowed="the path of a run configuration, a YAML file",
            fix=f"--set {file}",
        )
    if file is not None and config is not None:
        raise UserError(
            f"The configuration is given twice, as {file} and as -c {config}.",
            fix=f"remove {file} or -c {config}",
        )
    return file or config or DEFAULT_CONFIGURATION
