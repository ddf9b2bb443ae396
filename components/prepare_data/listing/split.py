"""The number of examples of each class in a source and in each split, and the number of shards of a split."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from slipway.components.prepare_data.examples import SPLITS, Group
from slipway.components.prepare_data.settings import SplitFractions
from slipway.core.errors import UserError
from slipway.core.formatted import format_of

# Several cores can write and read a data set only if it has several shards. A data set with fewer shards of the target
# size than this gets more, as long as each shard has enough examples or bytes.
PARALLEL_SHARDS = 16
USEFUL_SHARD_EXAMPLES = 2048
USEFUL_SHARD_BYTES = 4_000_000
# Limited because a shard's list of examples is sorted in memory.
MAX_SHARD_EXAMPLES = 65_536


@dataclass(frozen=True)
class Amount:
    """A number of examples and their total size in bytes."""

    examples: int
    bytes: int


@dataclass(frozen=True)
class Fold:
    """The fold of a cross-validation that is the test split; each example is in exactly one fold.

    `of` is the number of folds, at least 2, and `number` is that of this one, from 0.
    """

    of: int
    number: int

    def __post_init__(self) -> None:
        if not (self.of >= 2 and 0 <= self.number < self.of):
            raise UserError(
                f"There is no fold {self.number} of {self.of} folds.",
                setting="fold",
                value=self.number,
                allowed="0 to the number of folds - 1, of at least 2 folds",
            )


class Summary(BaseModel):
    """What a listing says about the content of a source.

    Attributes:
        amounts: The amount of each (split, class).
        digest: SHA-256 (hex) of all keys, labels, sizes, stamps and offsets.
        shape: The same without stamps and offsets: it stays if files are copied, or packed in another order.
        labels: All labels of the task multilabel.
    """

    amounts: list[tuple[str | None, str, Amount]]
    digest: str
    shape: str
    labels: list[str] = []

    @property
    def bytes(self) -> int:
        """The size of all examples."""
        return sum(amount.bytes for _, _, amount in self.amounts)

    @property
    def groups(self) -> dict[Group, Amount]:
        """The amounts by group."""
        return {(split, label): amount for split, label, amount in self.amounts}


def portions(count: int, fractions: Mapping[str, float]) -> dict[str, int]:
    """Divide `count` examples in proportion to `fractions`, rounded to integers, at least one for each.

    `count` must be at least the number of fractions. The result has the order of `fractions` and sums to `count`.
    """
    whole = sum(fractions.values())
    exact = {name: count * fraction / whole for name, fraction in fractions.items()}
    result = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(fractions, key=lambda name: result[name] - exact[name])
    for name in by_remainder[: count - sum(result.values())]:
        result[name] += 1
    for name in result:
        if result[name] == 0:
            result[max(result, key=lambda other: result[other])] -= 1
            result[name] = 1
    return result


def split_fractions(source_splits: Collection[str | None], fractions: SplitFractions) -> dict[str, float]:
    """Return the fractions of the splits to create: train, and the splits that the source does not define."""
    fraction_of = fractions.model_dump()
    return {name: fraction_of[name] for name in (*SPLITS[1:], "train") if name == "train" or name not in source_splits}


def check_fold(source_splits: Collection[str | None], fold: Fold | None) -> None:
    """Raise UserError if a source with splits of its own is to be divided into folds."""
    if fold is not None and not {*source_splits} <= {None, "train"}:
        raise UserError(
            "The source defines splits, so the test split cannot be one of several folds.",
            setting="--folds",
            value=fold.of,
            allowed="only for sources without splits",
            fix="remove them from the source; or run without --folds",
        )


def _of_fold(count: int, parts: Mapping[str, float], fold: Fold) -> dict[str, int]:
    """Return the number of examples in each split if a fold is the test split."""
    start, end = _bounds(count, fold)
    rest = {name: fraction for name, fraction in parts.items() if name != "test"}
    return {"test": end - start, **portions(count - (end - start), rest)}


def _bounds(count: int, fold: Fold) -> tuple[int, int]:
    return fold.number * count // fold.of, (fold.number + 1) * count // fold.of


def blocks(parts: Mapping[str, int], fold: Fold | None) -> list[tuple[str, int]]:
    """Return the splits of a group's examples in their order, as blocks of the same split and their sizes.

    The test split of a fold begins where that of the fold before ends.
    """
    if fold is None:
        return [*parts.items()]
    count = sum(parts.values())
    left = count - _bounds(count, fold)[0]  # what is before the end, from the test split on
    before, after = [], []
    for split, size in parts.items():
        after.append((split, min(size, left)))
        before.append((split, size - min(size, left)))
        left -= min(size, left)
    return before + after


def all_blocks(divided: Mapping[Group, Mapping[str, int]], fold: Fold | None) -> dict[Group, list[tuple[str, int]]]:
    """Return the `blocks` of each group."""
    return {group: blocks(parts, fold) for group, parts in divided.items()}


def divide(
    groups: Mapping[Group, int], fractions: SplitFractions, fold: Fold | None = None, item: str = "image"
) -> dict[Group, dict[str, int]]:
    """Return the number of examples of each group in each split; every class is in all three splits.

    Splits defined by the source are kept. The others are taken from train, in proportion to their fractions.

    Args:
        groups: The number of examples of each group.
        fractions: The fractions of the splits.
        fold: The fold that is the test split.
        item: What an example is called.

    Raises:
        UserError: A class has too few examples for the splits or folds.
    """
    source_splits = {split for split, _ in groups}
    check_fold(source_splits, fold)
    parts = split_fractions(source_splits, fractions)
    classes = sorted({label for _, label in groups})
    result: dict[Group, dict[str, int]] = {}
    for (split, label), count in groups.items():
        if split in (None, "train"):
            if 0 < count < len(parts):
                raise _too_few(label, count, parts, split, item)
            if fold is not None and count >= len(parts):
                result[split, label] = _of_fold(count, parts, fold)
            else:
                result[split, label] = portions(count, parts) if count else {}
        elif split is not None:
            result[split, label] = {split: count} if count else {}
    present = {name: {label for (_, label), counts in result.items() if counts.get(name)} for name in SPLITS}
    fix = f"add {item}s of {{label}} to the split {{split}}, or remove the class from all splits"
    check_every_class(classes, present, fix, item)
    return result


def shard_count(amount: Amount, replicas: int, shard_megabytes: int) -> int:
    """Return the number of shards for `amount`: of the target size, at least one per replica, none empty."""
    by_size = -(-amount.bytes // (shard_megabytes * 1_000_000))
    by_examples = -(-amount.examples // MAX_SHARD_EXAMPLES)
    useful = max(amount.examples // USEFUL_SHARD_EXAMPLES, amount.bytes // USEFUL_SHARD_BYTES)
    for_parallel = min(PARALLEL_SHARDS, useful)
    return min(max(by_size, by_examples, for_parallel, replicas, 1), max(amount.examples, 1))


def _too_few(label: str, count: int, fractions: Mapping[str, float], split: str | None, item: str) -> UserError:
    where = f" in the split {split}" if split else ""
    names = [name for name in SPLITS if name in fractions]
    listed = ", ".join(names[:-1]) + f" and {names[-1]}"
    if not label:
        return UserError(
            f"The source has {count} {item}{'' if count == 1 else 's'}{where}; {listed} need at least one each.",
            setting="data.source",
            fix=f"add {item}s",
        )
    message = (
        f"The class {label!r} has {count} {item}{'' if count == 1 else 's'}{where}; {listed} need at least one each."
    )
    allowed = f"at least {len(names)} {item}s per class"
    if _is_number(label) or (item != "image" and format_of([label])):
        fix = f"--set task=regression, if the labels are numbers to predict; else add {item}s of the class"
        return UserError(message, setting="data.label", allowed=allowed, fix=fix)
    which = "its folder" if item == "image" else f"its {item}{'' if count == 1 else 's'}"
    fix = f"add {item}s {'to' if item == 'image' else 'of'} the class {label!r}, or remove {which}"
    return UserError(message, setting="data.source", allowed=allowed, fix=fix)


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def check_every_class(
    classes: list[str], present: Mapping[str, Collection[str]], fix: str, item: str = "image"
) -> None:
    """Check that every split has examples of every class.

    Args:
        classes: All classes.
        present: The classes of each split's examples.
        fix: A format string for the fix, with {label} and {split}.
        item: What an example is called.
    """
    for name in SPLITS:
        for label in classes:
            if label not in present[name]:
                raise UserError(
                    f"The class {label!r} has no {item} for the split {name}."
                    if label
                    else f"There is no {item} for the split {name}.",
                    setting="data.source",
                    allowed=f"every class has {item}s in every split" if label else f"{item}s in every split",
                    fix=fix.format(label=repr(label), split=name),
                )
