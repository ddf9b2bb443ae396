"""Artifacts of runs, and `slipway config compile` and `slipway runs verify`, which write and read them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipway.core.errors import UserError
from slipway.pipelines.cli.targets import Target, cost_of, show_cost, show_warnings
from slipway.pipelines.options import (
    Configuration,
    ConfigurationFile,
    Hardware,
    Json,
    Overrides,
    Registry,
    check_folder_of,
    configured,
)
from slipway.pipelines.platforms.table import DEFAULT, platform_of, with_hardware
from slipway.pipelines.terminal import EXIT_FAILED, console, print_json, print_results, say, user_errors

if TYPE_CHECKING:
    pass


@user_errors
def compile_(
    file: ConfigurationFile = None,
    config: Configuration = None,
    target: Target = DEFAULT,
    hardware: Hardware = None,
    overrides: Overrides = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The pipeline spec to write.")] = Path(
        "spec.yaml"
    ),
    as_json: Json = False,
) -> None:
    """Write the pipeline spec that a run executes."""
    from slipway.pipelines.api import starting

    configuration = with_hardware(configured(file, config, overrides, hardware), target, say)
    warnings = starting.check(configuration, target, builds=False)
    show_warnings(warnings)
    show_cost(configuration, target, say)
    if output.suffix not in (".yaml", ".yml", ".json"):
        raise UserError(
            f"{output} is not a YAML or JSON file name.", setting="-o", value=str(output),
            allowed="*.yaml, *.yml, *.json", fix=f"-o {output.with_suffix('.yaml')}",
        )  # fmt: skip
    check_folder_of(output)
    platform_of(target).compile_to(output, configuration, say)
    hardware = str(configuration.training_hardware)
    if as_json:
        shown = [warning.as_dict() for warning in warnings]
        facts = {"file": str(output), "name": configuration.name, "target": target, "hardware": hardware}
        print_json({**facts, "warnings": shown, "cost": cost_of(configuration, target)})
        return
    console.print(f"{output}: {configuration.name} for {target} on {hardware}")


@user_errors
def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WHAT]...", help="Models, runs and folders of data sets; default: all of this folder."),
    ] = None,
    registry: Registry = Path("models"),
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE", help="Public key (PEM) with which registered models must be signed."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read models, checkpoints and prepared data sets, and compare every file with its checksum."""
    from slipway.core import dsse
    from slipway.pipelines.runs import verification

    public = None if key is None else dsse.read_key(str(key), private=False, setting="--key")
    verified = [artifact for name in names for artifact in verification.verify(name, registry, public)] if names else []
    verified = verified if names else list(verification.everything(registry, public))
    print_results(verified, as_json=as_json)
    damaged = sum(bool(artifact.damages) for artifact in verified)
    say(f"{len(verified):,} artifacts verified, {damaged:,} damaged")
    if damaged:
        raise typer.Exit(EXIT_FAILED)
