"""Buckets that are not mounted on this machine, as locations of local runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipway.components.register_model.registration import champion_folder
from slipway.components.register_model.registry import Registry
from slipway.core import paths
from slipway.core.errors import UserError
from slipway.pipelines.cli.app import app
from slipway.pipelines.config.config import RunConfig, load
from slipway.pipelines.config.locations import locations
from slipway.pipelines.doctor import configuration, refuse_on_failure
from slipway.pipelines.options import EXAMPLE_CONFIGURATION
from slipway.pipelines.platforms.base import Context, NotApplicableError
from slipway.pipelines.platforms.table import platform_of

ROOT = Path(__file__).parents[3]
SETTINGS = {
    "data.store": ("gs://B/sets", "--set data.store=datasets"),
    "register.registry": ("s3://B/models", "--set register.registry=models"),
    "data.source": (
        "images:gs://B/my images/",
        "gcloud storage cp -r 'gs://B/my images/' . and then",
    ),
    "data.text.vocabulary": ("gs://B/words.txt", "--set data.text.vocabulary=words.txt"),
    "model.weights.file": ("gs://B/a.keras", "--set model.weights.file=a.keras"),
}


def config_with(setting: str) -> RunConfig:
    return load(ROOT / EXAMPLE_CONFIGURATION, [f"{setting}={SETTINGS[setting][0]}"])


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_local_run_is_refused_before_its_first_step(setting: str) -> None:
    """Otherwise a folder /gcs of the disk would be made, written to, and taken for the mount by all later commands."""
    with pytest.raises(UserError, match=r"which is not mounted on this machine as /(gcs|s3)/B") as error:
        refuse_on_failure(Context(config_with(setting), platform_of("local")))
    assert error.value.setting == setting
    assert error.value.value == SETTINGS[setting][0]
    assert SETTINGS[setting][1] in str(error.value.fix)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_folder_of_the_disk_is_no_mount(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context(config_with(setting), platform_of("local"))
    monkeypatch.setattr(paths, "_mount_points", lambda: (Path("/"), Path("/gcs/A"), Path("/s3/A")))
    with pytest.raises(UserError):
        configuration.buckets(context)
    monkeypatch.setattr(paths, "_mount_points", lambda: (Path("/"), Path("/gcs"), Path("/s3/B")))
    assert configuration.buckets(context) == "none, or mounted"


@pytest.mark.extension("vertex")
def test_elsewhere_the_steps_find_them_mounted() -> None:
    with pytest.raises(NotApplicableError):
        configuration.buckets(Context(config_with("data.store"), platform_of("vertex")))


def test_the_fix_of_a_folder_is_its_default() -> None:
    config = load(ROOT / EXAMPLE_CONFIGURATION)
    assert {place.setting: place.default for place in locations(config) if place.default} == {
        "data.store": config.prepared.store if config.prepared else None,
        "register.registry": config.register_.registry,
    }


def test_the_mount_table_decides() -> None:
    assert Path("/") in paths._mount_points()
    assert not paths.is_mounted(Path("/gcs/B"))
    assert not paths.is_mounted(Path("/"))


def test_a_champion_in_a_mounted_bucket_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(paths.MOUNTS, "gs://", str(tmp_path))
    version = tmp_path / "B/models/digits/1"
    version.mkdir(parents=True)
    (version / "metadata.json").write_text('{"model": "digits", "version": 1}')
    (version.parent / "champion").write_text("1\n")
    assert Registry(tmp_path / "B/models").champion("digits") is not None
    assert champion_folder("gs://B/models", "digits") == str(version)


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ("predict digits a.png -o gs://B/lines.jsonl", "--output"),
        ("drift digits a.png -o gs://B/page.html", "--output"),
        ("compare -o s3://B/page.html", "--output"),
        ("runs verify digits --registry gs://B/models", "--registry"),
        ("init gs://B/project", "folder"),
        ("data check --set data.source=images:gs://B/photos", "data.source"),
    ],
)
@pytest.mark.extension("compare", "drift")
def test_a_path_that_is_a_buckets_address_makes_no_folder(
    arguments: str, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slipway.yaml").write_text((ROOT / EXAMPLE_CONFIGURATION).read_text())
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments.split())
    assert result.exit_code == 2
    assert f"{setting} = " in result.output
    assert "://B/" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["slipway.yaml"]
