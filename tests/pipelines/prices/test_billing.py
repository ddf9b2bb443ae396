"""`slipway config prices`: from SKUs to the table of prices."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from slipway.pipelines.cli.app import app
from slipway.pipelines.hardware import parse, prices
from slipway.pipelines.prices import billing
from tests.fakes.billing import COMPUTE, SERVICE, SKUS, sku
from tests.fakes.google import PROJECT, FakeGoogle
from tests.pipelines.hardware.test_prices import TABLE

HERE = "us-central1"


@pytest.fixture
def folder(google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    section = {"project": PROJECT, "region": "europe-west4", "bucket": "gs://x-bucket", "endpoints": google.endpoints}
    values = {"name": "digits", "data": {"source": "digits"}, "train": {"module": "a"}, "vertex": section}
    (tmp_path / "slipway.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(values, default=dict))))
    monkeypatch.chdir(tmp_path)
    prices._read.cache_clear()
    google.world.projects[PROJECT].services.add(SERVICE)
    return tmp_path


def update(*options: str) -> Result:
    return CliRunner().invoke(app, ["config", "prices", *options])


def test_prices_are_those_of_the_table_that_was_read_another_way() -> None:
    """The table in the repository is from a catalog of whole machines; its prices of us-central1 must come out."""
    made = billing.table_of([sku(*row[1:]) for row in SKUS])
    for name in ("n1-standard", "n1-highmem", "n1-highcpu", "g2-standard", "a2-highgpu", "a2-megagpu", "a2-ultragpu"):
        assert made["machines"][name][HERE][0] == pytest.approx(TABLE["machines"][name][HERE][0], abs=2e-6), name
    assert made["machines"]["n1-standard"][HERE][1] == pytest.approx(0.013057, abs=3e-6)
    for name in ("t4", "l4", "a100", "tpu-v2", "tpu-v2-slice", "tpu-v5e"):
        assert made["accelerators"][name][HERE][0] == TABLE["accelerators"][name][HERE][0], name
    assert made["accelerators"]["t4"][HERE] == [0.35, 0.175]
    assert made["accelerators"]["tpu-v2"][HERE] == [1.125, 0.3375]
    assert made["accelerators"]["tpu-v5e"][HERE] == [1.2, 0.24493]


def test_other_ways_to_pay_are_not_mistaken_for_the_list_price() -> None:
    made = billing.table_of([sku(*row[1:]) for row in SKUS])
    assert made["accelerators"]["h100"] == {
        region: [9.79653, None] for region in ("us-central1", "us-east1", "us-west1")
    }
    assert made["accelerators"]["a100-80gb"][HERE] == [3.92768, None]
    assert "a3-highgpu" in made["machines"]
    assert made["machines"]["a3-highgpu"] == {}, "only its DWS price is listed"
    assert made["machines"]["n1-standard"].keys() == {"us-central1", "us-east1", "us-west1"}, "Sao Paulo lacks memory"
    assert made["machines"]["a4-highgpu"][HERE] == [0.0, 0.0], "the price of its GPUs includes it"
    assert made["accelerators"]["b200"][HERE] == [16.11, 4.9542]


@pytest.mark.parametrize(("second", "known"), [(0.56004, 0.56004), (0.7, None)])
def test_skus_that_cannot_be_told_apart_must_agree(second: float, known: float | None) -> None:
    text = "Nvidia L4 GPU running in "
    every = [
        sku(text + "Americas", "GPU", "OnDemand", 0.56004, (HERE, "us-east1")),
        sku(text + "Iowa", "GPU", "OnDemand", second, (HERE,)),
    ]
    row = billing.table_of(every)["accelerators"]["l4"]
    assert row.get(HERE, [None])[0] == known
    assert row["us-east1"] == [0.56004, None]


@given(st.decimals(0, 200, places=6), st.integers(1, 3))
def test_money_is_read_exactly(price: Any, tiers: int) -> None:
    made = sku("Nvidia L4 GPU running in Americas", "GPU", "OnDemand", float(price))
    rates = made["pricingInfo"][0]["pricingExpression"]["tieredRates"]
    rates[:0] = [{"startUsageAmount": 0, "unitPrice": {"currencyCode": "USD", "units": "0", "nanos": 0}}] * (tiers - 1)
    assert billing.table_of([made])["accelerators"]["l4"][HERE][0] == pytest.approx(float(price), abs=1e-6)


def test_the_commands_of_a_project_use_its_own_table(google: FakeGoogle, folder: Path) -> None:
    before = prices.per_hour(parse("t4x1"), HERE)
    google.billing.skus[COMPUTE] = [
        sku(*row[1:-1], 2 * row[-1]) if "T4" in row[1] else sku(*row[1:]) for row in SKUS if row[0] == COMPUTE
    ]
    done = update()
    assert done.exit_code == 0, done.output
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    assert f"slipway-prices.json: list prices of {today}" in done.output
    assert "no prices found: " in done.output
    assert "tpu-v6e" in done.output.rpartition("no prices found")[2]
    assert before is not None
    assert prices.per_hour(parse("t4x1"), HERE) == pytest.approx(before + 0.35, abs=1e-5)
    shown = CliRunner().invoke(app, ["hardware", "t4x1", "--region", HERE])
    assert f"list prices of {today}" in shown.output
    written = (folder / "slipway-prices.json").read_text()
    assert '"us-central1": [0.7, 0.35]' in written
    sub = folder / "notebooks"
    sub.mkdir()
    again = json.loads(update("--json").stdout)
    assert again["changes"] == []


def test_what_changed_is_said(google: FakeGoogle, folder: Path) -> None:
    found = json.loads(update("--json", "-o", "elsewhere.json").stdout)
    assert "l4 in us-central1, spot: $0.2231 → not known" in found["changes"]
    assert "t4 in us-central1, standard" not in str(found["changes"])
    assert prices.table()["date"] == TABLE["date"], "the project has no table of its own"


def test_a_project_without_the_api_is_told_how_to_enable_it(google: FakeGoogle, folder: Path) -> None:
    google.world.projects[PROJECT].services.discard(SERVICE)
    refused = update()
    assert refused.exit_code == 2
    assert " ".join(refused.output.split()).endswith(
        "fix: gcloud services enable cloudbilling.googleapis.com --project=slipway-test"
    )
    assert not Path("slipway-prices.json").exists()


def test_without_a_project_nothing_can_be_read(folder: Path) -> None:
    values = yaml.safe_load((folder / "slipway.yaml").read_text())
    del values["vertex"]
    (folder / "slipway.yaml").write_text(yaml.safe_dump(values))
    refused = update()
    assert (refused.exit_code, "the configuration names none" in refused.output) == (2, True)


def test_a_damaged_table_is_named(folder: Path) -> None:
    (folder / "slipway-prices.json").write_text('{"date": "2026-11-28"}')
    prices._read.cache_clear()
    refused = CliRunner().invoke(app, ["hardware", "t4x1"])
    assert (refused.exit_code, "is not a table of prices" in refused.output) == (2, True)
    prices._read.cache_clear()
