"""The source text of functions and classes that a notebook's cells, an interactive session or a script defines.

The text is compared with the compiled code: a cell that ran in another form, a method that was replaced or a default
value that has changed since is an error, because the captured file would behave differently.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from slipway.core.errors import UserError

ANNOTATIONS = __future__.annotations.compiler_flag
TO_A_FILE = "move it into a .py file next to the notebook, and import it from there"
_Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_UNKNOWN = object()


@dataclass(frozen=True)
class Source:
    """A definition's text and syntax tree, and whether its annotations are not evaluated (PEP 563)."""

    text: str
    node: _Node
    lazy_annotations: bool


def function_of(value: Any) -> FunctionType | None:
    """Return the Python function that a value is, or that decorators have wrapped; None if it is something else."""
    while not isinstance(value, FunctionType) or hasattr(value, "__wrapped__"):
        if isinstance(value, type) or not hasattr(value, "__wrapped__"):
            return None
        value = value.__wrapped__
    return value


def function_source(name: str, value: Any) -> Source:
    """Return the source of a function of a cell, which decorators of libraries may wrap.

    Args:
        name: The function's name in the notebook.
        value: What the name stands for.

    Raises:
        UserError: It is a lambda, a closure or wrapped by one, or its source is not known.
    """
    function = function_of(value)
    assert function is not None
    if function.__name__ == "<lambda>":
        parameters = ", ".join(inspect.signature(function).parameters)
        raise UserError(
            f"{name} is a lambda, which cannot be captured from a notebook.",
            fix=f"write it as a function: def {name if name.isidentifier() else 'build'}({parameters}): …",
        )
    _refuse_closure(name, function)
    source = _find(name, function.__name__, [_text_of(function.__code__)], function.__code__)
    if source is None:
        raise _unknown_source(name)
    wrappers = []
    while value is not function:
        wrappers.append(value)
        value = value.__wrapped__
    for wrapper in wrappers:
        if getattr(wrapper, "__globals__", None) is function.__globals__:
            raise _wrapped(name, wrapper)
    if len(wrappers) > len(source.node.decorator_list):
        raise UserError(
            f"{name} was wrapped after its definition, which the definition's source does not show.",
            fix=f"write it as a decorator of {name}, or {TO_A_FILE}",
        )
    registries = [getattr(wrapper, "registry", None) for wrapper in wrappers]  # of functools.singledispatch
    if any(isinstance(registry, Mapping) and len(registry) > 1 for registry in registries):
        raise UserError(
            f"{name} has implementations that were registered after its definition ({name}.register).",
            fix=f"use isinstance in {name} instead, or {TO_A_FILE}",
        )
    added = [key for key in vars(function) if key != "__wrapped__"]
    if added and not source.node.decorator_list:
        raise _changed(f"{name}.{added[0]}", "the attribute was added after the definition")
    _check_defaults(name, function, source)
    return source


def class_source(value: type, namespace: Mapping[str, Any]) -> Source:
    """Return the source of a class of a cell.

    A class does not know its cell in Python 3.11 and 3.12; its methods do. A class without methods is looked for in
    the notebook's cells, the latest first.

    Raises:
        UserError: The class is defined in a function, its source is not known, or it has changed since.
    """
    name = value.__name__
    if "<locals>" in value.__qualname__:
        raise _nested(name, value.__qualname__)
    methods = {key: method for key, method in _methods(value).items() if method.__globals__ is namespace}
    methods = {key: method for key, method in methods.items() if not _is_generated(method.__code__)}
    codes = [method.__code__ for method in methods.values() if method.__code__.co_qualname.startswith(f"{name}.")]
    texts = [_text_of(code) for code in codes] or _texts(namespace)
    source = _find(name, name, texts, codes[0] if codes else None)
    if source is None:
        raise _unknown_source(name)
    _check_class(value, methods, source, namespace)
    return source


def future_flags(source: Source) -> int:
    """Return the flags with which a definition is compiled."""
    return ANNOTATIONS if source.lazy_annotations else 0


def _refuse_closure(name: str, function: FunctionType) -> None:
    free = function.__code__.co_freevars
    if free:
        raise UserError(
            f"{name} is a closure: it uses {', '.join(free)} of the function that contains it "
            f"({function.__qualname__.partition('.')[0]}).",
            fix=f"define {name} at the top level of a cell, with {', '.join(free)} as parameters or as constants",
        )
    if "<locals>" in function.__qualname__:
        raise _nested(name, function.__qualname__)


def _wrapped(name: str, closure: FunctionType) -> UserError:
    return UserError(
        f"{name} is decorated: it is the closure {closure.__code__.co_qualname}, which cannot be captured.",
        fix=f"remove the decorator; or, for {name} and its decorator: {TO_A_FILE}",
    )


def _nested(name: str, qualname: str) -> UserError:
    return UserError(
        f"{name} is defined inside of a function ({qualname}), so it cannot be captured.",
        fix=f"define {name} at the top level of a cell",
    )


def _unknown_source(name: str) -> UserError:
    return UserError(
        f"The source of {name} is not known: it was defined by exec, in a cell with a magic such as %%time, in a "
        "session that keeps no source, or in a file that has changed since.",
        fix=f"define {name} in a cell of its own, or {TO_A_FILE}",
    )


def _text_of(code: CodeType) -> str:
    return "".join(linecache.getlines(code.co_filename))


def _texts(namespace: Mapping[str, Any]) -> list[str]:
    """Return the texts of the notebook's cells, the latest first, or the script's text."""
    file = namespace.get("__file__")
    if isinstance(file, str) and Path(file).is_file():
        return ["".join(linecache.getlines(file))]
    cells = namespace.get("In", [])
    return [cell for cell in reversed(cells) if isinstance(cell, str)] if isinstance(cells, list) else []


def _find(name: str, defined: str, texts: list[str], code: CodeType | None) -> Source | None:
    """Return the definition of `defined` in the first text that has it; with `code`, the one that contains this code.

    Raises:
        UserError: The text of the definition is not what `code` was compiled from.
    """
    for text in texts:
        definitions = [node for node in _definitions(text) if node.name == defined]
        if code is not None:
            definitions = [
                node for node in definitions if _first_line(node) <= code.co_firstlineno <= (node.end_lineno or 0)
            ]
        if not definitions:
            continue
        lines = text.splitlines(keepends=True)[_first_line(definitions[-1]) - 1 : definitions[-1].end_lineno]
        source_text = textwrap.dedent("".join(lines)).rstrip() + "\n"
        flags = code.co_flags if code is not None else 0
        (node,) = ast.parse(source_text).body
        assert isinstance(node, _Node)
        source = Source(source_text, node, bool(flags & ANNOTATIONS))
        if code is not None and not any(_same(code, compiled) for compiled in _codes(source)):
            raise _unknown_source(name)
        return source
    return None


def _definitions(text: str) -> Iterator[_Node]:
    """Yield the definitions of a text that are outside of functions and classes, in their order."""
    try:
        left: list[ast.AST] = list(ast.parse(text).body)
    except SyntaxError:
        return
    while left:
        node = left.pop(0)
        if isinstance(node, _Node):
            yield node
        else:
            left[:0] = ast.iter_child_nodes(node)


def _first_line(node: _Node) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _codes(source: Source) -> Iterator[CodeType]:
    """Yield the code of a definition and of its methods, compiled from its text."""
    module = compile(source.text, "<captured>", "exec", flags=future_flags(source), dont_inherit=True)
    for code in module.co_consts:
        if isinstance(code, CodeType) and code.co_name == source.node.name:
            yield code
            yield from (constant for constant in code.co_consts if isinstance(constant, CodeType))


def _same(first: object, other: object) -> bool:
    """Return whether two constants of compiled code are equal; for code, whether it does the same."""
    if not isinstance(first, CodeType) or not isinstance(other, CodeType):
        return type(first) is type(other) and (first == other or repr(first) == repr(other))
    return (
        (first.co_code, first.co_names, first.co_varnames, first.co_freevars)
        == (other.co_code, other.co_names, other.co_varnames, other.co_freevars)
        and len(first.co_consts) == len(other.co_consts)
        and all(map(_same, first.co_consts, other.co_consts))
    )


def _methods(value: type) -> dict[str, FunctionType]:
    """Return a class's own functions by name, also those in properties and static and class methods."""
    methods = {}
    for name, member in vars(value).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        function = inspect.unwrap(function) if callable(function) and not isinstance(function, type) else function
        if isinstance(function, FunctionType):
            methods[name] = function
    return methods


def _is_generated(code: CodeType) -> bool:
    """Return whether a library made a method from text, such as the __init__ of a dataclass."""
    return code.co_filename.startswith("<") and not code.co_filename.startswith(("<python-input", "<ipython-input"))


def _check_class(
    value: type, methods: Mapping[str, FunctionType], source: Source, namespace: Mapping[str, Any]
) -> None:
    """Check that a class's methods and constants are those of its source."""
    name, codes = value.__name__, list(_codes(source))
    assigned = {
        node.id for node in ast.walk(source.node) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for key, method in methods.items():
        if key in assigned or any(_same(method.__code__, code) for code in codes):
            continue
        if method.__code__.co_freevars:
            raise _wrapped(f"{name}.{key}", method)
        raise _changed(f"{name}.{key}", "the method was replaced after the class was defined")
    bound = assigned | {statement.name for statement in source.node.body if isinstance(statement, _Node)}
    for key, expression in _constants(source.node):
        now, expected = vars(value).get(key), _static_value(expression, namespace, bound)
        if type(now) is type(expected) and not _equal(now, expected):
            raise _changed(f"{name}.{key}", f"it is {now!r}; its source says {expected!r} by now")


def _constants(node: _Node) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a class assigns in its body, with what it assigns."""
    for statement in node.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield statement.targets[0].id, statement.value
        elif (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and statement.value is not None
        ):
            yield statement.target.id, statement.value


def _check_defaults(name: str, function: FunctionType, source: Source) -> None:
    """Check that the names in default values still stand for what they did when the function was defined."""
    assert isinstance(source.node, ast.FunctionDef | ast.AsyncFunctionDef)
    arguments = source.node.args
    positional = [*arguments.posonlyargs, *arguments.args][::-1]
    defaults = list(zip(positional, arguments.defaults[::-1], (function.__defaults__ or ())[::-1], strict=False))
    for parameter, node in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if node is not None:
            defaults.append((parameter, node, (function.__kwdefaults__ or {}).get(parameter.arg)))
    for parameter, node, value in defaults:
        expected = _static_value(node, function.__globals__, set())
        if expected is not _UNKNOWN and not _equal(value, expected):
            difference = f"its default is {value!r}; {ast.unparse(node)} is {expected!r} by now"
            raise _changed(f"{name}({parameter.arg}=…)", difference)


def _changed(definition: str, why: str) -> UserError:
    name = definition.partition(".")[0].partition("(")[0]
    return UserError(f"{definition} has changed: {why}.", fix=f"run the cell that defines {name} again")


def _static_value(node: ast.expr, namespace: Mapping[str, Any], bound: set[str]) -> object:
    """Return the value of an expression with names but without calls; `_UNKNOWN` for anything else."""
    names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    allowed = (ast.Name, ast.Constant, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)
    if not all(isinstance(child, allowed) for child in ast.walk(node)) or names & bound:
        return _UNKNOWN
    try:
        return eval(compile(ast.Expression(node), "<captured>", "eval"), dict(namespace))
    except Exception:  # an undefined name is reported by name elsewhere
        return _UNKNOWN


def _equal(first: object, other: object) -> bool:
    try:
        return first is other or (type(first) is type(other) and (bool(first == other) or repr(first) == repr(other)))
    except Exception:  # arrays have no truth value
        return repr(first) == repr(other)
