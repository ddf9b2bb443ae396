"""Appending lines and replacing files, also on a full disk."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway.core import events
from slipway.core.atomic import append_line, json_lines, replace_file, sync_tree


def test_a_line_after_a_torn_one_is_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append_line(path, '{"n": 1}')
    with path.open("ab") as file:
        file.write(b'{"n": 2, "te')  # what a full disk left of a line
    append_line(path, '{"n": 3}')
    append_line(path, '{"n": 4}')
    assert path.read_bytes() == b'{"n": 1}\n{"n": 2, "te\n{"n": 3}\n{"n": 4}\n'


def test_a_line_that_is_cut_short_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    with pytest.raises(OSError, match="No space left"):
        append_line(tmp_path / "lines", "12345")


def test_only_lines_that_are_json_objects_are_read() -> None:
    data = b'{"n": 1}\n{"n": 2, "te\n\n[]\n7\n\xff\xfe\n{"n": 3}\n{"n'
    assert json_lines(data) == [{"n": 1}, {"n": 3}]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_on_a_full_disk_progress_and_messages_are_dropped_and_results_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(events.EVENTS_VARIABLE, "/dev/full")
    events.progress(1, 2, "steps")
    events.message("a sentence")
    with pytest.raises(OSError, match="No space left"):
        events.emit("finished", outputs={})


def test_an_event_is_one_line_of_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(events.EVENTS_VARIABLE, str(tmp_path / "events"))
    events.message("two\nlines")
    (line,) = (tmp_path / "events").read_text().splitlines()
    assert json.loads(line)["text"] == "two\nlines"


def failing(number: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_failed_replacement_reports_its_first_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    replace_file(path, b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing(errno.ENOSPC))
        patched.setattr(Path, "unlink", failing(errno.EIO))
        with pytest.raises(OSError, match="No space left") as caught:
            replace_file(path, b"new")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"


def test_temporary_files_of_failed_writes_are_removed_by_a_later_one(tmp_path: Path) -> None:
    stale, live, other = (tmp_path / name for name in (".run.json.71", ".run.json.72", ".image.71"))
    for path in (stale, live, other):
        path.write_text("half")
    before = time.time() - 2 * 3600
    os.utime(stale, (before, before))
    os.utime(other, (before, before))
    replace_file(tmp_path / "run.json", b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".image.71", ".run.json.72", "run.json"]


def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the name of everything that is flushed to disk is appended."""
    names: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: names.append(Path(f"/proc/self/fd/{number}").readlink().name))
    return names


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="/proc is Linux's")
def test_a_replaced_file_and_its_folder_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = synced(monkeypatch)
    replace_file(tmp_path / "run.json", b"new")
    assert names == [f".run.json.{os.getpid()}", tmp_path.name]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="/proc is Linux's")
def test_a_tree_is_flushed_with_its_folders_and_without_fifos_and_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").touch()
    (tmp_path / "lost").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    names = synced(monkeypatch)
    sync_tree(tmp_path)
    assert names == ["file", "in", tmp_path.name]


def test_a_file_system_whose_folders_cannot_be_flushed_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.EINVAL))
    sync_tree(tmp_path)
