"""What the manifest of a data set says of its inputs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slipway.core import paths
from slipway.core.errors import UserError
from slipway.core.manifest import FILE_NAME, Input, read

FINGERPRINT = "0123456789abcdef"
CUT = f'{{"fingerprint": "{FINGERPRINT}01'


@pytest.mark.parametrize(
    ("stored", "accepts"),
    [
        (Input(kind="number", nullable=True, shape=(2,)), True),
        (Input(kind="text", shape=(8,)), True),
        (Input(kind="category", vocabulary=("", "a")), True),
        (Input(kind="category", vocabulary=("a", "b")), False),
        (Input(kind="number"), False),
        (Input(kind="image", shape=(8, 8, 1)), False),
    ],
)
def test_an_input_is_optional_if_training_examples_lack_it(stored: Input, accepts: bool) -> None:
    assert stored.accepts_null is accepts


@pytest.mark.parametrize(
    ("folder", "files", "fix"),
    [
        (f"digits/{FINGERPRINT}", {FILE_NAME: CUT}, "rm -r {folder}, then run again"),
        (f"my digits/{FINGERPRINT}", {"a.tfrecord-00000-of-00001": ""}, "rm -r '{folder}', then run again"),
        (
            f"gcs/bucket/digits/{FINGERPRINT}",
            {FILE_NAME: CUT},
            f"gcloud storage rm -r gs://bucket/digits/{FINGERPRINT}, ",
        ),
        (f"digits/{FINGERPRINT}", {"1.jpg": "", FILE_NAME: "{}"}, "name a data set of prepare_data"),
        ("flowers", {"1.jpg": ""}, "name a data set of prepare_data"),
        ("flowers", {FILE_NAME: '{"icons": []}'}, "name a data set of prepare_data"),  # as a web site has it
    ],
)
def test_only_a_data_set_that_slipway_wrote_is_named_to_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, files: dict[str, str], fix: str
) -> None:
    monkeypatch.setattr(paths, "MOUNTS", {"gs://": str(tmp_path / "gcs")})
    (tmp_path / folder).mkdir(parents=True)
    for name, content in files.items():
        (tmp_path / folder / name).write_text(content)
    with pytest.raises(UserError) as refused:
        read(tmp_path / folder)
    assert (refused.value.fix or "").startswith(fix.format(folder=tmp_path / folder))


def test_no_other_fix_deletes() -> None:
    """What a fix deletes has to be recognized first; `prepare_again` does, and checkpoints are read before."""
    sources = [
        path for folder in ("components", "pipelines", "slipway", "trainer") for path in Path(folder).rglob("*.py")
    ]
    deleting = {str(path) for path in sources if re.search(r"(?<!-)\brm (-r|\{)|storage rm", path.read_text())}
    assert deleting == {"slipway/core/manifest.py", "pipelines/runs/verification.py"}
