"""Every rule for hardware: refused choices, the reason, and the closest valid choice."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from slipway.core.errors import UserError
from slipway.pipelines.hardware import parse

COMPATIBILITY = Path(__file__).parents[1] / "gpu_compatibility.csv"
RETIRED = {"k80", "p100"}


def compatibility():
    """Return (machine, accelerator, accepted counts) of the old service's published table."""
    with COMPATIBILITY.open() as file:
        for row in csv.DictReader(file):
            machine = row.pop("machine")
            for accelerator, counts in row.items():
                yield machine, accelerator, {int(count) for count in counts.split()}


def refusal(choice) -> UserError:
    with pytest.raises(UserError) as caught:
        parse(choice)
    return caught.value


@pytest.mark.parametrize(("machine", "accelerator", "allowed"), compatibility())
def test_compatibility_table(machine, accelerator, allowed):
    """Counts in the published table are accepted on that machine, all others refused; retired GPUs always."""
    for count in (1, 2, 3, 4, 8, 16):
        choice = f"{accelerator}x{count}@{machine}"
        if accelerator in RETIRED:
            error = refusal(choice)
            assert "is retired" in error.message
            assert parse(error.nearest).accelerator in ("t4", "l4")
        elif count in allowed:
            [pool] = parse(choice).worker_pools()
            assert pool["machine_spec"]["machine_type"] == machine
            assert pool["machine_spec"]["accelerator_count"] == count
        else:
            error = refusal(choice)
            assert error.setting == "hardware"
            assert error.value == choice
            assert parse(error.nearest).accelerator == accelerator


@pytest.mark.parametrize(
    ("choice", "reason", "nearest"),
    [
        # a count that no machine takes, or not this one
        ("t4x3", "No machine supports 3 t4. The closest choice is larger: 4 GPUs, not 3", "t4x4"),
        ("t4x8", "No machine supports 8 t4", "t4x4*2"),
        ("t4x16*2", "No machine supports 16 t4", "t4x4*8"),
        ("t4x0", "No machine supports 0 t4", "t4x1"),
        (
            "v100x2@n1-standard-32",
            "too large for 2 v100; with 32 vCPUs and 120 GB it requires 4 or 8",
            "v100x2@n1-standard-16",
        ),
        ("l4x4@g2-standard-24", "too small for 4 l4; it supports 2", "l4x4"),
        ("l4x1@n1-standard-8", "n1-standard-8 does not support l4; it supports t4 (1, 2 or 4)", "l4x1"),
        ("t4x1@e2-standard-4", "e2-standard-4 does not support t4; it supports none", "t4x1"),
        ("cpu@g2-standard-24", "is available only with accelerators: l4 (2)", "l4x2"),
        ("cpu@n1-standard-6", "no machine type n1-standard-6", "cpu"),
        ("cpu@n1-standard-80", "no machine type n1-standard-80", "cpu@n1-standard-64"),
        ("a100x3@a2-highgpu-3g", "no machine type a2-highgpu-3g", "a100x4"),
        ("cpu@n1-standrd-8", "no machine type n1-standrd-8", "cpu@n1-standard-8"),
        # type and count go together
        ("t4", "without a count", "t4x1"),
        ("t4@n1-standard-64", "without a count", "t4x4@n1-standard-64"),
        ({"machine_type": "n1-standard-8", "accelerator_type": "NVIDIA_L4"}, "without a count", "l4x1"),
        ({"machine_type": "n1-standard-8", "accelerator_count": 2}, "without their type", "t4x2@n1-standard-8"),
        ("tpu-v3", "without a count", "tpu-v3-8"),
        ("tpu-v5e", "without a topology", "tpu-v5e-1x1"),
        # retired, or never offered for training
        ("k80x1", "NVIDIA K80 is retired", "t4x1"),
        ("k80x8", "NVIDIA K80 is retired", "l4x8"),
        ("k80x8@n1-standard-32*2", "NVIDIA K80 is retired", "l4x8*2"),
        ("p100x4@n1-highcpu-64", "end of support for 2026-09-15", "t4x4@n1-highcpu-64"),
        ("p100x4+flex", "NVIDIA P100 is retired", "l4x4+flex"),
        ("tpu-v4-12", "no TPU v4 with 6 chips. The closest choice is larger: 8 chips, not 6", "tpu-v4-2x2x2"),
        ("v5p-8192", "There is no TPU v5p with 4096 chips", "tpu-v5p-8x8x8"),
        (
            {"accelerator_type": "tpu-v5p", "accelerator_count": 8},
            "TPU v5p is chosen by topology, not by its number of chips",
            "tpu-v5p-2x2x2",
        ),
        ("cpu@ct5p-hightpu-4t", "available only with accelerators: tpu-v5p", "tpu-v5p-2x2x1"),
        (
            {"accelerator_type": "TPU_V5_LITEPOD", "accelerator_count": 4},
            "training jobs use a topology instead",
            "tpu-v5e-2x2",
        ),
        # TPUs: sizes, one pool of one replica
        ("tpu-v5e-3x3", "no topology 3x3", "tpu-v5e-2x4"),
        ("tpu-v5e-4x2", "no topology 4x2", "tpu-v5e-2x4"),
        ("tpu7x-2x2", "no topology 2x2", "tpu7x-2x2x1"),
        ("tpu-v3-16", "no TPU v3 with 16 cores", "tpu-v3-8"),
        ("tpu-v2-2x2", "by its number of cores, not by topology", "tpu-v2-8"),
        ("tpu-v2-1024", "no TPU v2 with 1024 cores", "tpu-v2-512"),
        ("tpu-v5e-2x4@ct5lp-hightpu-1t", "not the machine type of TPU v5e 2x4", "tpu-v5e-2x4"),
        ("tpu-v3-8@ct5lp-hightpu-4t", "ct5lp-hightpu-4t does not support tpu-v3", "tpu-v3-8"),
        ("tpu-v3-8*4", "exactly one worker pool of one replica; got 4 replicas", "tpu-v3-32"),
        ("tpu-v5e-2x4*2", "exactly one worker pool of one replica", "tpu-v5e-4x4"),
        ("tpu-v5e-2x2*0", "exactly one worker pool", "tpu-v5e-2x2"),
        ("l4x2x2", "There is no hardware l4x2x2", "l4x2*2"),
        (
            {"accelerator_type": "l4", "accelerator_count": 2, "tpu_topology": "2x2"},
            "chosen by count, not by topology",
            "l4x4",
        ),
        (
            {"accelerator_type": "tpu-v5e", "accelerator_count": 4, "tpu_topology": "2x4"},
            "has 8 chips, not 4",
            "tpu-v5e-2x4",
        ),
        # provisioning and its times
        ("t4x2+flex", "FLEX_START is not offered for t4, only for l4", "t4x2+spot"),
        ("gb200x4+flex", "FLEX_START is not offered for gb200", "gb200x4+spot"),
        ("cpu+flex", "FLEX_START is not offered for n1-standard-4", "cpu+spot"),
        ("h100x8+wait=1h", "requires FLEX_START", "h100x8+flex+wait=1h"),
        ("t4x1+wait=1h", "requires FLEX_START", "t4x1"),
        ("l4x1+flex+wait=400d", "cannot wait for 400d", "l4x1+flex+wait=365d"),
        ("l4x1+timeout=8d", "cannot run for 8d", "l4x1+timeout=7d"),
        ("l4x1+timeout=0", "cannot run for 0s", "l4x1"),
        ("l4x1+timeout=soon", "is not a duration", "l4x1"),
        # one kind of accelerator
        ("t4x2+v100x1", "t4 and v100 cannot be mixed", "t4x2"),
        ("t4x3+v100x1", "t4 and v100 cannot be mixed", "v100x1"),
        # disks, reservations, replicas
        ("cpu+disk=pd-balanced", "no boot disk pd-balanced", "cpu+disk=pd-ssd"),
        ("cpu+disk=pd-standrd:200", "no boot disk pd-standrd", "cpu+disk=pd-standard:200"),
        ("cpu+disk=50", "got 50 GB", "cpu+disk=100"),
        ("cpu+disk=70000", "got 70,000 GB", "cpu+disk=64000"),
        ("cpu+reservation=mine", "does not name a reservation", "cpu+reservation=any"),
        ("h100x8+flex+reservation=any", "FLEX_START does not use reservations", "h100x8+flex"),
        ("h100x8+flex+reservation=none", "FLEX_START does not use reservations", "h100x8+flex"),
        ("cpu*0", "got 0", "cpu"),
        ("cpu*9999", "between 1 and 1,000; got 9999", "cpu*1000"),
        # spelling
        ("", "No hardware is named", "cpu"),
        ("4xl4", "There is no hardware 4xl4", "l4x4"),
        ("cpux4", "There is no hardware cpux4", "cpu*4"),
        ("l4-8", "There is no hardware l4-8", "l4x8"),
        ("tpuv5e-2x4", "There is no hardware tpuv5e", "tpu-v5e-2x4"),
        ("v5e-2x4", "There is no hardware v5e-2x4", "tpu-v5e-2x4"),
        ("n1-standard-8*2", "n1-standard-8 is a machine type", "cpu@n1-standard-8*2"),
        ("a2-highgpu-4g", "a2-highgpu-4g is a machine type", "a100x4"),
        ("a100x8+spt", "no option +spt", "a100x8+spot"),
        ("l4x1@", "No machine type follows @", "l4x1"),
        ("cpu*2*3", "The number of replicas is given twice", "cpu*2"),
        ("cpu*two", "'two' is not a number of replicas", "cpu"),
        # what is valid of the rest is kept
        ("k80x16+spot", "NVIDIA K80 is retired", "l4x8*2+spot"),
        (
            "t4x3@n1-standard-96+disk=50+timeout=8d",
            "No machine supports 3 t4",
            "t4x4@n1-standard-96+disk=100+timeout=7d",
        ),
        ("t4x2@n1-standrd-8+spt", "no option +spt", "t4x2@n1-standard-8+spot"),
        ("l4x2+wait=2h*9999", "between 1 and 1,000", "l4x2*1000+flex+wait=2h"),
        ("quantum", "There is no hardware quantum", None),
    ],
)
def test_refusals(choice, reason, nearest):
    error = refusal(choice)
    assert reason in error.message
    assert error.nearest == nearest
    assert error.allowed
    assert error.fix
    if nearest is not None:
        assert str(parse(nearest)) == nearest
        assert nearest in error.fix
