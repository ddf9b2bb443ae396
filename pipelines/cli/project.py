"""`slipway init`: write a small project that runs at once."""

from __future__ import annotations

import os
import re
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
            help="images, tabular: train a network of your own on images or a table; program: run a training program.",
        ),
    ] = Template.images,
) -> None:
    """Write a small project that `slipway run` trains at once, to begin your own from."""
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.config.schema import schema_text

    require_utf8(folder.resolve())
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
    for name, text in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    console.print("\n".join(f"created {folder / name}" for name in content), highlight=False)
    entered = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    console.print(f"\nto train: {entered}slipway run", highlight=False)


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
