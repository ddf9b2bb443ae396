"""Runs that are running, and what they cost per hour."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from slipway.core.errors import UserError
from slipway.pipelines.api.running import running
from slipway.pipelines.cli import display
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.hardware.prices import per_hour
from slipway.pipelines.hardware.rules import parse
from slipway.pipelines.platforms.vertex.platform import VertexPlatform
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.record import RunRecord, StepRecord
from slipway.pipelines.runs.running import Running

SETTINGS = {
    "data": {"source": "digits"}, "model": {"builder": "slipway.trainer.models.digits:build"},
    "train": {"batch_size": 64, "epochs": 2}, "register": {"model": "digits"}, "hardware": "t4x1",
    "vertex": {"project": "my-project", "bucket": "gs://my-bucket", "region": "us-central1"},
}  # fmt: skip


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Records a run of the digits on the hardware t4x1 in us-central1, on which a step is running."""
    monkeypatch.chdir(tmp_path)

    def start(name: str, step: str = "train", platform: str = "vertex", **changes: Any) -> None:
        config = RunConfig.model_validate({**SETTINGS, "name": name})
        folder = runs.create(config, tmp_path)
        created = datetime.now(UTC) - timedelta(minutes=30)
        steps = [StepRecord(name=step, status="running"), StepRecord(name="evaluate")]
        values = {"run_id": folder.run_id, "hardware": "t4x1", "status": "running", **changes}
        folder.write(RunRecord(name=name, platform=platform, created=created, steps=steps, **values))

    return start


def found(tmp_path: Path, said: list[str] | None = None) -> dict[str, Running]:
    told = [] if said is None else said
    return {each.run_id.partition("-")[0]: each for each in running(runs.folders(tmp_path), told.append)}


def test_what_trains_costs_what_its_hardware_does_where_it_runs(
    tmp_path: Path, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VertexPlatform, "refresh", lambda _self, folder: folder.read())
    started("first", at_most=40.0)
    started("moved", hardware="l4x4*2", region="europe-west4")
    started("prepares", step="prepare_data")
    started("searches", searches=True)
    started("unpriced", hardware="h100x8+flex")
    started("ended", status="succeeded")
    shown = found(tmp_path)
    assert set(shown) == {"first", "moved", "prepares", "searches", "unpriced"}
    first, moved = shown["first"], shown["moved"]
    assert (first.target, first.region, first.steps) == ("vertex", "us-central1", ["train"])
    assert first.per_hour == per_hour(parse("t4x1"), "us-central1")
    assert first.worst_case == 40.0
    assert 1800 <= first.seconds < 1860
    assert (moved.region, moved.per_hour) == ("europe-west4", per_hour(parse("l4x4*2"), "europe-west4"))
    assert shown["prepares"].per_hour == 0.0
    assert shown["searches"].per_hour is shown["unpriced"].per_hour is None
    lines = display.running_lines(list(shown.values()))
    total = (first.per_hour or 0) + (moved.per_hour or 0)
    assert lines[-1] == f"at least ~${total:,.2f} per hour, by list prices of trainings and replicas"
    assert any("l4x4*2 in europe-west4" in line and "0:30:0" in line for line in lines)


def test_a_platform_that_cannot_be_asked_is_named_and_one_that_has_ended_is_not_shown(
    tmp_path: Path, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refresh(_self: object, folder: runs.RunFolder) -> RunRecord:
        record = folder.read()
        if record.name == "lost":
            raise UserError("Vertex AI does not answer.")
        return replace(record, status="failed")

    monkeypatch.setattr(VertexPlatform, "refresh", refresh)
    started("lost")
    started("failed")
    said: list[str] = []
    assert set(found(tmp_path, said)) == {"lost"}
    assert (
        len(said) == 1
        and said[0].startswith("lost-")
        and said[0].endswith(": as last seen; Vertex AI does not answer.")
    )
