"""Checkpoints with sharded arrays: each process writes its part, and reads what it needs."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from slipway.trainer.checkpoint.parts import Parts
from slipway.trainer.checkpoint.store import Checkpoint, Checkpoints

WHOLE = np.arange(20, dtype=np.float32).reshape(5, 4)
STATE = {"step/0": np.int64(7), "bias": np.ones(3, np.float32)}


def part(process: int, processes: int) -> Parts:
    """A process's even part of `WHOLE`, as torch splits it: the last ones may be smaller or empty."""
    size = -(-len(WHOLE) // processes)
    start = min(process * size, len(WHOLE))
    return Parts.held(WHOLE.shape, {(start, 0): WHOLE[start : start + size]})


def stores(folder: Path, processes: int) -> list[Checkpoints]:
    return [Checkpoints(folder, 3, process, processes) for process in range(processes)]


def save(folder: Path, step: int, processes: int, number: float = 0.5) -> None:
    """Save a checkpoint, the chief's part last."""
    every = stores(folder, processes)
    for process in reversed(range(processes)):
        state = {**STATE, "kernel": part(process, processes)}
        assert every[process].save(Checkpoint(step, state, {"a": {"b": 1.5}}, number))
    assert every[0].commit()


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_any_region_is_read_wherever_it_was_written(tmp_path: Path, processes: int) -> None:
    save(tmp_path, 10, processes)
    for store in (Checkpoints(tmp_path, 3), *stores(tmp_path, 3)):
        found = store.at(10)
        assert found is not None
        kernel = found.state["kernel"]
        assert isinstance(kernel, Parts)
        assert (kernel.shape, kernel.dtype) == (WHOLE.shape, WHOLE.dtype)
        np.testing.assert_array_equal(np.asarray(kernel), WHOLE)
        for region in (np.s_[1:4], np.s_[:, 1:3], np.s_[2:2], np.s_[4:5, 3:4]):
            np.testing.assert_array_equal(kernel[region if isinstance(region, tuple) else (region,)], WHOLE[region])
        np.testing.assert_array_equal(found.state["bias"], STATE["bias"])
        assert found.record == {"a": {"b": 1.5}}


def test_a_process_writes_and_reads_only_its_part(tmp_path: Path) -> None:
    save(tmp_path, 10, 2)
    folder = tmp_path / "step-00000010"
    with np.load(folder / "state-00001.npz") as arrays:
        assert [arrays[name].tolist() for name in arrays.files] == [WHOLE[3:].tolist()]
    (folder / "state-00001.npz").unlink()
    found = Checkpoints(tmp_path, 3, 1, 2).at(10)
    assert found is not None
    np.testing.assert_array_equal(found.state["kernel"][:3,], WHOLE[:3])


def test_one_is_complete_only_after_all_have_written(tmp_path: Path) -> None:
    save(tmp_path, 10, 2)
    chief, other = stores(tmp_path, 2)
    assert chief.save(Checkpoint(20, {"kernel": part(0, 2)}, {}))
    newest = chief.newest()
    assert newest is not None
    assert newest.step == 10
    assert other.save(Checkpoint(20, {"kernel": part(1, 2)}, {}))
    assert chief.commit()
    newest = chief.newest()
    assert newest is not None
    assert newest.step == 20


@pytest.mark.parametrize("damage", ["arrays", "record", "of another save"])
def test_a_damaged_part_makes_the_checkpoint_damaged(tmp_path: Path, damage: str) -> None:
    save(tmp_path / "run", 10, 2)
    save(tmp_path / "run", 20, 2)
    save(tmp_path / "other", 20, 2, number=0.25)
    folder = tmp_path / "run" / "step-00000020"
    if damage == "arrays":
        path = folder / "state-00001.npz"
        path.write_bytes(path.read_bytes()[:-1] + b"\1")
    elif damage == "record":
        (folder / "part-00001.json").unlink()
    else:
        shutil.copy(tmp_path / "other" / "step-00000020" / "part-00001.json", folder)
    newest = Checkpoints(tmp_path / "run", 3).newest()
    assert newest is not None
    assert newest.step == 10
