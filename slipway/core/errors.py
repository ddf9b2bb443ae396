"""The errors that a user can cause, and how they are shown.

Every one names the setting, its value, what is allowed, the nearest valid value and what fixes it. All packages
raise this one class; the command line prints it without a traceback.
"""

from __future__ import annotations

import difflib
import errno
import json
import sys
from collections.abc import Iterable
from typing import Any

# Before the one line of JSON by which programs read an error from a log.
ERROR_PREFIX = "slipway-error: "


class UserError(Exception):
    """A mistake that the user can fix.

    Args:
        message: One sentence: what is wrong.
        setting: The setting's dotted name in the run configuration, such as ``train.batch_size``.
        value: What it was set to.
        allowed: What would be accepted, in words.
        nearest: The valid value nearest to what was given.
        fix: The command or the change that fixes it.
        traceback: Of what the user's own code raised, where that was it.
    """

    def __init__(
        self,
        message: str,
        *,
        setting: str | None = None,
        value: Any = None,
        allowed: str | None = None,
        nearest: str | None = None,
        fix: str | None = None,
        traceback: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.setting = setting
        self.value = value
        self.allowed = allowed
        self.nearest = nearest
        self.fix = fix
        self.traceback = traceback

    def __str__(self) -> str:
        lines = [self.message]
        if self.setting is not None:
            lines.append(f"  setting:  {self.setting} = {self.value!r}")
        for label, text in (("allowed", self.allowed), ("closest", self.nearest), ("fix", self.fix)):
            if text:
                lines.append(f"  {label + ':':<10}{text}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The error as plain values, for a run's record and its event log."""
        value = self.value if isinstance(self.value, str | int | float | bool | None) else str(self.value)
        return {
            "message": self.message,
            "setting": self.setting,
            "value": value,
            "allowed": self.allowed,
            "nearest": self.nearest,
            "fix": self.fix,
            "traceback": self.traceback,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> UserError:
        """The inverse of `as_dict`."""
        return cls(**fields)


# What fixes an error of the operating system that is not the program's, by its number.
_SYSTEM_FIXES = {
    errno.ENOSPC: "free disk space there, then repeat the command",
    errno.EDQUOT: "free some of your disk quota, then repeat the command",
    errno.EROFS: "repeat the command in a folder that you can write to",
    errno.EACCES: "repeat the command in a folder that you can write to, or change the permissions",
    errno.EPERM: "repeat the command in a folder that you can write to, or change the permissions",
    errno.ENAMETOOLONG: "use a shorter name",
}


def system_error(error: BaseException) -> UserError | None:
    """Return the user's view of what the operating system refused: a full disk, a folder without write permission.

    Returns:
        None for any other error, which is a defect of the program.
    """
    if not isinstance(error, OSError) or error.errno not in _SYSTEM_FIXES:
        return None
    path = "" if error.filename is None else str(error.filename)
    path = path if len(path) < 200 else f"{path[:60]}… ({len(path)} characters)"
    message = f"{error.strerror}: {path}" if path else str(error.strerror)
    return UserError(f"{message}.", fix=_SYSTEM_FIXES[error.errno])


def report(error: UserError) -> None:
    """Print a user's mistake on stderr: the screen for people, then the line for programs."""
    print(f"{error.traceback or ''}{error}\n{ERROR_PREFIX}{json.dumps(error.as_dict())}", file=sys.stderr, flush=True)


def nearest(value: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like `value`, or None where none is near."""
    folded = {candidate.lower(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(value.lower(), list(folded), n=1, cutoff=0.5)
    return folded[matches[0]] if matches else None
