"""Checks of a run's configuration."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import inspect
import pkgutil
from pathlib import Path

from slipway.core.errors import UserError, nearest
from slipway.pipelines.config.config import no_place_on_vertex
from slipway.pipelines.doctor.check import NotConcernedError, Subject
from slipway.pipelines.hardware import validate_for
from slipway.pipelines.hardware.placement import check_python
from slipway.pipelines.platforms.kubeflow.checks import settings_of
from slipway.trainer.data.assignment import check_shared_evenly
from slipway.trainer.engines.builder import check_signature


class ModelBuilder:
    """The model's builder exists. It is not imported, because that takes seconds."""

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
                fix=f"--set model.builder={near or 'MODULE'}:{function}, with its folder on PYTHONPATH",
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
                fix=f"--set model.builder={module}:{near or 'FUNCTION'}",
            )
        signature = _signature(source, function)
        if signature is not None:
            check_signature(signature, subject.config.model)
        return f"{builder} in {source}"


def _training_module(module: str, folder: Path) -> str:
    """Return a description of where a custom training module is."""
    source = _source(module, folder)
    if source is None:
        near = nearest(module, _modules_beside(module) or [path.stem for path in folder.glob("*.py")])
        raise UserError(
            f"There is no Python module {module}.",
            setting="train.module",
            value=module,
            allowed="a module that can be run as python -m MODULE",
            nearest=near,
            fix=f"--set train.module={near or 'MODULE'}, started from the folder that holds it",
        )
    return f"{module} in {source}"


def _source(module: str, folder: Path) -> Path | None:
    """Return the file of a module without importing it or its packages; None if it does not exist."""
    package, *parts = module.split(".")
    # find_spec imports the parents of a dotted name, so it is called only with a top-level name.
    spec = importlib.util.find_spec(package) or importlib.machinery.PathFinder.find_spec(package, [str(folder)])
    for part in parts:
        locations = list(spec.submodule_search_locations or []) if spec else []
        spec = importlib.machinery.PathFinder.find_spec(part, locations)
    return Path(spec.origin) if spec and spec.origin else None


def _modules_beside(module: str) -> list[str]:
    """Return the modules in the package of `module`."""
    package, _, _ = module.rpartition(".")
    parent = _source(package, Path.cwd()) if package else None
    if parent is None:
        return []
    return [f"{package}.{found.name}" for found in pkgutil.iter_modules([str(parent.parent)])]


def _parsed(source: Path) -> ast.Module | None:
    """Return a module's syntax tree, or None if it cannot be parsed."""
    if source.suffix != ".py":
        return None
    try:
        return ast.parse(source.read_text())
    except (SyntaxError, UnicodeDecodeError):
        return None


def _signature(source: Path, function: str) -> inspect.Signature | None:
    """Return the signature of an undecorated top-level function that is defined once; None for anything else."""
    tree = _parsed(source)
    bound = [node for node in ast.walk(tree) if _binds(node, function)] if tree else []
    if tree is None or len(bound) != 1 or bound[0] not in tree.body or not isinstance(bound[0], ast.FunctionDef):
        return None
    if bound[0].decorator_list:
        return None
    # Evaluate a lambda with the same parameters, without their annotations and default values.
    nothing, parameters = ast.Constant(None), bound[0].args
    for node in ast.walk(parameters):
        if isinstance(node, ast.arg):
            node.annotation = None
    parameters.defaults = [nothing for _ in parameters.defaults]
    parameters.kw_defaults = [default and nothing for default in parameters.kw_defaults]
    expression = ast.fix_missing_locations(ast.Expression(ast.Lambda(parameters, nothing)))
    return inspect.signature(eval(compile(expression, str(source), "eval")))


def _binds(node: ast.AST, name: str) -> bool:
    """Return whether a node of a syntax tree binds `name`, in any scope."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name == name
    if isinstance(node, ast.alias):
        return name in (node.asname, node.name, "*")
    return isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)


def _names(source: Path) -> set[str] | None:
    """Return the names that a module binds outside its functions; None if they cannot be determined statically."""
    tree = _parsed(source)
    names: set[str] = set()
    left: list[ast.AST] = list(tree.body) if tree else []
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name | ast.Subscript) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else "*")  # globals()[…] = …
        left += ast.iter_child_nodes(node)
    return None if tree is None or names & {"*", "__getattr__"} else names


class KubeflowServer:
    """The Kubeflow Pipelines server responds and accepts the caller. Submitting a run checks this, too."""

    name = "kubeflow server"
    of_run = False

    def look(self, subject: Subject) -> str:
        if subject.target != "kubeflow":
            raise NotConcernedError("the run is not on Kubeflow")
        from slipway.pipelines.platforms.kubeflow.server import Server

        settings = settings_of(subject.config)
        Server(settings).check()
        return settings.host


class ServingImage:
    """A serving image is configured for Vertex AI; the model cannot be registered without one."""

    name = "serving image"
    of_run = True

    def look(self, subject: Subject) -> str:
        if subject.target != "vertex":
            raise NotConcernedError("the model is not registered on Vertex AI")
        if subject.config.vertex is None:
            raise NotConcernedError("the configuration has no section vertex")
        from slipway.pipelines.platforms.vertex.submission import serving_image_of

        return serving_image_of(subject.config.vertex)


class ImageContext:
    """The run's images can be built: git tracks their files, and for local containers Docker responds."""

    name = "image context"
    of_run = True

    def look(self, subject: Subject) -> str:
        config = subject.config
        if subject.target == "vertex" and config.vertex is not None and config.vertex.image is None:
            from slipway.pipelines.images.images import check_builder, wanted_images

            check_builder(config.vertex, config.vertex.build.builder)
            images = wanted_images(config, lambda _line: None)
            return ", ".join(f"{image.request.name}:{image.request.tag}" for image in images.values())
        if subject.runner == "docker":
            from slipway.pipelines.images.images import wanted_image
            from slipway.pipelines.platforms.local.containers import docker_client, has_gpus

            accelerator, built = "gpu" if has_gpus() else "cpu", config.containers
            with docker_client():
                image = wanted_image(config, "steps", accelerator, built.base, built.repository, lambda _line: None)
            return f"{image.request.name}:{image.request.tag}"
        raise NotConcernedError("no image is built")


class Champion:
    """The champion that the model will be compared with can be read from the registry."""

    name = "champion"
    of_run = True

    def look(self, subject: Subject) -> str:
        config = subject.config
        if subject.target != "local":
            raise NotConcernedError("the registry is not on this machine")
        if subject.rehearsal:
            raise NotConcernedError("a rehearsal is not compared with a champion")
        if config.evaluate.champion == "none":
            raise NotConcernedError("evaluate.champion is none")
        from slipway.components.register_model.registry import Registry

        champion = Registry(Path(config.register_.registry).absolute()).champion(config.model_name)
        return f"{config.model_name} version {champion.number}" if champion else f"{config.model_name} has none yet"


class HardwareChoice:
    """The hardware is available: on this machine for a local run, or in the region on Vertex AI."""

    name = "hardware"
    of_run = True

    def look(self, subject: Subject) -> str:
        config = subject.config
        hardware = config.parsed_hardware
        if subject.target == "local":
            if hardware.accelerators_per_replica and not subject.rehearsal:
                raise UserError(
                    "Local runs train on the CPU.",
                    setting="hardware",
                    value=config.hardware,
                    allowed="cpu, cpu*2 …",
                    nearest="cpu",
                    fix=f"--hardware cpu; or, to try the layout: slipway rehearse --hardware '{config.hardware}'",
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
    """The batch size is divisible by the number of devices; otherwise the run would fail after preparing its data."""

    name = "batch"
    of_run = True

    def look(self, subject: Subject) -> str:
        hardware, train = subject.config.parsed_hardware, subject.config.train
        devices = max(1, hardware.accelerators_per_replica)
        check_shared_evenly(train, hardware.replicas, devices)
        return f"{train.batch_size} examples, {train.batch_size // hardware.replicas // devices} per device"


class DataSource:
    """The data source exists and its type is supported; its examples are validated when they are prepared."""

    name = "data source"
    of_run = True

    def look(self, subject: Subject) -> str:
        if subject.target != "local":
            raise NotConcernedError("the source is not read from this machine")
        from slipway.components.prepare_data.sources import check_source  # needs the extra training

        return check_source(subject.config.data)
