"""The table of sources: one row is enough for messages, opening, the checks, mounts, buckets and Beam."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from slipway.components.prepare_data import sources
from slipway.components.prepare_data.beam.options import beam_for
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources import SOURCES, SourceKind, check_source, open_source, source_kind
from slipway.components.prepare_data.sources.digits import DigitsSource
from slipway.core.errors import UserError
from slipway.core.manifest import TaskName
from slipway.pipelines.config.config import load
from slipway.pipelines.images.images import own_code
from slipway.pipelines.platforms.local.containers import mounted_folders
from slipway.pipelines.platforms.vertex.access import access_settings

DIGITS = Path(__file__).parents[4] / "configs" / "digits.yaml"
BEAM = {"runner": "DataflowRunner", "from_gigabytes": 0}


class ScansSource(DigitsSource):
    """The digits under another name."""

    def __init__(self, argument: str, settings: DataSettings, column: str | None, task: TaskName) -> None:
        super().__init__()
        self.argument, self.column, self.reference = argument, column, settings.source


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Iterator[SourceKind]:
    """A row that is not part of the product."""
    module = ModuleType("scans")
    module.open_scans = ScansSource  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, f"{sources.__name__}.scans", module)
    row = SourceKind(
        "scans", "scans:FOLDER of DICOM files", "scans:study", "scans:open_scans", argument="FOLDER", mounted=True,
        location="source", beam=True,
    )  # fmt: skip
    monkeypatch.setattr(sources, "SOURCES", (*SOURCES, row))
    yield row


def test_the_setting_describes_every_source() -> None:
    description = DataSettings.model_fields["source"].description or ""
    for kind in SOURCES:
        assert f"`{kind.prefix}:" in description or f"`{kind.form}`" in description


def test_every_row_matches_its_example_and_names_a_function() -> None:
    for kind in SOURCES:
        assert source_kind(kind.example) is kind
        for reference in filter(None, (kind.opens, kind.pending)):
            assert callable(sources._function(reference))
        assert kind.beam <= bool(kind.location), "only what is in a bucket can be read from another machine"


def test_a_new_row_is_in_the_messages(scans: SourceKind) -> None:
    with pytest.raises(UserError, match=r"^There is no source 'scan:a/study'\.") as error:
        source_kind("scan:a/study")
    assert error.value.nearest == "scans:a/study"
    assert "scans:FOLDER of DICOM files" in (error.value.allowed or "")
    with pytest.raises(UserError, match=r"^The source 'scans:' is incomplete\.") as error:
        source_kind("scans:")
    assert error.value.nearest == "scans:FOLDER"


def test_a_new_row_opens_and_is_checked(scans: SourceKind, make_settings: Callable[..., DataSettings]) -> None:
    settings = make_settings("scans:study", group_by="column:patient")
    opened = open_source(settings)
    assert isinstance(opened, ScansSource)
    assert (opened.argument, opened.column) == ("study", "patient")
    assert check_source(settings) == "scans:study"


def test_a_new_row_decides_mounts_buckets_code_and_beam(
    scans: SourceKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_settings: Callable[..., DataSettings]
) -> None:
    study = tmp_path / "study"
    study.mkdir()
    here = tmp_path / "here"
    here.mkdir()
    assert study in mounted_folders(load(DIGITS, [f"data.source=scans:{study}"]), here)
    vertex = ["vertex.project=project-one", "vertex.region=europe-west4", "vertex.bucket=gs://own-bucket"]
    config = load(DIGITS, [*vertex, "data.source=scans:gs://hospital/study"])
    assert access_settings(config).sources == ("hospital",)
    assert "scans" not in own_code(config)
    settings = make_settings(f"scans:{study}", store="gs://own-bucket/sets", beam=BEAM)
    open_source(settings)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    with pytest.raises(UserError) as error:
        beam_for(settings, 1)
    assert error.value.setting == "data.source"


def test_the_bucket_of_tfds_is_read_too() -> None:
    vertex = ["vertex.project=project-one", "vertex.region=europe-west4", "vertex.bucket=gs://own-bucket"]
    config = load(DIGITS, [*vertex, "data.source=tfds:mnist", "data.tfds.data_dir=gs://shared-sets/tfds"])
    assert access_settings(config).sources == ("shared-sets",)


def test_the_table_imports_no_source() -> None:
    from subprocess import run

    code = "import sys, slipway.components.prepare_data.sources as s; s.source_kind('digits'); print(*sys.modules)"
    loaded = run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pydantic", "google_crc32c", "PIL", f"{sources.__name__}.digits"} & set(loaded)
