"""Cloud Storage FUSE: a bucket and its folder.

The source of each rule is gcsfuse's documentation, https://github.com/GoogleCloudPlatform/gcsfuse/blob/master/docs/.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from google.cloud import storage

from tests.fakes.google import FakeGoogle
from tests.fakes.mount import Mount
from tests.fakes.ready import BUCKET


def bucket_of(google: FakeGoogle) -> storage.Bucket:
    client = storage.Client(client_options={"api_endpoint": f"https://{google.endpoints['storage']}"})
    return client.bucket(BUCKET)


def mounted(google: FakeGoogle, folder: Path, *, strict: bool = True) -> Path:
    """Return the bucket's folder."""
    mount = google.storage.mount = Mount(google.storage, folder, strict=strict)
    mount.give_out(BUCKET)
    return folder / BUCKET


def test_the_bucket_and_the_mounted_folder_show_each_others_writes(ready_google: FakeGoogle, tmp_path: Path):
    """What one side writes or deletes, the other has or has no longer.

    Source (read): https://docs.cloud.google.com/storage/docs/cloud-storage-fuse/overview
    """
    folder, bucket = mounted(ready_google, tmp_path), bucket_of(ready_google)
    bucket.blob("runs/spec.json").upload_from_string("{}")
    file = folder / "runs/spec.json"
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


def test_a_file_is_in_the_bucket_once_it_is_closed(ready_google: FakeGoogle, tmp_path: Path):
    """What is written is in the bucket after close; with streaming writes, not even after fsync.

    Source (read): semantics.md, "FSync operation does not finalize the object": "Data is guaranteed to be on GCS only
    after the file is closed."
    """
    folder, bucket = mounted(ready_google, tmp_path), bucket_of(ready_google)
    with (folder / "metrics.jsonl").open("wb", buffering=0) as file:
        file.write(b"1\n")
        os.fsync(file.fileno())
        assert not bucket.blob("metrics.jsonl").exists()
    assert bucket.blob("metrics.jsonl").download_as_bytes() == b"1\n"


def test_what_is_appended_is_in_the_bucket_once_the_file_is_closed(ready_google: FakeGoogle, tmp_path: Path):
    """Until then the object has its earlier content, also after calls that change other objects.

    Source (read): semantics.md, "Modifications": "There are no guarantees about whether local modifications are
    reflected in Cloud Storage after writing but before syncing or closing."
    """
    folder, bucket = mounted(ready_google, tmp_path), bucket_of(ready_google)
    (folder / "metrics.jsonl").write_bytes(b"1\n")
    assert bucket.blob("metrics.jsonl").download_as_bytes() == b"1\n"
    with (folder / "metrics.jsonl").open("ab", buffering=0) as file:
        file.write(b"2\n")
        assert bucket.blob("metrics.jsonl").download_as_bytes() == b"1\n"
        bucket.blob("other").upload_from_string("")
        assert (folder / "metrics.jsonl").read_bytes() == b"1\n2\n"
    assert bucket.blob("metrics.jsonl").download_as_bytes() == b"1\n2\n"


def test_a_killed_process_closes_its_files(ready_google: FakeGoogle, tmp_path: Path):
    """The kernel closes the files of a process that ends, unlike those of a machine that is lost.

    Source (read): _exit(2), "Any open file descriptors belonging to the process are closed", and the rule on close
    above.
    """
    folder, bucket = mounted(ready_google, tmp_path), bucket_of(ready_google)
    script = "import sys, time; file = open(sys.argv[1], 'wb', buffering=0); file.write(b'1'); print(1, flush=True); "
    process = subprocess.Popen(
        [sys.executable, "-c", script + "time.sleep(60)", str(folder / "open")], stdout=subprocess.PIPE
    )
    assert process.stdout and process.stdout.readline()
    assert not bucket.blob("open").exists()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert bucket.blob("open").download_as_bytes() == b"1"


@pytest.mark.parametrize(("strict", "modes"), [(True, (0o755, 0o755, 0o644)), (False, (0o777, 0o777, 0o666))])
def test_only_the_mounter_can_write_unless_it_is_mounted_otherwise(
    ready_google: FakeGoogle, tmp_path: Path, strict: bool, modes: tuple[int, ...]
):
    """A container whose user is not the mounter, such as 65534, can read but not write.

    Source (read): semantics.md, "Permissions and ownership": all inodes belong to the user who mounted the bucket;
    files have 0644, directories 0755; --uid, --gid, --file-mode and --dir-mode override it. What Vertex AI sets is not
    documented.
    """
    folder = mounted(ready_google, tmp_path, strict=strict)
    bucket_of(ready_google).blob("runs/spec.json").upload_from_string("{}")
    found = [path.stat() for path in (folder, folder / "runs", folder / "runs/spec.json")]
    assert tuple(status.st_mode & 0o777 for status in found) == modes
    assert {status.st_uid for status in found} == {os.getuid()}
