"""Checks of what a run's configuration asks for."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import pkgutil
from pathlib import Path

from components.prepare_data.sources import look_at_source
from components.register_model.registry import Registry
from pipelines.config import no_place_on_vertex
from pipelines.doctor.check import NotConcernedError, Subject
from pipelines.hardware import validate_for
from pipelines.hardware.placement import check_python
from pipelines.platforms.kubeflow.checks import settings_of
from trainer.batches import check_shared_evenly
from trainer.errors import UserError, nearest


class ModelBuilder:
    """The model's builder can be found; it is not imported, which would take seconds."""

    name = "model builder"
    of_run = True

    def look(self, subject: Subject) -> str:
        if subject.config.model is None:
            return _training_module(str(subject.config.train.module), subject.folder)
        builder = subject.config.model.builder
        module, _, function = builder.partition(":")
        source = _source(module, subject.folder)
        if source is None:
            near = nearest(module, _modules_beside(module))
            raise UserError(
                f"There is no Python module {module}.",
                setting="model.builder",
                value=builder,
                allowed="an importable module:function",
                nearest=f"{near}:{function}" if near else None,
                mend=f"--set model.builder={near or 'MODULE'}:{function}, with its folder on PYTHONPATH",
            )
        names = _names(source)
        if names is not None and function not in names:
            near = nearest(function, names)
            raise UserError(
                f"The module {module} has no {function}.",
                setting="model.builder",
                value=builder,
                allowed=", ".join(f"{module}:{name}" for name in sorted(names) if not name.startswith("_")),
                nearest=f"{module}:{near}" if near else None,
                mend=f"--set model.builder={module}:{near or 'FUNCTION'}",
            )
        return f"{builder} in {source}"


def _training_module(module: str, folder: Path) -> str:
    """Where a training module of the user's own is."""
    source = _source(module, folder)
    if source is None:
        near = nearest(module, _modules_beside(module) or [path.stem for path in folder.glob("*.py")])
        raise UserError(
            f"There is no Python module {module}.",
            setting="train.module",
            value=module,
            allowed="a module that can be run as python -m MODULE",
            nearest=near,
            mend=f"--set train.module={near or 'MODULE'}, started from the folder that holds it",
        )
    return f"{module} in {source}"


def _source(module: str, folder: Path) -> Path | None:
    """The file of a module, without running it or its packages; None where there is no such module."""
    package, *parts = module.split(".")
    # Only a top-level name can be asked for without importing what it is in.
    spec = importlib.util.find_spec(package) or importlib.machinery.PathFinder.find_spec(package, [str(folder)])
    for part in parts:
        locations = list(spec.submodule_search_locations or []) if spec else []
        spec = importlib.machinery.PathFinder.find_spec(part, locations)
    return Path(spec.origin) if spec and spec.origin else None


def _modules_beside(module: str) -> list[str]:
    """The modules of the package that `module` would be in."""
    package, _, _ = module.rpartition(".")
    parent = _source(package, Path.cwd()) if package else None
    if parent is None:
        return []
    return [f"{package}.{found.name}" for found in pkgutil.iter_modules([str(parent.parent)])]


def _names(source: Path) -> set[str] | None:
    """The names that a module defines at its top; None where that can not be told from its text."""
    if source.suffix != ".py":
        return None
    try:
        tree = ast.parse(source.read_text())
    except (SyntaxError, UnicodeDecodeError):
        return None
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            if any(alias.name == "*" for alias in node.names):
                return None
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif not isinstance(node, ast.Expr):
            return None
    return names


class Champion:
    """The registry's champion, which the model will be measured against, is there."""

    name = "champion"
    of_run = True

    def look(self, subject: Subject) -> str:
        config = subject.config
        if subject.target != "local":
            raise NotConcernedError("the registry is not on this machine")
        if subject.rehearsal:
            raise NotConcernedError("a rehearsal is measured against nothing")
        if config.evaluate.champion == "none":
            raise NotConcernedError("evaluate.champion is none")
        champion = Registry(Path(config.register_.registry).absolute()).champion(config.model_name)
        return f"{config.model_name} version {champion.number}" if champion else f"{config.model_name} has none yet"


class HardwareChoice:
    """The hardware is there: on this machine for a local run, in the region and for the engine on Vertex AI."""

    name = "hardware"
    of_run = True

    def look(self, subject: Subject) -> str:
        config = subject.config
        hardware = config.parsed_hardware
        if subject.target == "local":
            if hardware.accelerators_per_replica and not subject.rehearsal:
                raise UserError(
                    "A run on this machine trains on its CPUs.",
                    setting="hardware",
                    value=config.hardware,
                    allowed="cpu, cpu*2 …",
                    nearest="cpu",
                    mend=f"slipway rehearse --hardware '{config.hardware}' tries the layout; --hardware cpu trains",
                )
            return str(hardware)
        if subject.target == "kubeflow":
            return f"{hardware} on {settings_of(config).host}"
        if config.vertex is None:
            raise no_place_on_vertex()
        validate_for(hardware, region=config.vertex.region, engine=config.train.engine, image=config.vertex.image)
        if config.vertex.image is None:
            check_python(hardware, config.train.engine)
        return f"{hardware} in {config.vertex.region}"


class Batch:
    """A batch can be shared evenly by the hardware's devices; otherwise the run would fail once its data is there."""

    name = "batch"
    of_run = True

    def look(self, subject: Subject) -> str:
        hardware, train = subject.config.parsed_hardware, subject.config.train
        devices = max(1, hardware.accelerators_per_replica)
        check_shared_evenly(train, hardware.replicas, devices)
        return f"{train.batch_size} examples, {train.batch_size // hardware.replicas // devices} a device"


class DataSource:
    """The data's source exists and is of a kind that is known; its examples are looked at when they are prepared."""

    name = "data source"
    of_run = True

    def look(self, subject: Subject) -> str:
        if subject.target != "local":
            raise NotConcernedError("the source is not read from this machine")
        return look_at_source(subject.config.data)
