"""What a publication adds to a repository, changes and removes, with the hub's client in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipway.components.prepare_data.huggingface.hub import Repository
from slipway.components.register_model.registry import Version
from slipway.core import statement
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.huggingface.checks import data_set
from slipway.pipelines.huggingface.publishing import Publication, Published, publish
from slipway.pipelines.platforms.base import CheckWarning, Context, NotApplicableError
from slipway.pipelines.platforms.table import platform_of
from tests.fakes.huggingface.client import use
from tests.fakes.huggingface.hub import OWNER, FakeHub

NAME = f"{OWNER}/model"
REPOSITORY = Repository("model", NAME, "hf:ORG/NAME", f"hf:{NAME}")

TRAIN = {"epochs": 1, "batch_size": 1}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with FakeHub() as started:
        use(started, monkeypatch, tmp_path)
        monkeypatch.chdir(tmp_path)
        yield started


def version(folder: Path, number: int, files: dict[str, bytes]) -> Version:
    """Return a registered version with these files."""
    path = folder / "models" / "own" / str(number)
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return Version("own", number, path, {"run_id": "r", "metrics": {"score": number}})


def published(of: Version, **options: Any) -> Published:
    return publish(Publication.of(of, NAME, None), REPOSITORY, **{"public": False, "replace_card": False, **options})


def files(hub: FakeHub) -> dict[str, bytes]:
    commit = hub.repositories["model", NAME].at("main")
    assert commit
    return {path: blob.data for path, blob in commit.files.items() if path != ".gitattributes"}


def test_the_repository_has_the_files_of_the_newest_version_and_of_others(hub: FakeHub, tmp_path: Path) -> None:
    first = version(tmp_path, 1, {"weights.bin": b"\0one", "old/notes.txt": b"old", "empty": b""})
    result = published(first)
    assert (result.new, result.created, result.private) == (True, True, True)
    assert {"README.md", "slipway.json", "model/weights.bin", "model/old/notes.txt", "model/empty"} == files(hub).keys()
    assert published(first).new is False
    hub.add(NAME, {"LICENSE": b"words"}, kind="model", private=True)
    assert published(first).new is False, "a file of others is none of the publication's"
    second = published(version(tmp_path, 2, {"weights.bin": b"\0two"}))
    assert second.removed == ["model/empty", "model/old/notes.txt"]
    assert {"README.md", "slipway.json", "model/weights.bin", "LICENSE"} == files(hub).keys()
    assert files(hub)["model/weights.bin"] == b"\0two"
    assert json.loads(files(hub)["slipway.json"])["version"] == 2
    assert len(hub.repositories["model", NAME].commits) == 4, "one for each publication"


def test_downloaded_files_are_those_that_were_signed(hub: FakeHub, tmp_path: Path) -> None:
    signed = version(tmp_path, 1, {"weights.bin": b"\0one", "metadata.json": b"{}", "model.sig": b"{}"})
    published(signed)
    for path, data in files(hub).items():
        (tmp_path / "copy" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / path).write_bytes(data)
    assert statement.contents(tmp_path / "copy" / "model") == statement.contents(signed.folder)


def test_a_public_repository_is_created_only_on_request(hub: FakeHub, tmp_path: Path) -> None:
    assert published(version(tmp_path, 1, {"a": b"1"}), public=True).private is False
    assert hub.repositories["model", NAME].private is False


@pytest.mark.parametrize("record", [b"{}", b"not JSON", b'{"written_by": "another"}'])
def test_a_repository_of_others_is_left_alone(hub: FakeHub, tmp_path: Path, record: bytes) -> None:
    hub.add(NAME, {"slipway.json": record, "weights.bin": b"\0mine"}, kind="model")
    with pytest.raises(UserError, match=r"files that Slipway did not publish, such as slipway\.json") as caught:
        published(version(tmp_path, 1, {"weights.bin": b"\0one"}))
    assert "slipway publish hf:" in (caught.value.fix or "")
    assert files(hub)["weights.bin"] == b"\0mine"


def test_the_check_of_a_data_set(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.add("org/rows", {"train.csv": b"x,label\n1,a\n"}).sha

    def check(source: str, target: str = "local") -> str:
        values = {"name": "d", "data": {"source": source}, "model": {"builder": "m:b"}, "train": TRAIN}
        return data_set(Context(RunConfig.model_validate(values), platform_of(target)))

    assert check(f"hf:org/rows@{commit}") == check("hf:org/rows@main") == f"org/rows at the commit {commit}"
    with pytest.raises(CheckWarning, match="names no revision") as warned:
        check("hf:org/rows")
    assert warned.value.fix == f"--set data.source=hf:org/rows@{commit}"
    with pytest.raises(NotApplicableError):
        check("digits")
    with pytest.raises(UserError, match="no data set org/nothing"):
        check("hf:org/nothing")
    with pytest.raises(CheckWarning, match="no data set org/nothing"):
        check("hf:org/nothing", "kubeflow")
    monkeypatch.setattr("slipway.trainer.engines.installed.is_installed", lambda name: name != "huggingface_hub")
    with pytest.raises(UserError, match="huggingface_hub is not installed") as caught:
        check("hf:org/rows")
    assert caught.value.fix == "pip install 'slipway-ml[huggingface]'"
