"""The options that several commands take."""

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
    """What the steps of a run on this machine are."""

    process = "process"
    docker = "docker"


ConfigurationFile = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG]", help="The run configuration, a YAML file; the same as -c.")
]
Configuration = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help=f"The run configuration; {DEFAULT_CONFIGURATION} by default."),
]
Place = Annotated[
    Target, typer.Option("--target", metavar="PLATFORM", help="Where the run executes: local, vertex or kubeflow.")
]
Hardware = Annotated[
    str | None,
    typer.Option("--hardware", metavar="CHOICE", help="What trains: cpu, cpu*2, l4x4*2, tpu-v5e-2x4 and others."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting, such as train.batch_size=256. Can be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def complete_run(incomplete: str) -> list[str]:
    """The runs in this folder that begin with `incomplete`, for the shell's completion."""
    root = Path("runs")
    names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    return [name for name in names if name.startswith(incomplete)]


Run = Annotated[str, typer.Argument(help="A run's id, or latest.", autocompletion=complete_run)]


def configuration_path(file: Path | None, config: Path | None) -> Path:
    """The configuration that a command is given, as an argument or with -c.

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
            fix=f"leave {file} or -c {config} out",
        )
    return file or config or DEFAULT_CONFIGURATION
