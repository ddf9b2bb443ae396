"""The check of the model's builder, which is found without being imported."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import inspect
import pkgutil
from pathlib import Path

from slipway.core.errors import UserError, nearest
from slipway.core.paths import is_remote
from slipway.pipelines.doctor.check import Context
from slipway.trainer.engines.builder import check_signature
from slipway.trainer.weights import find


def model_builder(context: Context) -> str:
    """The model's builder and its initial weights exist. It is not imported, because that takes seconds."""
    if context.config.model is None:
        return _training_module(str(context.config.train.module), context.folder)
    builder = context.config.model.builder
    module, _, function = builder.partition(":")
    source = _source(module, context.folder)
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
        check_signature(signature, context.config.model)
    weights = context.config.model.weights
    if weights is not None and not is_remote(weights.file):
        return f"{builder} in {source}, weights in {find(weights)}"
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
