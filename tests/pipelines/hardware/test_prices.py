"""Costs of hardware, against ones that were calculated by hand from the table's source, and the budget."""

from __future__ import annotations

import json
import re
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, validate
from slipway.pipelines.hardware import parse
from slipway.pipelines.hardware.catalogue import load
from slipway.pipelines.hardware.choice import choices
from slipway.pipelines.hardware.prices import PRICES_FILE, facts_of, lines_of, of_machine, per_hour, vertex_bill
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.runs.continuing import is_changeable

TABLE: dict[str, Any] = json.loads(PRICES_FILE.read_text())
PRICED = [choice for choice in choices() if per_hour(choice, "us-central1") is not None]
VERTEX = {"project": "p", "region": "us-central1", "bucket": "gs://bucket"}
ACCOUNT = "a@p.iam.gserviceaccount.com"
TPU = {"project": "p", "zones": ["us-west4-a"], "bucket": "gs://bucket", "service_account": ACCOUNT}


def configured(hardware: str, **more: Any) -> RunConfig:
    return validate({"name": "a", "hardware": hardware, "train": {"module": "a"}, **more}, "run.yaml")


# The machines' prices are those of the source's rows for whole machines, such as n1-standard-16 for 0.76.
@pytest.mark.parametrize(
    ("choice", "region", "dollars"),
    [
        ("cpu", "us-central1", 0.76 / 4),
        ("cpu*3+spot", "us-central1", 3 * 0.20892 / 4),
        ("t4x2", "europe-west4", 0.83667 / 4 + 2 * 0.3675),
        ("l4x4*2", "us-central1", 2 * (1.76151 + 4 * 0.56004)),
        ("l4x4*2+spot", "us-central1", 2 * (0.70483 + 4 * 0.2231)),
        ("a100x8", "us-central1", 5.91582 + 8 * 2.93391),
        ("a100x1+spot", "us-west4", 0.33306 + 1.2406),
        ("h100x8", "us-east4", 9.46006 + 78.37241),
        ("h200x8*2", "us-west1", 2 * (12.266 + 74.49392)),
        ("b200x8", "us-south1", 90.216),
        ("tpu-v2-8", "us-central1", 4.5),
        ("tpu-v2-32", "us-central1", 24.0),
        ("tpu-v3-8", "europe-west4", 8.8),
        ("tpu-v5e-2x4", "us-west4", 8 * 1.2),
        ("tpu-v5p-2x2x1", "us-east5", 16.8),
        ("tpu-v6e-2x4+spot", "europe-west4", 8.29981),
    ],
)
def test_prices_calculated_by_hand(choice: str, region: str, dollars: float):
    assert per_hour(parse(choice), region) == pytest.approx(dollars, rel=1e-4)


@pytest.mark.parametrize(
    ("choice", "region", "why"),
    [
        ("a100-80gbx1", "us-central1", "no on-demand price of the GPU"),
        ("h100x8", "us-central1", "no on-demand price of the GPU"),
        ("gb200x4", "us-central1", "not in the table"),
        ("l4x1+flex", "us-central1", "FLEX_START has prices of its own"),
        ("t4x1", "me-west1", "the region is not in the accelerator's row"),
        ("cpu", "africa-south1", "the region is not in the table"),
        ("cpu@n4-standard-4", "us-central1", "the machine is not in the table"),
        ("gpu", "us-central1", "this machine's GPU"),
    ],
)
def test_prices_that_are_not_known(choice: str, region: str, why: str):
    bill = vertex_bill(parse(choice), region)
    assert (per_hour(parse(choice), region), bill.worst_case) == (None, None), why
    assert f"the price of {bill.hardware} in {region} is not known" in str(bill)
    with pytest.raises(UserError, match="The budget cannot be checked"):
        bill.check(1e9)


@given(
    choice=st.sampled_from(PRICED),
    replicas=st.integers(1, 9),
    hours=st.none() | st.integers(1, 7 * 24),
    spot=st.booleans(),
    region=st.sampled_from(sorted({region for row in TABLE["machines"].values() for region in row})),
)
@pytest.mark.extension("vertex")
def test_generated_configurations(choice, replicas: int, hours: int | None, spot: bool, region: str):
    text = str(choice) + ("" if choice.is_tpu else f"*{replicas}") + "+spot" * spot
    text += f"+timeout={hours}h" if hours else ""
    config = configured(text, vertex={**VERTEX, "region": region})
    # Calculated from Vertex AI's names, without the catalogue's numbers of chips.
    expected: float | None = 0.0
    for pool in config.training_hardware.worker_pools():
        spec, machine = pool["machine_spec"], load().machine_index[pool["machine_spec"]["machine_type"]]
        name = choice.accelerator
        amounts: list[tuple[str, str, Any]] = []
        if not choice.is_tpu:
            amounts.append(("machines", machine.name.rsplit("-", 1)[0], machine.vcpus))
        if "tpu_topology" in spec:
            chips = 1
            for edge in spec["tpu_topology"].split("x"):
                chips *= int(edge)
            amounts.append(("accelerators", name, chips))
        elif name in ("tpu-v2", "tpu-v3"):
            cores = spec["accelerator_count"]
            amounts.append(("accelerators", f"{name}-slice" if cores > 8 else name, cores / 2))
        elif name:
            amounts.append(("accelerators", name, spec["accelerator_count"]))
        for kind, row, amount in amounts:
            price = TABLE[kind].get(row, {}).get(region, [None, None])[spot]
            expected = None if price is None or expected is None else expected + pool["replica_count"] * price * amount
    bill = platform_of("vertex").bill(config)
    assert bill is not None
    if expected is None:
        assert bill.per_hour is bill.worst_case is None
        return
    assert bill.per_hour == pytest.approx(expected)
    worst = expected * (hours or 168) * (7 if spot else 4)
    assert bill.worst_case == pytest.approx(worst)
    bill.check(worst + 0.01)
    with pytest.raises(UserError) as caught:
        bill.check(worst - 0.01)
    near = caught.value.nearest
    if near is not None:  # the proposal fits
        vertex_bill(parse(near), region).check(worst - 0.01)


@pytest.mark.extension("tpu")
def test_the_worst_case_on_a_tpu():
    train = {"module": "a", "restarts": {"at_most": 2}}
    config = configured("tpu-v5e-2x4+spot", tpu={**TPU, "max_hours": 5}, train=train)
    bill = platform_of("tpu").bill(config)
    assert bill is not None
    assert bill.worst_case == pytest.approx(8 * 0.48 * 5 * 3)
    assert "$3.84 per hour in us-west4, $57.60 in the worst case (3 tries of 5h); list prices of" in str(bill)
    with pytest.raises(UserError) as caught:
        bill.check(30.0)
    assert caught.value.fix == "--set tpu.max_hours=2 or --set budget=58"


@pytest.mark.parametrize("platform", ["local", "kubeflow"])
@pytest.mark.extension("kubeflow")
def test_no_price_is_known_elsewhere(platform: str):
    assert platform_of(platform).bill(configured("cpu", budget=1)) is None


@pytest.mark.parametrize(
    ("choice", "budget", "nearest"),
    [
        ("l4x4*2", 1000.0, "l4x4*2+timeout=31h"),
        ("l4x4*2+timeout=2h", 60.0, "l4x4*2+timeout=1h"),
        ("l4x4*2+timeout=2h", 20.0, "l4x4*2+timeout=37m"),
        # In ten minutes, with 4 tries: l4x4*2 costs $5.34.
        ("l4x4*2+timeout=1h", 3.0, "l4x1+timeout=1h"),
        ("cpu*4", 0.01, None),
    ],
)
def test_the_closest_that_fits(choice: str, budget: float, nearest: str | None):
    with pytest.raises(UserError) as caught:
        vertex_bill(parse(choice), "us-central1").check(budget)
    assert caught.value.nearest == nearest


def test_what_earlier_tries_cost_counts():
    bill = vertex_bill(parse("cpu+timeout=1h"), "us-central1")
    bill.check(0.77)
    with pytest.raises(UserError, match=r"after \$0.10 in earlier tries of this run"):
        bill.check(0.77, spent=0.10)


@pytest.mark.parametrize(
    ("platform", "budget", "spent", "fix"),
    [
        ("vertex", 500.0, 100.0, "--set budget=5479"),
        ("vertex", 5.0, 2000.0, "--set budget=7379"),
        ("tpu", 57.0, 20.0, "--set tpu.max_hours=3 or --set budget=78"),
        ("tpu", 5.0, 20.0, "--set budget=78"),
    ],
)
@pytest.mark.extension("vertex", "tpu")
def test_what_is_proposed_for_a_resumed_run_does_not_change_its_hardware(
    platform: str, budget: float, spent: float, fix: str
):
    hardware = {"vertex": "l4x4*2", "tpu": "tpu-v5e-2x4+spot"}[platform]
    train = {"module": "a", "restarts": {"at_most": 2}}
    config = configured(hardware, vertex=VERTEX, tpu={**TPU, "max_hours": 5}, train=train)
    bill = platform_of(platform).bill(config)
    assert bill is not None
    with pytest.raises(UserError) as caught:
        bill.check(budget, spent)
    assert caught.value.fix == fix
    assert all(is_changeable(name) for name in re.findall(r"--set ([\w.]+)", fix))


def test_the_table():
    assert str(date.fromisoformat(TABLE["date"])) == TABLE["date"]
    assert set(TABLE["machines"]) <= {machine.series for machine in load().machines}
    assert {name.removesuffix("-slice") for name in TABLE["accelerators"]} <= {row.name for row in load().accelerators}
    for row in [*TABLE["machines"].values(), *TABLE["accelerators"].values()]:
        for price, spot in row.values():
            assert price is None or spot is None or price > spot or price == spot == 0


def test_the_regions_of_a_choice():
    assert lines_of(facts_of(parse("a100x1"))) == [
        "asia-northeast3  not known, Spot $1.58, worst case not known",
        "asia-southeast1  not known, Spot $1.85, worst case not known",
        "europe-west4     not known, Spot $1.49, worst case not known",
        "me-west1         $4.04, Spot $1.39, worst case $2,715.36",
        "us-central1      $3.67, Spot $1.80, worst case $2,468.52",
        "us-east1         $3.67, Spot $1.80, worst case $2,468.52",
        "us-west3         $4.33, Spot $1.97, worst case $2,906.44",
        "us-west4         $3.93, Spot $1.57, worst case $2,643.89",
        f"lower bounds: list prices of {TABLE['date']} without Vertex AI's fee; worst case: 4 tries of 7d",
    ]
    [priced, of] = lines_of(facts_of(parse("tpu-v5p-2x2x1"), "us-east5"))
    assert (priced, of) == ("us-east5  $16.80, Spot $6.72", f"list prices of {TABLE['date']}")


def test_a_machine_costs_what_a_training_on_it_costs() -> None:
    """Endpoints name machines as Vertex AI's API does."""
    for text, spot in (("l4x4", False), ("a100x8", True), ("cpu", False), ("b200x8", False)):
        choice = parse(text + "+spot" * spot)
        (pool,) = choice.worker_pools()
        spec = pool["machine_spec"]
        vcpus = load().machine(spec["machine_type"]).vcpus
        accelerator, count = spec.get("accelerator_type"), spec.get("accelerator_count", 0)
        mode = "spot" if spot else "standard"
        found = of_machine(spec["machine_type"], vcpus, accelerator, count, "us-central1", mode)
        assert found == pytest.approx(per_hour(choice, "us-central1"))
    assert of_machine("g2-standard-4", 4, "NVIDIA_L5", 1, "us-central1", "standard") is None
    assert of_machine("z9-standard-4", 4, None, 0, "us-central1", "standard") is None
