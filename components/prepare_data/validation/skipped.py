"""The images that are left out: those that cannot be used, of which there is a limit, and copies."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable
from pathlib import Path

from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.source import readable
from slipway.components.prepare_data.validation.duplicates import Copy
from slipway.components.prepare_data.validation.tally import Tally
from slipway.core.atomic import replace_file
from slipway.core.errors import UserError

MOST_NAMED = 5


class LeftOutImages:
    """Keys and reasons, kept in a file so that a run that is killed and goes on leaves out the same.

    Attributes:
        decoded: How many images were decoded in full before some were left out, as what stays is not decoded again.
        undecodable: For how many of them only that showed that they cannot be used.
        reasons: Why each is left out, by key.
        copies: Of those, the ones that are usable, but in another split too: the split that does without.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.reasons: dict[bytes, str] = {}
        self.copies: dict[bytes, str] = {}
        self.decoded = 0
        self.undecodable = 0
        if path.exists():
            stored = json.loads(path.read_bytes())
            self.decoded, self.undecodable = stored["decoded"], stored["undecodable"]
            for encoded, reason, split in stored["images"]:
                key = base64.b64decode(encoded)
                self.reasons[key] = reason
                if split:
                    self.copies[key] = split

    @property
    def unusable(self) -> frozenset[bytes]:
        """The keys of the images that cannot be used."""
        return frozenset(self.reasons.keys() - self.copies.keys())

    def count(self, tally: Tally) -> None:
        """Count what was decoded in full. It is kept when images are left out: only then it is not seen again."""
        self.decoded += tally.decoded
        self.undecodable += tally.undecodable

    def add(self, found: list[tuple[bytes, str]]) -> None:
        """Leave out more images that cannot be used. As they change the splits, copies are to be found anew."""
        for key in self.copies:
            del self.reasons[key]
        self.copies.clear()
        self.reasons.update(found)
        self._store()

    def add_copies(self, found: Iterable[Copy]) -> None:
        """Leave out images that another split has too."""
        for copy in found:
            self.reasons[copy.key] = copy.reason
            self.copies[copy.key] = copy.split
        self._store()

    def listed(self) -> list[tuple[bytes, str]]:
        """Keys and reasons, in the keys' order."""
        return sorted(self.reasons.items())

    def _store(self) -> None:
        images = [(base64.b64encode(key).decode(), reason, self.copies.get(key)) for key, reason in self.listed()]
        stored = {"decoded": self.decoded, "undecodable": self.undecodable, "images": images}
        replace_file(self._path, json.dumps(stored).encode())


def refuse_too_many(count: int, total: int, found: list[tuple[bytes, str]], settings: DataSettings) -> None:
    """Refuse when a larger share of the images cannot be used than the settings allow.

    Args:
        count: How many cannot be used.
        total: How many there are.
        found: Keys and reasons of some of them.
        settings: As the user gave them.

    Raises:
        UserError: It names the first of them, and the share that would allow it.
    """
    if count <= settings.skip_corrupt * total:
        return
    named = [f"{readable(key)} ({reason})" for key, reason in sorted(found)[:MOST_NAMED]]
    more = [f"and {count - len(named):,} more"] if count > len(named) else []
    enough = math.ceil(count / total * 10_000) / 10_000
    raise UserError(
        f"{count:,} of {total:,} images cannot be used: {'; '.join(named + more)}.",
        setting="data.skip_corrupt",
        value=settings.skip_corrupt,
        allowed=f"at most {settings.skip_corrupt:.4g} of the images may be left out",
        fix="fix or remove the images"
        + (f", or set data.skip_corrupt to {enough:.4g} to leave them out" if enough < 1 else ""),
    )
