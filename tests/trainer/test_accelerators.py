"""Runs that were planned for accelerators never train on CPUs: the trainer, custom programs and commands refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import job
from tests.trainer.driver import REFUSAL_SECONDS, run_with_gpus

TRAINS = "from slipway import training\nimport {library}\ntraining.cluster()\nprint('it trains')\n"


def outputs(folder: Path) -> dict[str, str]:
    return {f"AIP_{name}_DIR": str(folder / name) for name in ("MODEL", "CHECKPOINT", "TENSORBOARD_LOG")}


@pytest.mark.parametrize(("planned", "what"), [("gpu:1", "1 GPU, but NVIDIA's driver"), ("tpu:8", "8 TPU devices")])
def test_the_trainer_refuses_a_machine_without_accelerators_before_it_loads_a_framework(
    tiny: Path, tmp_path: Path, workers: Any, planned: str, what: str
) -> None:
    config = job(tiny, steps=10, steps_per_epoch=75)
    end = workers.start(config, tmp_path, SLIPWAY_ACCELERATORS=planned, CUDA_VISIBLE_DEVICES="-1").wait()
    assert end.status == 1
    assert end.user_error["message"].startswith(f"This machine should have {what}")
    assert end.user_error["setting"] == "SLIPWAY_ACCELERATORS"
    assert "one replica" not in end.output
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("driver", [2, 1])
def test_the_tensorflow_engine_refuses_gpus_that_it_does_not_see(tiny: Path, tmp_path: Path, driver: int) -> None:
    config = job(tiny, steps=10, steps_per_epoch=75).model_dump_json()
    variables = {**outputs(tmp_path), "SLIPWAY_ACCELERATORS": "gpu:2"}
    status, said, seconds = run_with_gpus(driver, "slipway.trainer", "--config", config, folder=tmp_path, **variables)
    assert status == 1, said
    reason = "TensorFlow sees 0" if driver == 2 else "the driver shows another number"
    assert f"This machine should have 2 GPUs, but {reason}. Found: " in said
    assert ("pip install -U 'tensorflow[and-cuda]'" in said) is (driver == 2)
    assert "CUDA_VISIBLE_DEVICES=;" in said
    assert not (tmp_path / "MODEL").exists()
    assert seconds < REFUSAL_SECONDS


@pytest.mark.parametrize("options", [(), ("--processes", "per_device")])
def test_a_custom_program_is_not_started_on_a_machine_without_its_gpus(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "program.py").write_text("print('it trains')")
    environment = {"SLIPWAY_ACCELERATORS": "gpu:4"}
    for driver in (0, 1):
        status, said, seconds = run_with_gpus(
            driver, "slipway.trainer.launch", *options, "program", folder=tmp_path, **environment
        )
        assert status == 1
        assert "This machine should have 4 GPUs, but the driver shows another number" in said
        assert "it trains" not in said
        assert seconds < REFUSAL_SECONDS
    assert "it trains" in run_with_gpus(4, "slipway.trainer.launch", "program", folder=tmp_path, **environment)[1]


def test_a_custom_programs_framework_has_to_see_the_gpus(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TRAINS.format(library="tensorflow"))
    variables = {**outputs(tmp_path), "SLIPWAY_ACCELERATORS": "gpu:1"}
    status, said, seconds = run_with_gpus(1, "slipway.trainer.launch", "program", folder=tmp_path, **variables)
    assert status == 1
    assert "This machine should have 1 GPU, but TensorFlow sees 0" in said
    assert "it trains" not in said
    assert "Traceback" not in said
    assert seconds < REFUSAL_SECONDS


def test_a_command_is_not_started_on_a_machine_without_its_gpus(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "slipway.trainer.distributed.verification", "python", "-c", "print('it trains')"]
    for planned, status in (("gpu:2", 1), ("", 0)):
        variables = {**os.environ, "SLIPWAY_ACCELERATORS": planned, "CUDA_VISIBLE_DEVICES": "-1"}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == status
        assert ("it trains" in done.stdout) is (not planned)
        assert ("This machine should have 2 GPUs" in done.stderr) is bool(planned)
