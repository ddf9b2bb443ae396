"""Calls of tools: their arguments as those of a command, and the command's JSON, from a process of its own.

A process for each call keeps the server's stdout, which is the protocol's, free of other output, and sees the code and
the configuration as they are now.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from slipway.core.errors import UserError, system_error
from slipway.pipelines.terminal import EXIT_USAGE

# Receives each line that the command prints on stderr while it runs.
Report: TypeAlias = Callable[[str], Awaitable[None]]
SETTING = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")
# A path after a kind of source, such as images:photos; URIs of buckets are no paths of this machine.
SCHEME = re.compile(r"^([a-z][a-z0-9+.-]*:(?!//))+")
LAST_LINES = 12


class Refusal(UserError):
    """The command refused before anything was started."""


async def call(arguments: Sequence[str], report: Report) -> Any:
    """Run `slipway` in a process of its own; return the JSON that it prints.

    A cancelled call ends the process.

    Raises:
        Refusal: The command refuses.
        UserError: It ends without JSON, or with an error that is none of the user's.
    """
    import anyio
    from anyio.streams.text import TextReceiveStream

    command = [sys.executable, "-m", "slipway.pipelines", *arguments]
    printed: list[str] = []
    lines: list[str] = []
    try:
        async with await anyio.open_process(command, stdin=subprocess.DEVNULL) as process:
            assert process.stdout is not None and process.stderr is not None
            stdout, stderr = (TextReceiveStream(pipe, errors="replace") for pipe in (process.stdout, process.stderr))

            async def read_result() -> None:
                printed.extend([text async for text in stdout])

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read_result)
                rest = ""
                async for text in stderr:
                    *whole, rest = (rest + text).split("\n")
                    for line in whole:
                        lines.append(line)
                        await report(line)
            lines.append(rest)
            code = await process.wait()
    except OSError as error:
        raise system_error(error) or error from None
    return _result("".join(printed), lines, code)


def _result(printed: str, lines: Sequence[str], code: int) -> Any:
    try:
        value = json.loads(printed)
    except ValueError:
        last = "\n".join(line for line in lines[-LAST_LINES:] if line)
        raise UserError(last or f"The command ended with exit code {code} and no output.") from None
    if isinstance(value, dict) and value.keys() == {"error"}:
        raise (Refusal if code == EXIT_USAGE else UserError).from_dict(value["error"])
    return value


def options(values: Mapping[str, str | Sequence[str] | None]) -> list[str]:
    """Return options as arguments, without those that are None; one with several values is repeated."""
    lists = {name: [value] if isinstance(value, str) else value or () for name, value in values.items()}
    return [f"--{name}={text}" for name, texts in lists.items() for text in texts]


def settings_of(config: str | None, settings: Mapping[str, Any] | None) -> list[str]:
    """Return the options of a configuration and of settings that override its own.

    Raises:
        UserError: A path is outside of this folder, or a name is not a setting's.
    """
    from slipway.pipelines.api.starting import overrides

    for name, value in {"config": config, **(settings or {})}.items():
        if not SETTING.fullmatch(name):
            raise UserError(f"{name!r} is not the name of a setting.", allowed="a dotted name, such as train.epochs")
        for text in _texts(value):
            check_inside(name, text)
    return options({"config": config, "set": overrides(settings)})


def check_inside(name: str, text: str) -> None:
    """Refuse a text that is a path outside of this folder, also by way of a link.

    Raises:
        UserError: It is one.
    """
    root = Path.cwd().resolve()
    try:
        path = Path(SCHEME.sub("", text)).expanduser()
        is_path = path.is_absolute() or ".." in path.parts or path.is_symlink() or path.exists()
        is_outside = is_path and not path.resolve().is_relative_to(root)
    except (OSError, RuntimeError, ValueError):  # no file system accepts it, or there is no such user
        return
    if is_outside:
        raise UserError(
            f"{text} is outside of {root}, and this server works in that folder only.",
            setting=name,
            value=text,
            allowed="a path in the folder",
        )


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value, also in lists and mappings, with their keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield from (*_texts(key), *_texts(member))
    elif isinstance(value, Sequence):
        for member in value:
            yield from _texts(member)
