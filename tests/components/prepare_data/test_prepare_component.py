"""The step as a pipeline runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from kfp import dsl

from components.prepare_data.component import prepare_data
from components.prepare_data.settings import DataSettings
from trainer import manifest


def run(settings: DataSettings, folder: Path) -> tuple[dsl.Dataset, dsl.HTML]:
    dataset = dsl.Dataset(name="dataset", uri=str(folder / "dataset"), metadata={})
    statistics = dsl.HTML(name="statistics", uri=str(folder / "out" / "statistics"), metadata={})
    prepare_data.python_func(settings=settings.model_dump_json(), replicas=2, dataset=dataset, statistics=statistics)
    return dataset, statistics


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPWAY_EVENTS", str(tmp_path / "events"))
    monkeypatch.delenv("SLIPWAY_LOGS", raising=False)
    return tmp_path / "events"


def test_the_step_gives_the_set_its_page_and_its_figures(
    make_settings: Callable[..., DataSettings], events: Path, tmp_path: Path
) -> None:
    settings = make_settings("digits")
    for reused in (False, True):
        dataset, statistics = run(settings, tmp_path)
        about = manifest.read(Path(dataset.uri))
        assert dataset.metadata["fingerprint"] == about.fingerprint
        assert dataset.metadata["examples"] == {"train": 1438, "validation": 180, "test": 179}
        assert Path(statistics.path).read_text() == (Path(dataset.uri) / "statistics.html").read_text()
        finished = json.loads(events.read_text().splitlines()[-1])
        assert (finished["event"], finished["step"], finished["reused"]) == ("finished", "prepare_data", reused)
        assert finished["outputs"]["dataset"] == dataset.uri
        assert finished["outputs"]["examples"] == dataset.metadata["examples"]


def test_a_mistake_is_one_screen_and_an_event(
    make_settings: Callable[..., DataSettings], events: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(make_settings("digit"), tmp_path)
    assert ended.value.code == 1
    failed = json.loads(events.read_text().splitlines()[-1])
    assert (failed["event"], failed["error"]["nearest"]) == ("failed", "digits")
    assert "Traceback" not in capfd.readouterr().err
