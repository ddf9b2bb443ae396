"""A folder with a configuration for the fake Vertex AI, a schedule file, and the commands."""

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

DIGITS = Path("configs/digits.yaml").absolute()
Slipway = Callable[..., Result]


@pytest.fixture
def write(ready_google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write configs/schedules/nightly.yaml: at 03:00 in Berlin, unless other settings are given."""
    monkeypatch.chdir(tmp_path)
    Path("configs/schedules").mkdir(parents=True)
    values = yaml.safe_load(DIGITS.read_text()) | {"vertex": vertex_settings(ready_google)}
    Path("configs/digits.yaml").write_text(yaml.safe_dump(values))

    def written(name: str = "nightly", **settings: Any) -> Path:
        path = Path(f"configs/schedules/{name}.yaml")
        cron = {"configuration": "configs/digits.yaml", "cron": "0 3 * * *", "time_zone": "Europe/Berlin"}
        path.write_text(yaml.safe_dump(cron | settings))
        return path

    return written


@pytest.fixture
def slipway(write: Any) -> Slipway:
    """Run a command in this process."""

    def typed(*arguments: str) -> Result:
        from slipway.pipelines.cli.app import app

        return CliRunner().invoke(app, list(arguments))

    return typed
