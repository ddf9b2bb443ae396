"""The options that several commands take."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

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


Configuration = Annotated[Path, typer.Option("--config", "-c", help="The run's configuration, a YAML file.")]
Hardware = Annotated[str | None, typer.Option("--hardware", help="What trains: cpu, cpu*2, l4x4*2, tpu-v5e-2x4 …")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="One setting: train.batch_size=256. May be repeated.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Run = Annotated[str, typer.Argument(help="A run's id, or latest.")]
