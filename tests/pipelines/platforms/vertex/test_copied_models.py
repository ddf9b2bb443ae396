"""Models of runs in the cloud, and folders of its buckets, on this machine: copied once, verified, and used."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipway.core import integrity
from slipway.core.errors import UserError
from slipway.pipelines.google import copies
from slipway.pipelines.runs import record as runs
from tests.fakes.errors import ServiceError
from tests.fakes.google import FakeGoogle
from tests.pipelines.platforms.vertex.conftest import Slipway

pytestmark = pytest.mark.slow
RUN = ("run", "-c", "slipway.yaml", "--target", "vertex")
FILES = {"weights": b"in a format of its own", "vocabulary/words.txt": b"a b c"}
LOADER = "def load(folder):\n    return lambda instances: [(folder / 'weights').read_text()[:4] for _ in instances]\n"


class Stored:
    """The model of the newest run in its bucket."""

    def __init__(self, google: FakeGoogle, folder: Path) -> None:
        self._google = google
        self.uri = str(runs.find("latest").read().step("train").outputs["model"])
        self.bucket, _, self.prefix = self.uri.removeprefix("gs://").partition("/")
        for name, content in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        integrity.seal(folder, {}, integrity.CHECKSUMS_FILE)
        for path in folder.rglob("*"):
            if path.is_file():
                self.write(path.relative_to(folder).as_posix(), path.read_bytes())

    def write(self, name: str, content: bytes) -> None:
        self._google.storage.write(self.bucket, f"{self.prefix}/{name}", content)


@pytest.fixture
def stored(
    ready_google: FakeGoogle,
    workspace: Path,
    slipway: Slipway,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Stored:
    monkeypatch.setenv("XDG_CACHE_HOME", str(workspace / "cache"))
    (workspace / "run.yaml").rename(workspace / "slipway.yaml")
    (workspace / "copied_loading.py").write_text(LOADER)
    assert slipway(*RUN).exit_code == 0
    return Stored(ready_google, tmp_path_factory.mktemp("model"))


def predicted(slipway: Slipway, model: str) -> tuple[Any, str]:
    Path("rows.jsonl").write_text("1\n")
    result = slipway("predict", model, "rows.jsonl", "--module", "copied_loading:load")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), result.stderr


def test_predict_copies_the_model_of_a_run_once(stored: Stored, slipway: Slipway) -> None:
    answer, said = predicted(slipway, "latest")
    assert answer["prediction"] == "in a"
    assert f"bytes in 3 files from {stored.uri} to" in said
    assert "copying" not in predicted(slipway, "latest")[1]
    (runs.find("latest").path / "model" / "weights").write_bytes(b"changed on this machine")
    assert "in 1 file from" in predicted(slipway, "latest")[1]


def test_predict_accepts_a_folder_of_a_bucket(stored: Stored, slipway: Slipway) -> None:
    answer, said = predicted(slipway, f"{stored.uri}/")
    assert answer["prediction"] == "in a"
    assert f"to cache/slipway/{stored.bucket}/" in said


def test_inputs_in_a_bucket_are_copied(ready_google: FakeGoogle, stored: Stored, slipway: Slipway) -> None:
    for name, lines in {"inputs/a.jsonl": b"1\n", "inputs/b.jsonl": b"1\n2\n", "inputs-old/c.jsonl": b"3\n"}.items():
        ready_google.storage.write(stored.bucket, name, lines)
    predict = ("predict", "latest", "--module", "copied_loading:load")
    one = slipway(*predict, f"gs://{stored.bucket}/inputs/b.jsonl")
    assert len(one.stdout.splitlines()) == 2, one.output
    both = slipway(*predict, f"gs://{stored.bucket}/inputs")
    assert len(both.stdout.splitlines()) == 3, both.output
    assert "in 1 file from" in both.stderr
    absent = slipway(*predict, f"gs://{stored.bucket}/input")
    assert (absent.exit_code, f"there are no files in gs://{stored.bucket}/input." in absent.stderr) == (2, True)


def test_in_python_a_model_says_where_it_is_until_it_is_downloaded(
    stored: Stored, slipway: Slipway, capsys: pytest.CaptureFixture[str]
) -> None:
    from slipway.pipelines.api.existing import Run

    run = Run(runs.find("latest"))
    assert run.model.uri == stored.uri
    assert f"the model is in the bucket, at {stored.uri}" in capsys.readouterr().out
    folder = run.model.download()
    assert {path.name for path in folder.iterdir()} == {"weights", "vocabulary", integrity.CHECKSUMS_FILE}
    assert "copying" in capsys.readouterr().out
    assert run.model.folder == folder
    assert capsys.readouterr().out.count("the model is in the bucket") == 0


@pytest.mark.parametrize("named", ["the run", "the folder"])
def test_verify_reads_what_is_in_the_bucket(stored: Stored, slipway: Slipway, named: str) -> None:
    what = "latest" if named == "the run" else stored.uri
    assert f"✓ model {stored.uri}" in slipway("runs", "verify", what).output
    assert "not verified" in slipway("runs", "verify").output
    stored.write("weights", b"in a format of another")
    result = slipway("runs", "verify", what)
    assert result.exit_code == 1
    assert f"The model in {stored.uri} is damaged: weights does not match its checksum" in result.output
    assert "/tmp" not in result.output.replace(str(Path.cwd()), "")


def test_verify_names_the_models_below_a_folder(stored: Stored, slipway: Slipway) -> None:
    above = stored.uri.rpartition("/")[0]
    result = slipway("runs", "verify", above)
    assert result.exit_code == 2
    assert f"fix:      slipway runs verify {stored.uri}\n" in result.stderr
    assert (
        f"gcloud storage ls gs://{stored.bucket}" in slipway("runs", "verify", f"gs://{stored.bucket}/nowhere").stderr
    )


def test_a_folder_that_may_not_be_read_is_refused(ready_google: FakeGoogle, stored: Stored, slipway: Slipway) -> None:
    refusal = ServiceError(403, "The caller does not have permission")
    ready_google.faults.plan(f"b/{stored.bucket}/o", refusal, times=1)
    refused = slipway("predict", "latest", "rows.jsonl")
    assert (refused.exit_code, f"may not read {stored.uri}" in refused.stderr) == (2, True), refused.output


def test_an_object_whose_name_leads_outside_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blobs = [SimpleNamespace(name="model/../../outside", size=1, crc32c="")]
    storage = SimpleNamespace(list_blobs=lambda *_, **__: blobs)
    connection = SimpleNamespace(storage=storage)
    monkeypatch.setattr(copies, "connection_of", lambda _: connection)
    with pytest.raises(UserError, match="leads out of"):
        copies.copy("gs://b/model", tmp_path / "copy", None, print)
    assert not (tmp_path / "copy").exists()
