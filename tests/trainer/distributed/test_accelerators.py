"""Detecting a machine's accelerators, and waiting for a TPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipway.core.errors import UserError
from slipway.trainer.distributed import accelerators
from slipway.trainer.distributed.accelerators import Accelerators, find, first_gpus, wait_for_tpu

CONFIG = json.dumps({"project": "p", "zone": "us-central1-b", "tpu_node_name": "node-7"})


def devices(folder: Path, *names: str) -> Path:
    """A folder of device files."""
    for name in ("null", *names):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    return folder


def pci(system: Path, *ids: tuple[str, str]) -> Path:
    """A folder of sysfs with devices of these vendors and kinds on the PCI bus."""
    for number, (vendor, device) in enumerate(ids):
        slot = system / "bus" / "pci" / "devices" / f"0000:00:{number:02x}.0"
        slot.mkdir(parents=True)
        (slot / "vendor").write_text(f"{vendor}\n")
        (slot / "device").write_text(f"{device}\n")
    return system


@pytest.mark.parametrize(
    ("environment", "files", "expected", "said"),
    [
        ({}, (), Accelerators("cpu", 0, "nothing"), "no accelerator"),
        ({}, ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"), Accelerators("gpu", 2, "device files"), "2 GPUs"),
        (
            {"CUDA_VISIBLE_DEVICES": "1"},
            ("nvidia0", "nvidia1"),
            Accelerators("gpu", 1, "CUDA_VISIBLE_DEVICES"),
            "1 GPU",
        ),
        (
            {"CUDA_VISIBLE_DEVICES": "-1"},
            ("nvidia0",),
            Accelerators("cpu", 0, "CUDA_VISIBLE_DEVICES"),
            "no accelerator",
        ),
        ({"TPU_CONFIG": CONFIG}, (), Accelerators("tpu", 0, "TPU_CONFIG", "node-7"), "TPU node-7"),
        ({"TPU_NODE_NAME": "n"}, ("accel0", "accel1"), Accelerators("tpu", 2, "TPU_NODE_NAME", "n"), "2 TPU chips n"),
        ({"TPU_NODE_NAME": "n"}, ("vfio/0", "vfio/vfio"), Accelerators("tpu", 1, "TPU_NODE_NAME", "n"), "1 TPU chip n"),
        ({}, ("accel0",), Accelerators("tpu", 1, "device files"), "1 TPU chip"),
        ({}, ("vfio/0",), Accelerators("cpu", 0, "nothing"), "no accelerator"),
        (
            {"SLIPWAY_VIRTUAL_DEVICES": "4", "TPU_NODE_NAME": "n"},
            ("nvidia0",),
            Accelerators("virtual", 4, "SLIPWAY_VIRTUAL_DEVICES"),
            "4 virtual devices",
        ),
    ],
)
def test_what_is_found(
    tmp_path: Path, environment: dict[str, str], files: tuple[str, ...], expected: Accelerators, said: str
) -> None:
    found = find(environment, devices(tmp_path, *files))
    assert found == expected
    assert found.describe().startswith(said)


@pytest.mark.parametrize(
    ("devices_on_bus", "files", "kind"),
    [
        ([("0x1ae0", "0x0063")] * 4, [f"vfio/{number}" for number in range(4)], "tpu"),  # v5e
        ([("0x1ae0", "0x006f")], ["vfio/0", "vfio/vfio"], "tpu"),  # v6e
        ([("0x1ae0", "0x0042"), ("0x8086", "0x1237")], ["vfio/0"], "cpu"),  # gVNIC, Google's network card
        ([("0x1ae0", "0x0063")], [], "cpu"),  # a container without access to the machine's chips
    ],
)
def test_tpus_from_v5e_on_are_found_on_the_pci_bus_as_google_tpu_info_does(
    tmp_path: Path, devices_on_bus: list[tuple[str, str]], files: list[str], kind: str
) -> None:
    """Chips from v5e on are /dev/vfio/N, and known by Google's vendor id and their device ids on the PCI bus.

    Source (read): tpu_info/device.py of AI-Hypercomputer/cloud-accelerator-diagnostics, and jax/_src/hardware_utils.py
    of JAX 0.10.2.
    """
    system = pci(tmp_path / "sys", *devices_on_bus)
    (tmp_path / "dev").mkdir()
    found = find({}, devices(tmp_path / "dev", *files), system)
    assert (found.kind, found.count) == (kind, len(files) - ("vfio/vfio" in files) if kind == "tpu" else 0)


def test_the_plan_says_what_device_files_do_not(tmp_path: Path) -> None:
    folder = devices(tmp_path, "vfio/0", "vfio/1", "nvidia0", "nvidia1")
    assert find({"SLIPWAY_ACCELERATORS": "tpu:2"}, folder, tmp_path) == Accelerators("tpu", 2, "SLIPWAY_ACCELERATORS")
    assert find({"SLIPWAY_ACCELERATORS": "gpu:1"}, folder, tmp_path) == Accelerators("gpu", 1, "SLIPWAY_ACCELERATORS")


@pytest.mark.parametrize("text", ["gpu", "gpu:0", "l4:1", "cpu"])
def test_a_plan_that_names_no_accelerators_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="SLIPWAY_ACCELERATORS is not valid"):
        find({"SLIPWAY_ACCELERATORS": text})


@pytest.mark.parametrize(
    ("visible", "count", "seen"),
    [(None, 2, "0,1"), (None, 0, "-1"), ("2,GPU-7af", 1, "2"), ("2,GPU-7af", 2, "2,GPU-7af")],
)
def test_a_process_sees_only_as_many_gpus_as_it_trains_on(
    tmp_path: Path, visible: str | None, count: int, seen: str
) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    folder = devices(tmp_path, "nvidia0", "nvidia1", "nvidia2")
    told = first_gpus(environment, count)
    assert told == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": seen}
    assert find({**environment, **told}, folder).count == count
    assert find({**environment, **told}, devices(tmp_path / "wsl", "dxg")).count == count


@pytest.mark.parametrize("text", ["no JSON", "{}", "[]", "3"])
def test_a_tpu_config_that_tells_of_no_node_is_refused(text: str) -> None:
    with pytest.raises(UserError) as caught:
        find({"TPU_CONFIG": text})
    assert (caught.value.setting, caught.value.value) == ("TPU_CONFIG", text)


class FakeTpu:
    """Responds at the `ready`-th attempt."""

    def __init__(self, ready: int, error: Exception) -> None:
        self.tries, self.ready, self.error = 0, ready, error

    def connect(self) -> str:
        self.tries += 1
        if self.tries < self.ready:
            raise self.error
        return "connected"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only `sleep` advances."""
    now = [1000.0]
    monkeypatch.setattr(accelerators.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(accelerators.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


NODE = Accelerators("tpu", 0, "TPU_CONFIG", "node-7")


def test_a_tpu_that_is_being_provisioned_is_waited_for_and_that_is_said(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    tpu = FakeTpu(10, ConnectionError("no TPU here yet\nand a long trace"))
    assert wait_for_tpu(NODE, tpu.connect, (ConnectionError,), 600) == "connected"
    assert (tpu.tries, clock[0]) == (10, 1045.0)
    assert [record.getMessage() for record in caplog.records] == [
        f"waiting for the TPU node-7 ({waited} s of 600): no TPU here yet" for waited in (0, 15, 30)
    ]


def test_a_tpu_that_never_comes_is_given_up_at_the_deadline(clock: list[float]) -> None:
    tpu = FakeTpu(10**6, ConnectionError("no TPU here"))
    with pytest.raises(UserError, match=r"The TPU node-7 did not respond within 60 s: no TPU here") as caught:
        wait_for_tpu(NODE, tpu.connect, (ConnectionError,), 60)
    assert caught.value.setting == "SLIPWAY_TPU_SECONDS"
    assert clock[0] <= 1060


def test_another_error_is_not_waited_for(clock: list[float]) -> None:
    tpu = FakeTpu(3, ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        wait_for_tpu(NODE, tpu.connect, (ConnectionError,), 600)
    assert tpu.tries == 1
