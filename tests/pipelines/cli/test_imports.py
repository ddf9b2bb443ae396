"""What light commands import: an additional import fails here, with the modules that lead to it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.light_commands import COMMANDS, prepare
from slipway import extensions

# Standard packages that take as long to import as a library.
SLOW = ("asyncio", "concurrent", "email", "http", "multiprocessing", "sqlite3", "ssl", "unittest", "xml")
# Libraries, slow standard packages and packages of Slipway: what all commands may import, and what only some may.
ALL = {"click", "typer", "annotated_doc", "shellingham", "rich"}
ALL |= {"slipway.core", "slipway.pipelines.cli", "slipway.pipelines.terminal"}
ENGINES = {"slipway.trainer.engines", "slipway.trainer.optimizers"}
HARDWARE = {*ENGINES, "slipway.pipelines.options", "slipway.pipelines.hardware"}
RUNS = {f"slipway.pipelines.{name}" for name in ("options", "platforms", "api", "runs", "step", "table")}
SETTINGS = {
    *RUNS, *HARDWARE, "slipway.pipelines.config", "slipway.serving.settings",
    "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection", "email", "yaml",
    "slipway.components.build_image", "slipway.components.cloud", "slipway.components.deploy",
    "slipway.components.evaluate", "slipway.components.notify", "slipway.components.prepare_data",
    "slipway.components.register_model", "slipway.components.train",
    "slipway.trainer.augmentation", "slipway.trainer.checks",
    "slipway.trainer.config", "slipway.trainer.hooks", "slipway.trainer.settings",
    "slipway.trainer.stages", "slipway.trainer.tasks", "slipway.trainer.weights",
}  # fmt: skip
ALLOWED = {
    "--help": ENGINES,  # whose table has the packages of all extras
    "run --help": RUNS,
    "--version": {*ENGINES, "email"},  # importlib.metadata imports it
    "hardware": HARDWARE,
    "hardware l4x4*2": HARDWARE,
    "list": {*RUNS, "slipway.pipelines.selection", "yaml"},
    "status": RUNS,
    "config schema": SETTINGS,
    "config show": SETTINGS,
    "run, refused setting": SETTINGS,
    "run, refused hardware": SETTINGS,
}
# Runs each command in a fork of a process that has imported the command line, and writes what first imported each
# module to the file imported-NUMBER. Prints the commands' exit codes.
PROGRAM = """
import json, os, sys

importers = {}

class Recorder:
    def find_spec(self, name, *_):
        frame = sys._getframe(1)
        while "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        importers.setdefault(name, frame.f_globals["__name__"])

sys.meta_path.insert(0, Recorder())
from slipway.pipelines.cli.app import main

codes = []
for number, words in enumerate(json.loads(sys.argv[1])):
    if not os.fork():
        try:
            sys.argv[1:] = words
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            main()
        finally:
            with open(f"imported-{number}", "w") as file:
                json.dump({name: importer for name, importer in importers.items() if name in sys.modules}, file)
    codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
print(json.dumps(codes))
"""


@pytest.fixture(scope="module")
def importers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What first imported each module, by command."""
    folder: Path = tmp_path_factory.mktemp("light")
    prepare(folder)
    command = [sys.executable, "-c", PROGRAM, json.dumps(list(COMMANDS.values()))]
    codes = json.loads(subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE).stdout)
    assert dict(zip(COMMANDS, codes, strict=True)) == {name: 2 if "refused" in name else 0 for name in COMMANDS}
    return {name: json.loads((folder / f"imported-{number}").read_text()) for number, name in enumerate(COMMANDS)}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_light_command_imports_only_what_it_may(name: str, importers: dict[str, dict[str, str]]) -> None:
    # An extension's row, what its platforms can do, and its settings import nothing else of it.
    folders = {module.rpartition(".")[0] for module in extensions.MODULES}
    folders |= {package for extension in extensions.installed() for package in extension.packages}
    rows = folders | {folder.rpartition(".")[0] for folder in folders}
    rows |= {f"{folder}.{part}" for folder in folders for part in ("condition", "extension", "platform", "settings")}
    counted = [module for module in reversed(importers[name]) if module not in rows]
    first = {package: module for module in counted if (package := package_of(module))}
    unexpected = first.keys() - ALL - ALLOWED[name]
    assert not unexpected, "\n".join(chain(first[package], importers[name]) for package in sorted(unexpected))


def package_of(module: str) -> str | None:
    """Return the package of a module whose import is counted: a library, or a part of Slipway."""
    top, *parts = module.split(".")
    if top == "slipway":
        return ".".join([top, *parts[: 1 if parts[0] == "core" else 2]]) if len(parts) > 1 else None
    return top if top in SLOW or (top not in sys.stdlib_module_names and not top.startswith("_")) else None


def chain(module: str, importers: dict[str, str]) -> str:
    """Return the modules that lead to an import, the command line first."""
    modules = [module]
    while (importer := importers.get(modules[-1])) not in (None, "__main__", *modules):
        modules.append(str(importer))
    return " imports ".join(reversed(modules))
