"""What the operating system refuses, and terminals that cannot show every character."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.terminal import EXIT_USAGE, print_any_character

CONFIGURATION = Path(__file__).parents[2] / "configs/digits.yaml"


@pytest.mark.skipif(sys.platform != "linux", reason="/sys is Linux's")
@pytest.mark.parametrize("command", ["run", "rehearse"])
def test_a_folder_that_cannot_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    shutil.copy(CONFIGURATION, tmp_path)
    (tmp_path / "runs").symlink_to("/sys/kernel")  # where not even root may create a folder
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [command, "-c", "digits.yaml"])
    assert result.exit_code == EXIT_USAGE, result.output
    assert "runs/digits-" in result.stderr
    assert "a folder that you can write to" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits.yaml", "runs"]


@pytest.mark.parametrize(
    ("number", "fix"),
    [(errno.ENOSPC, "free disk space"), (errno.EROFS, "you can write to"), (errno.ENAMETOOLONG, "a shorter name")],
)
def test_what_the_operating_system_refuses_is_one_screen(
    monkeypatch: pytest.MonkeyPatch, number: int, fix: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), "x" * 300)

    monkeypatch.setattr("pipelines.runs.find", refuse)
    result = CliRunner().invoke(app, ["status"])
    assert result.exit_code == EXIT_USAGE
    assert os.strerror(number) in result.stderr
    assert "(300 characters)" in result.stderr
    assert fix in result.stderr


def test_another_error_of_the_operating_system_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr("pipelines.runs.find", refuse)
    assert isinstance(CliRunner().invoke(app, ["status"]).exception, OSError)


def test_a_terminal_of_ascii_shows_marks_and_letters_in_another_form(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    print_any_character()
    print("✓ …", json.dumps("é😀", ensure_ascii=False), flush=True)
    shown = written.getvalue().decode("ascii")
    assert shown == '+ ... "\\u00e9\\ud83d\\ude00"\n'
    assert json.loads(shown.removeprefix("+ ...")) == "é😀", "JSON remains JSON"
