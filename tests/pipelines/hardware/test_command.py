"""The output and the speed of `slipway hardware`."""

from __future__ import annotations

import io
import resource
import subprocess
import sys

import pytest

from slipway.core.errors import UserError
from slipway.pipelines.hardware import command
from slipway.pipelines.terminal import Terminal

HEAVY = ("tensorflow", "keras", "kfp", "google.cloud.", "jax", "torch", "numpy", "pydantic")


@pytest.fixture
def printed():
    def printed(show, *arguments, **options) -> str:
        console = Terminal(file=io.StringIO(), width=120)
        show(console, *arguments, **options)
        return console.file.getvalue()

    return printed


def test_the_list_names_every_kind(printed):
    text = printed(command.show_list)
    for name in ("cpu", "t4", "rtx-pro-6000", "h100-mega", "tpu-v5e", "tpu7x"):
        assert f"\n{name} " in text
    assert "retired, now t4" in text
    assert max(len(line) for line in text.splitlines()) <= 120


def names(**filters) -> set[str]:
    return {kind["accelerator"] for kind in command.listing(**filters)}


def test_filters():
    assert names() > {"cpu", "k80", "tpu-v4", "l4"}
    assert names(engine="tensorflow") >= {"cpu", "l4", "tpu-v5e"}
    assert not names(engine="tensorflow") & {"tpu-v6e", "tpu7x", "k80"}
    assert names(region="us-west4") == {"cpu", "t4", "a100", "h100", "h100-mega", "tpu-v5e"}
    assert names(accelerator="NVIDIA_L4") == {"l4"}
    [cpu] = command.listing(accelerator="cpu")
    assert len(cpu["offers"]) == 80


def test_one_kind_lists_its_machines(printed):
    text = printed(command.show_list, accelerator="l4")
    assert "g2-standard-96" in text
    assert "n1-standard-4" not in text
    assert "slipway hardware 'l4x1@g2-standard-4'" in text


@pytest.mark.parametrize(
    ("filters", "setting", "nearest"),
    [
        ({"region": "us-centrall1"}, "--region", "us-central1"),
        ({"accelerator": "l40"}, "--accelerator", "l4"),
        ({"accelerator": "k80"}, "--accelerator", None),
        ({"accelerator": "tpu-v6e", "engine": "tensorflow"}, "--accelerator", "tpu-v5e"),
        ({"engine": "tensorfow"}, "--engine", "tensorflow"),
    ],
)
def test_filters_that_are_refused(filters, setting, nearest):
    with pytest.raises(UserError) as caught:
        command.listing(**filters)
    assert (caught.value.setting, caught.value.nearest) == (setting, nearest)


def test_the_choice_of_a_tpu_shows_its_runtime_version_in_the_tpu_api(printed):
    assert "v2-alpha-tpuv5-lite with --target tpu" in printed(command.show_choice, "tpu-v5e-2x4")
    assert command.describe("tpu-v5e-2x4")["runtime_version"] == "v2-alpha-tpuv5-lite"
    assert "runtime version" not in printed(command.show_choice, "l4x4")


def test_a_choice_is_shown_in_full(printed):
    text = printed(command.show_choice, "l4x4*2", region="us-central1")
    for words in (
        "2 x g2-standard-48: 48 vCPUs, 192 GB each",
        "4 NVIDIA L4 per replica, 8 chips in total, 24 GB per chip",
        '1: {"replica_count": 1',
        "8 of aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus",
        "96 of aiplatform.googleapis.com/custom_model_training_g2_cpus",
        "a new project has 0 of NVIDIA L4 in us-central1",
        "standard, spot, flex",
        "tensorflow, jax, pytorch",
    ):
        assert words in " ".join(text.split())


def test_a_choice_as_data():
    facts = command.describe("tpu-v3-8")
    assert (facts["chips"], facts["chip_memory_gb"], facts["device_memory_gb"]) == (4, 32, 16)
    assert facts["accelerators_per_replica"] == 8
    assert facts["worker_pools"][0]["machine_spec"]["machine_type"] == "cloud-tpu"
    assert facts["regions"] == ["europe-west4", "us-central1"]
    assert "general knowledge" in facts["certainty"]
    assert command.describe("tpu-v4-2x2x1")["vcpus"] is None
    assert "only as SPOT or FLEX_START: this may wait for machines in vain" in command.describe("h100x1")["note"]
    assert command.describe("h100x1+spot")["note"] is None


def test_advice_where_the_machine_is_small():
    assert "4 vCPUs may be too few to feed 4 accelerators; @n1-highcpu-16 has 16" in command.describe("t4x4")["advice"]
    assert command.describe("t4x4@n1-standard-16")["advice"] is None
    assert command.describe("l4x4")["advice"] is None


def test_what_a_platform_refuses_is_said_in_place_of_what_it_would_be_sent(printed):
    text = printed(command.show_choice, "tpu-v5e-16x16+spot")
    assert "with --target vertex: Vertex AI has no Spot for multi-host TPUs" in text
    assert "Closest: tpu-v5e-16x16" in text
    assert "worker pools" not in text
    assert "strategy" not in text
    for other in ("tpu-v5e-16x16", "tpu-v5e-2x2+spot", "l4x4*2+spot"):
        assert command.describe(other)["refused"] == {}
    v4 = command.describe("tpu-v4-2x2x1")["refused"]
    assert v4["vertex"].startswith("TPU v4 is not offered for training on Vertex AI")


def test_a_choice_is_refused_with_its_region_and_engine():
    with pytest.raises(UserError, match="no tpu-v5e for training in europe-west4"):
        command.describe("tpu-v5e-2x4", region="europe-west4")
    with pytest.raises(UserError, match="tensorflow does not run"):
        command.describe("tpu-v6e-2x4", engine="tensorflow")


def test_the_list_as_data():
    kinds = command.listing()
    machines = {offer["machine"] for kind in kinds for offer in kind["offers"]}
    assert {"n1-standard-4", "a3-ultragpu-8g", "tpu7x-standard-4t"} <= machines
    assert all(offer["certainty"] and offer["sources"] for kind in kinds for offer in kind["offers"])


@pytest.mark.parametrize(
    "do",
    [
        "command.show_list(Terminal())",
        "command.show_choice(Terminal(), 'l4x4*2')",
        "command.show_choice(Terminal(), 'p100x4@n1-standard-8+flex')",
    ],
)
def test_it_is_fast_and_imports_nothing_heavy(do):
    """With typer, the command line must take less than 0.7 seconds."""
    program = f"""
import sys
from slipway.pipelines.terminal import Terminal
from slipway.pipelines.hardware import command
from slipway.core.errors import UserError
try:
    {do}
except UserError as error:
    print(error)
print([name for name in sys.modules if name.startswith({HEAVY!r})])
"""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.stdout.splitlines()[-1] == "[]"
    assert min(seconds) < 0.7


@pytest.mark.parametrize(
    ("choice", "memory"), [("tpu-v3-8", "32 GB per chip (16 GB per core)"), ("l4x1", "24 GB per chip")]
)
def test_the_memory_of_a_core_is_shown_where_a_chip_has_several(printed, choice, memory):
    (line,) = (line for line in printed(command.show_choice, choice).splitlines() if line.startswith("accelerators"))
    assert line.rstrip().endswith(memory)
