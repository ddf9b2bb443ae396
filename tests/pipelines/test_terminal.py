"""User errors and errors of the operating system: exit code, screen, JSON, encodings."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from click.testing import Result
from rich.table import Table
from typer.testing import CliRunner

from slipway.core.errors import UserError, lowered
from slipway.pipelines.cli.app import app
from slipway.pipelines.options import Json
from slipway.pipelines.terminal import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    Commands,
    Terminal,
    interrupted,
    print_any_character,
    user_errors,
)

CONFIGURATION = Path(__file__).parents[2] / "configs/digits.yaml"


def invoke(error: BaseException, *arguments: str) -> Result:
    """Run a command that raises `error`."""
    commands = typer.Typer(cls=Commands)

    @commands.command()
    @user_errors
    def work(as_json: Json = False) -> None:
        raise error

    @commands.command()
    def other() -> None: ...

    return CliRunner().invoke(commands, ["work", *arguments])


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "-c", "nowhere.yaml"),
        ("run", "--set", "train.epochs"),
        ("run", "--resume", "nothing"),
        ("doctor", "--nonsense"),
        ("doctor", "--target", "mars"),
        ("hardware", "l4x3"),
        ("status", "nothing"),
        ("explain", "one", "two"),
        ("logs",),
        ("no-such-command",),
        ("schedule", "no-such-command"),
    ],
    ids=" ".join,
)
def test_with_json_every_error_is_an_object_on_stdout(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["message"]
    assert result.stderr == ""


@pytest.mark.parametrize("arguments", [(), ("run",), ("schedule",)], ids=" ".join)
@pytest.mark.parametrize("option", ["", "--"])
@pytest.mark.extension("vertex")
def test_a_long_argument_is_not_repeated(arguments: tuple[str, ...], option: str) -> None:
    result = CliRunner().invoke(app, [*arguments, option + "n" * 100_000])
    assert result.exit_code == EXIT_USAGE
    assert "characters) …" in result.stderr
    assert len(result.stderr) < 3000


def test_help_is_not_an_error() -> None:
    result = CliRunner().invoke(app, ["run", "--json", "--help"])
    assert (result.exit_code, "Usage:" in result.stdout) == (0, True)


def test_a_user_error_is_text_or_a_json_object() -> None:
    error = UserError("No.", setting="train.epochs", value=3, nearest="4", fix="--set train.epochs=4")
    shown = invoke(error)
    assert (shown.exit_code, shown.stdout, shown.stderr) == (2, "", f"error: {lowered(str(error))}\n")
    told = invoke(error, "--json")
    assert (told.exit_code, json.loads(told.stdout), told.stderr) == (2, {"error": error.as_dict()}, "")


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("tensorflow.python", "pip install slipway-ml"),
        ("google.cloud.aiplatform", "pip install 'slipway-ml[cloud]'"),
        ("torch", "pip install 'slipway-ml[pytorch]'"),
        ("docker", "pip install slipway-ml"),
    ],
)
def test_a_missing_package_is_named_with_its_install_command(module: str, command: str) -> None:
    result = invoke(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: the Python package {module} is not installed.\n  fix:      {command}\n"


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("No module named 'dockerfile'", name="dockerfile"), ValueError("x")]
)
def test_other_exceptions_keep_their_traceback_and_are_json_objects_too(error: Exception) -> None:
    assert invoke(error).exception is error
    told = invoke(error, "--json")
    assert (told.exit_code, told.exception) == (1, error)
    fields = json.loads(told.stdout)["error"]
    assert fields["message"] == f"{type(error).__name__}: {error}"
    assert "Traceback" in fields["traceback"]


def test_ctrl_c_says_what_may_have_been_changed(capfd: pytest.CaptureFixture[str]) -> None:
    @user_errors
    @interrupted("the endpoint may have been changed; slipway endpoints list shows it")
    def stopped(name: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as end:
        stopped(name="digits")
    assert end.value.exit_code == EXIT_INTERRUPTED
    line = "interrupted: the endpoint may have been changed; slipway endpoints list shows it"
    assert " ".join(capfd.readouterr().err.split()) == line


def test_an_aborted_prompt_and_an_exit_keep_their_exit_codes() -> None:
    assert invoke(typer.Exit(3), "--json").exit_code == 3
    assert invoke(typer.Abort(), "--json").exit_code == 130


@pytest.mark.skipif(sys.platform != "linux", reason="/sys is Linux's")
@pytest.mark.parametrize("command", ["run", "rehearse"])
def test_a_read_only_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
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
def test_an_operating_system_error_is_shown_without_traceback(
    monkeypatch: pytest.MonkeyPatch, number: int, fix: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), "x" * 300)

    monkeypatch.setattr("slipway.pipelines.runs.record.find", refuse)
    result = CliRunner().invoke(app, ["status"])
    assert result.exit_code == EXIT_USAGE
    assert lowered(os.strerror(number)) in result.stderr
    assert "(300 characters)" in result.stderr
    assert fix in result.stderr


def test_an_unexpected_operating_system_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr("slipway.pipelines.runs.record.find", refuse)
    assert isinstance(CliRunner().invoke(app, ["status"]).exception, OSError)


def test_an_ascii_terminal_shows_replacements(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    print_any_character()
    print("✓ …", json.dumps("é😀", ensure_ascii=False), flush=True)
    shown = written.getvalue().decode("ascii")
    assert shown == '+ ... "\\u00e9\\ud83d\\ude00"\n'
    assert json.loads(shown.removeprefix("+ ...")) == "é😀", "JSON remains JSON"


@pytest.mark.parametrize(("arguments", "near"), [(["runn"], "run"), (["schedule", "lst"], "list")])
@pytest.mark.extension("vertex")
def test_a_misspelled_command_is_suggested_once(arguments: list[str], near: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == EXIT_USAGE
    assert " ".join(result.stderr.split()).count(f"Did you mean '{near}'") == 1


@pytest.mark.parametrize("module", ["slipway", "slipway.pipelines"])
def test_the_package_is_the_console_script(tmp_path: Path, module: str) -> None:
    result = subprocess.run([sys.executable, "-m", module, "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert (result.returncode, result.stdout.split()[0], result.stderr) == (0, "slipway", "")


def slipway(*arguments: str, folder: Path, shell: str = "") -> subprocess.CompletedProcess[str]:
    """Run the console script in `folder`; `shell` redirects its streams."""
    command = f"exec {shlex.join([sys.executable, '-m', 'slipway.pipelines', *arguments])} {shell}"
    return subprocess.run(["/bin/sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=180)


@pytest.mark.parametrize("arguments", [("hardware",), ("hardware", "--json"), ("--version",), ("status", "none")])
def test_closed_streams_are_no_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    expected = 2 if "none" in arguments else 0
    for shell in (">&-", "<&- >&- 2>&-"):
        result = slipway(*arguments, folder=tmp_path, shell=shell)
        assert (result.returncode, result.stdout) == (expected, "")
        assert "Traceback" not in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
@pytest.mark.parametrize("arguments", [("hardware",), ("hardware", "--json"), ("--version",)])
def test_output_that_cannot_be_written_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = slipway(*arguments, folder=tmp_path, shell=">/dev/full")
    assert result.returncode == EXIT_USAGE
    assert result.stderr.startswith("error: no space left on device.\n  fix: ")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("error", ["TypeError('x')", "OSError('without a number')"])
def test_a_bug_is_one_screen_whose_traceback_is_in_a_file(tmp_path: Path, error: str) -> None:
    program = f"""
import typer
from slipway.pipelines import terminal

def work():
    raise {error}

with terminal.output_errors():
    typer.run(terminal.user_errors(work))
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    (file,) = tmp_path.iterdir()
    kind, _, text = error.rstrip(")'").partition("('")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"error: this is a bug in Slipway: {kind}: {text}. Traceback: {file}\n  fix:      report it with this file\n"
    )
    assert "in work" in file.read_text()


@pytest.mark.usefixtures("real_processes")  # forks write each line at once, and so does PYTHONUNBUFFERED
@pytest.mark.parametrize("arguments", [("hardware",), ("hardware", "--json"), ("config", "schema"), ("list", "--json")])
def test_a_pipe_whose_reader_ended_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "slipway.pipelines", *arguments]
    result = subprocess.run(command, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=180)
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, "")


def test_control_characters_of_texts_do_not_reach_the_terminal() -> None:
    table = Table(box=None)
    table.add_column("name\x1b[2J")
    table.add_row("cat\x1b]0;title\x07")
    written = io.StringIO()
    shown = Terminal(file=written, force_terminal=True, width=80)
    shown.print(table)
    shown.print("[red]dog\x9b2J[/]\tnext\nline", soft_wrap=True)
    text = re.sub(r"\x1b\[[\d;]*m", "", written.getvalue())  # rich's own colors
    assert not set(text) & {"\x1b", "\x07", "\x9b"}
    assert r"cat\x1b]0;title\x07" in text
    assert "dog\\x9b2J" in text
    assert "next\nline" in text


def test_names_of_emoji_in_texts_are_shown_as_they_are() -> None:
    written = io.StringIO()
    Terminal(file=written).print("photos/:cat:/1.jpg")
    assert written.getvalue() == "photos/:cat:/1.jpg\n"


def test_a_pipe_is_no_terminal_in_a_notebook_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as ipykernel does
    console = Terminal(file=io.StringIO())
    assert (console.is_terminal, console.is_interactive, console.color_system) == (False, False, None)
