"""What the compiler of TPUs is asked, and how its answer reads."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.durations import between
from slipway.core.errors import UserError
from slipway.pipelines.hardware import compiled
from slipway.pipelines.hardware.rules import parse
from slipway.trainer.config import JobConfig, ModelSettings, TrainSettings
from slipway.trainer.engines.ahead import Answer
from slipway.trainer.engines.jax.ahead import sentence

# Of a step in which the arithmetic takes longest.
COSTS: dict[str, float] = {"flops": 1e12, "traffic_bytes": 1e8, "kernels": 100}
REFUSAL = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (29.06G) exceeds "
    "available HBM (15.75G). See https://example.com"
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    """A job of JAX on the digits, with batches of 64."""
    data = prepare(DataSettings(source="digits", store=str(tmp_path_factory.mktemp("digits"))), 1).folder
    settings = TrainSettings(engine="jax", batch_size=64, steps=10_000)
    return compiled.job_of(ModelSettings(builder="own:build"), settings, data)


@pytest.mark.parametrize(
    ("choice", "name", "bounds"),
    [
        ("tpu-v2-8", "v2:2x2", [2, 2, 1]),
        ("tpu-v3-32", "v3:4x4", [2, 2, 1]),
        ("tpu-v3-64", "v3:4x8", [2, 2, 1]),
        ("tpu-v5e-1x1", "v5e:1x1", [1, 1, 1]),
        ("tpu-v5e-2x4@ct5lp-hightpu-4t", "v5e:2x4", [2, 2, 1]),
        ("tpu-v5e-2x4@ct5lp-hightpu-8t", "v5e:2x4", [2, 4, 1]),
        ("tpu-v6e-16x16", "v6e:16x16", [2, 2, 1]),
        ("tpu-v5p-2x2x4", "v5p:2x2x4", [2, 2, 1]),
        ("tpu7x-4x4x4", "tpu7x:4x4x4", [2, 2, 1]),
    ],
)
def test_the_compiler_knows_a_choice_as(choice: str, name: str, bounds: list[int]) -> None:
    asked = compiled.topology(parse(choice))
    assert (asked.name, asked.options) == (name, {"chips_per_host_bounds": tuple(bounds)})


def test_the_cores_of_a_chip_of_v4_are_one_device() -> None:
    assert compiled.topology(parse("tpu-v4-2x2x1")).options["chip_config_name"] == "megacore"


def test_what_cannot_be_compiled_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled.missing(parse("cpu"), "jax") == "this is for accelerators"
    assert compiled.missing(parse("p4x1"), "jax") == "XLA's description of NVIDIA P4 is not known"
    assert (compiled.missing(parse("l4x1"), "tensorflow") or "").startswith("tensorflow has kernels of its own on GPUs")
    assert compiled.missing(parse("tpu-v3-96"), "jax") == "the arrangement of 48 chips is not known"
    monkeypatch.setattr(compiled, "is_installed", lambda name: name == "jax")
    assert compiled.missing(parse("tpu-v3-8"), "jax") == "without libtpu: pip install 'slipway-ml[jax,compile-tpu]'"
    lacking = "without jax_cuda12_plugin and jax_plugins: pip install 'slipway-ml[jax,compile-gpu]'"
    assert compiled.missing(parse("l4x1"), "jax") == lacking


def test_gpus_are_described_to_xla_with_their_own_values() -> None:
    asked = compiled.topology(parse("h200x8*2"))
    assert (asked.name, asked.platform, asked.options["topology"]) == ("h200", "cuda", "1x2x8")
    described = " ".join(str(asked.options["target_config"]).split())
    assert "core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98" in described
    assert "memory_bandwidth: 4800000000000 l2_cache_size: 52428800" in described
    assert "cuda_compute_capability { major: 9 minor: 0 }" in described


def test_a_step_that_a_gpu_has_too_little_memory_for_is_an_estimate(job: JobConfig) -> None:
    found = Answer(devices=1, kind="Tesla T4", fits=False, peak_bytes=15 * 2**30, largest_batch=48, **COSTS)
    memory, batch, time = compiled.sentences(parse("t4x1"), job, found, steps=1000)
    assert memory == "compiled for 1 NVIDIA T4: 15.00 of 16 GiB per GPU"
    assert batch.endswith("in 75% of a GPU, as JAX takes no more: the largest batch is about 48")
    estimated = compiled.estimated(parse("t4x1"), job, found)
    assert estimated is not None
    whole = estimated.step.times(1000)
    assert time == (
        f"{between(estimated.step.low, estimated.step.high)} a step, limited by compute: 1,000 steps in "
        f"{between(whole.low, whole.high)}, without input and checkpoints"
    )
    small = found.model_copy(update={"flops": 1e6, "traffic_bytes": 1e6})
    assert compiled.sentences(parse("t4x1"), job, small)[-1].endswith(" a step, limited by kernel launches")


def test_a_step_of_pytorch_is_traced_for_gpus(job: JobConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    of_pytorch = job.model_copy(update={"train": TrainSettings(engine="pytorch", batch_size=64, epochs=1)})
    answer = Answer(devices=1, kind="Tesla T4", fits=False, peak_bytes=15 * 2**30, largest_batch=48, **COSTS)
    assert compiled.sentences(parse("t4x1"), of_pytorch, answer)[:2] == [
        "traced for 1 NVIDIA T4: 15.00 of 16 GiB per GPU, without CUDA's context and workspaces",
        "the step does not fit by this estimate in 90% of a GPU, as CUDA needs the rest: the largest batch is about 48",
    ]
    assert compiled.missing(parse("gpux1"), "pytorch") == "the memory of a GPU of any kind is not known"
    monkeypatch.setattr(compiled, "is_installed", lambda _name: False)
    assert compiled.missing(parse("t4x1"), "pytorch") == "without torch: pip install 'slipway-ml[pytorch]'"
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nDataDependentOutputException: aten.item\n")
    monkeypatch.setattr(compiled.subprocess, "run", lambda *_, **__: failed)
    unknown = compiled.compiled(parse("t4x1"), of_pytorch)
    assert compiled.sentences(parse("t4x1"), of_pytorch, unknown) == [
        "the step was not traced: DataDependentOutputException: aten.item"
    ]


def test_the_answer_as_sentences(job: JobConfig) -> None:
    found = Answer(devices=8, kind="TPU v3", fits=True, peak_bytes=3 * 2**30, largest_batch=512, **COSTS)
    memory, batch, time = compiled.sentences(parse("tpu-v3-8"), job, found, steps=10_000)
    assert memory == "compiled for TPU v3 with 4 chips: 3.00 of 16 GiB per core"
    assert batch == "largest batch about 512; 64 is set"
    assert re.fullmatch(r".* a step, limited by compute: 10,000 steps in .*, without input and checkpoints", time)
    of_tensorflow = job.model_copy(update={"train": TrainSettings(batch_size=64, epochs=1)})
    found = Answer(devices=1, kind="TPU v5 lite", fits=True, peak_bytes=3 * 2**20, largest_batch=1438)
    assert compiled.sentences(parse("tpu-v5e-1x1"), of_tensorflow, found) == [
        "compiled for TPU v5e with 1 chip: 3.0 MiB of 16 GiB per chip",
        "every batch of the training split fits; 64 is set",
        "compiled through JAX; tensorflow compiles the same network by itself",
    ]


@pytest.mark.parametrize(
    ("largest", "allowed", "fix"),
    [
        (
            24,
            "about 24 at most",
            "--set train.batch_size=24, or --set train.accumulation=4, which keeps the batch, or --hardware 'NEAR'",
        ),
        (None, "no batch fits", "--hardware 'NEAR'"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_with_what_does(
    job: JobConfig, monkeypatch: pytest.MonkeyPatch, largest: int | None, allowed: str, fix: str
) -> None:
    refusal = sentence(REFUSAL)
    answer = Answer(devices=8, kind="TPU v5 lite", fits=False, refusal=refusal, largest_batch=largest)
    ended = subprocess.CompletedProcess([], 0, f"more output\n{answer.model_dump_json()}\n", "")
    monkeypatch.setattr(compiled.subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(UserError, match="does not fit on TPU v5e with 8 chips: Ran out of memory on HBM") as caught:
        compiled.compiled(parse("tpu-v5e-2x4"), job)
    assert refusal.endswith("exceeds available HBM (15.75G)")
    fix = fix.replace("NEAR", "tpu-v6e-2x4")  # 32 GiB a chip, of which the step needs 29.06
    assert (caught.value.setting, caught.value.allowed, caught.value.fix) == ("train.batch_size", allowed, fix)


@pytest.mark.parametrize(
    ("refusal", "near"),
    [
        ("Ran out of memory in memory space hbm. Used 28.25G of 15.75G hbm", "tpu-v6e-2x4"),
        ("Ran out of memory in memory space hbm. Used 31.50G of 15.75G hbm", "tpu7x-"),
        ("Ran out of memory in memory space hbm. Used 900.50G of 15.75G hbm", None),
        ("Ran out of memory.", None),
    ],
)
def test_the_nearest_hardware_that_fits_is_named(job: JobConfig, refusal: str, near: str | None) -> None:
    answer = Answer(devices=8, kind="TPU v5 lite", fits=False, refusal=refusal)
    found = compiled.fixes(parse("tpu-v5e-2x4"), job, answer)
    if near is None:
        assert found == "a smaller model, or hardware with more memory: slipway hardware"
    else:
        assert found.startswith(f"--hardware '{near}")


def test_without_larger_hardware_the_settings_are_named(job: JobConfig) -> None:
    answer = Answer(devices=8, kind="TPU v5 lite", fits=False, refusal="Used 900.5G of 15.75G hbm", largest_batch=24)
    found = compiled.fixes(parse("tpu-v5e-2x4"), job, answer)
    assert found == "--set train.batch_size=24, or --set train.accumulation=4, which keeps the batch"


def test_settings_are_named_with_the_memory_that_a_step_takes_with_them(job: JobConfig) -> None:
    savings = {"train.remat=true": 3 * 2**29, "train.sharding=fsdp": 2**30}
    answer = Answer(devices=8, kind="TPU v5 lite", fits=False, refusal="Ran out of memory.", savings=savings)
    found = compiled.fixes(parse("tpu-v5e-2x4"), job, answer)
    assert found == (
        "--set train.sharding=fsdp, which takes 1.00 GiB per device, "
        "or --set train.remat=true, which takes 1.50 GiB per device"
    )


def test_a_gpu_with_more_memory_is_named(job: JobConfig) -> None:
    answer = Answer(devices=1, kind="Tesla T4", fits=False, peak_bytes=15 * 2**30)
    found = compiled.fixes(parse("t4x1"), job, answer)
    assert found == "--hardware 'l4x1'", "15 GiB are 75 % of 20, and an L4 has 24"


def test_a_network_that_jax_cannot_build_is_named(job: JobConfig) -> None:
    with pytest.raises(UserError, match="could not be compiled: ") as caught:
        compiled.compiled(parse("tpu-v5e-2x4"), job)
    assert json.dumps(caught.value.as_dict()["value"]) == '"own:build"'


def test_a_compiler_that_was_killed_is_not_explained_by_its_last_warning(
    job: JobConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.CompletedProcess([], -9, "", "Could not find cuda drivers on your machine")
    monkeypatch.setattr(compiled.subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(UserError, match="could not be compiled: SIGKILL ended it"):
        compiled.compiled(parse("tpu-v5e-2x4"), job)
