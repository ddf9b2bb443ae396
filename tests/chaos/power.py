"""Power cuts: a real run is stopped at an operation, its files become what a disk may hold then, and it is resumed.

Every Python of the run records what it flushes (recorder/sitecustomize.py). After the cut, with "data", all changes of
folders are kept, as LazyFS does, and each file has what was flushed last; one that never was is empty, cut short or
whole. With "entries", folders too have only what was flushed, so that unflushed files, renames and deletions are lost,
which LazyFS keeps. LazyFS needs FUSE and a binary of its own; this needs neither. What TensorFlow's C++ writes counts
as not flushed until Python flushes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from tests.end_to_end.workspace import CONFIGURATIONS, Workspace, processes_of, steps, wait_for

RECORDER = Path(__file__).with_name("recorder")
Kept = Literal["data", "entries"]
Name = Literal["digits", "custom"]
# `slipway run` of each model, and the user's own files. The custom program flushes nothing.
RUNS: dict[Name, tuple[str, ...]] = {
    "digits": (
        *("run", "-c", "configs/digits.yaml", "--set", "train.epochs=3"),
        *("--set", "train.checkpoint.every_steps=20", "--set", "evaluate.gate.minimum=0"),
    ),
    "custom": ("run", "-c", "custom.yaml"),
}
FILES = {
    "custom.yaml": """
name: custom
train: {module: program}
evaluate: {gate: {metric: accuracy, minimum: 0.5}}
""",
    "program.py": """
import json, os
from pathlib import Path

folder = Path(os.environ["AIP_MODEL_DIR"], "layers")
folder.mkdir(parents=True, exist_ok=True)
(folder / "weights").write_bytes(bytes(range(256)) * 100)
(folder.parent / "metrics.json").write_text(json.dumps({"accuracy": 0.75}))
""",
}


@dataclass
class Result:
    """What became of a cut: how the run ended when it was resumed, and what is wrong."""

    cut: int
    kept: Kept
    outcome: str = ""
    problems: list[str] = field(default_factory=list)


def undisturbed(folder: Path, name: Name) -> tuple[str, int]:
    """Return the weights' checksum of an undisturbed run, and the number of its operations."""
    space = _recorded(folder, name, 10**9)
    assert space.record()["status"] == "succeeded"
    return _checksum(space, name), (folder / "shadow" / "events").stat().st_size


def cut(folder: Path, name: Name, number: int, kept: Kept, checksum: str, seed: int) -> Result:
    """Cut the power at an operation of a new run, or after it, and resume."""
    result = Result(number, kept)
    space = _recorded(folder, name, number)
    _lose(space.path, folder / "shadow", kept, random.Random(f"{seed} {number}"))
    resumed = space.slipway("run", "--resume", "latest")
    text = resumed.stdout + resumed.stderr
    refused = resumed.returncode != 0
    result.outcome = "resumed"
    if refused:
        result.outcome = "refused: " + " ".join(resumed.stderr.split())[:150]
        if not resumed.stderr.strip():
            result.problems.append("refused without a word")
        again = space.slipway(*RUNS[name])
        text += again.stdout + again.stderr
        if again.returncode:
            result.problems.append(f"a new run fails: {again.stderr.strip()}")
    if "Traceback" in text:
        result.problems.append(f"a traceback:\n{text}")
    if not result.problems and _checksum(space, name) != checksum:
        result.problems.append("other weights")
    verified = space.slipway("runs", "verify", name, "--json")
    damages = [error["message"] for each in json.loads(verified.stdout) for error in each.get("damages", ())]
    result.problems += damages or ([] if verified.returncode == 0 else [f"verify: {verified.stderr}"])
    return result


def _write_own_files(root: Path) -> None:
    shutil.copytree(CONFIGURATIONS, root / "configs", dirs_exist_ok=True)
    for name, content in FILES.items():
        (root / name).write_text(content)


def _recorded(folder: Path, name: Name, number: int) -> Workspace:
    """Run in the folder until the operation with this number, or to the end."""
    shadow = folder / "shadow"
    shadow.mkdir(parents=True)
    space = Workspace(folder / "space")
    _write_own_files(space.path)
    paths = [str(RECORDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    recorder = {
        "PYTHONPATH": os.pathsep.join(paths), "SLIPWAY_TEST_ROOT": str(space.path), "SLIPWAY_TEST_SHADOW": str(shadow),
        "SLIPWAY_TEST_CUT": str(number),
    }  # fmt: skip
    process = space.start(*RUNS[name], **recorder)
    events = shadow / "events"
    wait_for(lambda: process.poll() is not None or (events.exists() and events.stat().st_size >= number), 300)
    process.kill()
    while others := [other for other in processes_of(space.path) if other.status() != psutil.STATUS_ZOMBIE]:
        for other in others:
            with contextlib.suppress(psutil.NoSuchProcess):
                other.kill()
        psutil.wait_procs(others, timeout=1)
    process.communicate()
    return space


def _lose(root: Path, shadow: Path, kept: Kept, chance: random.Random) -> None:
    """Replace the files below `root` by what the disk holds."""
    if kept == "data":
        for path in sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink()):
            flushed, size = shadow / f"file-{path.stat().st_ino}", path.stat().st_size
            if flushed.exists():
                content = flushed.read_bytes()
            else:
                content = path.read_bytes()[: chance.choice((0, 0, size // 2, size))]
            path.unlink()
            path.write_bytes(content)
    else:
        root.rename(root.with_name("before"))
        _rebuild(root, root.with_name("before").stat().st_ino, shadow)
    _write_own_files(root)


def _rebuild(folder: Path, number: int, shadow: Path) -> None:
    folder.mkdir()
    listing = shadow / f"folder-{number}"
    entries = json.loads(listing.read_text()) if listing.exists() else {}
    for name, (kind, value) in entries.items():
        if kind == "link":
            (folder / name).symlink_to(value)
        elif kind == "folder":
            _rebuild(folder / name, value, shadow)
        else:
            flushed = shadow / f"file-{value}"
            (folder / name).write_bytes(flushed.read_bytes() if flushed.exists() else b"")


def _checksum(space: Workspace, name: Name) -> str:
    if name == "custom":
        weights = {path.read_bytes() for path in (space.path / "models").glob("custom/[0-9]*/layers/weights")}
        return " ".join(hashlib.sha256(each).hexdigest() for each in sorted(weights))
    return str(steps(space.record())["train"]["outputs"].get("weights_checksum"))
