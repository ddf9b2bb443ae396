"""A worker's output folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.core import paths
from slipway.core.errors import UserError
from slipway.core.paths import local_path, output_paths


def test_buckets_are_reached_where_they_are_mounted() -> None:
    assert local_path("gs://bucket/some/folder") == Path("/gcs/bucket/some/folder")
    assert local_path("/data/set") == Path("/data/set")


def test_all_three_places_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_mount_points", lambda: (Path("/"), Path("/gcs")))
    environment = {"AIP_MODEL_DIR": "gs://b/model", "AIP_CHECKPOINT_DIR": "/c", "AIP_TENSORBOARD_LOG_DIR": "/l"}
    assert output_paths(environment).model == Path("/gcs/b/model")
    del environment["AIP_CHECKPOINT_DIR"]
    with pytest.raises(UserError, match="AIP_CHECKPOINT_DIR not set"):
        output_paths(environment)


def test_a_worker_whose_bucket_is_not_mounted_does_not_train() -> None:
    """A folder /gcs of its disk would take the model, and the run would succeed without one."""
    environment = dict.fromkeys(("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR"), "gs://b/run")
    with pytest.raises(UserError, match="which is not mounted on this machine as /gcs/b") as error:
        output_paths(environment)
    assert error.value.setting == "AIP_MODEL_DIR"


def test_a_link_to_a_mounted_file_system_is_a_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "gcs").symlink_to(tmp_path / "disk")
    monkeypatch.setitem(paths.MOUNTS, "gs://", str(tmp_path / "gcs"))
    monkeypatch.setattr(paths, "_mount_points", lambda: (Path("/"), tmp_path.resolve() / "disk"))
    assert paths.is_mounted(tmp_path / "gcs" / "bucket" / "new")
    assert not paths.is_mounted(tmp_path / "disk" / "bucket"), "no folder of buckets"
