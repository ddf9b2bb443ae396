"""Jobs that AI Platform Training would have rejected."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import yaml

from slipway.core.errors import UserError
from slipway.pipelines.hardware import parse
from slipway.pipelines.migrate import migrate

COMPATIBILITY = Path(__file__).parents[1] / "gpu_compatibility.csv"


def compatibility():
    """Return (machine, GPU, accepted counts) of the service's published table."""
    with COMPATIBILITY.open() as file:
        for row in csv.DictReader(file):
            machine = row.pop("machine")
            for gpu, counts in row.items():
                yield machine, gpu, {int(count) for count in counts.split()}


def job(**fields) -> str:
    return yaml.safe_dump({"trainingInput": {"scaleTier": "CUSTOM", **fields}})


def with_gpus(gpu: str, count: int) -> dict:
    return {"acceleratorConfig": {"type": gpu, "count": count}}


def refusal(text: str) -> UserError:
    with pytest.raises(UserError, match="AI Platform Training would have rejected this job") as caught:
        migrate(text, source="config.yaml")
    return caught.value


@pytest.mark.parametrize(("machine", "gpu", "allowed"), compatibility())
def test_compatibility_table(machine, gpu, allowed):
    """Counts in the published table migrate, to the same machine where the GPU still exists; all others are refused."""
    for count in (1, 2, 3, 4, 8, 16):
        text = job(masterType=machine, masterConfig=with_gpus(f"NVIDIA_TESLA_{gpu.upper()}", count))
        if count not in allowed:
            error = refusal(text)
            assert error.setting.startswith("trainingInput.masterConfig.acceleratorConfig.")
            assert error.nearest in ({str(count) for count in allowed} or {None})
            continue
        hardware = parse(migrate(text, source="config.yaml").configuration["hardware"])
        assert hardware.count == count
        assert hardware.machine == machine
        assert hardware.accelerator == (gpu if gpu not in ("k80", "p100") else "v100" if count == 8 else "t4")


TPU = {"masterType": "n1-highcpu-16", "workerType": "cloud_tpu", "workerCount": 1}
T4 = with_gpus("NVIDIA_TESLA_T4", 1)


@pytest.mark.parametrize(
    ("fields", "setting", "reason"),
    [
        (
            {"masterType": "n1-standard-8", "masterConfig": with_gpus("NVIDIA_TESLA_T4", 3)},
            "masterConfig.acceleratorConfig.count",
            "supported 1, 2 or 4 t4, not 3",
        ),
        (
            {"masterType": "n1-standard-32", "masterConfig": with_gpus("NVIDIA_TESLA_V100", 2)},
            "masterConfig.acceleratorConfig.count",
            "32 vCPUs and 120 GB, and one V100 supported at most 12 vCPUs and 76 GB",
        ),
        (
            {"masterType": "n1-highmem-64", "masterConfig": with_gpus("NVIDIA_TESLA_P100", 4)},
            "masterConfig.acceleratorConfig.type",
            "416 GB, and four P100s supported at most 64 vCPUs and 208 GB",
        ),
        (
            {"masterType": "n1-standard-8", "masterConfig": with_gpus("NVIDIA_L4", 1)},
            "masterConfig.acceleratorConfig.type",
            "GPU NVIDIA_L4 did not exist",
        ),
        (
            {"masterType": "n1-standard-8", "masterConfig": {"acceleratorConfig": {"count": 1}}},
            "masterConfig.acceleratorConfig.type",
            "a type and a count",
        ),
        ({"masterType": "standard_gpu", "masterConfig": T4}, "masterType", "did not support acceleratorConfig"),
        ({"masterType": "n1-standart-8"}, "masterType", "machine type n1-standart-8 did not exist"),
        ({}, "masterType", "scaleTier CUSTOM required masterType"),
        ({"masterType": "standard", "workerCount": 2}, "workerType", "2 replicas required a machine type"),
        (
            {"masterType": "standard", "workerType": "n1-standard-4", "workerCount": 1},
            "workerType",
            "could not be mixed, and masterType is a legacy machine type",
        ),
        (
            {"masterType": "n1-standard-4", "parameterServerType": "large_model", "parameterServerCount": 1},
            "parameterServerType",
            "could not be mixed, and masterType is a Compute Engine machine type",
        ),
        # TPUs
        (TPU | {"workerCount": 2}, "workerCount", "exactly one worker"),
        (TPU | {"workerConfig": with_gpus("TPU_V2", 4)}, "workerConfig.acceleratorConfig.count", "exactly 8 cores"),
        (TPU | {"workerConfig": with_gpus("TPU_V3", 32)}, "workerConfig.acceleratorConfig.count", "exactly 8 cores"),
        (
            TPU | {"parameterServerCount": 1, "parameterServerType": "n1-highmem-8"},
            "parameterServerCount",
            "no parameter servers",
        ),
        (TPU | {"workerConfig": T4}, "workerConfig.acceleratorConfig.type", "a cloud_tpu worker required a TPU"),
        (TPU | {"workerConfig": {"imageUri": "gcr.io/p/i"}}, "workerConfig.tpuTfVersion", "required tpuTfVersion"),
        ({"masterType": "cloud_tpu"}, "masterType", "required a worker of type cloud_tpu"),
        (
            {"masterType": "n1-standard-4", "masterConfig": with_gpus("TPU_V2", 8)},
            "masterType",
            "a worker of type cloud_tpu",
        ),
        # regions
        (TPU | {"region": "us-east1"}, "region", "v2 TPUs were not available in us-east1"),
        (
            TPU | {"region": "asia-east1", "workerConfig": with_gpus("TPU_V3", 8)},
            "region",
            "not available in asia-east1",
        ),
        ({"masterType": "standard_gpu", "region": "europe-west3"}, "region", "GPUs were not available in europe-west3"),
        # image and arguments
        (
            {"masterType": "standard", "masterConfig": {"imageUri": "gcr.io/p/i"}, "runtimeVersion": "2.4"},
            "runtimeVersion",
            "a custom container and runtimeVersion could not be combined",
        ),
        (
            {"masterType": "standard", "masterConfig": {"containerArgs": ["--a"]}, "args": ["--b"]},
            "masterConfig.containerArgs",
            "args and containerArgs could not be combined",
        ),
        # scale tiers
        ({"scaleTier": "BASIC_GPUS"}, "scaleTier", "scale tier BASIC_GPUS did not exist"),
        ({"scaleTier": "BASIC", "masterType": "standard"}, "masterType", "machine types required scaleTier CUSTOM"),
        ({"scaleTier": "BASIC_TPU", "region": "europe-west1"}, "region", "v2 TPUs were not available in europe-west1"),
    ],
)
def test_refusals(fields, setting, reason):
    error = refusal(job(**fields))
    assert error.setting == f"trainingInput.{setting}"
    assert reason in error.message
    assert error.allowed
    assert error.fix


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("trainingInput: {masterTyp: standard}", "masterTyp was not a field of trainingInput"),
        ("trainingInput: {masterConfig: {image: x}}", "image was not a field of trainingInput.masterConfig"),
        ("trainingInput: {workerCount: many}", "workerCount is not a whole number"),
        ("trainingInput: {workerCount: -1}", "workerCount is not a whole number"),
        ("trainingInput: {args: --epochs}", "args is not a list of strings"),
        ("trainingInput: {region: [a]}", "region is not text"),
        ("trainingInput: [a]", "trainingInput is not a mapping"),
        ("predictionInput: {}", "predictionInput was not a field"),
        ("{", "line 1 is not valid JSON"),
        ("a: [", "is not YAML"),
        ("just text", "is not a mapping"),
        ("", "is not a mapping"),
    ],
)
def test_unreadable_jobs(text, words):
    with pytest.raises(UserError) as caught:
        migrate(text, source="config.yaml")
    assert words in caught.value.message
