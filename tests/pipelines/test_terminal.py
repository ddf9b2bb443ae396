"""What every command does with a mistake: the exit code, the screen, and with --json an object on stdout."""

from __future__ import annotations

import json

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.commands.options import Json
from pipelines.terminal import Commands, user_errors
from trainer.errors import UserError


def invoke(error: BaseException, *arguments: str) -> Result:
    """What a command does that raises `error`."""
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
def test_every_mistake_is_an_object_on_stdout_with_json(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["message"]
    assert result.stderr == ""


def test_help_is_no_mistake() -> None:
    result = CliRunner().invoke(app, ["run", "--json", "--help"])
    assert (result.exit_code, "Usage:" in result.stdout) == (0, True)


def test_a_users_mistake_is_a_screen_or_an_object() -> None:
    error = UserError("No.", setting="train.epochs", value=3, nearest="4", mend="--set train.epochs=4")
    shown = invoke(error)
    assert (shown.exit_code, shown.stdout, shown.stderr) == (2, "", f"error: {error}\n")
    told = invoke(error, "--json")
    assert (told.exit_code, json.loads(told.stdout), told.stderr) == (2, {"error": error.as_dict()}, "")


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("tensorflow.python", "pip install 'slipway[training]'"),
        ("google.cloud.aiplatform", "pip install 'slipway[cloud]'"),
        ("torch", "pip install 'slipway[pytorch]'"),
        ("docker", "pip install docker"),
    ],
)
def test_a_package_that_is_missing_is_named_with_what_installs_it(module: str, command: str) -> None:
    result = invoke(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: The Python package {module} is not installed.\n  mend: {command}\n"


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("No module named 'dockerfile'", name="dockerfile"), ValueError("x")]
)
def test_any_other_exception_keeps_its_traceback_and_is_an_object_too(error: Exception) -> None:
    assert invoke(error).exception is error
    told = invoke(error, "--json")
    assert (told.exit_code, told.exception) == (1, error)
    fields = json.loads(told.stdout)["error"]
    assert fields["message"] == f"{type(error).__name__}: {error}"
    assert "Traceback" in fields["traceback"]


def test_a_question_that_is_broken_off_and_an_exit_keep_their_codes() -> None:
    assert invoke(typer.Exit(3), "--json").exit_code == 3
    assert invoke(typer.Abort(), "--json").exit_code == 130
