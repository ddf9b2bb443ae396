"""Rules that depend on region, bucket, engine and image."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from slipway.core.errors import UserError
from slipway.pipelines.hardware import parse, validate_for
from slipway.pipelines.hardware.catalogue import load
from slipway.pipelines.hardware.placement import IMAGE_PYTHON, check_python

TODAY = date(2026, 11, 20)
IMAGES = "us-docker.pkg.dev/vertex-ai/training"


def test_a_tpu_that_only_target_tpu_has_is_refused_on_vertex_ai():
    with pytest.raises(UserError, match="TPU v5p is not offered for training on Vertex AI") as error:
        validate_for(parse("tpu-v5p-2x2x2+spot"), region="us-central1")
    assert error.value.nearest.startswith("tpu-v5e-")
    assert "--target tpu" in error.value.fix


@pytest.mark.parametrize("choice", ["tpu-v3-32+spot", "tpu-v5e-4x4+spot"])
def test_spot_slices_of_several_hosts_are_refused_on_vertex_ai_alone(choice):
    with pytest.raises(UserError, match=r"no Spot for multi-host TPUs; .* has 4 machines") as error:
        validate_for(parse(choice), region="us-central1")
    assert error.value.nearest == choice.removesuffix("+spot")
    assert "--target tpu" in error.value.fix


@pytest.mark.parametrize(
    ("choice", "circumstances", "reason", "nearest", "fix"),
    [
        ("tpu-v3-8", {"region": "us-east1"}, "no tpu-v3 for", "us-central1", "'tpu-v5e-2x2' in us-east1"),
        ("tpu-v3-32", {"region": "us-central1"}, "no tpu-v3 slices", "europe-west4", "'tpu-v2-32' in us-central1"),
        ("tpu-v5e-4x4", {"region": "europe-west4"}, "no tpu-v5e slices", "us-west4", "'tpu-v6e-4x4' in europe-west4"),
        ("l4x4*2", {"region": "asia-east1"}, "no l4 for", "asia-southeast1", "'t4x4*2' in asia-east1"),
        ("h100x8", {"region": "europe-west9"}, "no h100 for", "europe-west4", "vertex.region=europe-west4"),
        ("l4x1", {"region": "africa-south1"}, "no l4 for", "us-central1", "vertex.region=us-central1"),
        ("t4x2", {"region": "us-central1-a"}, "is a zone", "us-central1", "vertex.region=us-central1"),
        ("cpu", {"region": "global"}, "no region global", None, "vertex.region=us-central1"),
        (
            "tpu-v5e-2x4",  # v6e is nearer, but does not run the engine
            {"region": "europe-west4", "engine": "tensorflow"},
            "no tpu-v5e for",
            "us-west4",
            "'tpu-v3-8' in europe-west4",
        ),
    ],
)
def test_regions_that_are_refused(choice, circumstances, reason, nearest, fix):
    check_refusal(choice, circumstances, "vertex.region", reason, nearest, fix)


@pytest.mark.parametrize(
    ("choice", "circumstances", "reason", "nearest", "fix"),
    [
        ("tpu-v6e-4x4", {"engine": "tensorflow"}, "does not run on TPU v6e", "tpu-v5e-2x4", "train.engine=jax"),
        ("tpu7x-2x2x1", {"engine": "pytorch"}, "pytorch does not run on TPU7x", "rtx-pro-6000x4", "train.engine=jax"),
        ("tpu-v5e-4x4", {"engine": "tensorflow"}, "slices of one machine; tpu-v5e-4x4 has 4", "tpu-v5e-2x4", "=jax"),
        ("tpu-v5e-16x16", {"engine": "tensorflow"}, "one machine; tpu-v5e-16x16 has 64", "tpu-v5e-2x4", "=jax"),
        ("tpu-v3-32", {"engine": "tensorflow"}, "slices of one machine; tpu-v3-32 has 4", "tpu-v3-8", "=jax"),
        ("tpu-v5e-1x1", {"engine": "pytorch"}, "pytorch does not train on TPUs", "t4x1", "train.engine=jax"),
        ("tpu-v5e-2x2", {"engine": "pytorch", "own_program": True}, "does not train on TPUs", "t4x4", "=jax"),
        ("tpu-v6e-2x2", {"engine": "pytorch", "image": "us-docker.pkg.dev/p/r/own:1"}, "on TPUs", "l4x4", "=jax"),
        ("v100x2", {"engine": "pytorch"}, "needs compute capability 7.5 or later; NVIDIA V100", "t4x2", "vertex.image"),
        ("p4x1*3", {"engine": "jax"}, "needs compute capability 7.5 or later; NVIDIA P4 has 6.1", "t4x1*3", "'t4x1*3'"),
        ("v100x8", {"engine": "tensorflow"}, "NVIDIA V100 has 7.0", "l4x8", "vertex.image=IMAGE"),
        ("cpu", {"engine": "tensorfow"}, "no engine 'tensorfow'", "tensorflow", "train.engine=tensorflow"),
    ],
)
def test_engines_that_are_refused(choice, circumstances, reason, nearest, fix):
    check_refusal(choice, circumstances, "train.engine", reason, nearest, fix)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (f"{IMAGES}/tf-gpu.2-17.py310:latest", "not been available since 2026-07-11"),
        ("europe-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-4.py310", "not been available since 2026-07-24"),
        ("gcr.io/cloud-ml-public/training/pytorch-xla.1-7", "shut down on 2025-01-31"),
    ],
)
def test_images_that_are_refused(image, reason):
    check_refusal("cpu", {"image": image, "today": TODAY}, "vertex.image", reason, None, "vertex.image=")


def test_a_reservation_elsewhere_is_refused():
    choice = "l4x1+reservation=projects/p/zones/us-east1-b/reservations/r"
    reason = "is in us-east1-b, the job in us-central1"
    check_refusal(choice, {"region": "us-central1"}, "hardware", reason, "us-east1", "vertex.region=us-east1")


def check_refusal(choice, circumstances, setting, reason, nearest, fix):
    with pytest.raises(UserError) as caught:
        validate_for(parse(choice), **circumstances)
    error = caught.value
    assert (error.setting, error.nearest) == (setting, nearest)
    assert reason in error.message
    assert fix in error.fix
    assert error.allowed


@pytest.mark.parametrize(
    ("choice", "circumstances"),
    [
        ("tpu-v3-8", {"region": "us-central1", "engine": "tensorflow"}),
        ("tpu-v6e-4x4", {"region": "us-central1", "engine": "jax"}),
        ("l4x4", {"region": "us-east4", "engine": "pytorch"}),
        ("cpu*4", {"region": "africa-south1", "engine": "tensorflow"}),  # no table says which regions have no CPUs
        ("l4x1+reservation=projects/p/zones/us-east1-b/reservations/r", {"region": "us-east1"}),
        ("cpu", {"image": f"{IMAGES}/ray-cpu.2-47.py311:latest", "today": TODAY}),
        ("cpu", {"image": f"{IMAGES}/tf-gpu.2-17.py310:latest", "today": date(2026, 7, 11)}),
        ("cpu", {"image": "us-docker.pkg.dev/project/repository/trainer@sha256:0"}),
        ("cpu", {}),
    ],
)
def test_accepted(choice, circumstances):
    validate_for(parse(choice), **circumstances)


def test_the_suggested_region_offers_the_hardware():
    for choice in ("l4x1", "tpu-v5e-2x2", "gb200x4", "tpu-v3-32"):
        hardware = parse(choice)
        for region in ("europe-west9", "us-west8", "me-central1", "asia-east2", "northamerica-south1"):
            with pytest.raises(UserError) as caught:
                validate_for(hardware, region=region)
            validate_for(hardware, region=caught.value.nearest)


def test_slipways_images_have_the_python_that_accelerators_need():
    check_python(parse("tpu-v6e-2x2"), "jax")
    check_python(parse("cpu"))
    with pytest.raises(UserError, match=r"needs Python 3\.12 or later; Slipway.s images have 3\.11") as caught:
        check_python(parse("tpu7x-2x2x1"), "jax")
    assert caught.value.nearest == "tpu-v6e-2x2"
    assert "vertex.image" in (caught.value.fix or "")


def test_the_images_python_is_the_dockerfiles():
    base = next(line for line in Path("containers/Dockerfile").read_text().splitlines() if line.startswith("ARG BASE="))
    assert f"python:{IMAGE_PYTHON}-" in base


def test_the_build_of_ones_own_image_and_ones_own_program_have_other_limits():
    """The service runs the container on every host; what a program of the user's makes of that is its own matter."""
    validate_for(parse("v100x2"), engine="pytorch", image="europe-west4-docker.pkg.dev/p/r/own:1")
    for choice in ("tpu-v5e-4x4", "tpu-v5e-2x2"):
        validate_for(parse(choice), engine="tensorflow", own_program=True)
        validate_for(parse(choice), engine="pytorch", own_program=True, image="europe-west4-docker.pkg.dev/p/r/own:1")
    with pytest.raises(UserError, match="does not run on TPU v6e"):
        validate_for(parse("tpu-v6e-4x4"), engine="tensorflow", own_program=True)


def test_every_gpu_has_a_compute_capability():
    for row in load().accelerators:
        assert (row.compute_capability is None) == (row.is_tpu or row.status == "here")
    assert load().accelerator_index["t4"].supported_engines == ("tensorflow", "jax", "pytorch")
    assert load().accelerator_index["v100"].supported_engines == ()
