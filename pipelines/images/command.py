"""`slipway config build`: build the images of runs, or list what they contain."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from slipway.core.errors import UserError
from slipway.pipelines.cli.targets import target_option
from slipway.pipelines.images.build import Content, build_images
from slipway.pipelines.images.local import LocalImages
from slipway.pipelines.images.platform import WithImages
from slipway.pipelines.options import Configuration, ConfigurationFile, Hardware, Json, Overrides, configured
from slipway.pipelines.platforms.table import DEFAULT, PLATFORMS, platform_of, with_hardware
from slipway.pipelines.terminal import say, user_errors

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig


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
    configuration = configured(file, config, overrides, hardware)
    target = target or _building(configuration)
    configuration = with_hardware(configuration, target, say)
    images = _images_of(target)
    if listed:
        contents = [Content.of(image) for image in images.wanted_images(configuration, say).values()]
        text = json.dumps([asdict(content) for content in contents], indent=2) + "\n"
        sys.stdout.write(text if as_json else "\n".join(_listed(content) for content in contents))
        return
    built = build_images(configuration, images, builder, push=not no_push, log=sys.stderr, say=say)
    sys.stdout.write(json.dumps(built, indent=2) + "\n" if as_json else "".join(f"{uri}\n" for uri in built.values()))


def _images_of(target: str) -> WithImages:
    """Return the images of a platform.

    Raises:
        UserError: It has none that are built.
    """
    platform = platform_of(target)
    if isinstance(platform, WithImages):
        return platform
    if target == DEFAULT:
        return LocalImages()
    raise UserError(
        f"Slipway builds no image for {platform.title}.",
        setting="--target",
        value=platform.name,
        fix="build it from containers/Dockerfile; see docs/vertex-reference.md",
    )


def _building(configuration: RunConfig) -> str:
    """Return the platform for which images are built that has a section in the configuration, else this machine."""
    sections = (name for name in PLATFORMS if getattr(configuration, name, None))
    name = next((name for name in sections if isinstance(PLATFORMS[name], WithImages)), DEFAULT)
    say(f"for {platform_of(name).title}")
    return name


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
