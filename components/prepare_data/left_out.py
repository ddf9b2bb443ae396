"""The images that are left out because they can not be used, and the limit on how many those may be."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path

from components.prepare_data.settings import DataSettings
from components.prepare_data.sources.source import readable
from trainer.durable import replace_file
from trainer.errors import UserError

MOST_NAMED = 5


class LeftOutImages:
    """Keys and reasons, kept in a file so that a run that is killed and goes on leaves out the same."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.reasons: dict[bytes, str] = {}
        if path.exists():
            stored = json.loads(path.read_bytes())
            self.reasons = {base64.b64decode(key): reason for key, reason in stored.items()}

    @property
    def keys(self) -> frozenset[bytes]:
        """The keys of the images."""
        return frozenset(self.reasons)

    def add(self, found: list[tuple[bytes, str]]) -> None:
        """Leave out more images."""
        self.reasons.update(found)
        stored = {base64.b64encode(key).decode(): reason for key, reason in self.listed()}
        replace_file(self._path, json.dumps(stored).encode())

    def listed(self) -> list[tuple[bytes, str]]:
        """Keys and reasons, in the keys' order."""
        return sorted(self.reasons.items())


def refuse_too_many(count: int, total: int, found: list[tuple[bytes, str]], settings: DataSettings) -> None:
    """Refuse when a larger share of the images can not be used than the settings allow.

    Args:
        count: How many can not be used.
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
        f"{count:,} of {total:,} images can not be used: {'; '.join(named + more)}.",
        setting="data.skip_corrupt",
        value=settings.skip_corrupt,
        allowed=f"at most {settings.skip_corrupt:.4g} of the images may be left out",
        mend="mend or remove the images"
        + (f", or set data.skip_corrupt to {enough:.4g} to leave them out" if enough < 1 else ""),
    )
