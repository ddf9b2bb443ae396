"""`slipway init --template trees` on the user's own table: trained, killed once, registered and predicted with."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from slipway.core import manifest as manifests
from slipway.trainer.data.features import Features
from slipway.trainer.trees import boosters, table
from slipway.trainer.trees.bagging import Bagging
from slipway.trainer.trees.forest import Forest
from tests.end_to_end.workspace import record_in, steps

pytestmark = pytest.mark.usefixtures("tensorflow")
ROUNDS = 40
# Kills the program when its first fold is finished, once.
KILL = """
import os, signal
from pathlib import Path

report, mark = training.report, Path("killed")

def killing(step, /, **values):
    report(step, **values)
    if values.get("kind") == "validation" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

training.report = killing
"""


def slipway(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slipway.pipelines", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def write_customers(path: Path) -> None:
    draws = random.Random(7)
    rows = ["household,age,plan,since,churn"]
    for _ in range(400):
        age, plan = draws.randrange(18, 90), draws.choice(["basic", "plus", "pro", ""])
        churns = age / 30 + (plan == "basic") + draws.gauss(0, 0.5) > 2.2
        since = f"{draws.randrange(1, 29)}.{draws.randrange(1, 13)}.{draws.randrange(2001, 2024)}"
        shown = age if draws.random() > 0.1 else ""
        rows.append(f"H{draws.randrange(120):03},{shown},{plan},{since},{'yes' if churns else 'no'}")
    path.write_text("\n".join(rows) + "\n")


def test_a_killed_program_ends_with_the_trees_of_one_that_was_not_and_is_predicted_with(tmp_path: Path) -> None:
    write_customers(tmp_path / "customers.csv")
    made = slipway(tmp_path, "init", "churn", "--table", "customers.csv", "--label", "churn", "--template", "trees")
    assert made.returncode == 0, made.stderr
    project = tmp_path / "churn"
    configuration = project / "slipway.yaml"
    text = configuration.read_text().replace('    - "household"', "    # - household")
    text = text.replace("  inputs:", "  group_by: column:household\n  duplicates: keep\n  inputs:")
    configuration.write_text(
        text.replace("  module: program", f'  arguments: ["--rounds", "{ROUNDS}"]\n  module: program')
    )
    several = slipway(project, "run", "--hardware", "cpu*2")
    assert several.returncode == 2
    assert "program trains trees on one replica; the hardware has 2." in several.stderr
    assert "fix:      --hardware cpu\n" in several.stderr
    program = project / "program.py"
    program.write_text(program.read_text().replace("\n# LightGBM's parameters", f"{KILL}\n# LightGBM's parameters"))
    done = slipway(project, "run")
    assert done.returncode == 0, done.stdout + done.stderr
    record = record_in(project / "runs" / "latest")
    trained = steps(record)["train"]["outputs"]
    assert [restart["reason"] for restart in trained["restarts"]] == ["was killed by SIGKILL"]
    assert steps(record)["evaluate"]["outputs"]["metrics"]["accuracy"] > 0.7

    (data,) = (project / "datasets").glob("*/*/manifest.json")
    manifest = manifests.read(data.parent)
    rows = table.read([data.parent / shard.file for shard in manifest.splits["train"].shards], manifest)
    assert rows.groups is not None
    bag = Bagging(program_settings(program), rounds=ROUNDS)
    (tmp_path / "folds").mkdir()
    undisturbed = bag.train(rows, tmp_path / "folds", lambda *_, **__: None, manifest.fingerprint)
    forest = Forest(boosters.nodes_of([booster.dump_model() for booster in undisturbed]), rows.x.shape[1], 1, models=5)
    assert trained["weights_checksum"] == forest.checksum

    (project / "new.csv").write_text("age,plan,since\n33,basic,1.2.2020\n,gold,5.6.2010\n71,,7.8.2003\n")
    predicted = slipway(project, "predict", "churn", "new.csv")
    assert predicted.returncode == 0, predicted.stdout + predicted.stderr
    answers = [json.loads(line)["prediction"]["probabilities"] for line in predicted.stdout.splitlines()]
    requests = {"age": [33, np.nan, 71], "plan": ["basic", "gold", ""], "since": ["1.2.2020", "5.6.2010", "7.8.2003"]}
    decoded = Features(manifest).decode({name: tf.constant(values) for name, values in requests.items()})
    columns = table.columns(decoded, manifest).numpy()
    raw = np.mean([booster.predict(columns, raw_score=True) for booster in undisturbed], axis=0)
    np.testing.assert_allclose([answer[1] for answer in answers], 1 / (1 + np.exp(-raw)), atol=1e-6)


def program_settings(program: Path) -> dict[str, Any]:
    """Return the literal SETTINGS of a program."""
    body = ast.parse(program.read_text()).body
    value = next(
        node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SETTINGS"
    )
    settings: dict[str, Any] = ast.literal_eval(value)
    return settings
