"""Configuration files: `slipway config show` and `slipway config schema`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Annotated

import click
import typer

from slipway import extensions
from slipway.core.values import leaves, spoken
from slipway.pipelines.options import Configuration, ConfigurationFile, Hardware, Json, Overrides, configuration_path
from slipway.pipelines.terminal import command_group, print_json, user_errors

# Origins are aligned at the longest line, up to this column.
WIDEST = 60

Key = tuple[str, ...]
config = command_group(
    "Show a configuration, the JSON Schema of configuration files, or the pipeline spec that one becomes."
)


RUN = "run"
SCHEMAS = {kind: settings for extension in extensions.installed() for kind, settings in extension.schemas.items()}
KINDS = [RUN, *SCHEMAS]


@config.command(epilog="[bold]Examples[/]\n\nslipway config show my.yaml --set train.epochs=5")
@user_errors
def show(
    file: ConfigurationFile = None,
    config: Configuration = None,
    hardware: Hardware = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Print the resolved configuration, and whether each value is a default or where it was set."""
    from slipway.pipelines.config.config import load
    from slipway.pipelines.config.values import origins

    path, overrides = configuration_path(file, config), overrides or []
    values = load(path, overrides, hardware).model_dump(mode="json", by_alias=True)
    origin = origins(path, overrides, hardware)
    if as_json:
        rows = {".".join(key): {"value": value, "from": origin(key)} for key, value in leaves(values)}
        print_json(rows)
    else:
        sys.stdout.write(_with_origins(values, origin))


@config.command(epilog="[bold]Examples[/]\n\nslipway config schema > schema.json\n\nslipway config schema schedule")
@user_errors
def schema(
    kind: Annotated[
        str,
        typer.Argument(metavar="[KIND]", click_type=click.Choice(KINDS), help=f"The kind of file: {spoken(KINDS)}."),
    ] = RUN,
) -> None:
    """Print the JSON Schema of configuration files, with which editors complete and check them."""
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.config.schema import schema_text

    sys.stdout.write(schema_text(RunConfig if kind == RUN else extensions.load(SCHEMAS[kind])))


def _with_origins(values: Mapping[str, object], origin: Callable[[Key], str]) -> str:
    """Return YAML with the origin of each value in a comment."""
    rows: list[tuple[str, str]] = []
    shown: Key = ()
    for key, value in leaves(values):
        for depth, section in enumerate(key[:-1]):
            if key[: depth + 1] != shown[: depth + 1]:
                rows.append((f"{'  ' * depth}{_yaml(section)}:", ""))
        rows.append((f"{'  ' * (len(key) - 1)}{_yaml(key[-1])}: {_yaml(value)}", f"  # {_one_line(origin(key))}"))
        shown = key[:-1]
    width = min(WIDEST, max(len(text) for text, _ in rows))
    return "".join(f"{text:<{width}}{comment}".rstrip() + "\n" for text, comment in rows)


def _yaml(value: object) -> str:
    """Return a value as YAML on one line."""
    import yaml

    if isinstance(value, str) and not value.isprintable():
        return json.dumps(value)
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.removesuffix("...\n").rstrip("\n")


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)[1:-1]
