"""Fixtures that several parts of the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.google import FakeGoogle


@pytest.fixture
def google(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGoogle]:
    """A fresh project on loopback, which this process's clients trust and have credentials for."""
    folder: Path = tmp_path_factory.mktemp("google")
    with FakeGoogle(folder) as fake:
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        yield fake
