"""The parts used here of the filter language that Vertex AI's lists and Cloud Logging share.

Comparisons joined by AND; a comparison is `path op value` with op one of = != < <= > >= : and a value, quoted or bare,
or `path=("a" OR "b")`. Dotted paths may have a quoted part: labels."ml.googleapis.com/trial_id".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.fakes.errors import ServiceError

PATH = r'(?P<path>[A-Za-z_]\w*(?:\.(?:[\w-]+|"[^"]+"))*)'
VALUE = r'"(?:[^"\\]|\\.)*"|[^\s()"]+'
TERM = re.compile(rf"\s*{PATH}\s*(?P<op><=|>=|!=|=|<|>|:)\s*(?P<value>\((?P<any>[^)]*)\)|{VALUE})\s*")
COMPARE: dict[str, Callable[[str, str], bool]] = {
    "=": lambda have, want: have == want,
    "!=": lambda have, want: have != want,
    "<": lambda have, want: have < want,
    "<=": lambda have, want: have <= want,
    ">": lambda have, want: have > want,
    ">=": lambda have, want: have >= want,
    ":": lambda have, want: want in have,
}


def matcher(text: str) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a resource, as a mapping, matches the filter.

    Raises:
        ServiceError: The filter cannot be parsed.
    """
    terms: list[tuple[list[str], str, list[str]]] = []
    position = 0
    while position < len(text.rstrip()):
        if terms:
            joint = re.compile(r"\s*AND\s+").match(text, position)
            if not joint:
                raise ServiceError(400, f"Unparseable filter: syntax error at line 1, column {position + 1}.")
            position = joint.end()
        term = TERM.match(text, position)
        if not term:
            raise ServiceError(400, f"Unparseable filter: syntax error at line 1, column {position + 1}.")
        position = term.end()
        values = re.split(r"\s+OR\s+", term["any"].strip()) if term["any"] else [term["value"]]
        path = [part.strip('"') for part in re.findall(r'"[^"]+"|[^.]+', term["path"])]
        terms.append((path, term["op"], [_unquoted(value) for value in values]))

    def passes(thing: Mapping[str, Any]) -> bool:
        return all(any(COMPARE[op](_at(thing, path), value) for value in values) for path, op, values in terms)

    return passes


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value


def _at(thing: Any, path: list[str]) -> str:
    for part in path:
        thing = thing.get(part) if isinstance(thing, Mapping) else None
    return "" if thing is None else str(thing)
