"""Write a function from a notebook's cell to a module of the project, with everything of the notebook that it uses.

The module has the source of the function and of the notebook's functions and classes that it uses, import statements,
and constants with their values. What cannot be written like this, such as an array or a closure, is refused by name.
Pickles would do without these limits, but are bound to a Python version, and nobody can read or repeat them.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from slipway.core.atomic import replace_file
from slipway.core.errors import UserError
from slipway.pipelines.notebook.imports import (
    import_statement,
    imported_modules,
    merged,
    module_of,
    project_file,
    submodule_imports,
)
from slipway.pipelines.notebook.literals import NotLiteralError, has_path, literal
from slipway.pipelines.notebook.names import OF_MODULES, Names, in_order, names_of, reachable, undefined_names
from slipway.pipelines.notebook.refusals import is_builtin, refuse_name, uncapturable, undefined
from slipway.pipelines.notebook.sources import TO_A_FILE, Source, class_source, function_of, function_source

MAX_SHOWN = 60


@dataclass(frozen=True)
class Captured:
    """A function that the configuration can name.

    Attributes:
        reference: The function, as module:function.
        path: The file that defines it.
        taken: What was captured, for the user: "block, net; WIDTH = 12, the value at submission". Empty if the function
            is in a module already.
        include: What `build.include` has to name so that images contain it, whether git tracks it or not: the captured
            file and the project's modules that it imports. Empty if the function is in a module already.
    """

    reference: str
    path: Path
    taken: str
    include: tuple[str, ...] = ()


def capture(function: Callable[..., Any], folder: Path, *, program: bool = False) -> Captured:
    """Return how the configuration names a function; a function of a cell is written to a module in `folder` first.

    The file's name has a hash of its text: the same code gives the same file.

    Args:
        function: A function or class of a notebook's cell, an interactive session, a script or a module.
        folder: The project's folder, where runs start.
        program: Write a custom training program: `python -m MODULE` calls the function, without arguments.

    Raises:
        UserError: The function, or something that it uses, cannot be captured or imported in a run.
    """
    folder, name = folder.resolve(), _name(function)
    if not isinstance(function, type) and function_of(function) is None:
        raise uncapturable(name, function, user=name)
    if program:
        _check_parameters(name, function)
    home = _namespace(function)
    code = _Code(home, folder)
    if home.get("__name__") != "__main__" and isinstance(home.get("__file__"), str):
        name, module = inspect.unwrap(function).__name__, str(home["__name__"])
        _check_attribute(name, function, home)
        code.add_import(name, f"from {module} import {name}", name)
        if not program:
            return Captured(f"{module}:{name}", Path(home["__file__"]), "")
    else:
        name = code.define(name, function)
        code.follow()
    path = _write(name, code.text(name, program=program), folder)
    return Captured(f"{path.stem}:{name}", path, code.taken(name), (path.name, *sorted(code.files)))


@dataclass
class _Code:
    """What is captured of a notebook: by name, the definitions, other names of definitions, constants and imports."""

    notebook: Mapping[str, Any]
    folder: Path
    sources: dict[str, Source] = field(default_factory=dict)
    names: dict[str, Names] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)
    _mutable: dict[int, str] = field(default_factory=dict)

    def define(self, name: str, value: Any) -> str:
        """Capture the function or class that `name` stands for, without what it uses; return its own name."""
        is_class = isinstance(value, type)
        source = class_source(value, self.notebook) if is_class else function_source(name, value)
        defined = source.node.name
        if self.notebook.get(defined) is not value:
            raise UserError(
                f"{name} is an earlier definition of {defined}, which a later cell has defined again or deleted.",
                fix=f"give the two definitions different names, or use the new {defined}",
            )
        if defined not in self.sources:
            self.sources[defined], self.names[defined] = source, names_of(source)
        if name != defined:
            self.aliases[name] = defined
        return defined

    def follow(self) -> None:
        """Capture what the definitions use, until nothing is missing."""
        followed: set[str] = set()
        while left := [name for name in self.sources if name not in followed]:
            followed.add(left[0])
            self._follow(left[0])
        for name in self.sources:
            self._check_definition(name)

    def _follow(self, user: str) -> None:
        names = self.names[user]
        if names.declared_global:
            name = min(names.declared_global)
            raise UserError(
                f"{user} assigns the notebook's variable {name} (global {name}), which a run has no notebook for.",
                fix=f"pass {name} to {user} as an argument and return its new value",
            )
        for name in sorted(names.all):
            self._resolve(name, user)
        for name in sorted(names.annotations):  # not evaluated, and may be undefined
            if name in self.notebook:
                self._resolve(name, user)
        for module in imported_modules(self.sources[user].node):
            self._add_file(module, user)
        packages = {name: value for name in names.all if isinstance(value := self.notebook.get(name), ModuleType)}
        for statement in submodule_imports(packages, [self.sources[user].node]):
            self.add_import(module_of(statement), statement, user)

    def _check_definition(self, name: str) -> None:
        """Check that nothing that runs while `name` is defined, such as its decorator, changes a captured container.

        The container's value at submission already has the change, which the module would repeat.
        """
        classes = {definition for definition, source in self.sources.items() if isinstance(source.node, ast.ClassDef)}
        functions = {definition: names.all for definition, names in self.names.items() if definition not in classes}
        for user in sorted(reachable(self.names[name].defining - {name}, functions)):
            for used in sorted(self.names[user].running & self.constants.keys()):
                if isinstance(self.notebook[used], list | dict | set):
                    raise UserError(
                        f"{user} runs while {name} is defined, and may change {used}, which has that change already.",
                        fix=f"use {used} only in functions that run later, or for {user} and {used}: {TO_A_FILE}",
                    )

    def _resolve(self, name: str, user: str) -> None:
        """Capture what a name of the notebook stands for."""
        known = any(name in captured for captured in (self.sources, self.aliases, self.constants, self.imports))
        if known or name in OF_MODULES or is_builtin(name, self.notebook):
            return
        refuse_name(name, user, self.notebook)
        value = self.notebook[name]
        if _is_defined_in(value, self.notebook):
            self.define(name, value)
            return
        try:
            constant = literal(value)
        except NotLiteralError as problem:
            statement = import_statement(name, value)
            if statement is None:
                raise uncapturable(name, value, user, str(problem)) from None
            self.add_import(name, statement, user)
            return
        if isinstance(value, list | dict | set):  # two names of one list remain two names of one list
            first = self._mutable.setdefault(id(value), name)
            constant = constant if first == name else first
        self.constants[name] = constant
        if has_path(value):
            self.add_import("pathlib", "import pathlib", user)

    def add_import(self, name: str, statement: str, user: str) -> None:
        """Import what `user` calls `name`, and note the file of the project that it is in, if it is."""
        self._add_file(module_of(statement), user)
        self.imports[name] = statement

    def _add_file(self, module: str, user: str) -> None:
        if file := project_file(module, self.folder, user):
            self.files.add(file)

    def text(self, name: str, *, program: bool) -> str:
        """Return the module's text."""
        parts = [
            f'"""{name}, captured from a notebook or an interactive session by slipway.run.\n\n'
            "Constants have their values at submission. The file's name has a hash of this text: change the notebook.\n"
            '"""'
        ]
        if any(source.lazy_annotations for source in self.sources.values()):
            parts.append("from __future__ import annotations")
        parts += [
            "\n".join(lines)
            for lines in (merged(self.imports.values()), self._assignments(lambda value: value))
            if lines
        ]
        text = "\n\n".join(parts) + "\n"
        for definition in in_order(self.names, self.aliases):
            text += f"\n\n{self.sources[definition].text}"
            text += "".join(
                f"\n{other} = {definition}\n" for other, target in self.aliases.items() if target == definition
            )
        if program:
            text += f'\n\nif __name__ == "__main__":\n    {name}()\n'
        ast.parse(text)
        for missing in undefined_names(text):
            raise undefined(missing, name, self.notebook)
        return text

    def taken(self, name: str) -> str:
        """Return what was captured, for the user."""
        functions = [*(definition for definition in in_order(self.names, self.aliases) if definition != name), name]
        constants = self._assignments(_shortened)
        values = f"the value{'s' if len(constants) > 1 else ''} at submission"
        return ", ".join(functions) + (f"; {', '.join(constants)}, {values}" if constants else "")

    def _assignments(self, shown: Callable[[str], str]) -> list[str]:
        return [f"{name} = {shown(value)}" for name, value in self.constants.items()]


def _name(function: Any) -> str:
    """Return a function's name, or the one that the notebook has for something without a name."""
    function_name = getattr(function, "__name__", type(function).__name__)
    notebook = vars(sys.modules["__main__"])
    if notebook.get(function_name) is function:
        return str(function_name)
    names = (name for name, value in notebook.items() if value is function and not name.startswith("_"))
    return next(names, str(function_name))


def _namespace(function: Any) -> Mapping[str, Any]:
    if isinstance(function, type):
        module = sys.modules.get(function.__module__)
        return vars(module) if module is not None else {}
    unwrapped = function_of(function)
    return unwrapped.__globals__ if unwrapped is not None else {}


def _is_defined_in(value: object, notebook: Mapping[str, Any]) -> bool:
    if isinstance(value, type):
        return value.__module__ == notebook.get("__name__")
    function = function_of(value)
    return function is not None and function.__globals__ is notebook


def _check_attribute(name: str, function: Any, module: Mapping[str, Any]) -> None:
    if module.get(name) is not function:
        raise UserError(
            f"{inspect.unwrap(function).__qualname__} is not a function at the top level of its module "
            f"{module['__name__']}.",
            fix=f"define a function at the top level of {module['__name__']}, and pass that",
        )


def _check_parameters(name: str, function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in kinds
    ]
    if required:
        raise UserError(
            f"The training program {name} requires the arguments {', '.join(required)}, and is called without any.",
            fix=f"give {required[0]} a default value: def {name}({required[0]}=…)",
        )


def _write(name: str, text: str, folder: Path) -> Path:
    path = folder / f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:8]}.py"
    if not path.exists():
        replace_file(path, text.encode())
    elif path.read_text(encoding="utf-8") != text:
        raise UserError(
            f"{path} was edited after it was captured from the notebook.",
            fix=f"mv {shlex.quote(str(path))} {name}_edited.py, and name its function in the configuration",
        )
    return path


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
