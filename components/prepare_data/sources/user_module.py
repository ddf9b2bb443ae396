"""The source `module:function`: a user's function that yields dicts of a label, an image and additional features.

The function's examples are spooled to a file for the writers. With data.module.check_repeatable, it is called a second
time, concurrently, in a process with another hash seed, where it must yield the same examples: the data set of a
function that is not deterministic cannot be reproduced, and an interrupted run of it cannot resume.
"""

from __future__ import annotations

import hashlib
import marshal
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.inputs import choose_inputs
from slipway.components.prepare_data.encoding.messages import values
from slipway.components.prepare_data.examples import Group, Unusable, readable, source_error
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sorting import ExampleKeys
from slipway.components.prepare_data.sources import closest, forms
from slipway.components.prepare_data.sources.determinism import DIGEST_BYTES, FAILED, DeterminismCheck
from slipway.components.prepare_data.sources.images import valid_name
from slipway.components.prepare_data.sources.record_layout import Descriptions, additional_kinds
from slipway.components.prepare_data.sources.source import Entry, Ignored, Reader, Source
from slipway.components.prepare_data.sources.spool import Spool, SpoolReader
from slipway.components.prepare_data.sources.tfrecord import require_feature
from slipway.components.prepare_data.sources.values import (
    check_label,
    encoded_feature,
    encoded_image,
    label_value,
    looks_like_image,
    split_of,
    target_of,
)
from slipway.components.prepare_data.workers import Tick, Workers
from slipway.core.errors import UserError, nearest
from slipway.core.manifest import TaskName
from slipway.core.values import stored_name
from slipway.trainer.engines import builder
from slipway.trainer.engines.builder import load, origin, user_code, what_happened

CONTRACT = (
    "a function module:function without arguments that yields dicts with label (text or integer; for multilabel a list "
    "of them; for regression a number), and image (encoded bytes, a path, a Pillow image, or an array "
    "[height, width(, channels)]) or other features, and optionally key and split"
)
SPOOL = "examples"
# Sentinel for the end of an iterator.
END = object()
WHOLE_NUMBER = re.compile(r"^-?\d+$")


class ModuleSource(Source):
    """The source `module:function`.

    Raises:
        UserError: The function does not exist, yields nothing, or its first example is invalid.
    """

    def __init__(
        self, reference: str, settings: DataSettings, group_column: str | None, task: TaskName = "classification"
    ) -> None:
        self.task = task
        self.reference = reference
        self.name = valid_name(reference.rpartition(":")[2])
        self._settings = settings
        self._image = settings.image or "image"
        self._label = settings.label or "label"
        # In a separate process: threads that the user's module starts (TensorFlow's, for example) would not survive in
        # processes forked later.
        with Workers(self._find_kinds, 1) as workers:
            ((_, (self.has_image, self._kinds)),) = workers.run([reference])
        self.features: Descriptions = {stored_name(name): kind.description for name, kind in self._kinds.items()}
        self._group = require_feature(group_column, self._kinds)
        self._order = require_feature(settings.order_column, self._kinds, "order")
        self.inputs = choose_inputs(
            settings,
            {name: str(kind) for name, kind in self._kinds.items()},
            image=self._image if self.has_image else None,
            but=(group_column or "", settings.order_column or ""),
        )

    def classes(self, listed: Iterable[str]) -> list[str]:
        listed = list(listed)
        return sorted(listed, key=int) if all(WHOLE_NUMBER.match(label) for label in listed) else sorted(listed)

    def parts(self) -> list[str]:
        return [self.reference]

    def entries(self, part: str, ignored: Ignored, scratch: Path) -> Iterator[Entry]:  # noqa: ARG002
        number = -1
        repeated = (
            DeterminismCheck(self._settings, self.task) if self._settings.module.check_repeatable else nullcontext()
        )
        with Spool(scratch / SPOOL) as spool, ExampleKeys(scratch / "keys") as keys, repeated as check:
            for number, example in enumerate(self._examples()):
                try:
                    stored = self._convert(example, number)
                    self._add_precision(example, ignored)
                except Unusable as reason:
                    if check:
                        check.compare(number, digest(None))
                    ignored.skip(b"example %d" % number, str(reason))
                    continue
                same = digest(stored)
                if check:
                    check.compare(number, same)
                offset = spool.add(stored.image, stored.additional or None)
                order = () if self._order is None else (_text(stored, self._order, "{}"),)
                about = stored.label, stored.split, len(stored.image), int.from_bytes(same), offset
                entry: tuple[Any, ...] = (*about, self._group_value(stored), *order)
                if stored.key:
                    keys.add(stored.key, number)
                    yield stored.key, *entry
                else:
                    keys.add_digests([(content_digest(stored.label, stored.additional), entry)])
            if check:
                check.compare(number + 1, b"")
            if twice := keys.twice():
                key, first, second = twice
                raise self._mistake(
                    f"{self.reference} yields the key {readable(key)} twice: examples {first:,} and {second:,}."
                )
            for key, entry in keys.by_content():
                yield key, *entry

    def digests(self) -> Iterator[bytes]:
        """Yield the digest of each example, in order."""
        for number, example in enumerate(self._examples()):
            try:
                yield digest(self._convert(example, number))
            except Unusable:
                yield digest(None)

    def groups(self, listed: Iterable[Group]) -> dict[Group, Group]:
        listed = list(listed)
        splits = {split for split, _ in listed}
        if not listed:
            raise self._mistake(f"{self.reference} yields no usable example.")
        if splits != {None} and None in splits:
            raise self._mistake(f"Some examples of {self.reference} have a split, others do not.")
        if splits != {None} and "train" not in splits:
            raise self._mistake(f"{self.reference} yields no example of the split train.")
        return {group: group for group in listed}

    def reader(self, scratch: Path) -> ModuleReader:
        return ModuleReader(scratch / SPOOL)

    def _examples(self) -> Iterator[object]:
        """Yield the function's examples; convert its exceptions to a UserError with the line in the user's file."""
        function: Callable[[], Iterable[object]] = load(self.reference, "data.source", CONTRACT)
        try:
            with user_code():
                examples = iter(function())
            while True:
                with user_code():
                    example = next(examples, END)
                if example is END:
                    return
                yield example
        except Exception as error:
            frames = traceback.extract_tb(origin(error).__traceback__)
            where = [frame for frame in frames if frame.filename != builder.__file__][-1]
            raise self._mistake(
                f"{self.reference} {what_happened(error)} ({Path(where.filename).name}, line {where.lineno})."
            ) from None

    def _find_kinds(self, task: str, tick: Tick) -> tuple[bool, dict[str, Kind]]:  # noqa: ARG002
        """Return whether the first example has an image, and the kinds of the additional features.

        A kind is the one in the settings, else it is inferred from the first example.
        """
        described = additional_kinds(self._settings)
        examples = self._examples()
        first = next(examples, None)
        del examples
        if first is None:
            raise self._mistake(f"{self.reference} yields no examples.")
        has_image = isinstance(first, Mapping) and self._image in first
        needed = [self._image] * (self._settings.image is not None) + [self._label]
        if not isinstance(first, Mapping) or any(name not in first for name in needed):
            names = ", ".join(map(str, first)) if isinstance(first, Mapping) else ""
            description = f"has {names}" if isinstance(first, Mapping) else f"is a {type(first).__name__}"
            raise self._mistake(
                f"The first example of {self.reference} is not a dict with {' and '.join(needed)}; it {description}.",
                fix="set data.image and data.label if the two have other names",
            )
        if not has_image and (name := next((name for name in first if looks_like_image(first[name])), None)):
            raise self._mistake(
                f"The first example of {self.reference} has no {self._image}, but {name} looks like one.",
                fix=f"--set data.image={name}",
            )
        check_label(self.task, first[self._label], self.reference)
        found_kinds: dict[str, Kind] = {}
        for name, value in first.items():
            if name in (self._image, self._label, "key", "split"):
                continue
            try:
                found_kinds[name] = described.pop(name) if name in described else inferred(value)
            except Unusable as reason:
                raise self._mistake(
                    f"Cannot infer the kind of the feature {name} from the first example: {reason}.",
                    fix=f"remove the feature, or specify its kind: --set data.features.{name}=KIND",
                ) from None
        if described:
            missing = next(iter(described))
            raise UserError(
                f"The first example of {self.reference} has no feature {missing}.",
                setting=f"data.features.{missing}",
                value=str(described[missing]),
                nearest=nearest(missing, found_kinds),
                fix=f"correct the name in data.features: {missing} is not yielded",
            )
        return has_image, found_kinds

    def _convert(self, example: object, number: int) -> StoredExample:
        """Convert an example to its stored form.

        Raises:
            Unusable: The example is invalid.
        """
        if not isinstance(example, Mapping):
            raise Unusable(f"it is a {type(example).__name__}, not a dict")
        key = example.get("key", f"{number:08d}" if self.has_image else b"")
        if not isinstance(key, str | bytes) or (not key and "key" in example):
            raise Unusable("its key is not text")
        additional = {name: example[name] for name in example if name not in (self._image, self._label, "key", "split")}
        if additional.keys() != self._kinds.keys():
            odd = sorted(additional.keys() ^ self._kinds.keys(), key=str)
            raise Unusable(f"unlike the first example, it has {'no ' if odd[0] in self._kinds else ''}{odd[0]}")
        label, target = label_value(self.task, example.get(self._label))
        features = [
            (stored_name(name).encode(), encoded_feature(name, kind, self._given(name, kind, additional[name])))
            for name, kind in sorted(self._kinds.items())
        ]
        return StoredExample(
            key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key,
            label,
            split_of(example.get("split")),
            encoded_image(example.get(self._image)) if self.has_image else b"",
            features if target is None else [*features, (b"label", target)],
        )

    def _given(self, name: str, kind: Kind, value: object) -> object:
        """Return a value as a table has it if it is missing: NaN for a number, an empty text for a date or category."""
        if not (value is None or (value != value) is True) or stored_name(name) not in self.inputs:  # NaN and NaT
            return value
        if kind.name == "category":
            return ""
        if not self._settings.has_gaps:
            return value
        return math.nan if kind == Kind("number") else "" if kind.is_date else value

    def _add_precision(self, example: object, ignored: Ignored) -> None:
        assert isinstance(example, Mapping)
        if self.task == "regression" and (target := target_of(example[self._label])) is not None:
            ignored.precision.add(self._label, target)
        for name, kind in self._kinds.items():
            if kind.name == "number" and stored_name(name) in self.inputs:
                value = example[name]
                ignored.precision.add(name, value.tolist() if hasattr(value, "tolist") else value)

    def _group_value(self, stored: StoredExample) -> bytes:
        """Return the value of data.group_by; without it, the hash of the inputs and the label."""
        if self._group is None:
            learned = [
                (name, feature) for name, feature in stored.additional if name.decode() in (*self.inputs, "label")
            ]
            return b"" if self.has_image else content_digest(stored.label, learned)
        return _text(stored, self._group, "[{!r}]")

    def _mistake(self, message: str, fix: str | None = None) -> UserError:
        return source_error(self.reference, message, allowed=CONTRACT, fix=fix)


def open_module(
    reference: str, settings: DataSettings, column: str | None, task: TaskName = "classification"
) -> ModuleSource:
    """Open the source `module:function`.

    Raises:
        UserError: The function does not exist, yields nothing, or its first example is invalid.
    """
    try:
        return ModuleSource(reference, settings, column, task)
    except UserError as error:
        module, _, function = reference.partition(":")
        if error.nearest is None and "no module" in error.message and (near := closest(module, function)):
            error.nearest, error.allowed = near, forms()
        raise


class ModuleReader(Reader):
    """Reads the spooled examples."""

    def __init__(self, path: Path) -> None:
        self._spool = SpoolReader(path)
        self._size = 0

    def read(self, key: bytes, offset: int, size: int) -> bytes:  # noqa: ARG002
        self._size = size
        return self._spool.data(offset, size)

    def additional(self, offset: int) -> Iterable[tuple[bytes, bytes]]:
        return self._spool.additional(offset + self._size)


class StoredExample(NamedTuple):
    """An example in its stored form: key (b"" for that of its content), class, split, encoded image and features."""

    key: bytes
    label: str
    split: str | None
    image: bytes
    additional: list[tuple[bytes, bytes]]


def _text(stored: StoredExample, name: str, number: str) -> bytes:
    """Return a feature that is one text, or the text of its numbers: of one number in the format `number`."""
    decoded = values(dict(stored.additional)[stored_name(name).encode()])
    if len(decoded) != 1:
        return repr(decoded).encode()
    return decoded[0] if isinstance(decoded[0], bytes) else number.format(decoded[0]).encode()


def content_digest(label: str, features: list[tuple[bytes, bytes]]) -> bytes:
    """Return a digest of an example's label and of features."""
    return hashlib.blake2b(marshal.dumps((label, features), 2), digest_size=DIGEST_BYTES).digest()


def digest(stored: StoredExample | None) -> bytes:
    """Return a digest of an example."""
    hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    if stored is not None:
        hashed.update(marshal.dumps((stored.key, stored.label, stored.split, len(stored.image), stored.additional), 2))
        hashed.update(stored.image)
    return hashed.digest()


def print_digests() -> NoReturn:
    """Write the digests of all examples to stdout, redirect the function's output to stderr, and exit."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    settings = DataSettings.model_validate_json(sys.argv[1])
    status = 0
    try:
        for example_digest in ModuleSource(settings.source, settings, None, cast("TaskName", sys.argv[2])).digests():
            output.write(example_digest)
    except UserError as error:
        print(error.message, file=sys.stderr)
        status = FAILED
    except Exception:
        traceback.print_exc()
        status = FAILED
    sys.stderr.flush()
    with suppress(OSError):  # the reader may have stopped early
        output.close()
    os._exit(status)  # unlike sys.exit, does not wait for threads that the function left running


def inferred(value: object) -> Kind:
    """Infer the kind of a feature from a value, of which a text or a truth value is a category.

    Raises:
        Unusable: No kind matches the value.
    """
    value = value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value
    if isinstance(value, bool):
        return Kind("category")
    kind = Kind.of(value)
    return Kind("category") if kind == Kind("text") else kind
