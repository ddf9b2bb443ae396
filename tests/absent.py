"""Which tests need extensions whose folders were deleted.

Those that import one are not collected. Others have the marker `extension`, and are skipped.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator
from pathlib import Path

from slipway import extensions

TESTS = Path(__file__).parent
FOLDERS = [Path(*module.split(".")[1:-1]) for module in extensions.MODULES]
# The mirrors of extensions' folders that were deleted.
ABSENT = [TESTS / folder for folder in FOLDERS if not (TESTS.parent / folder).is_dir()]


def needs_absent(path: Path) -> bool:
    """Return whether a file or folder of tests needs an extension that was deleted."""
    return bool(ABSENT) and (path in ABSENT or _lacks_modules(path / "conftest.py" if path.is_dir() else path))


def lacks_extensions(names: Collection[str]) -> bool:
    """Return whether one of these extensions, of all if there are no names, was deleted."""
    return bool(ABSENT) and (not names or not {*names} <= {extension.name for extension in extensions.installed()})


@functools.cache
def _lacks_modules(file: Path) -> bool:
    """Return whether a file imports, itself or by way of other files of tests, a module that does not exist."""
    if file.suffix != ".py" or not file.is_file():
        return False
    return any(
        module is None or (module.is_relative_to(TESTS) and _lacks_modules(module)) for module in _imported(file)
    )


def _imported(file: Path) -> Iterator[Path | None]:
    """Yield the modules of Slipway and of tests that a file imports on import; None for one that does not exist."""
    for node in ast.parse(file.read_bytes()).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        for name in names:
            full_name = f"{node.module}.{name}" if isinstance(node, ast.ImportFrom) else name
            if full_name.startswith(("slipway.", "tests.")):
                yield _file_of(full_name) or _file_of(full_name.rpartition(".")[0])


def _file_of(module: str) -> Path | None:
    path = TESTS.parent.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
