"""Write a run configuration as YAML with comments."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

WIDTH = 110


def write(
    configuration: Mapping[str, Any], comments: Mapping[str, str], heading: Iterable[str], remains: Mapping[str, Any]
) -> str:
    """Return the configuration as YAML.

    Args:
        configuration: The settings, in output order.
        comments: Comments by dotted setting name, written above the setting.
        heading: Paragraphs of the header comment.
        remains: Old settings without an equivalent, appended as a comment.
    """
    paragraphs = [_comment(text, "") for text in heading]
    body = "".join(_setting(key, value, comments, "", "") for key, value in configuration.items())
    parts = ["\n#\n".join(paragraphs), "\n\n", body]
    if remains:
        parts += ["\n# Old settings without an equivalent:\n", _prefixed(_dump(remains))]
    return "".join(parts)


def _setting(key: str, value: Any, comments: Mapping[str, str], path: str, indent: str) -> str:
    name = f"{path}{key}"
    comment = f"{_comment(comments[name], indent)}\n" if name in comments else ""
    if isinstance(value, Mapping) and any(other.startswith(f"{name}.") for other in comments):
        inner = "".join(_setting(sub, item, comments, f"{name}.", f"{indent}  ") for sub, item in value.items())
        return f"{comment}{indent}{key}:\n{inner}"
    return comment + textwrap.indent(_dump({key: value}), indent)


def _comment(text: str, indent: str) -> str:
    # Escape line separators, which would end the comment.
    visible = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    lines = textwrap.wrap(visible, WIDTH - len(indent) - 2, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"{indent}# {line}" for line in lines)


def _dump(values: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(values), sort_keys=False, width=WIDTH, allow_unicode=True))


def _prefixed(text: str) -> str:
    return "".join(f"# {line}\n" if line else "#\n" for line in text.splitlines())
