"""A package of AI Platform Training: migrated, changed where the listing says, run on one and on two replicas."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.end_to_end.workspace import Workspace

CLASSIC = Path(__file__).with_name("classic")
# What the listing says must change, by file and line, and the change.
CHANGES = {
    ("model.py", 23): ("Adam(lr=learning_rate)", "Adam(learning_rate=learning_rate)"),
    ("task.py", 17): ('"master"', '"chief"'),
    ("task.py", 21): ('"master"', '"chief"'),
    ("task.py", 27): ("tf.distribute.experimental.", "tf.distribute."),
    ("task.py", 63): ("arguments.job_dir", "str(training.model_dir())"),
    ("task.py", 65): (
        'model.save(os.path.join(folder, "export"))',
        'model.export(folder); json.dump({"accuracy": accuracy}, open(os.path.join(folder, "metrics.json"), "w"))',
    ),
    ("task.py", 8): ("import tensorflow as tf", "import tensorflow as tf\nfrom slipway import training"),
}
# Lines that follow from a listed one: where the folder is chosen, and the import of slipway.training.
NEXT_TO_A_LISTED_ONE = {("task.py", 63), ("task.py", 8)}


def write_digits(path: Path) -> None:
    """Write scikit-learn's digits, which the program reads by itself: 64 pixels and a label per row."""
    pixels, labels = load_digits(return_X_y=True)
    np.savetxt(path, np.column_stack([pixels, labels]), fmt="%d", delimiter=",")


def change(folder: Path) -> None:
    """Change the program in `folder` where the listing says."""
    for (name, number), (old, new) in CHANGES.items():
        file = folder / "trainer" / name
        lines = file.read_text().splitlines(keepends=True)
        assert old in lines[number - 1]
        lines[number - 1] = lines[number - 1].replace(old, new)
        file.write_text("".join(lines))


@pytest.fixture(scope="module")
def migrated(workspace: Workspace) -> tuple[Workspace, str]:
    """A folder with the migrated job and its changed program, and what the command printed."""
    shutil.copy(CLASSIC / "config.yaml", workspace.path)
    write_digits(workspace.path / "digits.csv")
    with tarfile.open(workspace.path / "trainer-0.1.tar.gz", "w:gz") as archive:
        archive.add(CLASSIC / "setup.py", "trainer-0.1/setup.py")
        for file in CLASSIC.glob("trainer/*.py"):
            archive.add(file, f"trainer-0.1/trainer/{file.name}")
    result = workspace.call("migrate", "config.yaml", "-o", "run.yaml")
    assert result.returncode == 0, result.stdout + result.stderr
    change(workspace.path)
    return workspace, result.stdout


def test_the_listing_names_every_line_that_has_to_change(migrated: tuple[Workspace, str]):
    listed = migrated[1].partition("to change in the program\n")[2].splitlines()
    places = {
        (path.removeprefix("  - trainer/"), int(number))
        for path, _, rest in (line.partition(":") for line in listed if line.startswith("  - trainer/"))
        for number in rest.partition(":")[0].split(",")
    }
    # Line 1 stands for what the program lacks.
    assert places == {*CHANGES} - NEXT_TO_A_LISTED_ONE | {("task.py", 1)}


@pytest.mark.parametrize(
    ("hardware", "replicas"),
    [
        pytest.param("cpu", ["chief of 1"], marks=pytest.mark.long),
        pytest.param("cpu*2", ["chief of 2", "worker of 2"], marks=pytest.mark.long),
    ],
)
def test_it_runs_and_registers_its_model(migrated: tuple[Workspace, str], hardware: str, replicas: list[str]):
    workspace, _ = migrated
    registry = f"models-{hardware}"  # the program sets no seed: without a champion, each model is promoted
    result = workspace.slipway(
        "run", "-c", "run.yaml", "--hardware", hardware, "--set", f"register.registry={registry}"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    record, log = workspace.record(), workspace.log("train")
    for replica in replicas:
        assert f"replica {replica}: test accuracy" in log
    assert record["metrics"]["accuracy"] >= 0.9
    assert record["verdict"]["decision"] == "promote", record["verdict"]
    assert (workspace.path / registry / "digits-1/1/saved_model.pb").is_file()
