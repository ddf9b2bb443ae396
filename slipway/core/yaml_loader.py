"""Load user-written YAML safely: rejects duplicate keys, anchor bombs and excessive nesting."""

from __future__ import annotations

from typing import Any

import yaml

from slipway.core.errors import UserError

MAX_VALUES = 100_000
DEEPEST = 100


class NotYaml(UserError):
    """The text is not YAML."""


class _Limits(yaml.parser.Parser, yaml.composer.Composer):
    """Composer that counts values and nesting levels with aliases expanded.

    A node's size and height are stored once it is composed, so counting an alias is one lookup.
    """

    where = ""
    _values = 0
    _reached = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if parent is None:
            self._path: list[str] = []
            self._measured: dict[int, tuple[int, int]] = {}
        else:
            self._path.append(str(index.value if isinstance(index, yaml.ScalarNode) else index))
        depth = len(self._path)
        self._check(depth, self._values, event)
        values, reached, self._reached = self._values, self._reached, depth
        node = super().compose_node(parent, index)
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._measured:
                raise self._refused(event, f"*{event.anchor} refers to a value that contains itself")
            size, height = self._measured[id(node)]
            self._values, self._reached = self._values + size, depth + height
        else:
            self._values += 1
            self._measured[id(node)] = self._values - values, self._reached - depth
        self._check(self._reached, self._values, event)
        self._reached = max(reached, self._reached)
        if self._path:
            self._path.pop()
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line, first = key.start_mark.line + 1, lines.get((key.tag, key.value))
            if first is not None:
                name = ".".join([*self._path, key.value])
                lines_of_both = f"lines {first} and {line}" if line != first else f"line {line}"
                raise UserError(
                    f"{self.where} sets {name} twice, in {lines_of_both}.", fix=f"remove one of the two in {self.where}"
                )
            lines[key.tag, key.value] = line
        return node

    def _check(self, depth: int, values: int, event: yaml.Event) -> None:
        if depth > DEEPEST:
            raise self._refused(event, f"it nests more than {DEEPEST} levels deep")
        if values > MAX_VALUES:
            raise self._refused(event, f"it holds more than {MAX_VALUES:,} values, counting each use of an anchor")

    def _refused(self, event: yaml.Event, reason: str) -> UserError:
        where = f"{self.where}, line {event.start_mark.line + 1 if event.start_mark else 1}"
        return UserError(f"{where}: {reason}.", fix=f"correct {where}")


class _Typed(_Limits, yaml.SafeLoader):
    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):  # raised by PyYAML, e.g. for 2026-13-45 or 5,000 digits
            problem = f"{str(node.value)[:40]!r} is not a valid {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


class _Texts(_Limits, yaml.BaseLoader):
    pass


def load_yaml(text: str, where: str, *, typed: bool = True) -> Any:
    """Parse `text`; scalars stay strings unless `typed`. `where` names the source in error messages.

    Raises:
        NotYaml: It cannot be parsed.
        UserError: A key is duplicated, or the document is too large or too deeply nested after expanding anchors.
    """
    try:
        loader = _Typed(text) if typed else _Texts(text)
        loader.where = where
        return loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be parsed"
        raise NotYaml(f"{where}{line} is not YAML: {problem}.", fix=f"correct {where}{line}") from None
