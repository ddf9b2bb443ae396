"""Skipped images: unusable images, up to data.skip_corrupt, and copies; and damaged images."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ValidationError

from slipway.components.prepare_data.examples import Problem, readable
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.validation.duplicates import Copy
from slipway.components.prepare_data.validation.tally import KEYS_IN_JSON, Tally
from slipway.core.atomic import replace_file

MAX_NAMED = 5
COUNTS = ("decoded", "undecodable", "damaged")


class SkippedImages(BaseModel):
    """Keys of skipped images and reasons, stored in a file so that a resumed run skips the same images.

    Attributes:
        validated: Whether all images were validated already; shards written now do not decode them again.
        decoded: The number of images decoded in full.
        undecodable: The number of them that only a full decode showed to be unusable.
        damaged: The number of them that decoders accept with warnings.
        damaged_images: Keys and warnings of the first of these that are used.
        reasons: The reason for each skipped image, by key.
        conflicts: A note on images with several labels, if there are any.
        copies: The split of each skipped image that is usable but a copy, by key.
        groups: The keys of images that look the same, in groups.
    """

    model_config = KEYS_IN_JSON
    validated: bool = False
    decoded: int = 0
    undecodable: int = 0
    damaged: int = 0
    damaged_images: list[tuple[bytes, str]] = []
    reasons: dict[bytes, str] = {}
    conflicts: list[str] = []
    copies: dict[bytes, str] = {}
    groups: list[list[bytes]] = []
    _path: Path

    @classmethod
    def stored_in(cls, path: Path) -> SkippedImages:
        """Return what a killed run stored in the file, or nothing skipped."""
        try:
            skipped = cls.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError):
            skipped = cls()
        skipped._path = path
        return skipped

    @property
    def unusable(self) -> frozenset[bytes]:
        """The keys of the unusable images."""
        return frozenset(self.reasons.keys() - self.copies.keys())

    def count(self, tally: Tally) -> None:
        """Add the tally's counts of decoded images. They are stored by the next `add` or `add_copies`."""
        self.decoded += tally.decoded
        self.undecodable += tally.undecodable
        self.damaged += tally.damaged
        self.damaged_images = tally.damaged_images

    def add(self, unusable: list[tuple[bytes, str]]) -> None:
        """Skip unusable images."""
        self.reasons.update(unusable)
        self._store()

    def add_copies(self, copies: Iterable[Copy]) -> None:
        """Skip images that are also in another split."""
        for copy in copies:
            self.reasons[copy.key] = copy.reason
            self.copies[copy.key] = copy.split
        self._store()

    def listed(self) -> list[tuple[bytes, str]]:
        """Return keys and reasons, sorted by key."""
        return sorted(self.reasons.items())

    def notes(self) -> list[str]:
        """Return notes on images with several labels and on damaged images that are used, if there are any."""
        if not self.damaged_images:
            return self.conflicts
        named = _named(self.damaged_images, self.damaged)
        return [
            *self.conflicts,
            f"{self.damaged:,} of {self.decoded:,} decoded images are damaged: {named}. "
            "They decode with warnings, and some of their pixels are wrong. Training uses them; with "
            "--set data.damaged=refuse, they are unusable.",
        ]

    def _store(self) -> None:
        self.validated = True
        replace_file(self._path, self.model_dump_json().encode())


def too_many(
    count: int,
    total: int,
    unusable: list[tuple[bytes, str]],
    settings: DataSettings,
    item: str = "image",
    *,
    damaged: int = 0,
) -> list[Problem]:
    """Return the problem that the fraction of unusable images exceeds data.skip_corrupt, if it does.

    It names the first unusable images and the fraction that would allow them.

    Args:
        count: The number of unusable images.
        total: The number of all images.
        unusable: Keys and reasons of some of the unusable images.
        settings: The user's settings.
        item: What an example is called.
        damaged: The number of unusable images that could be used with another data.damaged.
    """
    if count <= settings.skip_corrupt * total:
        return []
    if settings.damaged == "warn":
        damaged = 0
    enough = math.ceil(count / total * 10_000) / 10_000
    problem = Problem(
        f"{count:,} of {total:,} {item}s cannot be used: {_named(sorted(unusable), count)}.",
        setting="data.skip_corrupt",
        value=settings.skip_corrupt,
        allowed=f"at most a fraction of {settings.skip_corrupt:.4g} of the {item}s may be skipped",
        accepting=f"{enough:.4g}" if enough < 1 else None,
        otherwise=f"fix or remove the {item}s"
        + (f"; or --set data.damaged=warn, to use {damaged:,} of them, which are damaged" if damaged else ""),
    )
    return [problem]


def _named(unusable: list[tuple[bytes, str]], count: int) -> str:
    named = [f"{readable(key)} ({reason})" for key, reason in unusable[:MAX_NAMED]]
    return "; ".join([*named, *([f"and {count - len(named):,} more"] if count > len(named) else [])])
