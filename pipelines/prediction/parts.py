"""Parts of what predictions are made on, and chunks of examples, of as many as one prediction has.

A part says where examples are, without their values, so that another process can read them. An example that cannot be
read has a fault instead of values, so that it gets a line in the output, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from slipway.core.errors import UserError

if TYPE_CHECKING:
    from slipway.serving.model import Arrays, Model

Item = TypeVar("Item")


@dataclass(frozen=True)
class Fault:
    """Why there is no example, or no prediction on it."""

    reason: str


@dataclass(frozen=True)
class Chunk:
    """Examples by key. `arrays` are the values of those without a fault; `faults` have the others' by index."""

    keys: list[str]
    arrays: Arrays
    faults: Mapping[int, Fault]


@dataclass(frozen=True)
class Part:
    """Some examples of one format, which is the subclass.

    Attributes:
        words: What an input of this format is called.
        paths: Images, one file of lines or rows, or the shards of a prepared data set, as they were given.
        examples: Number of examples; None if a file is read to its end.
        name: What precedes the number of a line or row in a key.
    """

    words: ClassVar[str]
    # Whether the key of an example is the number of its line or row.
    is_numbered: ClassVar[bool] = False
    paths: tuple[str, ...]
    examples: int | None = None
    name: str = ""

    @property
    def path(self) -> Path:
        """The file with its examples, or the first one."""
        return Path(self.paths[0]).expanduser()

    def where(self, key: str) -> str:
        """Return the key of an example with the file that has it."""
        is_whole = not self.is_numbered or (self.name != "" and key.startswith(self.name))
        return key if is_whole else f"{self.paths[0]} {key}"

    @classmethod
    def accepts(cls, path: Path) -> bool:
        """Return whether a file or folder, or stdin, has this format."""
        raise NotImplementedError

    @classmethod
    def of(cls, source: str, split: str) -> Part:  # noqa: ARG003
        """Return an input, of a data set its split, as one part."""
        return cls((source,))

    def divided(self, size: int) -> Iterator[Part]:
        """Yield parts with up to `size` examples each; a shard is never divided."""
        raise NotImplementedError

    def read(self, model: Model, size: int, key: str | None = None) -> Iterator[Chunk]:
        """Yield the examples in chunks of `size`.

        Args:
            model: The model that predicts on them.
            size: Number of examples in a chunk.
            key: The field of instances, or column of rows, with an example's key; it is not an input of the model.

        Raises:
            UserError: They do not have what the model needs.
        """
        raise NotImplementedError


def groups(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of `size`; the last one may be shorter."""
    remaining = iter(items)
    while group := list(islice(remaining, size)):
        yield group


def chunk_of(model: Model, examples: list[tuple[str, Any]]) -> Chunk:
    """Return examples, each a key and an instance or a fault, as a chunk."""
    from slipway.serving import instances
    from slipway.serving.kinds import BadRequest

    rows, faults = [], {}
    for index, (_, instance) in enumerate(examples):
        if isinstance(instance, Fault):
            faults[index] = instance
            continue
        try:
            rows.append(instance if model.is_custom else instances.row(model, instance))
        except BadRequest as error:
            faults[index] = fault(model, error.field, error.problem)
    try:
        arrays = instances.arrays(model, rows) if model.is_custom else instances.stack(model, rows)
    except BadRequest as error:  # lists of different lengths, each of which the model accepts
        raise UserError(
            f"{error.field}: {error.problem}.", setting="--batch-size", value=len(rows), fix="--batch-size 1"
        ) from None
    return Chunk([key for key, _ in examples], arrays, faults)


def fault(model: Model, field: str | None, problem: str) -> Fault:
    """Return the fault of an input's value; the name of a model's only input says nothing."""
    return Fault(f"{field}: {problem}" if field and len(model.inputs) > 1 else problem)
