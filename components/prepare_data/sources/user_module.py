"""A user's own function that gives examples, `module:function`: dicts of an image, a label and whatever else there is.

It is called twice at the same time: here, where its examples are kept in a file for the writers, and in a process of
its own with other hashes of strings, whose examples have to be the same. One that gives others is refused: a data set
could not be made again, nor a run be gone on with.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.messages import values
from slipway.components.prepare_data.encoding.unusable import Unusable
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.again import FAILED, Again
from slipway.components.prepare_data.sources.columns import further_kinds, stored_name
from slipway.components.prepare_data.sources.images import valid_name
from slipway.components.prepare_data.sources.record_layout import Descriptions
from slipway.components.prepare_data.sources.source import Entry, Group, Ignored, readable
from slipway.components.prepare_data.sources.spool import Spool, SpoolReader
from slipway.components.prepare_data.sources.tfrecord import require_feature
from slipway.components.prepare_data.sources.unique import UniqueKeys
from slipway.components.prepare_data.sources.user_example import (
    Taken,
    digest,
    encoded_feature,
    encoded_image,
    label_of,
    split_of,
)
from slipway.components.prepare_data.writing.workers import Tick, Workers
from slipway.core.errors import UserError, nearest
from slipway.trainer.engines import builder
from slipway.trainer.engines.builder import load, origin, user_code, what_happened

REFERENCE = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
CONTRACT = (
    '"module:function" without arguments that gives dicts: image (encoded bytes, a path, or an array uint8 [height, '
    "width(, channels)]), label (text or integer), perhaps key, split, and further features"
)
SPOOL = "examples"
# What an iterator gives at its end.
END = object()
WHOLE_NUMBER = re.compile(r"^-?\d+$")


class ModuleSource:
    """The source `module:function`.

    Raises:
        UserError: There is no such function, or it gives nothing, or its first example is none.
    """

    def __init__(self, reference: str, settings: DataSettings, group_column: str | None) -> None:
        self.reference = reference
        self.name = valid_name(reference.rpartition(":")[2])
        self._settings = settings
        self._image = settings.image or "image"
        self._label = settings.label or "label"
        # Not in this process: what the user's module starts (TensorFlow's threads, say) would not survive in the
        # processes that are forked from it later.
        with Workers(self._find_kinds, 1) as workers:
            ((_, self._kinds),) = workers.run([reference])
        self.features: Descriptions = {stored_name(name): kind.description for name, kind in self._kinds.items()}
        self.class_names: dict[str, list[str]] = {}
        self._group = require_feature(group_column, self._kinds)

    def classes(self, found: Iterable[str]) -> list[str]:
        found = list(found)
        return sorted(found, key=int) if all(WHOLE_NUMBER.match(label) for label in found) else sorted(found)

    def parts(self) -> list[str]:
        return [self.reference]

    def entries(self, part: str, ignored: Ignored, scratch: Path) -> Iterator[Entry]:  # noqa: ARG002
        number = -1
        with Spool(scratch / SPOOL) as spool, UniqueKeys(scratch / "keys") as keys, Again(self._settings) as again:
            for number, example in enumerate(self._examples()):
                try:
                    taken = self._take(example, number)
                except Unusable as reason:
                    again.compare(number, digest(None))
                    ignored.leave_out(b"example %d" % number, str(reason))
                    continue
                same = digest(taken)
                again.compare(number, same)
                keys.add(taken.key, number)
                place = spool.add(taken.image, taken.further if self._kinds else None)
                group = self._group_value(taken)
                yield taken.key, taken.label, taken.split, len(taken.image), int.from_bytes(same), place, group
            again.compare(number + 1, b"")
            if twice := keys.twice():
                key, one, other = twice
                raise self._mistake(
                    f"{self.reference} gives the key {readable(key)} twice: examples {one:,} and {other:,}."
                )

    def digests(self) -> Iterator[bytes]:
        """What tells each example from others, in their order."""
        for number, example in enumerate(self._examples()):
            try:
                yield digest(self._take(example, number))
            except Unusable:
                yield digest(None)

    def groups(self, found: Iterable[Group]) -> dict[Group, Group]:
        found = list(found)
        splits = {split for split, _ in found}
        if not found:
            raise self._mistake(f"{self.reference} gives no usable example.")
        if splits != {None} and None in splits:
            raise self._mistake(f"Some examples of {self.reference} have a split, others have none.")
        if splits != {None} and "train" not in splits:
            raise self._mistake(f"{self.reference} gives no example of the split train.")
        return {group: group for group in found}

    def stamp(self) -> None:
        return None

    def reader(self, scratch: Path) -> ModuleReader:
        return ModuleReader(scratch / SPOOL)

    def _examples(self) -> Iterator[Any]:
        """What the function gives; what it raises becomes a mistake with the place in the user's file."""
        function = self._function()
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

    def _function(self) -> Any:
        try:
            return load(self.reference)
        except UserError as error:
            error.setting, error.value = "data.source", self.reference
            error.allowed = error.allowed if ":" in (error.allowed or "") else CONTRACT
            raise

    def _find_kinds(self, task: str, tick: Tick) -> dict[str, Kind]:  # noqa: ARG002
        """The kinds of the further features: as the settings describe them, else as the first example has them."""
        described = further_kinds(self._settings)
        examples = self._examples()
        first = next(examples, None)
        del examples
        if first is None:
            raise self._mistake(f"{self.reference} gives no examples.")
        if not isinstance(first, Mapping) or self._image not in first or self._label not in first:
            has = isinstance(first, Mapping)
            found = f"has {', '.join(map(str, first))}" if has else f"is a {type(first).__name__}"
            raise self._mistake(
                f"The first example of {self.reference} is no dict with {self._image} and {self._label}: it {found}.",
                fix="set data.image and data.label if the two are called otherwise",
            )
        found_kinds: dict[str, Kind] = {}
        for name, value in first.items():
            if name in (self._image, self._label, "key", "split"):
                continue
            try:
                found_kinds[name] = described.pop(name) if name in described else Kind.of(value)
            except Unusable as reason:
                raise self._mistake(
                    f"The feature {name} of the first example has no kind: {reason}.",
                    fix=f"leave it out, or describe it: --set data.features.{name}=KIND",
                ) from None
        if described:
            missing = next(iter(described))
            raise UserError(
                f"The first example of {self.reference} has no feature {missing}.",
                setting=f"data.features.{missing}",
                value=str(described[missing]),
                nearest=nearest(missing, found_kinds),
            )
        return found_kinds

    def _take(self, example: Any, number: int) -> Taken:
        """The example as it is stored.

        Raises:
            Unusable: Something in it is not as it must be.
        """
        if not isinstance(example, Mapping):
            raise Unusable(f"it is a {type(example).__name__}, not a dict")
        key = example.get("key", f"{number:08d}")
        if not isinstance(key, str | bytes) or not key:
            raise Unusable("its key is no text")
        further = {name: example[name] for name in example if name not in (self._image, self._label, "key", "split")}
        if further.keys() != self._kinds.keys():
            odd = sorted(further.keys() ^ self._kinds.keys(), key=str)
            raise Unusable(f"other than the first example, it has {'no ' if odd[0] in self._kinds else ''}{odd[0]}")
        return Taken(
            key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key,
            label_of(example.get(self._label)),
            split_of(example.get("split")),
            encoded_image(example.get(self._image)),
            [
                (stored_name(name).encode(), encoded_feature(name, kind, further[name]))
                for name, kind in sorted(self._kinds.items())
            ],
        )

    def _group_value(self, taken: Taken) -> bytes:
        if self._group is None:
            return b""
        (feature,) = (feature for name, feature in taken.further if name.decode() == stored_name(self._group or ""))
        found = values(feature)
        return found[0] if len(found) == 1 and isinstance(found[0], bytes) else repr(found).encode()

    def _mistake(self, message: str, fix: str | None = None) -> UserError:
        return UserError(message, setting="data.source", value=self.reference, allowed=CONTRACT, fix=fix)


class ModuleReader:
    """Reads what was kept of the examples."""

    def __init__(self, path: Path) -> None:
        self._spool = SpoolReader(path)
        self._size = 0

    def read(self, key: bytes, place: int, size: int) -> bytes:  # noqa: ARG002
        self._size = size
        return self._spool.data(place, size)

    def further(self, place: int) -> Iterable[tuple[bytes, bytes]]:
        return self._spool.further(place + self._size)


def main() -> NoReturn:
    """Write the digests of all examples to stdout, what the function prints elsewhere, and end this process."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    settings = DataSettings.model_validate_json(sys.argv[1])
    status = 0
    try:
        for found in ModuleSource(settings.source, settings, None).digests():
            output.write(found)
    except UserError as error:
        print(error.message, file=sys.stderr)
        status = FAILED
    except Exception:
        traceback.print_exc()
        status = FAILED
    sys.stderr.flush()
    with contextlib.suppress(OSError):  # who compares may have seen enough
        output.close()
    os._exit(status)  # not sys.exit, which would wait for threads that the function left running
