"""The image of each accelerator and engine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.components.build_image.context import beam_context
from slipway.components.build_image.images import BEAM_BOOT, BEAM_LABEL, CODE, beam_version, image_kind
from slipway.components.build_image.settings import ROOT_USER
from slipway.core.errors import UserError

SOURCE = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("accelerator", "engine", "name"),
    [
        ("cpu", "tensorflow", "trainer-cpu"),
        ("cpu", "jax", "trainer-cpu-jax"),
        ("tpu", "jax", "trainer-tpu-jax"),
        ("gpu", "pytorch", "trainer-gpu-pytorch"),
        ("cpu", "pytorch", "trainer-gpu-pytorch"),
    ],
)
def test_each_accelerator_and_engine_has_an_image(accelerator: str, engine: str, name: str) -> None:
    kind = image_kind(SOURCE, "trainer", accelerator, engine, ROOT_USER)
    assert kind.name == name
    assert (SOURCE / kind.requirements).is_file()


def test_an_engine_without_an_image_for_the_accelerator_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        image_kind(SOURCE, "trainer", "tpu", "pytorch")
    assert "requirements/trainer-tpu-pytorch.in" in (caught.value.fix or "")


def test_tpus_need_root() -> None:
    with pytest.raises(UserError, match="only root can open the chips") as caught:
        image_kind(SOURCE, "trainer", "tpu", "jax", "65534:65534")
    assert caught.value.fix == "--set vertex.build.run_as=0:0"


def test_a_custom_program_finds_its_launcher_and_functions_in_the_trainers_image(tmp_path: Path) -> None:
    for name in CODE["trainer"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (shutil.copytree if (SOURCE / name).is_dir() else shutil.copy)(SOURCE / name, tmp_path / name)
    code = "from slipway import training; from slipway.trainer import launch; print(training.__file__)"
    output = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(output.stdout.strip()).is_relative_to(tmp_path)


def test_the_image_of_beams_workers_is_the_steps_with_boot_of_the_same_beam() -> None:
    context = beam_context(SOURCE, "e.g/steps-cpu:tag")
    version = beam_version(SOURCE)
    assert f"\napache-beam=={version} " in (SOURCE / "requirements/steps-cpu.txt").read_text()
    sdk = f"docker.io/apache/beam_python3.11_sdk:{version}"
    assert context.arguments == {"BASE": "e.g/steps-cpu:tag", "BEAM_SDK": sdk, "BEAM_VERSION": version}
    assert context.files.keys() == {"Dockerfile"}
    dockerfile = context.files["Dockerfile"].source.read_text()
    assert f'\nENTRYPOINT ["{BEAM_BOOT}"]\n' in dockerfile
    assert f"\nLABEL {BEAM_LABEL}=${{BEAM_VERSION}}\n" in dockerfile
    # Other steps, another image.
    assert beam_context(SOURCE, "e.g/steps-cpu:other").tag != context.tag
