"""`slipway runs clean --target tpu`: what runs on Cloud TPU have left in the bucket, and TPUs with lost launchers."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from slipway.components.cloud.connection import Connection
from slipway.components.train.tpu.bucket import BucketFolder
from slipway.pipelines.cli.app import app
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.ready import BUCKET
from tests.pipelines.platforms.tpu.test_commands import tpus

__all__ = ["tpus"]


def put(google: FakeGoogle, name: str, days: float = 90, content: bytes = b"x") -> None:
    google.storage.write(BUCKET, name, content, datetime.now(UTC) - timedelta(days=days))


def run(google: FakeGoogle, name: str, days: float, data: str | None = None) -> None:
    """Write what a launcher wrote that ended so many days ago."""
    put(google, f"runs/{name}/lease", days)
    if data:
        put(google, f"runs/{name}/dataset.json", days, json.dumps({"uri": f"gs://{BUCKET}/data/{data}"}).encode())


def clean(*options: str) -> Result:
    return CliRunner().invoke(app, ["runs", "clean", "--target", "tpu", *options])


@pytest.mark.usefixtures("tpus")
def test_what_lost_launchers_and_old_runs_have_left_is_deleted(google: FakeGoogle) -> None:
    run(google, "digits-1", 0, "used")
    run(google, "old", 40, "unused")
    put(google, "runs/of-vertex/model/model.json")
    put(google, "datasets/digits/of-vertex/manifest.json")
    for name in ("used", "unused"):
        put(google, f"data/{name}/manifest.json")
        put(google, f"data/{name}/train-0.tfrecord")
    listed = json.loads(clean("--json").stdout)
    assert [each["kind"] for each in listed] == ["TPU", "TPU", "run", "data set"]
    done = clean("--apply", "--json")
    assert {each["path"].rpartition("/")[2] for each in json.loads(done.stdout)} == {
        "slipway-digits-2-1",
        "slipway-digits-3-1",
        "old",
        "unused",
    }
    left = {name.split("/")[1] for name in google.storage.names(BUCKET) if name.split("/")[0] in ("runs", "data")}
    assert left == {"digits-1", "used", "of-vertex"}
    assert "nothing is older" in clean().output


def test_a_copy_of_a_data_set_that_is_being_deleted_is_written_again(ready_google: FakeGoogle, tmp_path: Path) -> None:
    """Its manifest was deleted already, its other files are about to be, by their generations."""
    for name in ("manifest.json", "train-0.tfrecord"):
        (tmp_path / name).write_bytes(b"content")
    put(ready_google, "data/x/train-0.tfrecord", 90, b"content")
    before = ready_google.storage.read(BUCKET, "data/x/train-0.tfrecord")[1]
    copy = BucketFolder(Connection(PROJECT, REGION, ready_google.endpoints, "tpu"), BUCKET, "data/x")
    copy.upload(tmp_path)
    written = ready_google.storage.read(BUCKET, "data/x/train-0.tfrecord")[1]
    assert written != before
    ready_google.storage.remove(BUCKET, "data/x/manifest.json")
    copy.upload(tmp_path)
    after = ready_google.storage.read(BUCKET, "data/x/train-0.tfrecord")[1]
    assert after == written, "an interrupted copy is continued"
    assert "data/x/manifest.json" in ready_google.storage.names(BUCKET)
