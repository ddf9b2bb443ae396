"""Runs that were planned for accelerators never train on CPUs: the trainer, custom programs and commands refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slipway.trainer.distributed import libraries
from slipway.trainer.distributed.verification import verified_in_shell
from tests.trainer.conftest import job
from tests.trainer.distributed.test_accelerators import devices
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
    reason = "TensorFlow sees 0" if driver == 2 else "NVIDIA's driver shows 1 to programs"
    assert f"This machine should have 2 GPUs, but {reason}. Found: " in said
    assert ("pip install -U 'tensorflow[and-cuda]'" in said) is (driver == 2)
    assert "no device file /dev/nvidia0" in said
    assert not (tmp_path / "MODEL").exists()
    assert seconds < REFUSAL_SECONDS


@pytest.mark.parametrize("options", [(), ("--processes", "per_device")])
def test_a_custom_program_is_not_started_on_a_machine_without_its_gpus(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "program.py").write_text("print('it trains')")
    environment = {"SLIPWAY_ACCELERATORS": "gpu:4"}
    arguments = ("slipway.trainer.launch", *options, "program")
    for driver, reason in ((0, "does not start (CUDA error 100: no device)"), (1, "shows 1 to programs")):
        status, said, seconds = run_with_gpus(driver, *arguments, folder=tmp_path, **environment)
        assert status == 1
        assert f"This machine should have 4 GPUs, but NVIDIA's driver {reason}" in said
        assert "it trains" not in said
        assert seconds < REFUSAL_SECONDS
    other = {"SLIPWAY_VERIFY_LIBRARIES": "0"}
    assert "it trains" in run_with_gpus(4, *arguments, folder=tmp_path, **environment, **other)[1]


def installed(folder: Path, **gpus: int | None) -> None:
    """Write stand-ins for libraries that see this many GPUs (None: that cannot be imported; -6: that crash)."""
    texts = {
        "torch": "class cuda:\n    is_available = lambda: {0} > 0\n    device_count = lambda: {0}\n",
        "jax": "class Gpu:\n    platform = 'gpu'\nlocal_devices = lambda: [Gpu] * {0}\n",
        "tensorflow": "class config:\n    list_physical_devices = lambda kind: [kind] * {0}\n",
    }
    for name, count in gpus.items():
        failing = {None: "raise ImportError('broken')", -6: "import os\nos.abort()"}
        text = failing.get(count) or texts[name].format(count)
        (folder / f"{name}.py").write_text(text)


@pytest.mark.parametrize(
    ("gpus", "reason", "is_command"),
    [
        ({"tensorflow": 0}, "TensorFlow sees 0", True),
        ({"tensorflow": 1, "torch": 0}, "PyTorch sees 0 and TensorFlow sees 1", False),  # one of two is not enough
        ({"tensorflow": 0, "jax": None}, "JAX fails (broken) and TensorFlow sees 0", True),
        ({"tensorflow": 0, "torch": -6}, "PyTorch fails (status -6) and TensorFlow sees 0", False),
        ({"tensorflow": 2, "torch": -6}, "", True),
        ({"tensorflow": 0, "torch": 2}, "", False),  # TensorFlow reads the records
        ({"tensorflow": 0, "jax": 2}, "", True),
    ],
)
def test_a_program_that_does_not_know_slipway_is_not_started_without_a_library_that_sees_the_gpus(
    tmp_path: Path, gpus: dict[str, int | None], reason: str, is_command: bool
) -> None:
    """Tried before: with a TensorFlow that has no CUDA, such a program ended with exit code 0."""
    installed(tmp_path, **gpus)
    (tmp_path / "program.py").write_text("import os; print('it trains with', os.environ['JAX_PLATFORMS'])")
    command = ("slipway.trainer.distributed.verification", "python", "-m", "program")
    arguments = command if is_command else ("slipway.trainer.launch", "program")
    status, said, seconds = run_with_gpus(2, *arguments, folder=tmp_path, SLIPWAY_ACCELERATORS="gpu:2")
    assert seconds < REFUSAL_SECONDS
    if not reason:
        assert (status, "it trains with cuda,cpu" in said) == (0, True), said
        return
    assert status == 1
    assert f"This machine should have 2 GPUs, but {reason}. Found: " in said
    assert "for a program with another library: export SLIPWAY_VERIFY_LIBRARIES=0" in said
    assert "it trains" not in said


def test_programs_with_other_libraries_are_started_where_none_of_the_known_ones_is_installed() -> None:
    text = Path(libraries.__file__).read_text()
    for kind in ("gpu", "tpu"):
        command = [sys.executable, "-I", "-S", "-c", text, kind, "4"]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_program_on_a_tpu_needs_a_library_with_its_runtime(tmp_path: Path) -> None:
    """Tried before: with TPU_ACCELERATOR_TYPE and a TensorFlow for CPUs, the program ended with exit code 0."""
    installed(tmp_path, tensorflow=0)
    command = [sys.executable, "-c", Path(libraries.__file__).read_text(), "tpu", "8"]
    for runtime in (False, True):
        if runtime:
            (tmp_path / "libtpu").mkdir()
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == ((0, "") if runtime else (3, "TensorFlow has no libtpu\n"))


def test_a_custom_programs_framework_has_to_see_the_gpus(tmp_path: Path) -> None:
    installed(tmp_path, tensorflow=0)
    (tmp_path / "program.py").write_text(TRAINS.format(library="tensorflow"))
    variables = {**outputs(tmp_path), "SLIPWAY_ACCELERATORS": "gpu:1", "SLIPWAY_VERIFY_LIBRARIES": "0"}
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
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == status
        assert ("it trains" in done.stdout) is (not planned)
        assert ("This machine should have 2 GPUs" in done.stderr) is bool(planned)


def test_a_command_that_starts_containers_needs_no_library_beside_it(tmp_path: Path) -> None:
    installed(tmp_path, tensorflow=0)
    arguments = ("slipway.trainer.distributed.verification", "python", "-m", "slipway.core.cores")
    assert run_with_gpus(2, *arguments, folder=tmp_path, SLIPWAY_ACCELERATORS="gpu:2")[0] == 0


def in_image(root: Path, planned: str, **environment: str) -> tuple[int, str]:
    """Run a program as in a container without Slipway whose files are below `root`; return exit code and output."""
    command = verified_in_shell(["sh", "-c", 'echo "it trains $0 with $JAX_PLATFORMS"', "now"], str(root))
    found = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "SLIPWAY_ACCELERATORS": planned, **environment}
    done = subprocess.run(command, cwd=root, env=found, capture_output=True, text=True, timeout=180, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_program_in_an_image_without_slipway_is_not_started_without_its_gpus(tmp_path: Path) -> None:
    """Tried before: nothing was verified there, and the docs said that it was."""
    (tmp_path / "dev").mkdir()
    loads = {"LD_LIBRARY_PATH": "/nowhere:/usr/local/nvidia/lib64", "SLIPWAY_VERIFY_LIBRARIES": "0"}
    assert in_image(tmp_path, "") == (0, "it trains now with \n")
    status, said = in_image(tmp_path, "gpu:2", **loads)
    assert (status, "This machine should have gpu:2, but it has 0 device files /dev/nvidiaN." in said) == (1, True)

    devices(tmp_path / "dev", "nvidia0", "nvidiactl", "nvidia-uvm")
    assert "it has 1 device files" in in_image(tmp_path, "gpu:2", **loads)[1]
    devices(tmp_path / "dev", "nvidia1")
    status, said = in_image(tmp_path, "gpu:2", **loads)
    assert (status, "libcuda.so.1 is not on the loader's path" in said) == (1, True)
    assert "ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$PATH:/usr" in said

    library = tmp_path / "usr/local/nvidia/lib64/libcuda.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    assert "not on the loader's path" in in_image(tmp_path, "gpu:2")[1]
    for visible, text in (("1", "CUDA_VISIBLE_DEVICES=1 lists 1"), ("", "lists 0"), ("-1", "lists 0")):
        assert text in in_image(tmp_path, "gpu:2", CUDA_VISIBLE_DEVICES=visible, **loads)[1]
    assert in_image(tmp_path, "gpu:2", **loads) == (0, "it trains now with cuda,cpu\n")
    assert in_image(tmp_path, "gpu:2", CUDA_VISIBLE_DEVICES="3,1", **loads)[0] == 0

    installed(tmp_path, torch=0, tensorflow=1)  # of the image's Python
    (python := tmp_path / "bin").mkdir()
    (python / "python3").symlink_to(sys.executable)
    loads |= {"SLIPWAY_VERIFY_LIBRARIES": "1", "PATH": f"{python}:/usr/bin:/bin"}
    status, said = in_image(tmp_path, "gpu:2", **loads)
    assert status == 1
    assert "PyTorch sees 0 and TensorFlow sees 1." in said
    installed(tmp_path, torch=2)
    assert in_image(tmp_path, "gpu:2", **loads)[0] == 0


def test_a_program_in_an_image_without_slipway_is_not_started_without_a_tpu(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    other = {"SLIPWAY_VERIFY_LIBRARIES": "0"}
    status, said = in_image(tmp_path, "tpu:8", TPU_ACCELERATOR_TYPE="v5litepod-8", **other)
    assert (status, "there is no device file /dev/accelN or /dev/vfio/N" in said) == (1, True)
    devices(tmp_path / "dev", "vfio/0")
    assert in_image(tmp_path, "tpu:8", **other) == (0, "it trains now with tpu,cpu\n")
