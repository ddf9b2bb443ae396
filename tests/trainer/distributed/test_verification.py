"""A machine without the accelerators of its plan is refused, with what was found: by its driver, and by a framework."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from slipway.core.errors import UserError
from slipway.trainer.distributed import verification
from slipway.trainer.distributed.verification import verify_library, verify_loaded, verify_machine
from tests.trainer.distributed.test_accelerators import devices, pci
from tests.trainer.driver import with_driver

FOUR, TWO_TPUS = {"SLIPWAY_ACCELERATORS": "gpu:4"}, {"SLIPWAY_ACCELERATORS": "tpu:2"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine without accelerators."""
    (tmp_path / "dev").mkdir()
    return tmp_path


def refused(environment: Mapping[str, str], root: Path, driver: int | None = None) -> UserError:
    def count(_environment: Mapping[str, str]) -> tuple[int, str]:
        assert driver is not None
        return driver, f"NVIDIA's driver shows {driver} to programs"

    with pytest.raises(UserError) as caught:
        verify_machine(environment, root, None if driver is None else count)
    return caught.value


def test_device_files_without_a_driver_library_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried before: a plan of l4x1 on a machine with /dev/nvidia0 only trained on the CPU, with exit code 0."""
    monkeypatch.setattr(verification, "_DRIVER_LIBRARY", "libcuda.so.1")
    monkeypatch.setattr(verification, "_COUNT_GPUS", "import ctypes; ctypes.CDLL('libcuda-missing.so.1')")
    devices(root / "dev", "nvidia0", "nvidiactl")
    environment = {"SLIPWAY_ACCELERATORS": "gpu:1", "PATH": "/nowhere"}
    error = refused(environment, root)
    assert error.message.startswith("This machine should have 1 GPU, but NVIDIA's driver library cannot be loaded (lib")
    assert error.message.endswith("Found: device files nvidia0; nvidia-smi: not installed.")
    assert (error.setting, error.value) == ("SLIPWAY_ACCELERATORS", "gpu:1")

    library = root / "usr" / "local" / "nvidia" / "lib64" / "libcuda.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    error = refused(environment, root)
    assert "/usr/local/nvidia/lib64/libcuda.so.1" in error.message
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64" in str(error.fix)


@pytest.mark.parametrize(
    ("said", "count", "words"),
    [
        ("0 4", 4, "shows 4"),
        ("100 0", 0, "CUDA error 100: no device"),
        ("803 0", 0, "CUDA error 803)"),
    ],
)
def test_the_driver_itself_is_asked(monkeypatch: pytest.MonkeyPatch, said: str, count: int, words: str) -> None:
    monkeypatch.setattr(verification, "_COUNT_GPUS", f"print({said!r})")
    found, text = verification._driver_count(os.environ)
    assert found == count
    assert words in text


def test_the_drivers_library_counts(root: Path) -> None:
    devices(root / "dev", *(f"nvidia{number}" for number in range(4)))
    verify_machine(with_driver(4, **FOUR), root)
    for environment, reason in (
        (with_driver(1, **FOUR), "shows 1 to programs"),
        (with_driver(0, **FOUR), "does not start (CUDA error 100: no device)"),
    ):
        error = refused(environment, root)
        assert f"should have 4 GPUs, but NVIDIA's driver {reason}" in error.message
        assert "Found: device files nvidia0, nvidia1, nvidia2, nvidia3; LD_LIBRARY_PATH=" in error.message


def test_a_driver_that_does_not_respond_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_DRIVER_SECONDS", 0.2)
    error = refused(with_driver(4, **FOUR, FAKE_CUDA_SECONDS="60"), root)
    assert "NVIDIA's driver did not respond within 0.2 s" in error.message


@pytest.mark.parametrize(
    ("driver", "visible", "fix"),
    [
        (1, "2", "unset CUDA_VISIBLE_DEVICES"),
        (1, "0,1,2,3", "choose hardware that this machine has"),
        (3, None, "choose hardware that this machine has"),
        (8, None, "export CUDA_VISIBLE_DEVICES=0,1,2,3"),
    ],
)
def test_another_number_of_gpus_is_refused(root: Path, driver: int, visible: str | None, fix: str) -> None:
    environment = {**FOUR, **({"CUDA_VISIBLE_DEVICES": visible} if visible else {})}
    error = refused(environment, root, driver)
    assert error.message.startswith(f"This machine should have 4 GPUs, but NVIDIA's driver shows {driver} to programs.")
    assert ("CUDA_VISIBLE_DEVICES=" in error.message) is bool(visible)
    assert str(error.fix).startswith(fix)


def test_nvidia_smi_is_quoted(root: Path) -> None:
    program = root / "usr" / "local" / "nvidia" / "bin" / "nvidia-smi"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n")
    program.chmod(0o755)
    error = refused({**FOUR, "PATH": "/nowhere"}, root, 0)
    assert "nvidia-smi: Failed to initialize NVML: Driver/library version mismatch." in error.message
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    assert "timed out after" in refused({**FOUR, "PATH": "/bin:/usr/bin"}, root, 0).message


def test_a_machine_as_planned_is_accepted_and_without_a_plan_any_is(root: Path) -> None:
    verify_machine(FOUR, root, lambda _: (4, ""))
    verify_machine({"AIP_ACCELERATOR_TYPE": "NVIDIA_L4"}, root, lambda _: (2, ""))
    verify_machine(TWO_TPUS, devices(root / "dev", "vfio/0").parent)
    verify_machine({}, devices(root / "dev", "nvidia0").parent)
    verify_machine({"SLIPWAY_VIRTUAL_DEVICES": "4"}, root)


def test_amds_gpus_are_counted_by_the_framework(root: Path) -> None:
    verify_machine(FOUR, devices(root / "dev", "kfd").parent)
    devices(root / "dev", "nvidia0")  # beside a processor's own GPU of AMD
    refused(FOUR, root, 0)


def test_a_machine_without_tpu_chips_is_refused(root: Path) -> None:
    pci(root / "sys", ("0x1ae0", "0x0042"))
    named = refused({**TWO_TPUS, "TPU_ACCELERATOR_TYPE": "v5litepod-2"}, root)  # a variable is no chip
    assert "TPU_ACCELERATOR_TYPE=v5litepod-2" in named.message
    error = refused(TWO_TPUS, root)
    assert error.message == (
        "This machine should have 2 TPU devices, but there is no TPU chip. Found: 0 device files /dev/accelN and "
        "/dev/vfio/N; 0 TPU chips on the PCI bus."
    )


def test_virtual_devices_replace_none_of_a_plan(root: Path) -> None:
    error = refused({**FOUR, "SLIPWAY_VIRTUAL_DEVICES": "4"}, root)
    assert str(error.fix).startswith("unset SLIPWAY_VIRTUAL_DEVICES")


def library(monkeypatch: pytest.MonkeyPatch, **counts: int) -> None:
    """Import libraries that see this many GPUs."""
    for name in verification.LIBRARIES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    fakes = {
        "tensorflow": lambda count: SimpleNamespace(
            config=SimpleNamespace(list_physical_devices=lambda _: [None] * count)
        ),
        "jax": lambda count: SimpleNamespace(local_devices=lambda: [SimpleNamespace(platform="gpu")] * count),
        "torch": lambda count: SimpleNamespace(
            cuda=SimpleNamespace(device_count=lambda: count, is_available=lambda: count > 0)
        ),
    }
    for name, count in counts.items():
        monkeypatch.setitem(sys.modules, name, fakes[name](count))


@pytest.mark.parametrize("name", list(verification.LIBRARIES))
def test_an_engines_library_has_to_see_all_of_them(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    library(monkeypatch, **{name: 4})
    verify_library(name, FOUR)
    library(monkeypatch, **{name: 1})
    verify_library(name, {})
    with pytest.raises(UserError, match=r"should have 4 GPUs, but .* sees 1") as caught:
        verify_library(name, FOUR)
    assert str(caught.value.fix).startswith("pip install -U ")


def test_pytorch_does_not_see_gpus_whose_driver_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its device_count asks NVML, which counts them; is_available asks the CUDA runtime, which only warns."""
    library(monkeypatch, torch=4)
    monkeypatch.setattr(sys.modules["torch"].cuda, "is_available", lambda: False)
    for verify in (lambda: verify_library("torch", FOUR), lambda: verify_loaded(["torch"], FOUR)):
        with pytest.raises(UserError, match="PyTorch sees 0") as caught:
            verify()
        assert "whose CUDA version the driver supports" in str(caught.value.fix)


def test_one_of_a_programs_libraries_has_to_see_some(monkeypatch: pytest.MonkeyPatch) -> None:
    library(monkeypatch)
    verify_loaded(environment=FOUR)
    library(monkeypatch, tensorflow=0, torch=1)  # each of its processes may use one
    verify_loaded(environment=FOUR)
    library(monkeypatch, tensorflow=0, torch=0)
    with pytest.raises(UserError, match="TensorFlow and PyTorch see 0"):
        verify_loaded(environment=FOUR)
    with pytest.raises(UserError, match="should have GPUs, but TensorFlow and PyTorch see 0"):
        verify_loaded(environment={"AIP_ACCELERATOR_TYPE": "NVIDIA_TESLA_T4"})
