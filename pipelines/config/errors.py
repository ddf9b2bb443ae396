"""Convert pydantic's validation errors into one UserError about a setting."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from slipway import extensions
from slipway.core.errors import UserError, nearest
from slipway.pipelines.config.budget import TIME_PATTERN
from slipway.trainer.config import MODULE_PATTERN

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Location = tuple[int | str, ...]
# What precedes a value in the form that a setting demands, or in another one.
SCHEMES = ("gs://", "http://")

# Names of settings here, and those that other tools have for them.
_OTHER_NAMES = {
    "learning_rate": "lr",
    "batch_size": "batch bs",
    "weight_decay": "wd",
    "optimizer": "opt",
    "epochs": "epoch num_epochs n_epochs max_epochs",
    "steps": "num_steps max_steps iterations",
    "accumulation": "grad_accum gradient_accumulation_steps",
    "clip_norm": "clipnorm grad_clip max_grad_norm",
    "schedule": "scheduler lr_scheduler",
    "precision": "amp mixed_precision dtype",
    "seed": "random_seed",
    "augment": "augmentation",
    "early_stop": "early_stopping",
    "class_weights": "class_weight",
    "xla": "jit_compile",
    "engine": "backend framework",
    "builder": "arch architecture network",
    "arguments": "params kwargs",
    "source": "dataset path folder",
    "image_size": "resolution input_size",
    "hardware": "machine accelerator gpu gpus",
    "low": "min",
    "high": "max",
    "choices": "values options",
}
ALIASES = {alias: name for name, aliases in _OTHER_NAMES.items() for alias in aliases.split()}
# Suggested first setting of a missing section; otherwise its first required key.
FIRST_SETTINGS = {"data": "data.source=digits", "train": "train.epochs=10"}

HIDDEN = "(hidden)"


def explain_validation(
    model: type[BaseModel],
    error: ValidationError,
    where: str,
    values: Mapping[str, object],
    overrides: Iterable[str] = (),
) -> UserError:
    """Return an error about the first problem in `values`, with the number of other problems.

    Args:
        model: The class that the values were validated against.
        error: Pydantic's error.
        where: The file that the values come from.
        values: The values, including `overrides`.
        overrides: The overrides from `--set`, as "key=value".
    """
    words = _words()
    # Unknown keys before missing ones: an unknown key is often a misspelling of the missing one.
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    located = [(_location(problem, values), problem) for problem in problems]
    first = located[0][0]
    # A union reports a problem for each member; the deepest location is the most relevant.
    same = [pair for pair in located if pair[0][: len(first)] == first or first[: len(pair[0])] == pair[0]]
    location, problem = max(same, key=lambda pair: (len(pair[0]), _pattern(pair[1]) in words))
    override = _override(location, problem, overrides)
    if any(nearest(str(part), _secrets()) for part in location):
        override = override and f"{override.partition('=')[0]}={HIDDEN}"
        problem = {**problem, "input": problem["input"] and HIDDEN}
    remaining = len({pair[0] for pair in located if pair not in same})
    more = f" ({remaining} more problem{'s' if remaining > 1 else ''})" if remaining else ""
    place = _Place(model, location, where, override, more)
    return _explain(place, problem)


@functools.cache
def _words() -> Mapping[str, str]:
    """Return what patterns demand, in words."""
    words = {
        MODULE_PATTERN: "must be the name of a module, such as train or trainer.task",
        TIME_PATTERN: "must be minutes, hours or days, such as 30m, 2h or 1d",
    }
    for section in extensions.sections():
        words |= extensions.load(section.forms) if section.forms else {}
    return words


def _secrets() -> list[str]:
    """Return the settings whose values no error shows, however their names are misspelled."""
    return [name for section in extensions.sections() if section.secrets for name in (section.name, *section.secrets)]


class _Place:
    """The location of a problem: the setting's name and field, and whether it comes from the file or `--set`."""

    def __init__(self, model: type[BaseModel], location: Location, where: str, override: str | None, more: str) -> None:
        self.model = model
        self.location = location
        self.setting = ".".join(str(part) for part in location)
        self.source = f"--set {override}" if override else where
        self.is_given = override is not None and override.partition("=")[0] == self.setting
        self.others = more
        self.override = override
        self.where = where

    @property
    def parent(self) -> type[BaseModel] | None:
        return _model_at(self.model, self.location[:-1])

    @property
    def field(self) -> FieldInfo | None:
        return _field(self.parent, self.location[-1]) if self.location else None

    def fix(self, value: str | None) -> str:
        """Return the fix that changes the setting's value; items of a list are not separate settings."""
        setting = re.split(r"\.\d+(?:\.|$)", self.setting)[0]
        if value and setting != self.setting:
            return f"correct {self.setting} to {value} in {self.where}"
        if not setting or (value is None and _model_at(self.model, self.location)):
            return f"correct {setting}{' in ' if setting else ''}{self.where}"
        option = f"--set {shlex.quote(f'{setting}={value}') if value else f'{setting}=VALUE'}"
        return option if self.override else f"{option}, or correct it in {self.where}"


def _explain(place: _Place, problem: ErrorDetails) -> UserError:
    kind, value = problem["type"], problem["input"]
    if kind == "extra_forbidden":
        return _unknown_key(place, value)
    section = _model_at(place.model, place.location) if place.location else None
    if section is not None and (kind in ("missing", "model_type") or value is None):
        return _missing_section(place, section, value if kind != "missing" else None)
    length = _tuple_length(place.field)
    if length and kind in ("missing", "too_long", "tuple_type"):
        return _wrong_length(place, length, value)
    if kind == "missing":
        return UserError(
            f"{place.source} does not set {place.setting}{place.others}.",
            setting=place.setting,
            value=None,
            fix=f"--set {place.setting}=VALUE, or add it to {place.where}",
        )
    nested = problem.get("ctx", {}).get("error")
    words = _words()
    text = str(nested) if nested is not None else words.get(_pattern(problem), str(problem["msg"]))
    choices, allowed = _allowed(place.field) if nested is None else ([], None)
    near = nearest(str(value), choices) if choices else _near(problem)
    if kind == "invalid-json-value":
        text = f"{value} is a {type(value).__name__}, which JSON does not support"
        allowed = "text (in quotes), numbers, true, false, null, lists and mappings"
    elif nested is None and _pattern(problem) not in ("", *words) and (about := _description(place)):
        text, allowed = f"{value!r} is not an allowed value", about  # rather than a regular expression
    elif choices:
        text = f"{value!r} is not an allowed value"
    name = "" if place.is_given else f"{place.setting or 'the configuration'}: "
    return UserError(
        f"{place.source}: {name}{text[0].lower() + text[1:]}{place.others}.",
        setting=place.setting or None,
        value=value,
        allowed=allowed,
        nearest=near,
        fix=place.fix(near),
    )


def _location(problem: ErrorDetails, values: object) -> Location:
    """Return a problem's location in the values, without the union members that pydantic includes."""
    location: list[int | str] = []
    if problem["loc"][-1:] == ("[key]",):
        return _location({**problem, "loc": problem["loc"][:-2]}, values)
    for number, part in enumerate(problem["loc"]):
        last = number == len(problem["loc"]) - 1
        inside = dict(enumerate(values)) if isinstance(values, list | tuple) else values
        if isinstance(inside, Mapping) and part in inside:
            values = inside[part]
        elif not (last and problem["type"] == "missing" and isinstance(values, Mapping)):
            continue
        location.append(part)
    return tuple(location)


def _override(location: Location, problem: ErrorDetails, overrides: Iterable[str]) -> str | None:
    """Return the last `--set` override that set a value or created an unknown section."""
    setting = ".".join(str(part) for part in location) + "."
    keys = {f"{text.partition('=')[0]}.": text for text in overrides}
    unknown = problem["type"] == "extra_forbidden"
    texts = [text for key, text in keys.items() if setting.startswith(key) or (unknown and key.startswith(setting))]
    return texts[-1] if texts else None


def _unknown_key(place: _Place, value: object) -> UserError:
    *parents, key = (str(part) for part in place.location)
    if not parents and (folder := extensions.owner(key)) and key not in _names(place.model):
        return UserError(
            f"{place.source}: the section {key} belongs to an extension that is not installed{place.others}.",
            setting=key,
            value=value,
            allowed=", ".join(_names(place.model)),
            fix=f"install Slipway with {folder}, or remove {key}",
        )
    parents_of = _models_at(place.model, place.location[:-1])
    known = sorted({name for parent in parents_of for name in _names(parent)})
    alias = ALIASES.get(key.lower().replace("-", "_"), key)
    near = alias if alias in known else nearest(key, known)
    full = ".".join([*parents, near]) if near else _elsewhere(place.model, alias)
    override_key, _, text = (place.override or "").partition("=")
    if full and f"{override_key}.".startswith(f"{place.setting}."):
        fix = f"--set {shlex.quote(f'{full}{override_key[len(place.setting) :]}={text}')}"
    else:
        fix = f"write {full} instead of {place.setting}" if full else f"remove {place.setting}"
        fix += "" if place.override else f" in {place.where}"
    return UserError(
        f"{place.source}: {place.setting} is not a setting{place.others}."
        if place.override
        else f"{place.source} has the unknown key {place.setting}{place.others}.",
        setting=place.setting,
        value=value,
        allowed=", ".join(known),
        nearest=full,
        fix=fix,
    )


def _missing_section(place: _Place, section: type[BaseModel], value: object) -> UserError:
    required = [name for name, field in section.model_fields.items() if field.is_required()]
    optional = [name for name in _names(section) if name not in required]
    meant = [name for name, field in section.model_fields.items() if value in _allowed(field)[0]]
    first = FIRST_SETTINGS.get(place.setting) or (f"{place.setting}.{required[0]}=VALUE" if required else None)
    first = f"{place.setting}.{meant[0]}={value}" if meant else first
    has = f"has no section {place.setting}" if value is None else f"sets {place.setting}, a section, to {value!r}"
    fix = f"--set {first}" + ("" if place.override else f", or a section {place.setting}: in {place.where}")
    if not first:
        fix = f"remove --set {place.override}" if place.override else f"remove {place.setting} from {place.where}"
    if isinstance(value, list) and len(value) == len(section.model_fields):
        named = json.dumps(dict(zip(section.model_fields, value, strict=True)))
        fix = f"--set {shlex.quote(f'{place.setting}={named}')}"
    return UserError(
        f"{place.source} {has}{place.others}.",
        setting=place.setting,
        value=value,
        allowed=f"a section with {', '.join([*(f'{name} (required)' for name in required), *optional])}",
        nearest=first if meant else None,
        fix=fix,
    )


def _wrong_length(place: _Place, length: int, value: object) -> UserError:
    elements = list(value) if isinstance(value, list | tuple) else [value]
    filled = (elements + elements[:1] * length)[:length]
    near = (
        f"[{', '.join(map(str, filled))}]" if elements and all(isinstance(element, int) for element in filled) else None
    )
    return UserError(
        f"{place.source}: {place.setting} must have {length} values{place.others}.",
        setting=place.setting,
        value=value,
        allowed=f"a list of {length} values",
        nearest=near,
        fix=place.fix(near),
    )


def _pattern(problem: ErrorDetails) -> str:
    return str(problem.get("ctx", {}).get("pattern", ""))


def _description(place: _Place) -> str:
    """Return the description of a setting, also for an item of its list; "" if it has none."""
    for end in range(len(place.location), 0, -1):
        field = _field(_model_at(place.model, place.location[: end - 1]), place.location[end - 1])
        if field is not None:
            return (field.description or "").rstrip(".")
    return ""


def _near(problem: ErrorDetails) -> str | None:
    """Return a similar value that matches the setting's pattern, if there is one."""
    pattern, value = _pattern(problem), problem["input"]
    if problem["loc"][-1:] == ("[key]",):  # a fix sets values
        return None
    if problem["type"] == "invalid-json-value":
        return f"'{value}'"
    if not pattern or not isinstance(value, str):
        return None
    plain = value.lower().removeprefix("projects/")
    forms = [re.sub(r"[^a-z0-9]+", joint, plain).strip(joint) for joint in "-_"]
    if value.endswith(".py"):  # a module by its file
        forms.insert(0, ".".join(Path(value.removesuffix(".py")).parts))
    forms += [scheme + plain for scheme in SCHEMES]
    return next((form for form in forms if form and re.search(pattern, form)), None)


def _model_at(model: type[BaseModel], location: Location) -> type[BaseModel] | None:
    """Return the settings class at a location in the configuration, the first one of a union, or None."""
    return next(iter(_models_at(model, location)), None)


def _models_at(model: type[BaseModel], location: Location) -> list[type[BaseModel]]:
    """Return the settings classes that a configuration may have at a location, also within lists and mappings."""
    kinds: list[Any] = [model]
    for part in location:
        kinds = [inner for kind in kinds for inner in _inside(kind, part)]
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _inside(kind: Any, part: int | str) -> list[Any]:
    """Return the types of what a value of a type has at a key or an index, with the members of a union apart."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field = _field(kind, part)
        return [] if field is None else _united(field.annotation)
    if get_origin(kind) in (dict, list, tuple):
        return [inner for argument in get_args(kind)[-1:] for inner in _united(argument)]
    return []


def _united(annotation: Any) -> list[Any]:
    """Return the members of a union, without Annotated; of any other type the type."""
    if get_origin(annotation) is Annotated:
        return _united(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [inner for argument in get_args(annotation) for inner in _united(argument)]
    return [annotation]


def _field(model: type[BaseModel] | None, name: int | str) -> FieldInfo | None:
    return next((f for n, f in (model.model_fields if model else {}).items() if name in (n, f.alias)), None)


def _names(model: type[BaseModel]) -> list[str]:
    return sorted(field.alias or name for name, field in model.model_fields.items())


def _elsewhere(model: type[BaseModel], key: str) -> str | None:
    """Return the dotted name of a setting called `key` in any section: the shallowest, preferring `train`."""
    names = [name for name in _all_names(model) if name.rpartition(".")[2] == key]
    return min(names, key=lambda name: (name.count("."), not name.startswith("train.")), default=None)


def _all_names(model: type[BaseModel], before: str = "") -> Iterator[str]:
    for name in _names(model):
        yield before + name
        section = _model_at(model, (name,))
        if section:
            yield from _all_names(section, f"{before}{name}.")


def _members(field: FieldInfo | None) -> list[object]:
    """Return a field's type, or the members of its union."""
    annotation = field.annotation if field else None
    flat = [annotation, *get_args(annotation)]
    return [member for member in flat if member is not NoneType]


def _allowed(field: FieldInfo | None) -> tuple[list[str], str | None]:
    """Return a setting's literal values, and everything it accepts in words; ([], None) if it has no literal values."""
    members = _members(field)
    choices = [str(value) for m in members if get_origin(m) is Literal for value in get_args(m)]
    if not choices:
        return [], None
    words = ["true", "false"] if bool in members else []
    words += ["a mapping"] if any(get_origin(member) is dict for member in members) else []
    return choices, ", ".join([*choices, *words])


def _tuple_length(field: FieldInfo | None) -> int | None:
    """Return the required length of a list, or None if it is not fixed."""
    lengths = [len(get_args(m)) for m in _members(field) if get_origin(m) is tuple and ... not in get_args(m)]
    return lengths[0] if lengths else None
