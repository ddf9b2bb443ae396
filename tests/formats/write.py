"""`python -m tests.formats.write` writes the archive of the current format, once: a released one never changes.

The project has a registered model, and a run whose training was killed with the checkpoint of its second epoch stored.
"""

from __future__ import annotations

import random
import tarfile
import tempfile
from pathlib import Path

from slipway.core.formats import FORMAT
from tests.end_to_end.workspace import Workspace

FOLDER = Path(__file__).parent
CONFIGURATION = """
name: table
data: {source: "csv:table.csv", label: kind}
model: {builder: "model:build"}
train: {epochs: 4, batch_size: 16, learning_rate: 0.05, on_epoch_end: "model:end"}
evaluate: {gate: {minimum: 0.5}}
"""
MODEL = """
import os
import signal
import time
from pathlib import Path

import keras


def build(inputs, classes):
    received = {name: keras.Input((), name=name) for name in inputs}
    features = keras.layers.Concatenate()([keras.layers.Reshape((1,))(each) for each in received.values()])
    return keras.Model(received, keras.layers.Dense(classes)(features))


def end(epoch, step, metrics, folder):
    if Path("end").exists() and epoch >= 2:
        while not (Path(folder).parent / "checkpoints" / "step-00000020" / "checkpoint.json").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def rows() -> list[str]:
    """Return the lines of the project's table: two kinds that are easily told apart."""
    draws = random.Random(0)
    return [
        f"{draws.gauss(3.0 * kind, 1.0):.3f},{draws.gauss(1.0 - kind, 1.0):.3f},{('even', 'odd')[kind]}"
        for kind in (0, 1)
        for _ in range(100)
    ]


def write(archive: Path) -> None:
    """Write the archive."""
    with tempfile.TemporaryDirectory() as temporary:
        workspace = Workspace(Path(temporary))
        (workspace.path / "slipway.yaml").write_text(CONFIGURATION)
        (workspace.path / "model.py").write_text(MODEL)
        (workspace.path / "table.csv").write_text("\n".join(["width,height,kind", *rows(), ""]))
        for ends in (False, True):
            if ends:
                (workspace.path / "end").touch()
            result = workspace.slipway("run")
            assert (result.returncode != 0) == ends, result.stdout + result.stderr
        answer = workspace.slipway("predict", "table", "table.csv")
        (workspace.path / "predictions.jsonl").write_text(answer.stdout)
        with tarfile.open(archive, "w:xz") as tar:
            for path in sorted(workspace.path.iterdir()):
                if path.name != "configs":
                    tar.add(path, path.name, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave the owner and the steps' logs out, which have paths of this machine."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    is_local = "__pycache__" in member.name or Path(member.name).match("runs/*/logs/*")
    return None if is_local else member


if __name__ == "__main__":
    write(FOLDER / f"{FORMAT}.tar.xz")
