"""`slipway init`: write a small project that runs at once."""

from __future__ import annotations

import os
import re
import shlex
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from slipway.core.errors import UserError
from slipway.core.paths import require_utf8
from slipway.pipelines.terminal import console, user_errors

# The folder with the files of all templates, and those that have another name in the project.
ALL = "all"
RENAMED = {"gitignore": ".gitignore"}
SCHEMA = "schema.json"


class Template(StrEnum):
    """The templates: folders of slipway/pipelines/templates."""

    images = "images"
    tabular = "tabular"
    text = "text"
    program = "program"


@user_errors
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="The project's folder; default: this one.")
    ] = Path(),
    template: Annotated[
        Template,
        typer.Option(
            metavar="NAME",
            help="images, tabular, text: train a network of your own on images, a table or texts; program: run a "
            "training program.",
        ),
    ] = Template.images,
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Scan a folder or archive of images, one folder per class; say what it has, and write the "
            "configuration that trains on it.",
        ),
    ] = None,
) -> None:
    """Write a small project that `slipway run` trains at once, to begin your own from."""
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.config.schema import schema_text

    require_utf8(folder.resolve())
    if images is not None and template is not Template.images:
        raise UserError(
            f"--images trains a network on images; the template {template.value} has none.",
            setting="--template",
            value=template.value,
            fix=f"slipway init {shlex.quote(str(folder))} --images {shlex.quote(str(images))}",
        )
    content = _content(template)
    content["slipway.yaml"] = content["slipway.yaml"].replace("name: project\n", f"name: {_name(folder)}\n")
    content[SCHEMA] = schema_text(RunConfig)
    existing = [name for name in content if os.path.lexists(folder / name)]  # also a link to nothing
    if existing:
        raise UserError(
            f"{folder.resolve()} already contains {', '.join(existing)}.",
            allowed="a folder without these files",
            fix="slipway init NEW_FOLDER",
        )
    if images is not None:
        content["slipway.yaml"] = _on_images(images, folder)
    for name, text in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    console.print("\n".join(f"created {folder / name}" for name in content), highlight=False)
    entered = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    console.print(f"\nto train: {entered}slipway run", highlight=False)


def _on_images(images: Path, folder: Path) -> str:
    """Scan images, say what there is, and return the configuration."""
    from slipway.components.prepare_data.scan import scan
    from slipway.components.prepare_data.settings import DataSettings
    from slipway.pipelines.cli.image_folder import configuration, summary

    source = images.expanduser().resolve()
    try:
        with console.status(f"scanning {images}"):
            found = scan(DataSettings(source=f"images:{source}"))
    except UserError as error:
        if error.setting != "data.source":
            raise
        near = error.nearest.removeprefix("images:") if error.nearest else None
        fix = f"slipway init {shlex.quote(str(folder))} --images {shlex.quote(near)}" if near else error.fix
        raise UserError(
            error.message, setting="--images", value=str(images), allowed=error.allowed, nearest=near, fix=fix
        ) from None
    console.print(summary(str(images), found), highlight=False, markup=False, soft_wrap=True)
    console.print()
    inside = source.is_relative_to(folder.resolve())
    return configuration(_name(folder), str(source.relative_to(folder.resolve()) if inside else source), found)


def _content(template: Template) -> dict[str, str]:
    templates = Path(str(files("slipway.pipelines"))) / "templates"
    content = {}
    for root in (templates / ALL, templates / template.value):
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                name = path.relative_to(root).as_posix()
                content[RENAMED.get(name, name)] = path.read_text()
    return content


def _name(folder: Path) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).lstrip("-0123456789").rstrip("-")
    return name[:40].rstrip("-") or "project"
