"""A search by TrainJobs: which values trials receive, which stop early, and when the search fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from slipway.components.train import study as studies
from slipway.components.train.trainjob.cluster import DeniedError
from slipway.components.train.trainjob.manifest import TrainJobSettings
from slipway.components.train.trainjob.search import Best, run_search
from slipway.components.train.tuning import SearchSettings
from slipway.core.errors import UserError
from slipway.trainer.config import RestartSettings
from tests.components.train.trainjob.conftest import Step, pools
from tests.fakes.kubernetes.store import PODS

# A program that reports `value` of its arguments, which are texts by name.
PROGRAM = """
    import json, os, sys, time
    from pathlib import Path
    given = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
    def record(folder, value):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"kind": "validation", "step": 1, "epoch": 1.0, "score": value}) + "\\n")
    logs, model = Path(os.environ["AIP_TENSORBOARD_LOG_DIR"]), Path(os.environ["AIP_MODEL_DIR"])
"""
ENDS = """
record(model, value)
(model / "given.json").write_text(json.dumps(given))
"""
RATE = {"--rate": {"low": 0.0, "high": 1.0}}


def search(step: Step, code: str, **settings: object) -> Best:
    given = {"metric": "score", "direction": "maximize", "seed": 7, "trials": 4, "parallel": 2, "parameters": RATE}
    restarts = RestartSettings(at_most=0, backoff_seconds=0.01)
    return run_search(
        pools(dedent(PROGRAM) + dedent(code), 1)[:1],
        str(step.output),
        TrainJobSettings(volume="slipway", folder=str(step.volume)),
        SearchSettings.model_validate({**given, **settings}),
        restarts=restarts,
        log=step.log,
    )


def test_the_best_trial_is_that_with_the_best_value_of_the_parameters_that_it_received(step: Step) -> None:
    step.grant()
    parameters = {
        "train.optimizer": {"choices": ["adam", "sgd"]},
        "train.momentum": {"low": 0.1, "high": 0.9, "when": {"train.optimizer": ["sgd"]}},
        "--units": {"low": 16, "high": 64, "step": 16},
    }
    code = "value = int(given['units'])" + ENDS
    best = search(step, code, trials=6, direction="minimize", parameters=parameters)
    found = {
        folder.name: json.loads((folder / "model" / "given.json").read_text())
        for folder in (step.output / "trials").iterdir()
    }
    assert set(found) == {f"trial-{number}" for number in range(6)}
    for given in found.values():
        assert given["train.optimizer"] in ("adam", "sgd")
        assert ("train.momentum" in given) == (given["train.optimizer"] == "sgd")
    smallest = min(int(given["units"]) for given in found.values())
    assert best.parameters["--units"] == smallest
    assert Path(best.output).name == f"trial-{best.trial}"
    received = found[f"trial-{best.trial}"]
    assert best.parameters["train.optimizer"] == received["train.optimizer"]
    step.cluster.wait(lambda: not step.cluster.left())


def test_a_search_that_is_over_is_not_executed_again(step: Step) -> None:
    step.grant()
    first = search(step, "value = float(given['rate'])" + ENDS, trials=2)
    assert search(step, "raise SystemExit('not again')", trials=2) == first


def test_a_trial_that_is_worse_than_the_median_is_stopped(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "STARTUP_TRIALS", 1)
    step.grant()
    code = """
    trial = int(model.parent.name.rpartition("-")[2])
    value = -trial
    record(logs, value)
    time.sleep(1000 * (trial == 2))
    """
    best = search(step, dedent(code) + ENDS, trials=3, parallel=1, pruning="median")
    assert best.trial == 0
    assert "trial 2 pruned" in step.log.getvalue()
    step.cluster.wait(lambda: not step.cluster.left())


def test_a_search_stops_when_too_many_trials_have_failed(step: Step) -> None:
    step.grant()
    code = """
    trial = int(model.parent.name.rpartition("-")[2])
    time.sleep(1000 * (trial == 0))
    raise ValueError(f"no trial {trial}")
    """
    with pytest.raises(UserError, match=r"More than tune\.failures trials failed") as caught:
        search(step, code, failures=1)
    assert "ValueError: no trial 2" in step.log.getvalue()
    assert caught.value.setting == "tune.failures"
    step.cluster.wait(lambda: not step.cluster.left())
    assert search(step, "value = 1" + ENDS, failures=1, trials=3).trial in (0, 3, 4), "a resumed run tries again"


def test_a_trial_without_the_metric_is_a_failed_one(step: Step) -> None:
    step.grant()
    code = "value = float(given['rate'])" + ENDS
    with pytest.raises(UserError, match="reported no accuracy of the validation split, but score"):
        search(step, code, metric="accuracy", failures=0)


SEARCHING = """
import json
import sys
from slipway.components.step import step
from slipway.components.train.trainjob.manifest import TrainJobSettings
from slipway.components.train.trainjob.search import run_search
from slipway.components.train.tuning import SearchSettings
pools, output, pods, search = json.loads(sys.argv[1])
with step("train"):
    run_search(pools, output, TrainJobSettings(**pods), SearchSettings(**search))
"""


def test_a_stopped_search_deletes_the_trainjobs_of_all_trials(step: Step) -> None:
    step.grant()
    how = {"metric": "score", "direction": "maximize", "seed": 7, "parallel": 2, "parameters": RATE}
    pods = {"volume": "slipway", "folder": str(step.volume)}
    told = json.dumps([pools("import time; time.sleep(1000)", 1)[:1], str(step.output), pods, how])
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-c", SEARCHING, told]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    step.cluster.wait(lambda: sum(pod["status"]["phase"] == "Running" for pod in step.cluster.store.all(PODS)) == 2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=180) == 128 + signal.SIGTERM
    step.cluster.wait(lambda: not step.cluster.left())


def test_a_search_without_rights_fails_at_once(step: Step) -> None:
    with pytest.raises(DeniedError, match="does not allow this account to create the TrainingRuntime"):
        search(step, "raise SystemExit(1)")


def test_a_search_whose_time_is_over_has_no_best_trial(step: Step) -> None:
    step.grant()
    with pytest.raises(UserError, match="No trial has succeeded"):
        search(step, "value = 1" + ENDS, hours=1e-9)
    assert "created the TrainJob" not in step.log.getvalue()
