"""The Keras example of docs/your-own-training-loop.md; those for PyTorch and JAX are in tests/engines."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.end_to_end.examples import Example
from tests.end_to_end.workspace import Workspace, steps

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # of several runs, on a busy machine
LENGTH = ("--set", "train.arguments=[--epochs, '20']")


def test_the_keras_program_survives_a_kill_on_two_replicas(workspace: Workspace) -> None:
    example = Example(workspace, "Keras and TensorFlow on several replicas")
    undisturbed = example.run(*LENGTH)
    assert undisturbed["metrics"]["accuracy"] >= 0.95
    assert undisturbed["verdict"]["decision"] == "promote"
    assert (workspace.path / "models" / "keras-digits" / "1" / "saved_model.pb").is_file()
    report = Path(undisturbed["report"])
    assert "loss by step" in (report if report.is_absolute() else workspace.path / report).read_text()

    killed = example.run(*LENGTH, meanwhile=lambda: example.interrupt(signal.SIGKILL, rank=1))
    (restart,) = steps(killed)["train"]["outputs"]["restarts"]
    assert (restart["replica"], restart["reason"]) == ("workerpool1-0", "was killed by SIGKILL")
    checksums = {steps(record)["train"]["outputs"]["weights_checksum"] for record in (undisturbed, killed)}
    assert len(checksums) == 1, "a program that was killed ends with the weights of one that was not"
    lines = (workspace.path / "runs" / "latest" / "train" / "model" / "metrics.jsonl").read_text().splitlines()
    reported = [json.loads(line)["step"] for line in lines]
    assert reported == list(range(20, 20 * len(reported) + 1, 20))
