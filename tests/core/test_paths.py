"""A worker's output folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.core.errors import UserError
from slipway.core.paths import local_path, output_paths


def test_buckets_are_reached_where_they_are_mounted() -> None:
    assert local_path("gs://bucket/some/folder") == Path("/gcs/bucket/some/folder")
    assert local_path("/data/set") == Path("/data/set")


def test_all_three_places_are_needed() -> None:
    environment = {"AIP_MODEL_DIR": "gs://b/model", "AIP_CHECKPOINT_DIR": "/c", "AIP_TENSORBOARD_LOG_DIR": "/l"}
    assert output_paths(environment).model == Path("/gcs/b/model")
    del environment["AIP_CHECKPOINT_DIR"]
    with pytest.raises(UserError, match="AIP_CHECKPOINT_DIR not set"):
        output_paths(environment)
