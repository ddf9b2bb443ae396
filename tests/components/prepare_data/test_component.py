"""The pipeline step prepare_data."""

from __future__ import annotations

import html
import json
import re
import shutil
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
from slipway.pipelines.runs import progress
from slipway.pipelines.runs.record import StepRecord


def run(settings: DataSettings, folder: Path, output: str = "") -> tuple[dsl.Dataset, dsl.HTML]:
    dataset = dsl.Dataset(name="dataset", uri=str(folder / "dataset"), metadata={})
    statistics = dsl.HTML(name="statistics", uri=str(folder / "out" / "statistics"), metadata={})
    prepare_data.python_func(
        settings=settings.model_dump_json(), replicas=2, output=output, dataset=dataset, statistics=statistics
    )
    return dataset, statistics


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPWAY_EVENTS", str(tmp_path / "events"))
    monkeypatch.delenv("SLIPWAY_LOGS", raising=False)
    return tmp_path / "events"


@pytest.mark.usefixtures("processes")
def test_the_step_gives_the_set_its_page_and_its_metrics(
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


def test_the_log_tells_whether_and_why_a_set_is_reused(
    make_folder: Callable[..., Path],
    make_settings: Callable[..., DataSettings],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = make_folder({"a": 20, "b": 20})
    first, _ = run(make_settings(folder), tmp_path)
    assert re.search(r"Listed 40 examples in \d+\.\d", log := capfd.readouterr().err)
    assert "Reusing" not in log
    run(make_settings(folder), tmp_path)
    assert f"Reusing {first.uri}: the source and the settings are unchanged." in capfd.readouterr().err
    (folder / "a" / "new.png").write_bytes((folder / "a" / "image 1.png").read_bytes())
    second, statistics = run(make_settings(folder, duplicates="keep"), tmp_path)
    assert re.search(r"Listed 41 examples in \d+\.\d", log := capfd.readouterr().err)
    assert "Reusing" not in log
    assert sum(second.metadata["examples"].values()) == sum(first.metadata["examples"].values()) + 1
    assert second.uri != first.uri
    assert Path(statistics.path).read_text() == (Path(second.uri) / "statistics.html").read_text()


def test_a_resumed_run_keeps_its_data_set_and_a_new_one_sees_new_files(
    make_folder: Callable[..., Path],
    make_settings: Callable[..., DataSettings],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = make_folder({"a": 20, "b": 20})
    settings, output = make_settings(folder), str(tmp_path / "runs" / "1" / "train")
    first, _ = run(settings, tmp_path, output)
    (folder / "a" / "image 3.png").unlink()
    resumed, statistics = run(settings, tmp_path, output)
    assert (resumed.uri, resumed.metadata) == (first.uri, first.metadata)
    assert Path(statistics.path).read_text() == (Path(first.uri) / "statistics.html").read_text()
    assert f"Using {first.uri}: the run began with this data set." in capfd.readouterr().err
    assert run(settings, tmp_path, str(tmp_path / "runs" / "2" / "train"))[0].uri != first.uri
    shutil.rmtree(first.uri)
    with pytest.raises(SystemExit):
        run(settings, tmp_path, output)
    error = capfd.readouterr().err
    assert f"{first.uri}, which was deleted, and its source has changed since" in " ".join(error.split())


@pytest.mark.parametrize("output", ["", "train"])
def test_a_deleted_set_is_prepared_again(
    make_folder: Callable[..., Path], make_settings: Callable[..., DataSettings], tmp_path: Path, output: str
) -> None:
    settings = make_settings(make_folder({"a": 20, "b": 20}))
    output = output and str(tmp_path / output)
    first, _ = run(settings, tmp_path, output)
    before = {path.name: path.read_bytes() for path in Path(first.uri).iterdir()}
    shutil.rmtree(first.uri)
    again, _ = run(settings, tmp_path, output)
    assert again.uri == first.uri
    assert {path.name: path.read_bytes() for path in Path(first.uri).iterdir()} == before


def test_an_output_directory_that_is_not_the_runs_own_is_refused(
    make_settings: Callable[..., DataSettings], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(make_settings("digits"), tmp_path, f"{tmp_path}/runs/{dsl.PIPELINE_JOB_NAME_PLACEHOLDER}")
    assert "unresolved placeholder" in capfd.readouterr().err


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
        image, exif = Image.new("L", (6, 5), number), Image.Exif()
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
    assert turned.endswith(": 2 turned upright by their EXIF orientation.")
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


def test_skipped_examples_are_on_the_steps_line_with_reasons(
    make_settings: Callable[..., DataSettings], make_folder: Callable[..., Path], events: Path, tmp_path: Path
) -> None:
    def line() -> str:
        outputs = json.loads(events.read_text().splitlines()[-1])["outputs"]
        return progress.step_line(StepRecord(name="prepare_data", status="succeeded", outputs=outputs), judged=True)

    root = make_folder({"train/a": 20, "train/b": 20, "test/a": 5, "test/b": 5})
    for number in range(3):
        (root / "train" / "a" / f"copy {number}.png").write_bytes(
            (root / "test" / "a" / f"image {number}.png").read_bytes()
        )
    (root / "train" / "b" / "text.png").write_text("text")
    _, statistics = run(make_settings(root, skip_corrupt=0.1, duplicates="drop"), tmp_path)
    reasons = "it is the same image as one in the split test: 3; it is not an image of a supported format: 1"
    skipped = f"4 of 54 images skipped ({reasons})"
    assert line().endswith(f"; {skipped}")
    assert f"; {skipped}." in Path(statistics.path).read_text()

    rows = [f"{number},{number % 2}" for number in range(40)] + [",1"] * 3 + ["nan,0"]
    (tmp_path / "table.csv").write_text("\n".join(["age,label", *rows]))
    run(make_settings(f"csv:{tmp_path / 'table.csv'}", skip_corrupt=0.1, missing="refuse"), tmp_path)
    assert line().endswith(
        "; 4 of 44 examples skipped (its number in the column age is empty: 3; its number in the column age is nan: 1)"
    )
    run(make_settings("digits"), tmp_path)
    assert " skipped" not in line()
