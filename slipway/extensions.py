"""Extensions: what adds settings, commands, platforms, checks, data sources or trackers to Slipway's core.

An extension is a folder with everything of its own and a module `extension.py` that defines `EXTENSION`. Slipway's own
are the rows of `MODULES`; those of other packages are their entry points in the group `slipway.extensions`, such as
`mine = "mine.extension:EXTENSION"`. The core imports no extension: what a row refers to is imported when it is used.
Settings classes and platforms are imported by most commands, so they have modules of their own, which import little.
A folder that was deleted is no extension any more.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.core.errors import UserError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "slipway.extensions"
# The modules of Slipway's extensions, and the sections of the configuration that they own.
MODULES: Mapping[str, tuple[str, ...]] = {
    "slipway.components.prepare_data.beam.extension": (),
    "slipway.pipelines.google.extension": ("build", "containers"),
    "slipway.pipelines.bigquery.extension": (),
    "slipway.pipelines.tuning.extension": ("tune",),
    "slipway.pipelines.notification.extension": ("notify",),
    "slipway.pipelines.tracking.extension": ("track",),
    "slipway.pipelines.comparison.extension": (),
    "slipway.pipelines.bill.extension": (),
    "slipway.pipelines.cleaning.extension": (),
    "slipway.pipelines.migrate.extension": (),
    "slipway.pipelines.platforms.vertex.extension": ("deploy", "vertex"),
    "slipway.pipelines.platforms.kubeflow.extension": ("kubeflow",),
    "slipway.pipelines.platforms.tpu.extension": ("tpu",),
    "slipway.pipelines.setup.extension": (),
    "slipway.pipelines.prices.extension": (),
    "slipway.pipelines.advice.extension": (),
    "slipway.pipelines.notebook.extension": (),
    "slipway.pipelines.drift.extension": (),
    "slipway.pipelines.mcp.extension": (),
    "slipway.pipelines.huggingface.extension": (),
    "slipway.trainer.trees.extension": (),
}


@dataclass(frozen=True)
class Section:
    """A section of the configuration.

    Attributes:
        name: Its key in the file.
        settings: Its settings class, a `slipway.trainer.settings.Settings`, as "module:Class".
        description: What it is for, in the documentation and the JSON Schema.
        check: A function that receives the whole configuration if it has the section, as "module:function", and raises
            UserError for what contradicts it; "" for none.
        forms: The patterns of its settings and what they demand, in words, as "module:MAPPING"; "" for none.
        has_default: Whether a configuration without it has the settings' defaults; otherwise, it has none.
        secrets: The names of settings whose values no error shows.
        affects_training: Whether its settings make a difference to what a run trains.
        is_billed: Whether a run with it may cost money besides its training, such as for an endpoint.
    """

    name: str
    settings: str
    description: str
    check: str = ""
    forms: str = ""
    has_default: bool = False
    secrets: tuple[str, ...] = ()
    affects_training: bool = True
    is_billed: bool = False


@dataclass(frozen=True)
class Command:
    """A command, or a group of commands, of `slipway`.

    Attributes:
        panel: The title above it in `slipway --help`; "" in a group, whose help has one list.
        name: Its name.
        source: Its function, or the `typer.Typer` of a group, as "module:function"; "" for a group that has only
            commands of other rows, and exists if there are any.
        help: The first paragraph of its help, which is that of the function's docstring.
        examples: The lines below its help.
        group: The name of the group of commands that it belongs to, such as "runs" for `slipway runs clean`, which
            exists only if the group does; "" for the top level, which is for what is typed every day.
        extra: The extra whose packages it needs, such as "notebook": without them, no help page lists it, and calling
            it says how to install them; "" for none.
    """

    panel: str
    name: str
    source: str
    help: str
    examples: tuple[str, ...] = ()
    group: str = ""
    extra: str = ""


@dataclass(frozen=True)
class Condition:
    """When a run trains, a value of the setting `when`.

    Attributes:
        description: Continues "the run trains", in the documentation.
        context: The function that returns the context in which the steps after `prepare_data` are added; see
            `slipway.pipelines.drift.condition.if_drifted`.
        check: A function that receives a configuration with the condition and raises UserError for what contradicts it.
        step: The row of its step in the table of steps.
        after: The name of the step that its step follows.
    """

    description: str
    context: str
    check: str
    step: str
    after: str


@dataclass(frozen=True)
class Template:
    """A template of `slipway init` for tables, also the user's own with `--table`.

    Attributes:
        package: The package whose folder `template` has the project's files, besides those of all templates.
        description: What it trains, in the help of `--template`.
        sections: A function that receives the scan of a table, and which of two classes is rare or "", as
            "module:function", and returns the lines of the sections of slipway.yaml on training.
        kinds: The kinds of columns that it uses.
    """

    package: str
    description: str
    sections: str
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class Extension:
    """What an extension adds. References are "module:name" and are imported when they are used.

    Attributes:
        name: Its name.
        packages: The packages and modules that belong to it, besides its own folder.
        requires: The names of the extensions that it imports.
        sections: Its sections of the configuration.
        commands: Its commands.
        platforms: Classes of `slipway.pipelines.platforms.base.Platform`.
        checks: Tuples of `slipway.pipelines.checks.Check`, which the doctor makes on every platform.
        observers: Classes of `slipway.pipelines.runs.observers.Observer`, such as trackers.
        sources: Rows of `slipway.components.prepare_data.sources.SOURCES`.
        preparers: What prepares large data sets elsewhere; see `slipway.components.prepare_data.elsewhere.Preparer`.
        schemas: The settings classes of its own configuration files, by the word for `slipway config schema`.
        functions: What `import slipway` offers besides the core, by name.
        conditions: When runs train, by the value of `when`.
        rows: Rows of the pipeline's steps, `slipway.pipelines.step.Step`, by the name of the step that each follows.
        tasks: The tasks of the steps on a platform, where they are not those of other platforms: a mapping from steps'
            names to tuples of `slipway.pipelines.step.Task`, by the platform's name.
        steps: Functions that `slipway.steps` offers, by name.
        templates: Templates of `slipway init`, by name.
        writers: Functions that receive the model of `slipway.training.export`, and return what writes it as a
            SavedModel, a `slipway.trainer.export.export.Writer`; None for a model that they do not know.
        backends: Functions that train elsewhere, by the name of their settings; see
            `slipway.components.train.backends`.
        objects: What reads and writes the objects of buckets; see `slipway.core.buckets.Objects`.
        folders: What copies folders of buckets; see `slipway.pipelines.runs.copies.Folders`.
        inputs: What copies the inputs of predictions from a service to a file of this machine, by the prefix of their
            names; see `slipway.pipelines.prediction.inputs.Fetch`.
        outputs: Where predictions are written other than to a folder, by the prefix of its name; see
            `slipway.pipelines.prediction.output.Destination`.
        comparison: What `slipway hardware --compare` calls; see `slipway.pipelines.advice.command.compare`.
        chooser: What chooses hardware that a configuration leaves open; see
            `slipway.pipelines.advice.automatic.choose`.
        image_builder: The program, as a module, that builds the image of a run's containers on this machine.
        capture: What makes a module of a function that is in none, such as one from a notebook's cell.
    """

    name: str
    packages: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    commands: tuple[Command, ...] = ()
    platforms: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    observers: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    preparers: tuple[str, ...] = ()
    schemas: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    rows: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)
    steps: Mapping[str, str] = field(default_factory=dict)
    templates: Mapping[str, Template] = field(default_factory=dict)
    writers: tuple[str, ...] = ()
    backends: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    objects: str = ""
    folders: str = ""
    comparison: str = ""
    chooser: str = ""
    image_builder: str = ""
    capture: str = ""


def load(reference: str) -> Any:
    """Return what a reference "module:name" names, which may be a module itself."""
    module, _, name = reference.partition(":")
    package = importlib.import_module(module)
    return getattr(package, name) if hasattr(package, name) else importlib.import_module(f"{module}.{name}")


@functools.cache
def installed() -> tuple[Extension, ...]:
    """Return the extensions: Slipway's in the order of `MODULES`, then those of other packages by name."""
    extensions = [*_own()]
    for added in _others():
        _check_new(added, extensions)
        extensions.append(added)
    return tuple(extensions)


def _own() -> Iterator[Extension]:
    for module in MODULES:
        try:
            yield importlib.import_module(module).EXTENSION
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise


def _others() -> list[Extension]:
    """Return those of other packages; `importlib.metadata` takes longer to import than to see that there are none."""
    if not any(_declares(path) for folder in sys.path for path in Path(folder).glob("*-info/entry_points.txt")):
        return []
    from importlib.metadata import entry_points

    return [_loaded(point) for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)]


def _declares(path: Path) -> bool:
    try:
        return f"[{GROUP}]" in path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # a package that this user may not read
        return False


def _loaded(point: EntryPoint) -> Extension:
    """Return the extension of an entry point.

    Raises:
        UserError: It cannot be imported.
    """
    try:
        extension: Extension = point.load()
    except Exception as error:
        package = point.dist.name if point.dist else point.name
        raise UserError(
            f"The extension {point.name} of the package {package} cannot be loaded: {type(error).__name__}: {error}.",
            value=point.value,
            fix=f"correct it, or pip uninstall {package}",
        ) from error
    return extension


def _check_new(added: Extension, extensions: Sequence[Extension]) -> None:
    """Raise UserError if an extension has the name of another one, or adds a section or command that exists."""

    def names(extension: Extension) -> set[tuple[str, str]]:
        sections = {("section", section.name) for section in extension.sections}
        commands = {("command", command.name) for command in extension.commands}
        return {("extension", extension.name), *sections, *commands}

    for extension in extensions:
        for kind, name in sorted(names(added) & names(extension)):
            raise UserError(
                f"The extension {added.name} adds the {kind} {name}, which the extension {extension.name} has.",
                value=added.name,
                fix=f"rename it, or uninstall the package of {added.name}",
            )


def references(field: str) -> list[str]:
    """Return the references that extensions have in one of their fields, such as "checks" or "image_builder"."""
    values = [getattr(extension, field) for extension in installed()]
    return [reference for value in values if value for reference in ((value,) if isinstance(value, str) else value)]


def sections() -> tuple[Section, ...]:
    """Return the sections of the configuration that extensions add."""
    return tuple(section for extension in installed() for section in extension.sections)


def conditions() -> dict[str, Condition]:
    """Return when runs can train besides always, by the value of `when`."""
    return {name: condition for extension in installed() for name, condition in extension.conditions.items()}


def rows() -> list[tuple[str, str]]:
    """Return the references of the rows of steps that extensions add, with the step that each follows."""
    own = [(after, reference) for extension in installed() for after, reference in extension.rows.items()]
    return own + [(condition.after, condition.step) for condition in conditions().values()]


def tasks() -> dict[str, str]:
    """Return the references of the platforms' tasks, by the platform's name."""
    return {name: reference for extension in installed() for name, reference in extension.tasks.items()}


def by_prefix(field: str, name: str) -> Any | None:
    """Return what an extension has in a field, "inputs" or "outputs", for a name with its prefix; None if none has."""
    rows = (row for extension in installed() for row in getattr(extension, field).items())
    return next((load(reference) for prefix, reference in rows if name.startswith(prefix)), None)


def templates() -> dict[str, Template]:
    """Return the templates that extensions add, by name."""
    return {name: template for extension in installed() for name, template in extension.templates.items()}


def owner(section: str) -> str | None:
    """Return the folder of Slipway's extension that owns a section of the configuration; None if none does."""
    module = next((module for module, sections in MODULES.items() if section in sections), None)
    return module and module.rpartition(".")[0]
