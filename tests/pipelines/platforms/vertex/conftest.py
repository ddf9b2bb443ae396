"""A working folder with a configuration that runs on the fake Vertex AI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from tests.fakes.google import FakeGoogle
from tests.fakes.ready import vertex_settings

CONFIGURATION: dict[str, Any] = {
    "name": "digits",
    "data": {"source": "digits"},
    "model": {"builder": "slipway.trainer.models.digits:build"},
    "train": {"epochs": 3, "batch_size": 64},
}

Slipway = Callable[..., Result]


@pytest.fixture
def workspace(ready_google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, with run.yaml in it; polling does not wait."""
    from slipway.pipelines.platforms.vertex import run

    monkeypatch.setattr(run, "pause", lambda: None)
    monkeypatch.chdir(tmp_path)
    values = {**CONFIGURATION, "vertex": vertex_settings(ready_google)}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    return tmp_path


@pytest.fixture
def slipway(workspace: Path) -> Slipway:
    """Run a command in this process."""

    def typed(*arguments: str) -> Result:
        from slipway.pipelines.cli.app import app

        return CliRunner().invoke(app, list(arguments))

    return typed
