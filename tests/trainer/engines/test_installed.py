"""An engine that is not installed is rejected with the command that installs it, without importing anything."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from slipway.core.errors import UserError
from slipway.trainer.engines import installed
from slipway.trainer.engines.table import ENGINES

# Without these, not even the command line starts; without the last, training does what it does.
NOT_CHECKED = {"filelock", "jinja2", "kfp", "psutil", "pydantic", "pyyaml", "rich", "typer", "cykooz-resizer"}


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    original = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> Any:
        return None if name in missing else original("json") if name in ("jax", "jaxlib", "torch") else original(name)

    for name in [*missing, "jax", "jaxlib", "torch"]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", find)


@pytest.mark.parametrize(
    ("engine", "missing", "extra"),
    [("jax", "jax", "jax"), ("jax", "jaxlib", "jax"), ("pytorch", "torch", "pytorch")],
)
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, engine: str, missing: str, extra: str) -> None:
    without(monkeypatch, missing)
    with pytest.raises(UserError) as caught:
        installed.verify(engine)
    assert f"needs {missing}, which is not installed" in caught.value.message
    assert caught.value.fix == f"pip install 'slipway-ml[{extra}]'"
    assert "tensorflow" in (caught.value.allowed or "")
    assert engine not in (caught.value.allowed or "")
    installed.verify("tensorflow")


def test_every_package_of_an_extra_is_known_by_a_module_of_its_own() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    of_module = metadata.packages_distributions()
    listed = {**project["optional-dependencies"], installed.NO_EXTRA: project["dependencies"]}
    del listed["development"], listed["docs"]
    for extra, requirements in listed.items():
        known = {
            re.sub(r"[-_.]+", "-", name).lower()
            for module in installed.extras()[extra]
            for name in of_module.get(module.partition(".")[0], [module])
        }
        names = {re.split(r"[\[<>=; ]", text)[0].replace("_", "-") for text in requirements}
        missing = names - known - (NOT_CHECKED if extra == installed.NO_EXTRA else set())
        assert not {name for name in missing if _is_installed(name)}, extra


def _is_installed(name: str) -> bool:
    return any(re.sub(r"[-_.]+", "-", found.name).lower() == name for found in metadata.distributions())


def test_what_is_there_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch)
    for engine in ENGINES:
        installed.verify(engine)
