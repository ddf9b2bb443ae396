"""How many examples of each class go to each split, and how many shards a split has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from slipway.components.prepare_data.settings import SplitFractions
from slipway.components.prepare_data.sources.source import SPLITS, Group
from slipway.core.errors import UserError

# Several shards let several cores write and read one set, so a set that fills fewer than this many shards of the
# target size gets more, as long as each holds a useful number of examples, or a useful number of bytes.
PARALLEL_SHARDS = 16
USEFUL_SHARD_EXAMPLES = 2048
USEFUL_SHARD_BYTES = 4_000_000
# A shard's list of examples is ordered in memory.
MOST_SHARD_EXAMPLES = 65_536


@dataclass(frozen=True)
class Amount:
    """Some examples: how many, and their bytes together."""

    examples: int
    bytes: int


def portions(count: int, shares: Mapping[str, float]) -> dict[str, int]:
    """`count` examples divided by `shares`, at least one for each, else as near as whole numbers come.

    `count` is at least the number of shares. The result has the shares' order and sums to `count`.
    """
    whole = sum(shares.values())
    exact = {name: count * share / whole for name, share in shares.items()}
    result = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(shares, key=lambda name: result[name] - exact[name])
    for name in by_remainder[: count - sum(result.values())]:
        result[name] += 1
    for name in result:
        if result[name] == 0:
            result[max(result, key=lambda other: result[other])] -= 1
            result[name] = 1
    return result


def split_shares(own: Collection[str | None], fractions: SplitFractions) -> dict[str, float]:
    """What is divided among which splits, by which shares: those that the source lacks, and train."""
    wanted = fractions.model_dump()
    return {name: wanted[name] for name in (*SPLITS[1:], "train") if name == "train" or name not in own}


def divide(groups: Mapping[Group, int], fractions: SplitFractions) -> dict[Group, dict[str, int]]:
    """How many examples of each group go to which split, every class into all three.

    A source's own splits are kept. Those that it lacks are taken from train, by their fraction of what is divided.

    Raises:
        UserError: A class has too few images for the splits, by name.
    """
    own = {split for split, _ in groups}
    shares = split_shares(own, fractions)
    classes = sorted({label for _, label in groups})
    result: dict[Group, dict[str, int]] = {}
    for (split, label), count in groups.items():
        if split in (None, "train"):
            if 0 < count < len(shares):
                raise _too_few(label, count, shares, split)
            result[split, label] = portions(count, shares) if count else {}
        elif split is not None:
            result[split, label] = {split: count} if count else {}
    present = {name: {label for (_, label), counts in result.items() if counts.get(name)} for name in SPLITS}
    check_every_class(
        classes, present, "add images of {label} to the split {split}, or remove the class from all splits"
    )
    return result


def shard_count(amount: Amount, replicas: int, shard_megabytes: int) -> int:
    """How many shards hold `amount`: of the target size, at least one for each replica, none empty."""
    by_size = -(-amount.bytes // (shard_megabytes * 1_000_000))
    by_examples = -(-amount.examples // MOST_SHARD_EXAMPLES)
    useful = max(amount.examples // USEFUL_SHARD_EXAMPLES, amount.bytes // USEFUL_SHARD_BYTES)
    for_parallel = min(PARALLEL_SHARDS, useful)
    return min(max(by_size, by_examples, for_parallel, replicas, 1), max(amount.examples, 1))


def _too_few(label: str, count: int, shares: Mapping[str, float], split: str | None) -> UserError:
    images = "1 image" if count == 1 else f"{count} images"
    where = f" in the split {split}" if split else ""
    names = [name for name in SPLITS if name in shares]
    listed = ", ".join(names[:-1]) + f" and {names[-1]}"
    return UserError(
        f"The class {label!r} has {images}{where}; each of {listed} needs one of them.",
        setting="data.source",
        allowed=f"at least {len(names)} images a class",
        fix=f"add images to the class {label!r}, or remove its folder",
    )


def check_every_class(classes: list[str], present: Mapping[str, Collection[str]], fix: str) -> None:
    """Refuse a class that one of the splits has no example of.

    Args:
        classes: All classes.
        present: The classes that each split has examples of.
        fix: What fixes it, with places for the class's and the split's name.
    """
    for name in SPLITS:
        for label in classes:
            if label not in present[name]:
                raise UserError(
                    f"The class {label!r} has no image for the split {name}.",
                    setting="data.source",
                    allowed="every class has images in every split",
                    fix=fix.format(label=repr(label), split=name),
                )
