"""Artifacts of runs, and `slipway compile`, `build` and `verify`, which write and read them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipway.core.errors import UserError
from slipway.pipelines.cli.targets import Target, show_cost, show_warnings, target_option
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
from slipway.pipelines.platforms.base import Platform
from slipway.pipelines.platforms.capabilities import WithImages
from slipway.pipelines.platforms.table import DEFAULT, PLATFORMS, platform_of
from slipway.pipelines.terminal import EXIT_FAILED, console, print_results, say, user_errors

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.images.build import Content


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
) -> None:
    """Write the pipeline spec that a run executes."""
    from slipway.pipelines.api import starting

    configuration = configured(file, config, overrides, hardware)
    show_warnings(starting.check(configuration, target, builds=False))
    show_cost(configuration, target, say)
    if output.suffix not in (".yaml", ".yml", ".json"):
        raise UserError(
            f"{output} is not a YAML or JSON file name.", setting="-o", value=str(output),
            allowed="*.yaml, *.yml, *.json", fix=f"-o {output.with_suffix('.yaml')}",
        )  # fmt: skip
    check_folder_of(output)
    platform_of(target).compile_to(output, configuration, say)
    made = f"{output}: {configuration.name} for {target} on {configuration.parsed_hardware}"
    console.print(made)


@user_errors
def build(
    file: ConfigurationFile = None,
    config: Configuration = None,
    target: Annotated[
        str | None,
        target_option(
            "Where the images run: local (with run --runner docker), vertex or tpu; default: by the configuration's "
            "sections, else local."
        ),
    ] = None,
    hardware: Hardware = None,
    overrides: Overrides = None,
    builder: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="cloud-build, docker, podman or buildah; default: the configured builder."),
    ] = None,
    no_push: Annotated[bool, typer.Option("--no-push", help="Build locally without pushing to a registry.")] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="Build nothing; print what the images contain of your project, and its size.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Build the images that a run needs, skip those already in the registry, and print their digests."""
    from slipway.pipelines.images.build import Content, build_images

    configuration = configured(file, config, overrides, hardware)
    platform = platform_of(target) if target else _building(configuration)
    if not isinstance(platform, WithImages):
        raise UserError(
            f"Slipway builds no image for {platform.title}.",
            setting="--target",
            value=platform.name,
            fix="build it from containers/Dockerfile; see docs/images.md",
        )
    if listed:
        contents = [Content.of(image) for image in platform.wanted_images(configuration, say).values()]
        text = json.dumps([asdict(content) for content in contents], indent=2) + "\n"
        sys.stdout.write(text if as_json else "\n".join(_listed(content) for content in contents))
        return
    images = build_images(configuration, platform, builder, push=not no_push, log=sys.stderr, say=say)
    sys.stdout.write(json.dumps(images, indent=2) + "\n" if as_json else "".join(f"{uri}\n" for uri in images.values()))


def _building(configuration: RunConfig) -> Platform:
    """Return the platform for which images are built that has a section in the configuration, else this machine."""
    sections = (name for name in PLATFORMS if getattr(configuration, name, None))
    name = next((name for name in sections if isinstance(PLATFORMS[name], WithImages)), DEFAULT)
    say(f"for {platform_of(name).title}")
    return platform_of(name)


def _listed(content: Content) -> str:
    """Return an image's content as lines: the project's files with their sizes, largest first."""
    largest = sorted(content.project.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"{_size(size)}  {name}" for name, size in largest]
    total = sum(content.project.values())
    lines.append(f"{_size(total)}  in {len(content.project)} files of the project")
    lines.append(f"{_size(content.slipway_bytes)}  in {content.slipway_files} files of Slipway")
    return "\n".join([content.image, *(f"  {line}" for line in lines)]) + "\n"


def _size(size: int) -> str:
    return f"{size:13,d} bytes"


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
    found = [each for name in names for each in verification.verify(name, registry, public)] if names else []
    found = found if names else list(verification.everything(registry, public))
    print_results(found, as_json=as_json)
    damaged = sum(bool(each.damages) for each in found)
    say(f"{len(found):,} artifacts verified, {damaged:,} damaged")
    if damaged:
        raise typer.Exit(EXIT_FAILED)
