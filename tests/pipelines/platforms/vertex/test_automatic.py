"""Hardware that a configuration leaves open is the cheapest that keeps deadline and budget, else the next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.pipelines.advice import cpus
from slipway.pipelines.hardware import parse, profile
from slipway.trainer.engines.ahead import Costs, Profile
from slipway.trainer.engines.measured import Rates
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.pipelines.platforms.vertex.conftest import Slipway
from tests.pipelines.platforms.vertex.test_runs import CHECKED, record

COSTS = Costs(batch=64, peak_bytes=2**30, flops=1e12, traffic_bytes=1e9, kernels=100)
ON_GPUS = Profile(devices=1, costs=COSTS, variables=4_000_000, trainable=4_000_000)
# A step of a second for eight examples.
KNOWN = cpus.Speed(
    Rates(cores=4, steps={8: 1.0, 64: 8.0}, trainable=4_000_000), Rates(cores=1, steps={8: 3.5, 64: 28.0})
)


@pytest.fixture(autouse=True)
def known(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is known of the step, which takes seconds to find out, and data that are prepared here."""
    answers: dict[str, Any] = {
        "cpu": KNOWN,
        "cuda": Profile(devices=1, unknown="without a compiler"),
        "tpu": Profile(devices=1, unknown="without a compiler"),
    }
    monkeypatch.setattr(cpus, "rates", lambda *_: answers["cpu"])
    monkeypatch.setattr(profile, "profile", lambda platform, *_: answers[platform])
    prepare(DataSettings(source="digits"), 1)
    return answers


def change(workspace: Path, **values: Any) -> None:
    written = yaml.safe_load((workspace / "run.yaml").read_text())
    (workspace / "run.yaml").write_text(yaml.safe_dump({**written, "hardware": "auto", **values}))


def test_a_run_without_quota_for_the_first_choice_takes_the_second(
    ready_google: FakeGoogle, known: dict[str, Any], workspace: Path, slipway: Slipway
) -> None:
    known["cuda"] = ON_GPUS
    change(workspace, train={"epochs": 3, "batch_size": 64, "engine": "jax"}, deadline="1h")
    plan = json.loads(slipway("config", "compile", *CHECKED[1:], "--json").stdout)
    ready_google.world.quotas[PROJECT, REGION, next(iter(parse(plan["hardware"]).quotas))] = 0
    result = slipway(*CHECKED)
    assert result.exit_code == 0, result.output
    assert f"hardware: {plan['hardware']}, the cheapest of " in result.output
    kept = record(workspace)
    first, second, *_ = kept["choice"]["chosen"]
    assert (kept["refused"][0]["hardware"], kept["hardware"]) == (first, second)
    kinds = [parse(text).accelerator for text in kept["choice"]["chosen"]]
    assert kinds[0] == parse(plan["hardware"]).accelerator
    assert len(set(kinds)) == len(kinds)
    estimates = kept["choice"]["estimates"]
    assert [estimate["hardware"] for estimate in estimates] == kept["choice"]["chosen"]
    costs = [estimate["cost"]["middle"] for estimate in estimates]
    assert costs == sorted(costs)
    assert all(estimate["seconds"]["high"] <= 3600 for estimate in estimates)
    written = yaml.safe_load((workspace / "runs/latest/config.yaml").read_text())
    assert (written["hardware"], written["deadline"]) == (kept["choice"]["chosen"], "1h")


def test_a_budget_limits_the_time_of_all_tries(ready_google: FakeGoogle, workspace: Path, slipway: Slipway) -> None:
    change(workspace, budget=5)
    findings = json.loads(slipway("doctor", *CHECKED[1:], "--json").stdout)
    (cost,) = [finding for finding in findings if finding["check"] == "cost"]
    assert cost["status"] == "pass", cost
    assert slipway(*CHECKED).exit_code == 0
    kept = record(workspace)
    hardware, _, timeout = kept["hardware"].partition("+timeout=")
    assert hardware == "cpu@e2-standard-4"
    assert timeout.endswith(("m", "h"))
    assert 4 < kept["at_most"] <= 5
    assert kept["choice"]["budget"] == 5


@pytest.mark.parametrize(
    ("limits", "said", "setting"),
    [
        ({"deadline": "1m"}, "keeps the deadline of 1m. The closest is ", "deadline"),
        ({"budget": 0.02}, "keeps the budget of $0.02 in all tries. The closest is ", "budget"),
    ],
)
def test_limits_that_nothing_keeps_are_refused_with_the_nearest(
    limits: dict[str, Any], said: str, setting: str, workspace: Path, slipway: Slipway
) -> None:
    change(workspace, **limits)
    result = slipway(*CHECKED)
    assert (result.exit_code, said in result.output) == (2, True), result.output
    (fix,) = [line for line in result.output.splitlines() if "fix:" in line]
    changed = [word for word in fix.split() if word.startswith(f"{setting}=")]
    fixed = slipway("config", "compile", *CHECKED[1:], *(f"--set={word}" for word in changed))
    assert fixed.exit_code == 0, fixed.output


def test_data_that_are_not_prepared_are_said(workspace: Path, slipway: Slipway) -> None:
    change(workspace, data={"source": "digits", "store": "elsewhere"})
    result = slipway(*CHECKED)
    assert result.exit_code == 2
    assert "before the data are prepared on this machine" in result.output
    assert "slipway rehearse -c run.yaml --hardware cpu" in result.output


def test_on_this_machine_it_is_its_cpus(workspace: Path, slipway: Slipway) -> None:
    change(workspace)
    result = slipway("config", "compile", "-c", "run.yaml", "--json")
    assert json.loads(result.stdout)["hardware"] == "cpu"
