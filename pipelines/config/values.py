"""The raw values of a configuration: from a YAML file, `--set` and `--hardware`, and where each value comes from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from slipway.core.errors import UserError, nearest
from slipway.core.yaml_loader import DEEPEST, NotYaml, load_yaml
from slipway.trainer.stages import DURATIONS, LENGTHS

# Sections that may be a single value, and the setting whose value that is.
SHORT = {"budget": "dollars"}
Values = dict[str, object]
Key = tuple[str, ...]


def read_values(path: Path, overrides: Sequence[str] = (), hardware: str | None = None) -> Values:
    """Return the values in `path` with `overrides` ("train.batch_size=256") and `hardware` applied, not validated."""
    for text in overrides:
        _key_and_value(text)  # before reading the file: the word after `--set KEY` may have been parsed as its path
    values = read_yaml(path)
    apply_overrides(values, overrides)
    if hardware is not None:
        values["hardware"] = hardware
    return values


def read_yaml(path: Path) -> Values:
    """Read a mapping from a YAML file.

    Raises:
        UserError: The file is missing, not YAML, or not a mapping.
    """
    if not path.is_file():
        raise _no_configuration(path)
    try:
        values = load_yaml(path.read_text(), str(path))
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text.", fix="-c FILE, with the path of a YAML file") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} contains no settings.", allowed="a mapping, as slipway init writes it")
    return values


def _no_configuration(path: Path) -> UserError:
    """Return the error for a missing configuration; it lists the run configurations that exist."""
    folders = dict.fromkeys([path.parent, Path(), Path("configs")])
    files = [file for folder in folders for file in sorted(folder.glob("*.y*ml")) if _is_run_configuration(file)]
    known = {str(file).removesuffix(file.suffix): str(file) for file in files}
    near = known.get(nearest(str(path).removesuffix(path.suffix), known) or "")
    near = near or (str(files[0]) if len(files) == 1 else None)
    return UserError(
        f"The configuration {path} {'is a folder' if path.is_dir() else 'does not exist'}.",
        setting="-c",
        value=str(path),
        allowed=", ".join(map(str, files)) or "the path of a run configuration, a YAML file",
        nearest=near,
        fix=f"-c {near}" if near else "-c FILE, with the path of your run configuration",
    )


def _is_run_configuration(path: Path) -> bool:
    """Return whether a file looks like a run configuration; compiled specs and schedules do not."""
    try:
        with path.open() as file:
            text = file.read(100_000)
    except (OSError, UnicodeDecodeError):
        return False
    return all(re.search(rf"^{section}:", text, re.MULTILINE) for section in ("data", "train"))


def _key_and_value(override: str) -> tuple[str, str]:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise UserError(
            f"--set requires key=value; got {override!r}.",
            setting="--set",
            value=override,
            fix=f"--set {key or 'KEY'}={value or 'VALUE'}, without spaces around =",
        )
    if key.count(".") > DEEPEST:
        raise UserError(f"--set {override[:40]}… nests more than {DEEPEST} levels deep.", setting="--set")
    return key, value


def apply_overrides(values: Values, overrides: Iterable[str]) -> None:
    """Apply "dotted.key=value" overrides to `values` in place; values are parsed as YAML.

    An overridden duration replaces the file's, even if that has another unit; stages replace it, too.
    """
    parsed = [(text, *_key_and_value(text)) for text in overrides]
    keys = {key for _, key, _ in parsed}
    for text, key, value in parsed:
        *parents, last = key.split(".")
        target = values
        for depth, parent in enumerate(parents):
            child = target[parent] = {} if target.get(parent) is None else target[parent]
            if depth == 0 and parent in SHORT and not isinstance(child, dict):
                child = target[parent] = {SHORT[parent]: child}
            if not isinstance(child, dict):
                name = ".".join(parents[: depth + 1])
                raise UserError(f"{name} is a single value, not a section.", setting="--set", value=key)
            target = child
        try:
            parsed_value = load_yaml(value, f"--set {text}")
        except NotYaml:
            parsed_value = value
        section = target.get(last)
        if key in SHORT and isinstance(section, dict) and isinstance(parsed_value, int | float):
            section[SHORT[key]] = parsed_value
        else:
            target[last] = parsed_value
        if parents[:1] == ["train"] and last in LENGTHS:
            for other in DURATIONS:
                if other != last and ".".join([*parents, other]) not in keys:
                    target.pop(other, None)


def origins(path: Path, overrides: Sequence[str] = (), hardware: str | None = None) -> Callable[[Key], str]:
    """Return a function that names the origin of a setting: "FILE:LINE", "--set KEY=VALUE", "--hardware …", "default".

    Args:
        path: The configuration file, valid.
        overrides: The overrides from `--set`.
        hardware: The value of `--hardware`.
    """
    values = read_values(path, overrides, hardware)
    lines = _lines(path)
    keys = [(tuple(_key_and_value(text)[0].split(".")), text) for text in overrides]

    def origin(key: Key) -> str:
        if not _is_set(values, key):
            return "default"
        if hardware is not None and key == ("hardware",):
            return f"--hardware {hardware}"
        for prefix, text in reversed(keys):
            if key[: len(prefix)] == prefix:
                return f"--set {text}"
        return f"{path}:{next(lines[key[:end]] for end in range(len(key), 0, -1) if key[:end] in lines)}"

    return origin


def _is_set(values: object, key: Key) -> bool:
    """Return whether `values` contain `key`, as a key or inside a value that is not a mapping."""
    for part in key:
        if not isinstance(values, Mapping):
            return True
        if part not in values:
            return False
        values = values[part]
    return True


def _lines(path: Path) -> dict[Key, int]:
    """Return the line number of each key in a YAML file that `read_yaml` accepts."""
    loader = yaml.SafeLoader(path.read_text())
    lines: dict[Key, int] = {}

    def visit(node: yaml.Node | None, before: Key) -> None:
        if not isinstance(node, yaml.MappingNode):
            return
        loader.flatten_mapping(node)
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                lines[*before, key.value] = key.start_mark.line + 1
                visit(value, (*before, key.value))

    visit(loader.get_single_node(), ())
    return lines
