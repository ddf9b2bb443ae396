"""Checkpoints: incomplete ones are ignored, the last few kept; a damaged one falls back to the previous one."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.core import events
from slipway.trainer.checkpoint import store as module
from slipway.trainer.checkpoint.store import Checkpoint, Checkpoints, StorageUnavailable


def checkpoint(step: int) -> Checkpoint:
    state = {
        "model/0000/kernel": np.full((2, 3), step, np.float32),
        "model/0001/kernel": np.full((2, 3), -step, np.float32),
        "optimizer/0000/iteration": np.array(step, np.int64),
    }
    record = {"interval": {"steps": 1, "loss": 0.1 + step, "accuracy": 1.0}, "selection": {"best": 0.5}}
    return Checkpoint(step, state, record)


def folders(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


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


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the record of a checkpoint, without its checksum."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def swapped(one: Path, other: Path) -> None:
    one.rename(one.with_name("other"))
    other.rename(one)
    one.with_name("other").rename(other)


def flipped(path: Path, index: int) -> None:
    content = bytearray(path.read_bytes())
    content[index] ^= 1
    path.write_bytes(content)


def replaced_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


# What happens to the checkpoint of step 30, with checkpoints of the steps 10 and 20 beside it.
DAMAGES: dict[str, Callable[[Path], object]] = {
    "arrays, one bit": lambda newest: flipped(newest / "state.npz", 100),
    "arrays, shortened": lambda newest: os.truncate(newest / "state.npz", 100),
    "arrays, longer": lambda newest: (newest / "state.npz").open("ab").write(b"\0"),
    "arrays, zeros": lambda newest: (newest / "state.npz").write_bytes(bytes((newest / "state.npz").stat().st_size)),
    "arrays, empty": lambda newest: os.truncate(newest / "state.npz", 0),
    "arrays, missing": lambda newest: (newest / "state.npz").unlink(),
    "arrays, a folder": lambda newest: replaced_by_folder(newest / "state.npz"),
    "arrays of another step": lambda newest: shutil.copy(newest.with_name("step-00000020") / "state.npz", newest),
    "record, missing": lambda newest: (newest / "checkpoint.json").unlink(),
    "record, a folder": lambda newest: replaced_by_folder(newest / "checkpoint.json"),
    "record, a link to itself": lambda newest: (
        (newest / "checkpoint.json").unlink(), (newest / "checkpoint.json").symlink_to("checkpoint.json"),
    ),
    "record, shortened": lambda newest: os.truncate(newest / "checkpoint.json", 100),
    "record, zeros": lambda newest: (newest / "checkpoint.json").write_bytes(bytes(500)),
    "record, one bit": lambda newest: flipped(newest / "checkpoint.json", 60),
    "record, one digit": lambda newest: edited(
        newest / "checkpoint.json", lambda content: content["record"]["selection"].update(best=2.0)
    ),
    "record, no checksum": lambda newest: edited(newest / "checkpoint.json", lambda content: content.pop("checksum")),
    "names of equal shape, swapped": lambda newest: edited(
        newest / "checkpoint.json", lambda content: content["names"].reverse()
    ),
    "step folders, swapped": lambda newest: swapped(newest, newest.with_name("step-00000020")),
    "a file in place of the folder": lambda newest: (shutil.rmtree(newest), newest.write_text("")),
    **{
        f"record {content[:20]!r}": lambda newest, content=content: (newest / "checkpoint.json").write_bytes(content)
        for content in (b"", b"{", b"{}", b"[]", b"null", b"1", b'"x"', b"\xff\xfe", b"[" * 99_999, b'{"checksum": []}')
    },
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_falls_back_to_the_one_before_aloud(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (10, 20, 30):
        checkpoints.save(checkpoint(step))
    DAMAGES[damage](tmp_path / "step-00000030")
    found = checkpoints.newest()
    assert found is not None
    assert found.step == (10 if damage == "step folders, swapped" else 20)
    assert found.state["model/0000/kernel"][0, 0] == found.step
    assert "step 30 is damaged" in caplog.text
    assert checkpoints.save(checkpoint(30))
    assert checkpoints.newest().step == 30  # type: ignore[union-attr]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"null", b"step-3", None], ids=repr)
def test_an_invalid_pointer_leaves_the_newest_valid_checkpoint(tmp_path: Path, content: bytes | None) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (10, 20):
        checkpoints.save(checkpoint(step))
    if content is None:
        replaced_by_folder(tmp_path / "latest")
    else:
        (tmp_path / "latest").write_bytes(content)
    assert checkpoints.newest().step == 20  # type: ignore[union-attr]
    assert checkpoints.save(checkpoint(30))
    assert (tmp_path / "latest").read_text() == "step-00000030"


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


@pytest.fixture
def failing_reads(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that lets the next `count` opens of a file for reading fail; waits take no time."""
    left: dict[str, tuple[int, int]] = {}
    opened = Path.open

    def fail(name: str, count: int, number: int = errno.EIO) -> None:
        left[name] = (count, number)

    def open_or_fail(path: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        count, number = left.get(path.name, (0, 0))
        if count and "r" in mode:
            left[path.name] = (count - 1, number)
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, mode, *arguments, **named)

    monkeypatch.setattr(Path, "open", open_or_fail)
    monkeypatch.setattr(module, "READ_WAITS", (0.0, 0.0, 0.0))
    return fail


@pytest.mark.parametrize("name", ["latest", "checkpoint.json", "state.npz"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE])
def test_a_read_that_fails_is_repeated_and_then_says_that_the_storage_is_unavailable(
    tmp_path: Path, failing_reads: Any, name: str, number: int
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (10, 20, 30):
        checkpoints.save(checkpoint(step))
    failing_reads(name, 3, number)
    assert checkpoints.newest().step == 30  # type: ignore[union-attr]
    failing_reads(name, 4, number)
    with pytest.raises(StorageUnavailable, match=os.strerror(number)):
        checkpoints.newest()
    assert folders(tmp_path) == ["latest", "step-00000010", "step-00000020", "step-00000030"]


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    checkpoints.save(checkpoint(10))

    def fail(_path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(module, "READ_WAITS", (0.0,))
    monkeypatch.setattr(Path, "iterdir", fail)
    with pytest.raises(StorageUnavailable):
        checkpoints.newest()


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sentences that the terminal shows."""
    said: list[str] = []
    monkeypatch.setattr(events, "message", said.append)
    return said


def test_going_back_to_an_older_checkpoint_is_said_on_the_terminal_and_kept(
    tmp_path: Path, messages: list[str]
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (10, 20, 30):
        checkpoints.save(checkpoint(step))
    assert checkpoints.newest() is not None
    assert messages == []
    (tmp_path / "step-00000030" / "state.npz").write_bytes(b"")
    checkpoints.newest()
    checkpoints.newest()
    assert messages.pop() == messages.pop()
    damaged = "the checkpoint of step 30 is damaged; training resumes from the one of step 20"
    assert Checkpoints(tmp_path, keep=3).went_back() == [damaged]
    shutil.rmtree(tmp_path / "step-00000030")
    checkpoints.newest()
    missing = "the checkpoint of step 30 is missing; training resumes from the one of step 20"
    assert messages.pop() == missing
    assert checkpoints.went_back() == [damaged, missing]
    for step in (10, 20):
        (tmp_path / f"step-000000{step}" / "checkpoint.json").unlink()
    assert checkpoints.newest() is None
    assert messages.pop() == "the checkpoints of steps 30, 20 and 10 are damaged; training starts from the beginning"


def test_an_interrupted_first_save_is_no_damage(tmp_path: Path, messages: list[str]) -> None:
    (tmp_path / "step-00000010").mkdir()
    assert Checkpoints(tmp_path, keep=3).newest() is None
    assert messages == []


def test_checkpoints_that_cannot_be_saved_are_on_the_terminal_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: list[str]
) -> None:
    def full(*_arguments: Any, **_named: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    checkpoints = Checkpoints(tmp_path, keep=3)
    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", full)
        assert not checkpoints.save(checkpoint(20))
        assert not checkpoints.save(checkpoint(30))
    assert messages == [
        f"warning: could not save a checkpoint at step 20: no space left in {tmp_path}; training continues and the "
        "save will be retried"
    ]
    assert checkpoints.save(checkpoint(40))
    assert messages[1:] == ["checkpoints are saved again, from step 40 on"]
