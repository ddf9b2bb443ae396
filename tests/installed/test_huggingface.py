"""Data sets of the Hugging Face Hub, and models to it, as installed commands with the hub's own client."""

from __future__ import annotations

import base64
import io
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from tests.fakes.huggingface.hub import OWNER, READER, WRITER
from tests.installed.case import BIN, Case, Project

pytestmark = pytest.mark.timeout(1800)  # its commands have time limits

# The client imports on its threads, as it downloads and uploads.
UNRECORDED = {"SLIPWAY_TEST_IMPORTS": ""}
AS_WRITER = {**UNRECORDED, "HF_TOKEN": WRITER}
MODEL = f"hf:{OWNER}/shades"
CLASSES = {"label": {"_type": "ClassLabel", "names": ["dark", "bright"]}, "img": {"_type": "Image"}}

# Publishes while somebody else commits, after the files of the repository were listed.
MEANWHILE = """
import sys
from huggingface_hub import CommitOperationAdd, HfApi
from slipway.pipelines.__main__ import main
from slipway.pipelines.huggingface import publishing

def check(*arguments, **options):
    added = CommitOperationAdd(path_in_repo="notes.txt", path_or_fileobj=b"mine")
    HfApi().create_commit("{repo}", [added], commit_message="Add notes")
    check_card(*arguments, **options)

check_card, publishing._check_card = publishing._check_card, check
sys.argv = ["slipway", "publish", "hf:{repo}"]
main()
"""


def add(project: Project, name: str, files: dict[str, bytes], **more: Any) -> str:
    """Add a commit to a repository of the hub; return its SHA-1."""
    encoded = {path: base64.b64encode(data).decode() for path, data in files.items()}
    commit: str = project.services.ask("POST", "/hub", {"name": name, "files": encoded, **more})["commit"]
    return commit


def of_hub(project: Project, name: str, kind: str = "model") -> dict[str, Any]:
    """Return what the hub has of a repository."""
    repository: dict[str, Any] = project.services.ask("GET", f"/hub/{kind}/{name}")
    return repository


def png(seed: int, label: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 60, (8, 8)) + 150 * label
    data = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(data, "PNG")
    return data.getvalue()


def parquet(first: int, count: int) -> bytes:
    """Return a file of images, half of them bright, as the library `datasets` writes it."""
    labels = [number % 2 for number in range(count)]
    column = [{"bytes": png(first + number, label), "path": None} for number, label in enumerate(labels)]
    metadata = {"huggingface": json.dumps({"info": {"features": CLASSES}})}
    table = pyarrow.table({"img": column, "label": labels}).replace_schema_metadata(metadata)
    data = io.BytesIO()
    pyarrow.parquet.write_table(table, data)
    return data.getvalue()


def shades(first: int = 0) -> dict[str, bytes]:
    parts = {"train-00000-of-00002": (0, 40), "train-00001-of-00002": (100, 40), "test-00000-of-00001": (200, 20)}
    files = {f"data/{name}.parquet": parquet(first + at, count) for name, (at, count) in parts.items()}
    return {**files, "README.md": b"---\nlicense: mit\n---\nShades\n"}


@pytest.fixture
def project(make_project: Callable[..., Project]) -> Project:
    """A project that trains on images of the hub in a second."""
    made = make_project()
    file = made.folder / "slipway.yaml"
    text = file.read_text().replace("source: digits", "source: hf:org/shades")
    file.write_text(text.replace("epochs: 30", "epochs: 20").replace("batch_size: 64", "batch_size: 8"))
    return made


def manifests(project: Project) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted(project.folder.glob("datasets/shades/*/manifest.json"))]


def test_a_run_on_images_of_the_hub_and_its_model_published(project: Project) -> None:
    commit = add(project, "org/shades", shades())
    pinned = f"--set data.source=hf:org/shades@{commit}"
    offline = {**UNRECORDED, "HF_HUB_OFFLINE": "1"}
    project.check((
        Case("doctor", "doctor", text=(f"names no revision, .* commit {commit}", "hf:org/shades, which is first"),
             forked=True, environment={**UNRECORDED, "COLUMNS": "300"}),
        Case("run", "run", text=(f"is the commit {commit}", "72 train, 8 validation, 20 test", "verdict promote"),
             forked=True, environment=UNRECORDED),
        Case("the cache, by the branch", "data check", text="100 rows .* bright 50, dark 50 .* train 72", forked=True,
             environment=offline),
        Case("dry run", f"publish {MODEL} --dry-run", text=("pipeline_tag: image", r"\| accuracy .*hf:org/shades"),
             absent="published", forked=True, environment=UNRECORDED),
    ))  # fmt: skip
    [manifest] = manifests(project)
    assert (manifest["revision"], manifest["classes"]) == (commit, ["bright", "dark"])
    # The branch moves on: another run has other data, one with the commit the same, also without the hub.
    moved = add(project, "org/shades", {"README.md": b"Other words"})
    unreachable = {**UNRECORDED, "HF_ENDPOINT": "http://127.0.0.1:9"}
    project.check((
        Case("the commit", f"run --only prepare_data {pinned}", text="(reused)", forked=True, environment=unreachable),
        Case("the branch", "run --only prepare_data --set data.source=hf:org/shades", forked=True,
             text=f"is the commit {moved}", environment=UNRECORDED),
    ))  # fmt: skip
    assert {manifest["revision"] for manifest in manifests(project)} == {commit, moved}
    assert not of_hub(project, f"{OWNER}/shades")
    _publishing(project, commit)


def _publishing(project: Project, commit: str) -> None:
    published = Case("publish", f"publish {MODEL} --license mit", text="published demo/1 in the private repository",
                     forked=True, environment=AS_WRITER)  # fmt: skip
    project.check((
        Case("no token", f"publish {MODEL}", 2, "requires a token .* fix: hf auth login", environment=UNRECORDED),
        Case("wrong token", f"publish {MODEL}", 2, "does not accept the token: .* fix: hf auth login",
             absent="hf_wrong", environment={**UNRECORDED, "HF_TOKEN": "hf_wrong"}),
        Case("a token that reads", f"publish {MODEL}", 2, "no permission for the model .*settings/tokens",
             environment={**UNRECORDED, "HF_TOKEN": READER}),
        Case("another's namespace", "publish hf:org/shades", 2, "no permission", environment=AS_WRITER),
        Case("no such license", f"publish {MODEL} --license mine", 2, 'refuses .* "license" must .* fix: slipway publ',
             environment=AS_WRITER),
        Case("no such model", f"publish {MODEL} demo@9", 2, "no version 'demo/9'.* closest: demo/1",
             environment=AS_WRITER),
    ))  # fmt: skip
    assert of_hub(project, f"{OWNER}/shades")["commits"] == ["initial commit"]
    _kill_while(project, f"publish {MODEL} --license mit", "PUT /storage")
    assert of_hub(project, f"{OWNER}/shades")["commits"] == ["initial commit"], "nothing, or all of it"
    project.check((
        published,
        Case("again", published.command, text="already there: demo/1", forked=True, environment=AS_WRITER),
    ))  # fmt: skip
    repository = of_hub(project, f"{OWNER}/shades")
    assert repository["private"]
    assert repository["commits"] == ["initial commit", "Publish demo/1"]
    files = {path: base64.b64decode(data) for path, data in repository["files"].items()}
    version = project.folder / "models" / "demo" / "1"
    local = {f"model/{path.relative_to(version)}": path.read_bytes() for path in version.rglob("*") if path.is_file()}
    assert {path: data for path, data in files.items() if path.startswith("model/")} == local
    assert commit in files["README.md"].decode()
    assert WRITER.encode() not in b"".join(files.values())
    _no_token_in(project.folder, WRITER)
    # What others have on the hub stays.
    add(project, f"{OWNER}/other", {"notes.txt": b"mine"}, kind="model")
    add(project, f"{OWNER}/shades", {"README.md": b"My words\n"}, kind="model", private=True)
    project.check((
        Case("another's files", f"publish hf:{OWNER}/other", 2, "did not publish, such as notes.txt",
             environment=AS_WRITER),
        Case("an edited card", published.command, 2, "was edited .* --replace-card", environment=AS_WRITER),
        Case("replaced", f"{published.command} --replace-card", text="published", forked=True, environment=AS_WRITER),
        Case("another change at the same time", code=2, text="changed while it was published to.* fix: the same",
             script=MEANWHILE.format(repo=f"{OWNER}/shades"), environment=AS_WRITER),
        Case("too many requests", f"publish {MODEL}", 2, "received too many requests", environment=AS_WRITER,
             fault={"method": "/commit/main", "fault": 429}),
        Case("without Xet", f"publish {MODEL}2", 2, "has no Xet storage.* fix: export HF_HUB_DISABLE_XET=1",
             environment={**AS_WRITER, "HF_HUB_DISABLE_XET": "0"}),
    ))  # fmt: skip


def _kill_while(project: Project, command: str, call: str) -> None:
    """Kill a command during a call of the hub."""
    before = len(project.services.calls())
    project.services.ask("POST", "/faults", {"method": call, "fault": "stall", "seconds": 30})
    environment = {**project._environment, **AS_WRITER}
    process = subprocess.Popen([str(BIN / "slipway"), *shlex.split(command)], cwd=project.folder, env=environment)
    deadline = time.monotonic() + 60
    while not any(call in name for name in project.services.calls(before)):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    project.services.ask("DELETE", "/faults")


def _no_token_in(folder: Path, token: str) -> None:
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            assert not path.is_file() or token.encode() not in path.read_bytes(), path


def test_what_the_hub_refuses_and_how_its_files_are_read(project: Project) -> None:
    small = {"data/train-00000-of-00001.parquet": parquet(0, 8)}
    add(project, "org/gated", small, gated=True, readers=[READER])
    add(project, "org/private", small, private=True)
    folders = {
        f"{split}/{('dark', 'bright')[label]}/{number}.png": png(number + 10 * label + (split == "test") * 30, label)
        for split, count in (("train", 8), ("test", 3))
        for label in (0, 1)
        for number in range(count)
    }
    add(project, "org/folders", {**folders, "README.md": b"Folders"})
    rows = "size,label\n" + "".join(f"{number},{'ab'[number % 2]}\n" for number in range(30))
    add(project, "org/rows", {"train.csv": rows.encode(), "dev.csv": rows.encode()})

    def check(name: str, source: str, code: int, text: str, **more: Any) -> Case:
        environment = {**UNRECORDED, **more.pop("environment", {})}
        command = f"data check --set data.source=hf:{source}"
        return Case(name, command, code, text, forked=True, environment=environment, **more)

    project.check((
        check("gated", "org/gated", 2, "is gated: .* fix: accept its terms on .*/datasets/org/gated, then hf auth"),
        check("gated, for a reader", "org/gated", 0, "8 rows", environment={"HF_TOKEN": READER}),
        check("private", "org/private", 2, "no data set org/private .* or it is private.* fix: correct the name"),
        check("missing", "org/nothing", 2, "no data set org/nothing"),
        check("no such revision", "org/rows@v9", 2, "no revision v9"),
        check("wrong token", "org/rows", 2, "does not accept the token", environment={"HF_TOKEN": "hf_wrong"}),
        check("not in the cache", "org/rows", 2, "HF_HUB_OFFLINE=0 hf download org/rows --repo-type dataset",
              environment={"HF_HUB_OFFLINE": "1"}),
        check("another form", "rows", 2, "allowed: hf:ORG/NAME"),
        check("a hub that is down", "org/rows", 2, "cannot be reached: ConnectError.* HF_ENDPOINT=",
              environment={"HF_ENDPOINT": "http://127.0.0.1:9"}),
        check("a hub that fails", "org/rows", 2, "failed with HTTP status 500", fault={
            "method": "/api/datasets/org/rows/revision", "fault": 500, "times": 9}),
        check("folders of images", "org/folders", 0, "bright 11, dark 11 .* test 6"),
        check("a table with a split dev", "org/rows", 0, "60 rows .* validation 30, .* size number"),
    ))  # fmt: skip
    [blob] = project.folder.glob(".cache/huggingface/hub/*rows/snapshots/*/dev.csv")
    blob.resolve().write_bytes(b"size,label\n1,a\n")
    for path in project.folder.glob(".cache/huggingface/assets/slipway/*rows/data/*/about.json"):
        path.unlink()
    project.check(
        [check("a damaged file", "org/rows", 2, "does not have the digest .* fix: hf download org/rows dev.csv ")]
    )
