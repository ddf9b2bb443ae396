"""Appending lines and replacing files, also on a full disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slipway.core import events
from slipway.core.atomic import append_line, json_lines


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
