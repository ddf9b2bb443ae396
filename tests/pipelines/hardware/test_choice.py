"""Parsing text and mappings into choices, and round trips through the canonical text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from slipway.core.errors import UserError
from slipway.pipelines.hardware import parse
from slipway.pipelines.hardware.choice import choices
from slipway.pipelines.hardware.grammar import PATTERN


def pool(machine: str, accelerator: str | None = None, count: int = 0, **spec) -> dict:
    attached = {"accelerator_type": accelerator, "accelerator_count": count} if accelerator else {}
    return {"replica_count": 1, "machine_spec": {"machine_type": machine, **attached, **spec}}


@pytest.mark.parametrize(
    ("text", "pools"),
    [
        ("cpu", [pool("n1-standard-4")]),
        ("cpu*4", [pool("n1-standard-4"), pool("n1-standard-4") | {"replica_count": 3}]),
        ("cpu@n4-highcpu-80", [pool("n4-highcpu-80")]),
        ("t4x2", [pool("n1-standard-4", "NVIDIA_TESLA_T4", 2)]),
        (
            "l4x8*4",
            [pool("g2-standard-96", "NVIDIA_L4", 8), pool("g2-standard-96", "NVIDIA_L4", 8) | {"replica_count": 3}],
        ),
        ("v100x8", [pool("n1-standard-4", "NVIDIA_TESLA_V100", 8)]),
        ("v100x8@n1-highcpu-96", [pool("n1-highcpu-96", "NVIDIA_TESLA_V100", 8)]),
        ("a100x16", [pool("a2-megagpu-16g", "NVIDIA_TESLA_A100", 16)]),
        ("a100-80gbx2", [pool("a2-ultragpu-2g", "NVIDIA_A100_80GB", 2)]),
        ("rtx-pro-6000x8", [pool("g4-standard-384", "NVIDIA_RTX_PRO_6000", 8)]),
        ("tpu-v2-8", [pool("cloud-tpu", "TPU_V2", 8)]),
        ("tpu-v3-32", [pool("cloud-tpu", "TPU_V3", 32)]),
        ("tpu-v5e-1x1", [pool("ct5lp-hightpu-1t", tpu_topology="1x1")]),
        ("tpu-v5e-2x4", [pool("ct5lp-hightpu-8t", tpu_topology="2x4")]),
        ("tpu-v5e-2x4@ct5lp-hightpu-4t", [pool("ct5lp-hightpu-4t", tpu_topology="2x4")]),
        ("tpu-v6e-4x4", [pool("ct6e-standard-4t", tpu_topology="4x4")]),
        ("tpu7x-2x2x2", [pool("tpu7x-standard-4t", tpu_topology="2x2x2")]),
    ],
)
def test_worker_pools(text, pools):
    hardware = parse(text)
    assert hardware.worker_pools() == pools
    assert hardware.scheduling() == {}
    assert str(hardware) == text


@pytest.mark.parametrize(
    ("text", "scheduling"),
    [
        ("a100x8+spot", {"strategy": "SPOT"}),
        ("h100x8*2+flex", {"strategy": "FLEX_START"}),
        ("h100x8+flex+wait=90m", {"strategy": "FLEX_START", "max_wait_duration": "5400s"}),
        ("h100x8+flex+wait=0s", {"strategy": "FLEX_START", "max_wait_duration": "0s"}),
        ("t4x1+timeout=36h", {"timeout": "129600s"}),
        ("t4x1+restart", {"restart_job_on_worker_restart": True}),
    ],
)
def test_scheduling(text, scheduling):
    hardware = parse(text)
    assert hardware.scheduling() == scheduling
    assert str(hardware) == text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("CPU", "cpu"),
        (" t4x2 * 3 ", "t4x2*3"),
        ("cpu*1", "cpu"),
        ("t4x2+spot*3@n1-standard-16", "t4x2@n1-standard-16*3+spot"),
        ("l4x8@g2-standard-96", "l4x8"),
        ("NVIDIA_TESLA_T4x1", "t4x1"),
        ("a100-40gbx4", "a100x4"),
        ("tpu-v5litepod-2x2", "tpu-v5e-2x2"),
        ("tpu-v5e-2x4@ct5lp-hightpu-8t", "tpu-v5e-2x4"),
        # Names of the TPU API: v2, v3, v4, v5p and 7x count cores, two a chip.
        ("v2-8", "tpu-v2-8"),
        ("v3-32", "tpu-v3-32"),
        ("v4-8", "tpu-v4-2x2x1"),
        ("tpu-v4-128+spot", "tpu-v4-4x4x4+spot"),
        ("v5p-8", "tpu-v5p-2x2x1"),
        ("v5p-1024", "tpu-v5p-8x8x8"),
        ("v5litepod-8", "tpu-v5e-2x4"),
        ("tpu-v5litepod-256", "tpu-v5e-16x16"),
        ("v5e-1", "tpu-v5e-1x1"),
        ("V6E-8", "tpu-v6e-2x4"),
        ("tpu-v6e-256", "tpu-v6e-16x16"),
        ("tpu7x-8", "tpu7x-2x2x1"),
        ("tpu-7x-128", "tpu7x-4x4x4"),
        ("t4x1+timeout=7200", "t4x1+timeout=2h"),
        ("t4x1+standard", "t4x1"),
        ("cpu+disk=200", "cpu+disk=200"),
        ("cpu+disk=pd-standard", "cpu+disk=pd-standard"),
        ("cpu+reservation=any+disk=pd-ssd:64000", "cpu+disk=pd-ssd:64000+reservation=any"),
    ],
)
def test_canonical_text(text, canonical):
    assert str(parse(text)) == canonical
    assert parse(canonical) == parse(text)


def test_the_smallest_machine_that_fits_is_chosen():
    assert parse("t4x1").machine == "n1-standard-4"  # n1-highmem-2 is smaller, but cramped
    assert parse("t4x1@n1-highmem-2").machine == "n1-highmem-2"
    assert parse("l4x1").machine == "g2-standard-4"
    assert parse("l4x2").machine == "g2-standard-24"
    assert parse("h100x8").machine == "a3-highgpu-8g"
    assert parse("tpu-v5e-2x4").machine == "ct5lp-hightpu-8t"  # one machine, not two smaller ones


def test_chips_devices_and_machines():
    shape = {
        text: (h.accelerators_per_replica, h.chips, h.machines_per_replica, h.replicas)
        for text in ("cpu*4", "l4x4*2", "tpu-v3-8", "tpu-v3-32", "tpu-v5e-2x4", "tpu-v5e-4x4", "tpu7x-2x2x2")
        for h in [parse(text)]
    }
    assert shape == {
        "cpu*4": (0, 0, 1, 4),
        "l4x4*2": (4, 4, 1, 2),
        "tpu-v3-8": (8, 4, 1, 1),
        "tpu-v3-32": (32, 16, 4, 1),
        "tpu-v5e-2x4": (8, 8, 1, 1),
        "tpu-v5e-4x4": (16, 16, 4, 1),
        "tpu7x-2x2x2": (16, 8, 2, 1),
    }


@pytest.mark.parametrize(
    ("hardware", "quotas"),
    [
        ("cpu*3", {"cpus": 12, "pd_ssd": 300}),
        ("cpu@n2-standard-8", {"n2_cpus": 8, "pd_ssd": 100}),
        ("t4x2*2", {"nvidia_t4_gpus": 4, "cpus": 8, "pd_ssd": 200}),
        ("t4x2+spot", {"preemptible_nvidia_t4_gpus": 2, "preemptible_cpus": 4, "pd_ssd": 100}),
        ("l4x4+flex", {"preemptible_nvidia_l4_gpus": 4, "preemptible_cpus": 48, "pd_ssd": 100}),
        ("a100x1+disk=pd-standard:500", {"nvidia_a100_gpus": 1, "a2_cpus": 12}),
        ("a100x1+disk=500", {"nvidia_a100_gpus": 1, "a2_cpus": 12, "pd_ssd": 500}),
        ("h200x8", {"a3_cpus": 224}),  # no metric of the GPU is listed; its boot disk is a hyperdisk
        ("tpu-v5e-2x4", {"tpu_v5e": 8}),
    ],
)
def test_it_draws_on_a_quota_for_accelerators_cpus_and_disks(hardware, quotas):
    prefix = "aiplatform.googleapis.com/custom_model_training_"
    assert parse(hardware).quotas == {prefix + metric: amount for metric, amount in quotas.items()}


def test_default_quotas():
    assert parse("l4x4").default_quota("us-central1") == 0
    assert parse("t4x1").default_quota("us-central1") == 12
    assert parse("t4x1").default_quota("us-east4") is None


def test_a_mapping_accepts_vertex_fields():
    hardware = parse(
        {
            "machine_type": "n1-standard-16",
            "accelerator_type": "NVIDIA_TESLA_T4",
            "accelerator_count": 4,
            "replica_count": 3,
            "boot_disk_type": "pd-standard",
            "boot_disk_size_gb": 500,
            "reservation": "projects/p/zones/us-central1-a/reservations/mine",
            "strategy": "STANDARD",
            "timeout": 86400,
            "restart_job_on_worker_restart": True,
        }
    )
    assert str(hardware) == (
        "t4x4@n1-standard-16*3+disk=pd-standard:500+reservation=projects/p/zones/us-central1-a/reservations/mine"
        "+timeout=1d+restart"
    )
    assert parse(str(hardware)) == hardware
    chief, others = hardware.worker_pools()
    assert (chief["replica_count"], others["replica_count"]) == (1, 2)
    assert chief["disk_spec"] == {"boot_disk_type": "pd-standard", "boot_disk_size_gb": 500}
    assert chief["machine_spec"]["reservation_affinity"] == {
        "reservation_affinity_type": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["projects/p/zones/us-central1-a/reservations/mine"],
    }
    assert others["machine_spec"] == chief["machine_spec"]


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        ({}, "cpu"),
        ({"choice": "l4x4*2"}, "l4x4*2"),
        (
            {"choice": "l4x4*2", "replica_count": 3, "strategy": "flex", "max_wait_duration": "2h"},
            "l4x4*3+flex+wait=2h",
        ),
        ({"machine_type": "ct5lp-hightpu-4t", "tpu_topology": "2x2"}, "tpu-v5e-2x2"),
        ({"machine_type": "cloud-tpu", "accelerator_type": "TPU_V3", "accelerator_count": 8}, "tpu-v3-8"),
        ({"accelerator_type": "cpu", "accelerator_count": 0, "machine_type": "e2-standard-8"}, "cpu@e2-standard-8"),
        ({"accelerator_type": None, "replica_count": 2}, "cpu*2"),
        ({"accelerator_type": ["l4"], "accelerator_count": 1}, "l4x1"),
        ({"reservation": ["none"]}, "cpu+reservation=none"),
    ],
)
def test_mappings(mapping, text):
    assert str(parse(mapping)) == text


@pytest.mark.parametrize(
    ("mapping", "setting", "words"),
    [
        ({"machineType": "n1-standard-4"}, "hardware.machineType", "write machine_type"),
        ({"parameter_server_count": 3}, "hardware.parameter_server_count", "no parameter servers"),
        ({"gpu_partition_size": "1g.10gb"}, "hardware.gpu_partition_size", "whole GPUs"),
        ({"disable_retries": True}, "hardware.disable_retries", "does not support it"),
        ({"replica_count": "4"}, "hardware.replica_count", "an integer"),
        ({"replica_count": True}, "hardware.replica_count", "an integer"),
        ({"accelerator_count": -1}, "hardware.accelerator_count", "an integer"),
        ({"accelerator_type": ["t4", "l4"]}, "hardware.accelerator_type", "the same hardware"),
        ({"strategy": "CHEAP"}, "hardware.strategy", "STANDARD, SPOT, FLEX_START"),
        ({"restart_job_on_worker_restart": 1}, "hardware.restart_job_on_worker_restart", "true or false"),
        ({"tpu_topology": "square"}, "hardware.tpu_topology", "2x4"),
        ({"choice": 4}, "hardware.choice", "l4x4"),
        ({"reservation": 4}, "hardware.reservation", "text"),
        ({"accelerator_type": ""}, "hardware", "no hardware"),
        ({"timeout": "soon"}, "hardware", "90m"),
        ({3: 4}, "hardware.3", "unknown key"),
    ],
)
def test_mappings_that_are_refused(mapping, setting, words):
    with pytest.raises(UserError) as caught:
        parse(mapping)
    assert caught.value.setting == setting
    assert words in str(caught.value)


def test_neither_text_nor_mapping():
    with pytest.raises(UserError, match="text or a mapping"):
        parse(4)  # type: ignore[arg-type]


def test_every_choice_in_the_docs():
    page = (Path(__file__).parents[3] / "docs" / "hardware.md").read_text()
    table = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    choices = [choice for cell in table for choice in re.findall(r"`([^`]+)`", cell)]
    assert len(choices) == 13
    for choice in choices:
        assert str(parse(choice)) == choice
    [mapping] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert str(parse(yaml.safe_load(mapping)["hardware"])) == "l4x4*2+spot+disk=500+timeout=12h"


def test_editors_accept_every_choice_and_its_other_spellings():
    assert [text for text in map(str, choices()) if not re.search(PATTERN, text)] == []
    assert all(re.search(PATTERN, text) for text in (" GPU ", "gpu x 2", "v5litepod-16", "L4 x 4 * 2 + spot"))
    assert not any(re.search(PATTERN, text) for text in ("", "l4", "tpu", "l4*2", "cpu2 machines"))
