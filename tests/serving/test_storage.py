"""Models in Cloud Storage: downloaded whole, or refused with the reason."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from slipway.core.errors import UserError
from slipway.serving import storage
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.serving.client import health, process, until

BUCKET = "slipway-test-models"
FILES = {"saved_model.pb": b"graph", "variables/variables.data": b"\0" * 3_000_000, "assets/words.txt": b""}


@pytest.fixture
def bucket(google: FakeGoogle, monkeypatch: pytest.MonkeyPatch) -> FakeGoogle:
    google.storage.add_bucket(BUCKET, google.world.projects[PROJECT], REGION)
    for name, content in FILES.items():
        google.storage.write(BUCKET, f"runs/1/model/{name}", content)
    google.storage.write(BUCKET, "runs/1/model-2/other", b"")
    google.storage.write(BUCKET, "runs/1/model/empty/", b"")
    for name, value in variables(google).items():
        monkeypatch.setenv(name, value)
    return google


def variables(google: FakeGoogle) -> dict[str, str]:
    return {**google.environment, "API_ENDPOINT_OVERRIDE": f"https://{google.endpoints['storage']}"}


@pytest.mark.parametrize("ending", ["", "/"])
def test_the_files_below_the_prefix_are_downloaded(bucket: FakeGoogle, tmp_path: Path, ending: str) -> None:
    said = storage.download(f"gs://{BUCKET}/runs/1/model{ending}", tmp_path)
    found = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == FILES
    assert said.startswith("3 files, 3,000,005 bytes in ")


def test_a_folder_without_files_a_missing_bucket_and_missing_rights_are_refused(
    bucket: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(uri: str) -> UserError:
        with pytest.raises(UserError) as error:
            storage.download(uri, tmp_path)
        assert error.value.message.startswith(f"The model in {uri} cannot be downloaded: ")
        return error.value

    assert refusal(f"gs://{BUCKET}/runs/1/mod").message.endswith(": no files are there.")
    assert refusal("gs://slipway-nowhere/model").message.endswith(": there is no bucket slipway-nowhere.")
    bucket.world.owners.clear()
    denied = refusal(f"gs://{BUCKET}/runs/1/model")
    assert "storage.objects.list" in denied.message
    assert denied.fix == f"grant the server's account roles/storage.objectViewer on gs://{BUCKET}"
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    assert ": there are no credentials" in refusal(f"gs://{BUCKET}/runs/1/model").message


def test_a_file_that_is_replaced_meanwhile_is_not_mixed_with_the_others(
    bucket: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = storage._files

    def replaced(*arguments: object) -> object:
        found = list(listed(*arguments))  # type: ignore[arg-type]
        bucket.storage.write(BUCKET, "runs/1/model/saved_model.pb", b"another graph")
        return found

    monkeypatch.setattr(storage, "_files", replaced)
    with pytest.raises(UserError, match="is being replaced"):
        storage.download(f"gs://{BUCKET}/runs/1/model", tmp_path)


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    found = [SimpleNamespace(name="runs/1/model/../../evil")]
    client = SimpleNamespace(list_blobs=lambda bucket, prefix: found)
    with pytest.raises(UserError, match="leads out of it"):
        list(storage._files(client, f"gs://{BUCKET}/runs/1/model", tmp_path))


def test_a_server_without_its_model_ends_with_the_reason(bucket: FakeGoogle) -> None:
    environment = {**variables(bucket), "AIP_STORAGE_URI": f"gs://{BUCKET}/runs/7/model", "AIP_HTTP_PORT": "0"}
    command = [sys.executable, "-m", "slipway.serving"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 2
    error = json.loads(done.stderr.splitlines()[-1])
    assert (error["severity"], error["setting"]) == ("ERROR", "AIP_STORAGE_URI")
    assert error["message"].endswith("runs/7/model cannot be downloaded: no files are there.")


def test_sigterm_ends_a_server_whose_download_is_stalled(bucket: FakeGoogle) -> None:
    """A request of Cloud Storage waits for a minute, and is repeated for two: longer than a container has to end."""
    with socket.create_server(("127.0.0.1", 0)) as stalled:
        silent = {**variables(bucket), "API_ENDPOINT_OVERRIDE": f"http://127.0.0.1:{stalled.getsockname()[1]}"}
        with process(f"gs://{BUCKET}/runs/1/model", **silent) as (server, port):
            stalled.settimeout(60)
            with stalled.accept()[0]:  # the request is under way
                until(lambda: health(port) == 503, 60)
                server.send_signal(signal.SIGTERM)
                assert server.wait(30) == 0
