"""The checks of the user's code (network, program, evaluation, serving), which is found without being imported."""

from __future__ import annotations

import ast
import importlib.machinery
import inspect
import pkgutil
import shutil
from pathlib import Path

from slipway.core.errors import UserError, nearest
from slipway.core.paths import is_remote
from slipway.pipelines.doctor.configuration import prepared_data
from slipway.pipelines.platforms.base import CheckWarning, Context, NotApplicableError
from slipway.trainer import hooks
from slipway.trainer.distributed.accelerators import PLANNED_VARIABLE
from slipway.trainer.engines.builder import check_signature, module_spec
from slipway.trainer.weights import find


def model_builder(context: Context) -> str:
    """The model's builder, weights and hooks, or the custom program, exist. Nothing is imported: it takes seconds."""
    model = context.config.model
    if model is None:
        return _program(context)
    source, signature = _function(model.builder, "model.builder", context.folder)
    if signature is not None:
        check_signature(signature, model, prepared_data(context.config))
    summary = f"{model.builder} in {source}"
    if model.weights is not None and not is_remote(model.weights.file):
        summary += f", weights in {find(model.weights)}"
    for setting, function in context.config.train.functions.items():
        source, signature = _function(function, setting, context.folder)
        if signature is not None:
            hooks.check_signature(setting, function, signature, context.config.train.engine)
        summary += f", {setting} in {source}"
    return summary


def evaluation(context: Context) -> str:
    """The functions of `evaluate.module` and `evaluate.slices` exist, and the slices' columns of prepared data."""
    settings = context.config.evaluate
    if settings.module is None and not settings.slices:
        raise NotApplicableError("neither evaluate.module nor evaluate.slices is set")
    from slipway.components.evaluate import custom, slices  # imports numpy

    parts = []
    if columns := settings.slice_columns:
        data = prepared_data(context.config)
        if data is not None:
            slices.check(columns, data)
        parts.append(", ".join(columns) + ("" if data else ": checked once the data are prepared"))
    for name in settings.slice_functions:
        source, signature = _function(name, slices.SETTING, context.folder)
        if signature is not None:
            hooks.check_call(slices.SETTING, name, signature, ("inputs",), slices.CONTRACT)
        parts.append(f"{name} in {source}")
    if settings.module:
        source, signature = _function(settings.module, "evaluate.module", context.folder)
        if signature is not None:
            custom.check_signature(settings.module, signature)
        parts.append(f"{settings.module} in {source}")
    return ", ".join(parts)


def serving(context: Context) -> str:
    """The function of `serve.module` exists and accepts a model's folder."""
    module = context.config.serve.module
    if module is None:
        raise NotApplicableError("serve.module is not set")
    from slipway.serving.model import MODULE_SETTING, check_signature  # imports numpy

    source, signature = _function(module, MODULE_SETTING, context.folder)
    if signature is not None:
        check_signature(module, signature)
    return f"{module} in {source}"


def _function(reference: str, setting: str, folder: Path) -> tuple[Path, inspect.Signature | None]:
    """Return where a module:function is, and its signature if that can be determined statically."""
    module, _, function = reference.partition(":")
    source = _source(module, folder)
    if source is None:
        near = nearest(module, _modules_beside(module, folder))
        raise UserError(
            f"There is no Python module {module}.",
            setting=setting,
            value=reference,
            allowed="an importable module:function",
            nearest=f"{near}:{function}" if near else None,
            fix=f"--set {setting}={near or 'MODULE'}:{function}, with its folder on PYTHONPATH",
        )
    names = _names(source)
    if names is not None and function not in names:
        near = nearest(function, names)
        raise UserError(
            f"The module {module} has no {function}.",
            setting=setting,
            value=reference,
            allowed=", ".join(f"{module}:{name}" for name in sorted(names) if not name.startswith("_")),
            nearest=f"{module}:{near}" if near else None,
            fix=f"--set {setting}={module}:{near or 'FUNCTION'}",
        )
    return source, _signature(source, function)


def _program(context: Context) -> str:
    train, folder = context.config.train, context.folder
    in_containers = context.platform.trains_in_image or context.runner == "docker"
    if train.module is None and train.command is None and not in_containers:
        raise UserError(
            "train.image is only an image: without containers, there is no command to run on this machine.",
            setting="train.image",
            value=train.image,
            allowed="a container, with --runner docker or --target vertex; or train.command, which runs as a process",
            fix="slipway run --runner docker; or --set train.command='[PROGRAM, ARGUMENT]'",
        )
    if train.image is not None and in_containers:
        if train.program != train.image:
            return f"{train.program} in {train.image}"
        if context.config.training_hardware.accelerators_per_replica:
            raise CheckWarning(
                f"the accelerators are not verified: the entry point of {train.image} has to compare "
                f"{PLANNED_VARIABLE} with what its framework sees, or may train on the CPU",
                "--set train.command='[PROGRAM, ARGUMENT]', which Slipway starts only if they are there",
            )
        return f"entry point of {train.image}"
    if train.command is not None:
        return _command(train.command[0], context)
    module = str(train.module)
    source = _source(module, folder)
    if source is None:
        near = nearest(module, _modules_beside(module, folder) or [path.stem for path in folder.glob("*.py")])
        raise UserError(
            f"There is no Python module {module}.",
            setting="train.module",
            value=module,
            allowed="a module that can be run as python -m MODULE",
            nearest=near,
            fix=f"--set train.module={near or 'MODULE'}, started from the folder that holds it",
        )
    return f"{module} in {source}"


def _command(program: str, context: Context) -> str:
    """Return where the program of `train.command` is on this machine."""
    if not context.platform.trains_here or context.runner == "docker":
        return program
    executable = shutil.which(context.folder / program if "/" in program else program)
    if executable is None:
        path = context.folder / program
        raise UserError(
            f"The command {program} is not executable." if path.is_file() else f"There is no command {program}.",
            setting="train.command",
            value=program,
            allowed="a program on the PATH, or the path of an executable file",
            fix=f"chmod +x {program}" if path.is_file() else "install it, or correct train.command",
        )
    return executable


def _source(module: str, folder: Path) -> Path | None:
    """Return the file of a module without importing it or its packages; None if it does not exist."""
    package, *parts = module.split(".")
    spec = module_spec(package, folder)
    for part in parts:
        locations = list(spec.submodule_search_locations or []) if spec else []
        spec = importlib.machinery.PathFinder.find_spec(part, locations)
    return Path(spec.origin) if spec and spec.origin else None


def _modules_beside(module: str, folder: Path) -> list[str]:
    package, _, _ = module.rpartition(".")
    parent = _source(package, folder) if package else None
    if parent is None:
        return []
    return [f"{package}.{module_info.name}" for module_info in pkgutil.iter_modules([str(parent.parent)])]


def _parsed(source: Path) -> ast.Module | None:
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
