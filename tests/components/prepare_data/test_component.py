"""The pipeline step prepare_data."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from kfp import dsl
from PIL import Image

from slipway.components.prepare_data.component import prepare_data
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.publishing import statistics as statistics_page
from slipway.components.prepare_data.settings import DataSettings
from slipway.core import manifest


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


def test_every_class_has_a_sample_image(
    make_settings: Callable[..., DataSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics_page, "SAMPLES", 12)
    prepared = prepare(make_settings("digits"), 2)
    samples = list(statistics_page.samples(prepared.folder, prepared.manifest))
    assert len(samples) == 12
    assert {sample.label for sample in samples} == set(prepared.manifest.classes)


def test_what_the_user_should_know_of_a_set_is_said_each_time(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings], events: Path, tmp_path: Path
) -> None:
    names = ["Cat", "CAT", "cat ", "caf\u00e9", "cafe\u0301", "dog", "hot dog"]
    folder = make_folder(dict.fromkeys(names, 9))
    for number in range(2):
        image, exif = Image.new("L", (5, 6), number), Image.Exif()
        exif[0x0112] = 6
        image.save(folder / "dog" / f"{number}.jpg", exif=exif)
    for _ in range(2):
        _, statistics = run(make_settings(folder), tmp_path)
    told = [event["text"] for event in map(json.loads, events.read_text().splitlines()) if event["event"] == "message"]
    notes = manifest.read(next((tmp_path / "store" / "image_folder").glob("*/manifest.json")).parent).notes
    assert [text for text in told if text in notes] == notes * 2
    cases, unicode_forms, turned = notes
    assert "'CAT', 'Cat', 'cat '." in cases
    assert r"'cafe\u0301', 'caf\xe9'." in unicode_forms
    assert turned.startswith("2 of 65 images have an EXIF orientation.")
    assert all(html.escape(note, quote=False)[:40] in Path(statistics.path).read_text() for note in notes)


def test_a_mistake_is_one_screen_and_an_event(
    make_settings: Callable[..., DataSettings], events: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(make_settings("digit"), tmp_path)
    assert ended.value.code == 1
    failed = json.loads(events.read_text().splitlines()[-1])
    assert (failed["event"], failed["error"]["nearest"]) == ("failed", "digits")
    assert "Traceback" not in capfd.readouterr().err
