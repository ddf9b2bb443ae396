"""User errors and how they are shown.

A user error names the setting, its value, the allowed values, the closest valid value and the fix. All packages raise
this one class; the command line prints it without a traceback.
"""

from __future__ import annotations

import difflib
import errno
import io
import json
import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path

from slipway.core.values import JsonObject

# Prefix of the JSON line from which programs read an error in a log.
ERROR_PREFIX = "slipway-error: "
# A longer line of an error is shortened.
MAX_LINE = 1000
# Sections of a run configuration, whose settings `--set` changes.
SECTIONS = ("data", "evaluate", "kubeflow", "model", "notify", "tpu", "train", "vertex")
# First words of messages that are neither names nor values.
_STARTERS = re.compile(
    r"(a|an|another|augmentation|cannot|class|could|deleting|device|disk|every|file|for|if|images|importing|in|input|"
    r"invalid|it|its|line|missing|mixup|more|neither|nesterov|no|none|not|nothing|on|one|only|permission|preparing|"
    r"read-only|replicas|rounding|run|schedule|set|several|some|spot|that|the|there|these|this|too|training|unexpected|"
    r"version|with|without|workers)\b",
    re.IGNORECASE,
)


@dataclass(eq=False, repr=False)
class UserError(Exception):
    """An error that the user can fix.

    Attributes:
        message: One sentence that states the problem.
        setting: The setting's dotted name in the run configuration, such as ``train.batch_size``.
        value: The setting's value.
        allowed: A description of the accepted values.
        nearest: The valid value closest to `value`.
        fix: The command or edit that fixes it; by default the option that sets the setting to `nearest`.
        traceback: The traceback of the user's code, if that code raised the error.
    """

    message: str
    _: KW_ONLY
    setting: str | None = None
    value: object = None
    allowed: str | None = None
    nearest: str | None = None
    fix: str | None = None
    traceback: str | None = None

    def __post_init__(self) -> None:
        self.message = shortened(self.message)
        if self.fix is None and self.setting and self.nearest:
            self.fix = _option(self.setting, self.nearest)
        if len(shown := str(self.value)) > MAX_LINE:
            self.value = shortened(shown)
        for name in ("allowed", "nearest", "fix"):
            if text := getattr(self, name):
                setattr(self, name, shortened(text))

    def __str__(self) -> str:
        lines = [self.message]
        if self.setting is not None:
            lines.append(f"  setting:  {self.setting} = {self.value!r}")
        for label, text in (("allowed", self.allowed), ("closest", self.nearest), ("fix", self.fix)):
            if text:
                lines.append(f"  {label + ':':<10}{text}")
        return "\n".join(lines)

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in place of a traceback: the user's own lines, and the message."""
        package = Path(__file__).parents[1]
        frames = [
            f"  {frame.filename if Path(frame.filename).is_file() else frame.name}:{frame.lineno}: {frame.line}"
            for frame in traceback.extract_tb(self.__traceback__)
            if not {"IPython", "ipykernel"} & {*Path(frame.filename).parts}
            and package not in Path(frame.filename).parents
        ]
        return [*frames, f"error: {self.traceback or ''}{lowered(str(self))}"]

    def as_dict(self) -> JsonObject:
        """Return the error as plain values, for a run's record and its event log."""
        value = self.value if isinstance(self.value, str | int | float | bool | None) else str(self.value)
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"value": value}

    @classmethod
    def unknown(
        cls, kind: str, value: str, known: Iterable[str], *, setting: str | None = None, fix: str | None = None
    ) -> UserError:
        """Return the error for a name that is not one of `known`.

        Args:
            kind: What the name names, such as "engine".
            value: The name.
            known: The valid names.
            setting: The setting's dotted name, or an option such as ``--step``.
            fix: The fix, if it is not the option that sets `setting` to the closest name.
        """
        names = list(known)
        return cls(
            f"There is no {kind} {value!r}.",
            setting=setting,
            value=value,
            allowed=", ".join(names) or "none exists",
            nearest=nearest(value, names),
            fix=fix,
        )

    @classmethod
    def from_dict(cls, values: JsonObject) -> UserError:
        """Create an error from the result of `as_dict`."""
        return cls(**values)


def shortened(text: str, length: int = MAX_LINE) -> str:
    """Return a text without the middle of lines longer than `length`, such as one with a value of 200 KB."""
    if len(text) <= length:
        return text
    return "\n".join(
        line if len(line) <= length else f"{line[:60]}… ({len(line)} characters) …{line[-60:]}"
        for line in text.split("\n")
    )


def lowered(message: str) -> str:
    """Return a message as it follows "error:": in lower case, unless it starts with a name or a value."""
    return message[0].lower() + message[1:] if _STARTERS.match(message) else message


def _option(setting: str, value: str) -> str | None:
    """Return the command-line option that sets a setting, which may itself be an option; None if there is none."""
    if setting == "hardware":
        setting = "--hardware"
    if setting.startswith("-"):
        return f"{setting} {shlex.quote(value)}"
    if setting.partition(".")[0] in SECTIONS and re.fullmatch(r"\w+(\.[A-Za-z_][\w-]*)+", setting):
        return f"--set {shlex.quote(f'{setting}={value}')}"
    return None


# Fixes for operating system errors that the user can solve, by error number.
_SYSTEM_FIXES = {
    errno.ENOSPC: "free disk space, then repeat the command",
    errno.EDQUOT: "free some of your disk quota, then repeat the command",
    errno.EROFS: "repeat the command in a folder that you can write to",
    errno.EACCES: "repeat the command in a folder that you can write to, or change the permissions",
    errno.EPERM: "repeat the command in a folder that you can write to, or change the permissions",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ENOENT: "check that the path exists and that files can be created there",
    errno.ENOTDIR: "use a path inside a folder",
    errno.EISDIR: "use the path of a file, or rename the folder",
    errno.EEXIST: "use another path, or rename what exists there",
    errno.EMFILE: "raise the limit of open files: ulimit -n 4096",
    errno.ENOMEM: "free memory, then repeat the command",
    errno.EAGAIN: "raise the limit of processes: ulimit -u 4096",
} | dict.fromkeys(
    (errno.EIO, errno.ESTALE, errno.ENOTCONN),
    "check the disk or the mount, then repeat the command, or for a run: slipway run --resume latest",
)
# Processes share memory and locks there, in no other folder.
_SHARED_MEMORY_FIX = "mount -t tmpfs -o mode=1777 tmpfs /dev/shm; of a container: --tmpfs /dev/shm:mode=1777,size=1g"


def system_error(error: BaseException) -> UserError | None:
    """Convert an error of the operating system, such as a full disk or a failing read, to a UserError.

    Returns:
        None for a closed pipe, and for what is a bug: another exception, or a descriptor that is not open.
    """
    if not isinstance(error, OSError) or error.strerror is None or error.errno in (errno.EPIPE, errno.EBADF):
        return None
    path = shortened(_path_of(error), 200)
    fix = _SYSTEM_FIXES.get(error.errno or 0)
    message = f"{error.strerror}: {path}" if path else error.strerror
    return UserError(f"{message}.", fix=_SHARED_MEMORY_FIX if path.startswith("/dev/shm/") else fix)


def internal_error(error: BaseException) -> UserError:
    """Return the screen of an exception that is a bug in Slipway; its traceback is written to a new file."""
    import tempfile

    lines = traceback.format_exception(error)
    message = f"This is a bug in Slipway: {lines[-1].strip().rstrip('.')}."
    try:
        with tempfile.NamedTemporaryFile("w", prefix="slipway-", suffix=".txt", encoding="utf-8", delete=False) as file:
            file.writelines(lines)
    except OSError:  # the disk may be full
        return UserError(message)
    return UserError(f"{message} Traceback: {file.name}", fix="report it with this file")


def _path_of(error: OSError) -> str:
    """Return the path in an error; for a failed read or write, which has none, that of the file in its traceback."""
    if path := error.filename2 or error.filename:
        return os.fsdecode(path) if isinstance(path, bytes) else str(path)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    files = (value for frame in reversed(frames) for value in frame.f_locals.values() if isinstance(value, io.IOBase))
    names = (getattr(file, "name", None) for file in files)
    paths = (str(name) for name in names if isinstance(name, str | os.PathLike))
    return next((path for path in paths if not path.startswith("<")), "")  # not <stdout>


def report(error: UserError) -> None:
    """Print a user error on stderr: as text for people, then as one JSON line for programs."""
    # With its newline in one write: print writes them one after the other, and a thread may print in between.
    sys.stderr.write(f"{error.traceback or ''}{error}\n{ERROR_PREFIX}{json.dumps(error.as_dict())}\n")
    sys.stderr.flush()


# A name that ends with a quantity: n1-standard-8, a2-highgpu-4g, digits/12, 2x4.
_SIZED = re.compile(r"(.*[^a-z0-9]|.*[0-9]x|)([0-9]+)([a-z]?)")


def nearest(value: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate most similar to `value`, ignoring case, or None if none is similar.

    Of names that differ in a quantity at their end, it is the one with the closest quantity, rather a smaller one.
    """
    value, folded = value.lower(), {candidate.lower(): candidate for candidate in candidates}
    sized = {name: match for name in folded if (match := _SIZED.fullmatch(name))}
    size = _SIZED.fullmatch(value)
    alike = [name for name, match in sized.items() if size and match.group(1, 3) == size.group(1, 3)]
    similar = alike[:1] or difflib.get_close_matches(value, list(folded), n=1, cutoff=0.5)
    if not similar:
        return None
    if size and (best := sized.get(similar[0])):
        alike = [name for name, match in sized.items() if match.group(1, 3) == best.group(1, 3)]
        similar = [min(alike, key=lambda name: (abs(int(sized[name][2]) - int(size[2])), int(sized[name][2])))]
    return folded[similar[0]]
