"""Options shared by several commands, and the checks of their values."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipway.core.errors import UserError
from slipway.core.paths import in_project

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig

# A project's configuration, as `slipway init` writes it, and the one of Slipway's own checkout.
DEFAULT_CONFIGURATION = Path("slipway.yaml")
EXAMPLE_CONFIGURATION = Path("configs/digits.yaml")


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
Hardware = Annotated[
    str | None,
    typer.Option(
        "--hardware", metavar="CHOICE", help="Training hardware, such as cpu, cpu*2, gpu, l4x4*2 or tpu-v5e-2x4."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. train.batch_size=256. Can be repeated."),
]
StepRunner = Annotated[
    Runner, typer.Option("--runner", metavar="KIND", help="What runs local steps: process, or docker (containers).")
]
Registry = Annotated[Path, typer.Option("--registry", metavar="FOLDER", help="Folder of the registered models.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def complete_run(incomplete: str) -> list[str]:
    """Return the runs in this folder that begin with `incomplete`, for shell completion."""
    root = in_project(Path("runs"))
    names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    return [name for name in names if name.startswith(incomplete)]


Run = Annotated[str, typer.Argument(help="A run's id, or latest.", autocompletion=complete_run)]


def configuration_path(file: Path | None, config: Path | None) -> Path:
    """Return the path of the configuration, given as an argument or with -c.

    Raises:
        UserError: Both are given, or the argument is a setting, or neither is given and there is no default.
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
    chosen = file or config
    if chosen is None:
        defaults = (DEFAULT_CONFIGURATION, EXAMPLE_CONFIGURATION)
        chosen = next((path for path in defaults if path.is_file()), None)
    if chosen is None:
        above = in_project(DEFAULT_CONFIGURATION)
        raise UserError(
            f"There is no {DEFAULT_CONFIGURATION} in this folder.",
            fix=f"cd {above.parent}" if above.is_file() else "slipway init, which writes an example",
        )
    return chosen


def configured(
    file: Path | None, config: Path | None, overrides: list[str] | None, hardware: str | None = None
) -> RunConfig:
    """Return the configuration that the options of a command name, with its overrides."""
    from slipway.pipelines.config.config import load

    return load(configuration_path(file, config), overrides or (), hardware)


def check_runner(asked: Runner, taken: Runner, kind: str) -> None:
    """Refuse --runner docker for a run that does not use it."""
    if asked is Runner.docker and taken is not Runner.docker:
        raise UserError(f"--runner applies only to new local runs, not to {kind}.", setting="--runner", value="docker")


def check_folder_of(output: Path) -> None:
    """Check that an output file can be written in its folder.

    Raises:
        UserError: Its folder does not exist, or it is a folder itself.
    """
    if output.is_dir():
        raise UserError(f"{output} is a folder.", setting="-o", value=str(output), allowed="a file")
    if not output.absolute().parent.is_dir():
        raise UserError(
            f"The folder {output.parent} does not exist.",
            setting="-o",
            value=str(output),
            fix=f"mkdir -p {output.parent}",
        )
