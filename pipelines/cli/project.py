"""`slipway init`: write a small project that runs at once."""

from __future__ import annotations

import os
import re
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from slipway import extensions
from slipway.core.errors import UserError
from slipway.core.paths import require_utf8
from slipway.pipelines.terminal import console, user_errors

# The folder with the files of all templates, and those that have another name in the project.
ALL = "all"
RENAMED = {"gitignore": ".gitignore"}
SCHEMA = "schema.json"
# Of all tools that a project has: an existing one is kept.
AGENTS = "AGENTS.md"


# The templates, folders of slipway/pipelines/templates, and what each does; extensions add others.
IMAGES, PHOTOS, TABULAR, TEXT = "images", "photos", "tabular", "text"
TEMPLATES = {
    "images, tabular, text": "train a network of your own on images, a table or texts",
    PHOTOS: "fine-tune a pretrained network on the photographs of --images",
    **{name: template.description for name, template in extensions.templates().items()},
    "program": "run a training program",
}


@user_errors
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="The project's folder; default: this one.")
    ] = Path(),
    template: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="; ".join(f"{names}: {description}" for names, description in TEMPLATES.items()) + ".",
        ),
    ] = IMAGES,
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Scan a folder or archive of images, one folder per class; say what it has, and write the "
            "configuration that trains on it.",
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--table",
            "--text",
            metavar="FILE",
            help="Scan a CSV or Parquet file of columns or texts; say what it has, and write the configuration that "
            "trains on it.",
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column of the table that is to be predicted.")
    ] = None,
) -> None:
    """Write a small project that `slipway run` trains at once, to begin your own from."""
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.config.schema import schema_text

    require_utf8(folder.resolve())
    known = ", ".join(TEMPLATES).split(", ")
    if template not in known:
        raise UserError.unknown("template", template, known, setting="--template")
    if template == PHOTOS and images is None:
        raise UserError(
            "The template photos fine-tunes a network on your own photographs.",
            setting="--images",
            allowed="a folder or archive of photographs, with one folder per class",
            fix=f"slipway init {shlex.quote(str(folder))} --template photos --images FOLDER",
        )
    option, path, suitable = ("--images", images, [PHOTOS]) if images else ("--table", table, [*extensions.templates()])
    if path is not None and template not in (IMAGES, *suitable):
        raise UserError(
            f"{option} chooses the template itself.",
            setting="--template",
            value=template,
            allowed=f"{', '.join(suitable)}, or none" if suitable else "none",
            fix=f"slipway init {shlex.quote(str(folder))} {option} {shlex.quote(str(path))}",
        )
    scanned = ""
    if images is not None:
        scanned = _on_images(images, folder, template)
    elif table is not None:
        scanned, template = _on_table(table, label, folder, template)
    content = _content(template)
    if scanned:  # on data of the user's
        content = {name: text for name, text in content.items() if not name.endswith(".csv")}
    project = content.pop("slipway.yaml", "").replace("name: project\n", f"name: {_name(folder)}\n")
    content["slipway.yaml"] = scanned or project
    content[SCHEMA] = schema_text(RunConfig)
    has_agents = os.path.lexists(folder / AGENTS)
    if has_agents:
        del content[AGENTS]
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
    console.print("\n".join(f"created {folder / name}" for name in content))
    if has_agents:
        console.print(f"kept {folder / AGENTS}, which is yours")
    entered = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    console.print(f"\nto train: {entered}slipway run")


def _on_images(images: Path, folder: Path, template: str) -> str:
    """Scan images, say what there is, and return the configuration."""
    from slipway.components.prepare_data.scan import scan
    from slipway.components.prepare_data.settings import DataSettings
    from slipway.pipelines.cli.image_folder import configuration, summary

    source = images.expanduser().resolve()
    try:
        with console.status(f"scanning {images}"):
            image_scan = scan(DataSettings(source=f"images:{source}"))
    except UserError as error:
        if error.setting != "data.source":
            raise
        near = error.nearest.removeprefix("images:") if error.nearest else None
        fix = f"slipway init {shlex.quote(str(folder))} --images {shlex.quote(near)}" if near else error.fix
        raise UserError(
            error.message, setting="--images", value=str(images), allowed=error.allowed, nearest=near, fix=fix
        ) from None
    console.print(summary(str(images), image_scan), markup=False)
    console.print()
    return configuration(_name(folder), _seen_from(folder, source), image_scan, is_pretrained=template == PHOTOS)


def _on_table(table: Path, label: str | None, folder: Path, template: str) -> tuple[str, str]:
    """Scan a table, say what there is, and return the configuration and the template with its model."""
    from slipway.components.prepare_data.scan_table import scan_table
    from slipway.pipelines.cli.table_file import configuration, summary

    path = table.expanduser().resolve()
    with console.status(f"scanning {table}"):
        table_scan = scan_table(path, label)
    console.print(summary(str(table), table_scan), markup=False)
    console.print()
    added = extensions.templates().get(template)
    if added is None:
        has_text = any(feature.kind == "text" for feature in table_scan.manifest.inputs.values())
        template = TEXT if has_text else TABULAR
    source = f"{path.suffix.lower()[1:]}:{_seen_from(folder, path)}"
    return configuration(_name(folder), source, table_scan, added), template


def _seen_from(folder: Path, path: Path) -> str:
    """Return a path as the project's configuration has it: relative, if it is in the project's folder."""
    inside = path.is_relative_to(folder.resolve())
    return str(path.relative_to(folder.resolve()) if inside else path)


def _content(template: str) -> dict[str, str]:
    templates = Path(str(files("slipway.pipelines"))) / "templates"
    added = extensions.templates().get(template)
    chosen = Path(str(files(added.package))) / "template" if added else templates / template
    content = {}
    for root in (templates / ALL, chosen):
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                name = path.relative_to(root).as_posix()
                content[RENAMED.get(name, name)] = path.read_text()
    return content


def _name(folder: Path) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).lstrip("-0123456789").rstrip("-")
    return name[:40].rstrip("-") or "project"
