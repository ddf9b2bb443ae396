"""What --target tpu requests for a choice of hardware, and what it refuses before anything costs money."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway.core.errors import UserError
from slipway.pipelines.api import starting
from slipway.pipelines.checks import Finding
from slipway.pipelines.config.config import RunConfig, validate
from slipway.pipelines.doctor import refuse_on_failure
from slipway.pipelines.doctor.configuration import cost
from slipway.pipelines.platforms.base import Context
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.platforms.tpu.checks import request_of
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.record import CostRecord, RunRecord, StepRecord

SECTION = {
    "project": "p",
    "zones": ["us-west4-a", "us-west4-b"],
    "bucket": "gs://p-runs",
    "service_account": "tpu@p.iam.gserviceaccount.com",
}
RESERVATION = "projects/p/locations/us-west4-a/reservations/r"


def configured(hardware: str, section: dict[str, Any] | None = SECTION, **settings: Any) -> RunConfig:
    digits = yaml.safe_load(Path("configs/digits.yaml").read_text())
    own = None if section is None else {**section, **settings}
    config: RunConfig = validate({**digits, "hardware": hardware, "tpu": own}, "the test's configuration")
    return config


@pytest.mark.parametrize(
    ("hardware", "accelerator", "version"),
    [
        ("tpu-v2-8", {"acceleratorType": "v2-8"}, "tpu-ubuntu2204-base"),
        ("tpu-v4-2x2x1", {"acceleratorConfig": {"type": "V4", "topology": "2x2x1"}}, "tpu-ubuntu2204-base"),
        ("tpu-v5e-2x4", {"acceleratorConfig": {"type": "V5LITE_POD", "topology": "2x4"}}, "v2-alpha-tpuv5-lite"),
        ("tpu-v5p-2x2x2", {"acceleratorConfig": {"type": "V5P", "topology": "2x2x2"}}, "v2-alpha-tpuv5"),
        ("tpu-v6e-4x4", {"acceleratorConfig": {"type": "V6E", "topology": "4x4"}}, "v2-alpha-tpuv6e"),
    ],
)
def test_target_tpu_requests_the_hardware_in_the_words_of_the_api(
    hardware: str, accelerator: dict[str, Any], version: str
) -> None:
    request = request_of(configured(hardware))
    assert (request.accelerator, request.runtime_version, request.spot) == (accelerator, version, False)


@pytest.mark.parametrize("hardware", ["tpu-v5p-2x2x2+spot", "tpu-v5e-4x4+spot", "tpu-v6e-4x4+spot"])
def test_target_tpu_requests_spot_also_for_a_slice_of_several_hosts(hardware: str) -> None:
    assert request_of(configured(hardware)).spot


@pytest.mark.parametrize(
    ("hardware", "settings", "message", "fix"),
    [
        ("l4x1", {}, "l4x1 is no TPU.", "--hardware tpu-v5e-2x4"),
        ("tpu7x-2x2x1", {}, "The TPU API v2 has no TPU7x.", "--hardware tpu-v5e-2x4"),
        ("tpu-v5e-2x4@ct5lp-hightpu-4t", {}, "options of Vertex AI: machine types", "--hardware tpu-v5e-2x4"),
        ("tpu-v5e-2x4+spot+timeout=1h", {}, "options of Vertex AI", "--hardware tpu-v5e-2x4+spot"),
        ("tpu-v5e-2x4", {"runtime_version": "v2-alpha-tpuv6e"}, "is of TPU v6e", "runtime_version=null"),
        ("tpu-v5e-2x4", {"runtime_version": "tpu-vm-tf-2.15"}, "is not known", "runtime_version=null"),
        ("tpu-v5e-2x4+spot", {"guaranteed": True}, "neither guaranteed nor reserved", "--hardware tpu-v5e-2x4,"),
        ("tpu-v5e-2x4+spot", {"reservation": RESERVATION}, "neither guaranteed nor reserved", "remove the setting"),
    ],
)
def test_target_tpu_refuses_what_cloud_tpu_vms_do_not_have(
    hardware: str, settings: dict[str, Any], message: str, fix: str
) -> None:
    with pytest.raises(UserError) as error:
        request_of(configured(hardware, **settings))
    assert message in error.value.message
    assert fix in (error.value.fix or "")


def test_target_tpu_refuses_a_store_in_a_bucket() -> None:
    config = configured("tpu-v5e-2x4")
    assert config.data is not None
    config = config.model_copy(update={"data": config.data.model_copy(update={"store": "gs://p-data/sets"})})
    with pytest.raises(UserError, match=r"copied to tpu\.bucket") as error:
        request_of(config)
    assert (error.value.setting, error.value.fix) == ("data.store", "--set data.store=datasets")


def test_target_tpu_without_its_section_is_refused_by_the_checks_of_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no section tpu") as error:
        refuse_on_failure(Context(configured("tpu-v5e-2x4", None), platform_of("tpu"), False, tmp_path))
    assert error.value.setting == "tpu"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"zones": []}, "tpu.zones"),
        ({"zones": ["us-west4-a", "us-east5-a"]}, "must be in one region"),
        ({"reservation": RESERVATION.replace("us-west4-a", "us-west4-c")}, "which is not among zones"),
        ({"image": "trainer:latest"}, "latest"),
        ({"endpoints": {"tpus": "localhost:1"}}, "tpus"),
    ],
)
def test_settings_of_target_tpu_are_consistent(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        configured("tpu-v5e-2x4", **settings)


def test_multislice_is_refused_with_target_tpu_as_everywhere() -> None:
    with pytest.raises(UserError, match="choose a larger slice"):
        configured("tpu-v5e-2x4*2")


@pytest.mark.parametrize(("status", "spent"), [("failed", 20.0), ("succeeded", 0.0)])
def test_a_resumed_training_on_target_tpu_may_use_what_is_left_of_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Any, spent: float
) -> None:
    folder = runs.create(configured("tpu-v5e-2x4"), tmp_path / "my runs")
    folder.image_file.write_text("trainer@sha256:0")
    record = RunRecord(
        run_id=folder.run_id, name="digits", platform="tpu", hardware="tpu-v5e-2x4", created=datetime.now(UTC),
        status="failed", steps=[StepRecord(name="train", status=status)],
        cost=CostRecord(dollars=20, seconds=7500, prices="2026-11-27"),
    )  # fmt: skip
    folder.write(record)
    checked: list[Context] = []

    def check(context: Context, **_: Any) -> list[Finding]:
        checked.append(context)
        return []

    monkeypatch.setattr("slipway.pipelines.doctor.refuse_on_failure", check)
    with starting.resumed(folder, ["budget=30"], None, print):
        pass
    [context] = checked
    assert context.spent == spent
    with pytest.raises(UserError, match=r"after \$20\.00 in earlier tries" if spent else r"budget of \$30\.00: "):
        cost(context)
