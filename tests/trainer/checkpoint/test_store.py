"""Checkpoints: incomplete ones are ignored, the last few kept; a damaged one falls back to the previous one."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.trainer.checkpoint import store as module
from slipway.trainer.checkpoint.store import Checkpoint, Checkpoints


def checkpoint(step: int) -> Checkpoint:
    state = {
        "model/0000/kernel": np.full((2, 3), step, np.float32),
        "optimizer/0000/iteration": np.array(step, np.int64),
    }
    return Checkpoint(step, state, {"interval": {"steps": 1, "loss": 0.1 + step, "accuracy": 1.0}})


def folders(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_what_is_saved_is_read_back_exactly(tmp_path: Path) -> None:
    saved = checkpoint(120)
    assert Checkpoints(tmp_path / "new" / "folder", keep=3).save(saved)
    found = Checkpoints(tmp_path / "new" / "folder", keep=3).newest()
    assert found is not None
    assert (found.step, found.record) == (120, saved.record)
    assert list(found.state) == list(saved.state)
    for name, array in saved.state.items():
        np.testing.assert_array_equal(found.state[name], array)
        assert found.state[name].dtype == array.dtype


def test_none_where_nothing_was_saved(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none", keep=3).newest() is None


def test_the_last_few_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (10, 20, 30, 40):
        checkpoints.save(checkpoint(step))
    assert folders(tmp_path) == ["latest", "step-00000030", "step-00000040"]
    assert (tmp_path / "latest").read_text() == "step-00000040"


@pytest.mark.parametrize("damage", ["state", "record", "shortened", "missing"])
def test_a_damaged_newest_falls_back_to_the_one_before_aloud(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (10, 20, 30):
        checkpoints.save(checkpoint(step))
    newest = tmp_path / "step-00000030"
    content = bytearray((newest / "state.npz").read_bytes())
    if damage == "state":
        content[100] ^= 1
        (newest / "state.npz").write_bytes(content)
    elif damage == "record":
        (newest / "checkpoint.json").write_text("{")
    elif damage == "shortened":
        (newest / "state.npz").write_bytes(content[:100])
    else:
        shutil.rmtree(newest)
    found = checkpoints.newest()
    assert found is not None
    assert found.step == 20
    assert damage == "missing" or "step 30 is damaged" in caplog.text


def test_the_checkpoint_at_a_step(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (10, 20):
        checkpoints.save(checkpoint(step))
    assert checkpoints.at(10).step == 10  # type: ignore[union-attr]
    assert checkpoints.at(15) is None


@pytest.mark.parametrize("where", ["arrays", "record", "pointer"])
def test_killed_while_saving_the_one_before_still_counts(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_arguments: Any, **_named: Any) -> None:
        raise Killed

    checkpoints = Checkpoints(tmp_path, keep=3)
    checkpoints.save(checkpoint(10))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        if where == "arrays":
            patch.setattr(np, "savez", die)
        else:
            replace = module.replace_file

            def die_at(path: Path, content: bytes) -> None:
                (die if path.name == {"record": "checkpoint.json", "pointer": "latest"}[where] else replace)(
                    path, content
                )

            patch.setattr(module, "replace_file", die_at)
        checkpoints.save(checkpoint(20))
    again = Checkpoints(tmp_path, keep=3)
    assert again.newest().step == 10  # type: ignore[union-attr]
    assert again.save(checkpoint(20))
    assert again.newest().step == 20  # type: ignore[union-attr]
    assert folders(tmp_path) == ["latest", "step-00000010", "step-00000020"]


def test_after_falling_back_the_future_that_was_given_up_is_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (10, 20, 30):
        checkpoints.save(checkpoint(step))
    (tmp_path / "step-00000030" / "state.npz").write_bytes(b"")
    checkpoints.save(checkpoint(25))
    assert folders(tmp_path) == ["latest", "step-00000010", "step-00000020", "step-00000025"]


def test_a_full_disk_warns_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_arguments: Any, **_named: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    checkpoints = Checkpoints(tmp_path, keep=3)
    checkpoints.save(checkpoint(10))
    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", full)
        assert not checkpoints.save(checkpoint(20))
    assert "no space left" in caplog.text
    assert folders(tmp_path) == ["latest", "step-00000010"]
    assert checkpoints.newest().step == 10  # type: ignore[union-attr]
    assert checkpoints.save(checkpoint(30))
