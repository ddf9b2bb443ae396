"""All hardware compared: what is listed, in which order, with which limits, and what earlier trainings change."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.pipelines.advice import cpus, learned
from slipway.pipelines.advice.learned import Measured
from slipway.pipelines.hardware import prices, profile
from slipway.pipelines.hardware.rules import parse
from slipway.trainer.engines.ahead import Costs, Profile
from slipway.trainer.engines.measured import Rates

# Steps that take a GPU about 50 ms, and a core of this machine as long for an example.
COSTS = Costs(batch=64, peak_bytes=2**30, flops=2e12, traffic_bytes=2e10, kernels=300)
ON_CPUS = cpus.Speed(
    Rates(cores=2, steps={8: 0.2, 64: 1.6}, peaks={8: 2**29, 64: 2**30}, trainable=4_000_000),
    Rates(cores=1, steps={8: 0.36, 64: 2.9}),
)


@pytest.fixture(autouse=True)
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A project whose data are prepared, and what is known of its step."""
    monkeypatch.chdir(tmp_path)
    on_chips = Profile(devices=1, costs=COSTS, variables=4_000_000, trainable=4_000_000)
    answers: dict[str, Any] = {"cpu": ON_CPUS, "cuda": on_chips, "tpu": on_chips}
    monkeypatch.setattr(cpus, "rates", lambda *_: answers["cpu"])
    monkeypatch.setattr(profile, "profile", lambda platform, *_: answers[platform])
    prepare(DataSettings(source="digits"), 1)
    train = {"engine": "jax", "steps": 10_000, "batch_size": 64}
    values = {"name": "digits", "data": {"source": "digits"}, "model": {"builder": "model:build"}, "train": train}
    Path("slipway.yaml").write_text(yaml.safe_dump(values))
    return answers


def typed(*arguments: str) -> Result:
    from slipway.pipelines.cli.app import app

    return CliRunner().invoke(app, ["hardware", "--compare", *arguments])


def compared(*arguments: str) -> Any:
    result = typed("--json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_choices_are_sorted_by_price_with_their_front() -> None:
    choices = compared()["choices"]
    priced = [choice for choice in choices if choice["cost"]]
    costs = [choice["cost"]["middle"] for choice in priced]
    assert costs == sorted(costs)
    front = [choice for choice in priced if choice["on_front"]]
    assert front[0] == priced[0]
    seconds = [choice["seconds"]["middle"] for choice in front]
    assert seconds == sorted(seconds, reverse=True)
    for choice in priced:  # none outside of the front is both cheaper and faster than one of it
        assert choice["on_front"] or any(
            other["cost"]["middle"] <= choice["cost"]["middle"]
            and other["seconds"]["middle"] <= choice["seconds"]["middle"]
            for other in front
        )
    assert len({parse(choice["hardware"]).accelerator for choice in choices}) > 8
    assert all(choice["based_on"] for choice in choices)


def test_a_choice_costs_its_time_at_its_regions_price() -> None:
    (l4,) = [choice for choice in compared("--region", "us-central1")["choices"] if choice["hardware"] == "l4x1"]
    assert l4["region"] == "us-central1"
    assert l4["cost"]["middle"] == pytest.approx(l4["seconds"]["middle"] / 3600 * l4["per_hour"])
    assert l4["seconds"]["middle"] == pytest.approx(10_000 * l4["step_seconds"]["middle"])


def test_filters() -> None:
    only = compared("--accelerator", "l4", "--max-replicas", "1")
    assert {choice["hardware"].partition("x")[0] for choice in only["choices"]} == {"l4"}
    assert not [choice for choice in only["choices"] if "*" in choice["hardware"]]
    spot = compared("--accelerator", "l4", "--spot")["choices"]
    assert spot and all(choice["hardware"].endswith("+spot") for choice in spot)
    assert spot[0]["per_hour"] < only["choices"][0]["per_hour"]
    elsewhere = compared("--region", "europe-west4")["choices"]
    assert {choice["region"] for choice in elsewhere} == {"europe-west4"}


def test_a_deadline_and_a_budget_keep_what_meets_them_even_if_it_takes_longest() -> None:
    comparison = compared("--deadline", "20m", "--budget", "2")
    meeting = [choice for choice in comparison["choices"] if choice["meets"]]
    assert meeting and len(meeting) < len(comparison["choices"])
    assert all(choice["seconds"]["high"] <= 1200 and choice["cost"]["high"] <= 2 for choice in meeting)
    lines = typed("--deadline", "20m", "--budget", "2").stdout
    assert meeting[0]["hardware"] in lines
    assert "cpu@" not in lines


def test_the_nearest_is_named_if_nothing_meets_them() -> None:
    result = typed("--deadline", "1s")
    assert result.exit_code == 0
    assert "No hardware keeps the deadline and the budget" in result.stdout
    assert compared("--deadline", "1s")["nearest"] in result.stdout


def test_what_the_batch_cannot_be_split_over_is_refused_with_its_reason() -> None:
    refused = compared("--set", "train.batch_size=6")["refused"]
    assert "A batch of 6 examples cannot be split evenly over 1 replica of 4 devices." in refused.values()


def test_what_has_too_little_memory_is_listed_last(known: dict[str, Any]) -> None:
    costs = COSTS.model_copy(update={"peak_bytes": 20 * 2**30})
    known["cuda"] = Profile(devices=1, costs=costs, variables=4_000_000, trainable=4_000_000)
    choices = compared()["choices"]
    fits = [choice["fits"] for choice in choices]
    assert fits == sorted(fits, reverse=True)
    (t4,) = [choice for choice in choices if choice["hardware"].startswith("t4x1@") and "*" not in choice["hardware"]]
    assert not t4["fits"] and 0 < t4["largest_batch"] < 64
    assert "without enough memory" in typed().stdout


def test_what_is_not_known_is_said(known: dict[str, Any]) -> None:
    why = "without jax and libtpu: pip install 'slipway-ml[jax,compile-tpu]'"
    known["tpu"] = Profile(devices=1, unknown=why)
    result = typed()
    assert f"not known of TPUs: {why}" in result.stderr
    assert "tpu-" not in result.stdout
    assert compared()["unknown"] == {"tpu": why}


def test_a_price_that_is_not_known_is_said() -> None:
    table = prices.table()
    assert "rtx-pro-6000" not in table["accelerators"]
    for choice in compared()["choices"]:
        if choice["hardware"].startswith("rtx-pro-6000"):
            assert choice["cost"] is None


@pytest.mark.parametrize(
    ("arguments", "said", "fix"),
    [
        (("l4x1",), "--compare compares all hardware, and l4x1 is one choice", "--compare"),
        (("--deadline", "soon"), "'soon' is not a duration", "--deadline 6h"),
        (("--region", "mars-west1"), "no accelerator is listed for the region mars-west1", ""),
        (("--accelerator", "k80"), "no machine has k80", "--accelerator"),
        (("--set", "data.store=elsewhere"), "before the data are prepared on this machine", "slipway rehearse"),
        (("-o", "missing/page.html"), "the folder missing does not exist", "mkdir -p missing"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], said: str, fix: str) -> None:
    result = typed(*arguments)
    assert (result.exit_code, said in result.output) == (2, True), result.output
    assert fix in result.output


def test_options_of_the_comparison_are_refused_without_it() -> None:
    from slipway.pipelines.cli.app import app

    result = CliRunner().invoke(app, ["hardware", "--spot"])
    assert (result.exit_code, "--spot applies only with --compare" in result.output) == (2, True)


def test_the_page_has_all_choices(tmp_path: Path) -> None:
    result = typed("-o", "page.html", "--deadline", "1h")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text()
    assert "l4x1" in page and "<svg" in page


def keep(run: str, kind: str, network: str, ratio: float) -> None:
    """A training that took `ratio` times its estimate."""
    folder = Path("runs") / run
    folder.mkdir(parents=True)
    measured = Measured(
        run=run, hardware="l4x1", kind=kind, network=network, steps=100, step_seconds=ratio, estimated=(0.5, 1.0, 2.0)
    )
    (folder / learned.FILE).write_text(json.dumps(asdict(measured)))


def l4(choices: list[Any]) -> Any:
    return next(choice for choice in choices if choice["hardware"] == "l4x1")


def test_trainings_of_the_same_network_and_of_others_calibrate(monkeypatch: pytest.MonkeyPatch) -> None:
    before = l4(compared()["choices"])["step_seconds"]
    keep("first", "l4", "another network", 1.44)
    others = l4(compared()["choices"])
    assert others["step_seconds"]["middle"] == pytest.approx(1.2 * before["middle"])
    monkeypatch.setattr(learned, "network", lambda _job: "this network")
    keep("second", "l4", "this network", 2.0)
    keep("third", "l4", "this network", 2.2)
    comparison = compared()
    same = l4(comparison["choices"])["step_seconds"]
    assert same["middle"] == pytest.approx(2.1 * before["middle"])
    assert same["high"] / same["low"] < before["high"] / before["low"]
    assert l4(comparison["choices"])["based_on"] == "2 trainings of this network on l4"
    assert [row["run"] for row in comparison["measured"]] == ["second", "third"]
    assert comparison["measured"][0]["measured_seconds"] == pytest.approx(
        2 * comparison["measured"][0]["estimated_seconds"]
    )
    unaffected = [choice for choice in comparison["choices"] if choice["hardware"] == "a100x1"]
    assert "training" not in unaffected[0]["based_on"]


def test_damaged_records_of_trainings_are_ignored() -> None:
    (Path("runs") / "broken").mkdir(parents=True)
    (Path("runs") / "broken" / learned.FILE).write_text("{")
    assert learned.known() == []
    assert compared()["measured"] == []
