"""An engine that is not installed is refused with the command that installs it; nothing is imported to find out."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest

from trainer import installed
from trainer.errors import UserError


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
    assert caught.value.mend == f"pip install 'slipway[{extra}]'"
    assert "tensorflow" in (caught.value.allowed or "")
    assert engine not in (caught.value.allowed or "")
    installed.verify("tensorflow")


def test_what_is_there_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch)
    for engine in installed.NEEDS:
        installed.verify(engine)
