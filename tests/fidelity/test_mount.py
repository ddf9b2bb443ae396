"""A bucket and its folder: what is written to one appears in the other."""

from __future__ import annotations

from pathlib import Path

from google.cloud import storage

from tests.fakes.google import FakeGoogle
from tests.fakes.mount import Mount
from tests.fakes.ready import BUCKET


def test_both_sides_see_what_the_other_writes(ready_google: FakeGoogle, tmp_path: Path):
    mount = ready_google.storage.mount = Mount(ready_google.storage, tmp_path)
    client = storage.Client(client_options={"api_endpoint": f"https://{ready_google.endpoints['storage']}"})
    bucket = client.bucket(BUCKET)
    bucket.blob("runs/spec.json").upload_from_string("{}")
    file = mount.folder / BUCKET / "runs/spec.json"
    assert file.read_text() == "{}"
    (file.parent / "model").mkdir()
    (file.parent / "model/weights").write_bytes(b"\0\1")
    assert bucket.blob("runs/model/weights").download_as_bytes() == b"\0\1"
    (file.parent / "model/weights").write_bytes(b"\2")
    assert bucket.blob("runs/model/weights").download_as_bytes() == b"\2"
    bucket.blob("runs/spec.json").delete()
    assert not file.exists()
    (file.parent / "model/weights").unlink()
    assert not bucket.blob("runs/model/weights").exists()
