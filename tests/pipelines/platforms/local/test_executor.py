"""A resumed run repeats the steps whose results a power cut has damaged; a killed command's run ends at once."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipway.core import integrity
from slipway.core.integrity import CHECKSUMS_FILE
from slipway.pipelines.platforms.local import executor, session
from slipway.pipelines.platforms.local.executor import forget_damaged
from slipway.pipelines.runs.record import RunFolder


def entry(folder: Path, name: str, output: str, uri: Path, **metadata: Any) -> None:
    (folder / f"{name}.json").write_text(json.dumps({output: {"uri": str(uri), "metadata": metadata}, "Output": [1]}))


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        (lambda _folder: None, ["custom", "data", "evaluate", "plan", "train"]),
        (lambda folder: os.truncate(folder / "model" / "model.pt2", 0), ["custom", "data", "evaluate", "plan"]),
        (lambda folder: (folder / "model" / "model.json").unlink(), ["custom", "data", "evaluate", "plan"]),
        (lambda folder: os.truncate(folder / "own" / "model.pt", 0), ["data", "evaluate", "plan", "train"]),
        (lambda folder: os.truncate(folder / "own" / CHECKSUMS_FILE, 0), ["data", "evaluate", "plan", "train"]),
        (lambda folder: (folder / "own" / CHECKSUMS_FILE).unlink(), ["data", "evaluate", "plan", "train"]),
        (lambda folder: os.truncate(folder / "report", 0), ["custom", "data", "plan", "train"]),
        (lambda folder: os.truncate(folder / "cache" / "plan.json", 0), ["custom", "data", "evaluate", "train"]),
        (lambda folder: (folder / "cache" / "plan.json").write_text("null"), ["custom", "data", "evaluate", "train"]),
        (lambda folder: (folder / "cache" / "plan.json").write_text("{}"), ["custom", "data", "evaluate", "train"]),
        (lambda folder: (folder / "cache" / "plan.json").write_bytes(b"\xff"), ["custom", "data", "evaluate", "train"]),
    ],
)
def test_a_damaged_result_is_forgotten(tmp_path: Path, damage: Any, kept: list[str]) -> None:
    cache, model, own = tmp_path / "cache", tmp_path / "model", tmp_path / "own"
    for folder in (cache, model, own):
        folder.mkdir()
    (model / "model.pt2").write_bytes(b"weights")
    integrity.seal(model, {"weights_checksum": "1"})
    (own / "model.pt").write_bytes(b"weights")
    integrity.seal(own, {}, CHECKSUMS_FILE)
    (tmp_path / "report").write_text("<html>")
    entry(cache, "train", "model", model, files_checksum=integrity.checksum(model))
    entry(cache, "custom", "model", own, files_checksum=integrity.checksum(own))
    entry(cache, "evaluate", "report", tmp_path / "report")
    entry(cache, "data", "dataset", tmp_path / "elsewhere")  # kfp's cache notices that it is missing
    (cache / "plan.json").write_text('{"Output": "text"}')
    damage(tmp_path)
    forget_damaged(cache)
    assert sorted(path.stem for path in cache.iterdir()) == kept


def test_a_run_whose_command_was_killed_ends_without_waiting_for_the_process_that_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That process ignores SIGTERM, and is killed when its step has ended, not after the time for which others wait."""
    stopped, closed = threading.Event(), threading.Event()
    ended: list[bool] = []

    @contextlib.contextmanager
    def warm(*_: object) -> Iterator[None]:
        yield
        closed.set()

    def stop_members(_leader: int, _seconds: float) -> None:
        stopped.set()
        ended.append(closed.wait(10))

    monkeypatch.setattr(executor, "_warm", warm)
    monkeypatch.setattr(executor, "execute", lambda *_args, **_options: not stopped.wait(10))
    monkeypatch.setattr(session, "stop_members", stop_members)
    monkeypatch.setattr(RunFolder, "read", lambda _: SimpleNamespace(platform="local"))
    monkeypatch.setattr(executor.os, "_exit", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["executor", str(tmp_path), "--output", str(tmp_path), "--lock", "0"])
    with closed_input(), pytest.raises(SystemExit) as end:
        executor.main()
    assert (end.value.code, ended) == (1, [True])


@contextlib.contextmanager
def closed_input() -> Iterator[None]:
    """Let standard input be at its end, as when the process at the pipe's other end was killed."""
    kept, (reading, writing) = os.dup(0), os.pipe()
    os.close(writing)
    os.dup2(reading, 0)
    try:
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(reading)
