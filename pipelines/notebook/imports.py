"""Import statements for what a notebook's names stand for, and where the imported modules are."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from slipway.core.errors import UserError

_OWN = "slipway"


def import_statement(name: str, value: object) -> str | None:
    """Return the statement that binds `name` to `value`, by a public name if it has one; None if no module has it."""
    if isinstance(value, ModuleType):
        value = sys.modules.get(value.__name__, value)  # what TensorFlow's lazy modules stand for
        if _is_public(value.__name__):
            return _module_import(name, value.__name__)
    location = _location(name, value)
    if location is None:
        return _module_import(name, value.__name__) if isinstance(value, ModuleType) else None
    module, attribute = location
    return f"from {module} import {attribute}" + (f" as {name}" if name != attribute else "")


def _module_import(name: str, module: str) -> str | None:
    if module not in sys.modules:
        return None
    parent, _, last = module.rpartition(".")
    if name == module:
        return f"import {name}"
    return f"from {parent} import {last}" if name == last else f"import {module} as {name}"


def module_of(statement: str) -> str:
    """Return the module that an import statement imports, or from which it imports."""
    return statement.split()[1]


def submodule_imports(names: dict[str, ModuleType], trees: Iterable[ast.AST]) -> Iterator[str]:
    """Yield statements for submodules that the code reaches through their package, if this does not import them.

    Args:
        names: The packages by the names that the code has for them.
        trees: The code.
    """
    for node in (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)):
        path: list[str] = []
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            path.insert(0, root.attr)
            root = root.value
        module = names.get(root.id) if isinstance(root, ast.Name) else None
        while module is not None and path:
            attribute = path.pop(0)
            inner = sys.modules.get(f"{module.__name__}.{attribute}")
            inner = inner if inner is vars(module).get(attribute) else None
            if inner is not None and inner.__name__ == f"{module.__name__}.{attribute}":
                if not _imports(module, attribute):
                    yield f"import {inner.__name__}"
                module = inner
            else:
                module = None


def merged(statements: Iterable[str]) -> list[str]:
    """Return import statements in their order in a module, with one line for all that is imported from a module."""
    modules: dict[str, set[str]] = {}
    for statement in statements:
        start, _, name = statement.rpartition("import ")
        modules.setdefault(start, set()).add(name)
    plain = [f"import {name}" for name in sorted(modules.pop("", ()))]
    return plain + [f"{start}import {', '.join(sorted(names))}" for start, names in sorted(modules.items())]


def project_file(module: str, folder: Path, user: str) -> str | None:
    """Return where a module's package is in the project, relative to `folder`; None if it is installed.

    Args:
        module: The module's name.
        folder: The project's folder, where runs start.
        user: What imports it, for the message.

    Raises:
        UserError: It is neither in the project nor installed, or the run would import another file of this name.
    """
    package = module.partition(".")[0]
    if package == _OWN or package in sys.stdlib_module_names:
        return None
    project_path, loaded = _place(importlib.machinery.PathFinder.find_spec(package, [str(folder)])), _loaded(package)
    if project_path is not None and loaded is not None and project_path != loaded:
        raise UserError(
            f"{user} uses {module} of {loaded}; a run in {folder} would import {project_path} instead.",
            fix=f"rename {project_path.name}, or restart the notebook's kernel in {folder}",
        )
    if project_path is not None:
        return project_path.relative_to(folder.resolve()).as_posix()
    if loaded is None or _is_installed(loaded):
        return None
    inside = loaded.is_relative_to(folder.resolve())
    where = f"is in {loaded.parent}, from where a run in {folder} cannot import it" if inside else "is outside of the"
    raise UserError(
        f"{user} uses {module}, which {where}" + ("." if inside else f" project's folder {folder}: {loaded}."),
        fix=f"move {loaded} to {folder}, or install it as a package",
    )


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that import statements in the code name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def _is_public(module: str) -> bool:
    return module not in ("__main__", "builtins") and not any(
        part.startswith("_") or part == "src" for part in module.split(".")
    )


def _location(name: str, value: object) -> tuple[str, str] | None:
    """Return a module that has the value as an attribute, and the attribute's name; public ones first."""
    defined, value_name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(defined, str):
        defined = type(value).__module__
    attributes, package = [name], defined.partition(".")[0]
    if isinstance(value_name, str):
        attributes.append(value_name.rpartition(".")[2])
    locations = []
    for module, loaded in list(sys.modules.items()):
        if not isinstance(loaded, ModuleType) or module == "__main__" or loaded.__name__ != module:
            continue
        locations += [(module, attribute) for attribute in attributes if vars(loaded).get(attribute) is value]
        if value_name is None and module.partition(".")[0] == package:  # such as float32 of TensorFlow
            locations += [(module, attribute) for attribute, member in list(vars(loaded).items()) if member is value]
    return min(
        locations,
        key=lambda location: (
            not _is_public(location[0]),
            value_name is None
            or not f"{defined}.".startswith(f"{location[0]}."),  # torch.nn for torch.nn.modules.linear.Linear
            location[0].partition(".")[0] != package,
            location[0].count("."),
            location[1].startswith("_"),
            location,
        ),
        default=None,
    )


def _imports(package: ModuleType, name: str) -> bool:
    """Return whether a package's own code imports its submodule, so that importing the package is enough."""
    try:
        tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return False
    imported = [
        alias for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
    ]
    return any(name in (alias.asname, alias.name.rpartition(".")[2], "*") for alias in imported)


def _loaded(package: str) -> Path | None:
    module = sys.modules.get(package)
    if module is None:
        return _place(importlib.util.find_spec(package))
    if getattr(module, "__file__", None):
        file = Path(str(module.__file__)).resolve()
        return file.parent if hasattr(module, "__path__") else file
    return next((Path(path).resolve() for path in getattr(module, "__path__", ())), None)


def _place(spec: importlib.machinery.ModuleSpec | None) -> Path | None:
    """Return the folder of a package, or the file of a module."""
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin and spec.has_location else None


def _is_installed(path: Path) -> bool:
    folders = {*site.getsitepackages(), site.getusersitepackages()}
    folders |= {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return "dist-packages" in path.parts or any(path.is_relative_to(Path(folder).resolve()) for folder in folders)
