"""Imported by every Python of a run: records what the disk has been told to keep, and holds the run at a moment.

SLIPWAY_TEST_ROOT is the folder that is watched, SLIPWAY_TEST_SHADOW receives the record, see tests/chaos/power.py, and
SLIPWAY_TEST_CUT is the number of the operation at which all processes stop.
"""

# pathlib would be imported by every Python.
# ruff: noqa: PTH109, PTH110, PTH115, PTH118, PTH123

import json
import os
import shutil
import stat
import time


def _record(root, shadow, cut):
    def path_of(path, folder=None):
        if isinstance(path, int):
            return os.readlink(f"/proc/self/fd/{path}")
        base = os.getcwd() if folder is None else os.readlink(f"/proc/self/fd/{folder}")
        return os.path.normpath(os.path.join(base, os.fsdecode(path)))

    def count(path):
        """Count an operation; wait for the power cut if its time has come."""
        if not path.startswith(root):
            return False
        events = os.open(os.path.join(shadow, "events"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(events, b".")
        number = os.fstat(events).st_size
        os.close(events)
        while number >= cut:
            time.sleep(1)
        return True

    def keep(path):
        """Copy a file that was flushed, or list a folder. A link to the file prevents that its inode is reused."""
        status = os.lstat(path)
        beside = os.path.join(shadow, f"{os.getpid()}.{time.monotonic_ns()}")
        if stat.S_ISDIR(status.st_mode):
            entries = {}
            for entry in os.scandir(path):
                kind = "link" if entry.is_symlink() else "folder" if entry.is_dir() else "file"
                entries[entry.name] = [kind, os.readlink(entry.path) if kind == "link" else entry.inode()]
            with open(beside, "w") as file:
                json.dump(entries, file)
            rename(beside, os.path.join(shadow, f"folder-{status.st_ino}"))
            return
        held = os.path.join(shadow, f"held-{status.st_ino}")
        if not os.path.exists(held):
            os.link(path, held)
        shutil.copyfile(path, beside)
        rename(beside, os.path.join(shadow, f"file-{status.st_ino}"))

    fsync, rename = os.fsync, os.rename

    def recorded_fsync(descriptor):
        path = path_of(descriptor)
        if count(path) and os.path.exists(path):
            keep(path)
        elif not path.startswith(root):
            fsync(descriptor)

    def counted(original):
        def function(path, *arguments, **named):
            count(path_of(path, named.get("dir_fd")))
            return original(path, *arguments, **named)

        return function

    def recorded_rmdir(path, **named):
        whole = path_of(path, named.get("dir_fd"))
        number = os.lstat(whole).st_ino
        rmdir(path, **named)
        if whole.startswith(root) and os.path.exists(known := os.path.join(shadow, f"folder-{number}")):
            unlink(known)

    rmdir, unlink = os.rmdir, os.unlink
    os.fsync, os.rmdir = recorded_fsync, recorded_rmdir
    for name in ("rename", "replace", "unlink", "remove"):
        setattr(os, name, counted(getattr(os, name)))


if "SLIPWAY_TEST_ROOT" in os.environ:
    _record(
        os.environ["SLIPWAY_TEST_ROOT"], os.environ["SLIPWAY_TEST_SHADOW"], int(os.environ["SLIPWAY_TEST_CUT"])
    )  # fmt: skip
