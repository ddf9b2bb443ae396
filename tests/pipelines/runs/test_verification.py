"""What is verified, by name, and the sentence for each kind of damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from slipway.components.register_model.registry import Registry
from slipway.core import integrity
from slipway.core.errors import UserError
from slipway.pipelines.cli.app import app
from slipway.pipelines.runs import verification
from slipway.trainer.checkpoint.store import Checkpoint, Checkpoints


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("source").mkdir()
    Path("source/model.pt2").write_bytes(b"weights")
    integrity.seal(Path("source"), {"weights_checksum": "1"})
    for run in ("one", "two"):
        metadata = {"run_id": run, "weights_checksum": "1"}
        Registry(Path("models")).register("digits", Path("source"), metadata, "any")
    return tmp_path


def damages(name: str) -> list[str]:
    return [error.message for each in verification.verify(name, Path("models")) for error in each.damages]


def test_each_version_of_a_model_is_verified_and_all_its_damages_are_named() -> None:
    assert damages("digits") == []
    Path("models/digits/1/model.pt2").unlink()
    Path("models/digits/2/model.json").unlink()
    assert damages("digits") == [
        "The model in models/digits/1 is damaged: model.pt2 is missing.",
        "The model in models/digits/2 is damaged: its checksums are missing.",
    ]
    assert damages("digits/1") == damages("models/digits/1") == damages("digits")[:1]
    Path("models/digits/1/metadata.json").write_text("{")
    assert damages("digits/1") == [
        "The registered version models/digits/1 cannot be read: its metadata.json is missing or damaged."
    ]
    Path("models/digits/champion").write_text("9")
    assert "names version 9, which does not exist" in damages("digits")[-1]


def test_a_registered_model_of_a_custom_program_is_verified() -> None:
    Path("own").mkdir()
    Path("own/model.pt").write_bytes(b"weights")
    integrity.seal(Path("own"), {}, integrity.CHECKSUMS_FILE)
    for run in ("one", "two"):
        Registry(Path("models")).register("own", Path("own"), {"run_id": run, "weights_checksum": None}, "any")
    assert damages("own") == damages("own/1") == damages("models/own/1") == []
    Path("models/own/1/model.pt").write_bytes(b"")
    Path("models/own/2", integrity.CHECKSUMS_FILE).unlink()
    assert damages("own") == [
        "The model in models/own/1 is damaged: model.pt has 0 bytes instead of 7.",
        "The model in models/own/2 is damaged: its checksums are missing.",
    ]


def test_a_model_without_checksums_is_said_to_have_none() -> None:
    Path("unsealed").mkdir()
    Path("unsealed/model.pt").write_bytes(b"weights")
    Registry(Path("models")).register("earlier", Path("unsealed"), {"weights_checksum": None}, "any")
    (version,) = verification.verify("earlier", Path("models"))
    assert version.lines() == ["✓ model models/earlier/1: has no checksums"]
    Path("other").mkdir()
    Path("other/model.json").write_text("{}")
    result = CliRunner().invoke(app, ["runs", "verify", "other"])
    assert (result.exit_code, result.stdout) == (0, "✓ model other: has no checksums\n")


def test_checkpoints_are_verified_but_not_one_that_is_being_written(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=3)
    for step in (10, 20):
        checkpoints.save(Checkpoint(step, {"weights": np.zeros(3)}, {}))
    (tmp_path / "checkpoints" / "step-00000030").mkdir()
    assert [what for _, what in checkpoints.damages()] == [None, None]
    (tmp_path / "checkpoints" / "step-00000010" / "state.npz").write_bytes(b"")
    assert [what for _, what in checkpoints.damages()] == ["state.npz does not match the recorded checksum", None]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UserError) as refused:
        list(verification.verify("digit", Path("models")))
    assert refused.value.fix == "slipway runs verify digits"
    assert CliRunner().invoke(app, ["runs", "verify", "digits/3"]).exit_code == 2
