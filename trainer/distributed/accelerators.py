"""Detect this machine's accelerators from environment variables and device files, without importing a framework."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from slipway.core.errors import UserError

# The kind and number of accelerators of each machine, "gpu:4" or "tpu:8", set by plan_training; not set for CPUs.
PLANNED_VARIABLE = "SLIPWAY_ACCELERATORS"
# Set by Vertex AI in prediction containers on machines with accelerators:
# https://docs.cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements#aip-variables
SERVED_VARIABLE = "AIP_ACCELERATOR_TYPE"
VIRTUAL_DEVICES_VARIABLE = "SLIPWAY_VIRTUAL_DEVICES"
VISIBLE_GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
TPU_SECONDS_VARIABLE = "SLIPWAY_TPU_SECONDS"
DEFAULT_TPU_SECONDS = 600.0
# Device files of a TPU VM's chips (up to v4; from v5e on) and of GPUs.
TPU_FILES = (re.compile(r"accel\d+"), re.compile(r"vfio/\d+"))
GPU_FILES = (re.compile(r"nvidia\d+"),)
_WSL_FILE = "dxg"  # of all GPUs together, in Windows Subsystem for Linux
# Google's vendor id on the PCI bus, which its network cards have, too, and the device ids of TPU v2 and v3, v4, v5p,
# v5e, v6e and 7x: https://github.com/AI-Hypercomputer/cloud-accelerator-diagnostics/blob/main/tpu_info/tpu_info/device.py
_PCI_VENDOR = "0x1ae0"
_PCI_TPUS = ("0x0027", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076")
TPU_VARIABLES = ("TPU_CONFIG", "TPU_NODE_NAME", "TPU_ACCELERATOR_TYPE")
_RETRY_SECONDS = 5.0
_REPORT_SECONDS = 15.0

Connected = TypeVar("Connected")
Kind = Literal["tpu", "gpu", "virtual", "cpu"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Accelerators:
    """The accelerators of one machine: TPU chips, GPUs, or virtual CPU devices that stand in for them.

    `count` is 0 if unknown. `name` is the TPU node's name, or "". `source` is the environment variable they were
    detected from, or "device files".
    """

    kind: Kind
    count: int
    source: str
    name: str = ""

    def describe(self) -> str:
        """Return a short description for the log."""
        if self.kind == "cpu":
            return "no accelerator"
        noun = {"tpu": "TPU", "gpu": "GPU", "virtual": "virtual device"}[self.kind]
        name = f" {self.name}" if self.name else ""
        if not self.count:
            return f"{noun}{name} (from {self.source})"
        chips = " chip" if self.kind == "tpu" else ""
        return f"{self.count} {noun}{chips}{'s' if self.count > 1 else ''}{name} (from {self.source})"


def virtual_devices(environment: Mapping[str, str]) -> int:
    """Return the number of virtual devices to split the CPU into; 0 for none."""
    return int(environment.get(VIRTUAL_DEVICES_VARIABLE) or 0)


def find(environment: Mapping[str, str], devices: Path = Path("/dev"), system: Path = Path("/sys")) -> Accelerators:
    """Detect accelerators from, in this order, the virtual devices, a TPU VM's variables, the plan, device files.

    Args:
        environment: The environment variables.
        devices: The folder of device files.
        system: The folder of sysfs, which lists the chips on the PCI bus.

    Raises:
        UserError: TPU_CONFIG or the plan's variable is not valid.
    """
    virtual = virtual_devices(environment)
    if virtual:
        return Accelerators("virtual", virtual, VIRTUAL_DEVICES_VARIABLE)
    chips = count_files(devices, TPU_FILES)
    if environment.get("TPU_CONFIG"):
        return Accelerators("tpu", chips, "TPU_CONFIG", _node_name(environment["TPU_CONFIG"]))
    if environment.get("TPU_NODE_NAME"):
        return Accelerators("tpu", chips, "TPU_NODE_NAME", environment["TPU_NODE_NAME"])
    if environment.get("TPU_ACCELERATOR_TYPE"):
        return Accelerators("tpu", chips, "TPU_ACCELERATOR_TYPE")
    plan = planned(environment)
    if plan is not None:
        return plan if plan.kind == "gpu" else Accelerators("tpu", chips, plan.source)
    # A vfio file may belong to any passed-through device.
    if count_files(devices, TPU_FILES[:1]) or (chips and pci_chips(system)):
        return Accelerators("tpu", chips, "device files")
    visible = environment.get(VISIBLE_GPUS_VARIABLE)
    cards = count_files(devices, GPU_FILES)
    if visible is not None and (cards or (devices / _WSL_FILE).exists()):
        listed = visible_gpus(visible)
        return Accelerators("gpu" if listed else "cpu", min(cards or listed, listed), VISIBLE_GPUS_VARIABLE)
    return Accelerators("gpu", cards, "device files") if cards else Accelerators("cpu", 0, "nothing")


def visible_gpus(visible: str) -> int:
    """Return the number of GPUs that a value of CUDA_VISIBLE_DEVICES lists."""
    return sum(name.strip() not in ("", "-1") for name in visible.split(","))


def first_gpus(environment: Mapping[str, str], count: int) -> dict[str, str]:
    """Return the variables that let a process see only the first `count` of the GPUs that this one sees; 0 for none."""
    visible = environment.get(VISIBLE_GPUS_VARIABLE)
    names = visible.split(",") if visible is not None else [str(number) for number in range(count)]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", VISIBLE_GPUS_VARIABLE: ",".join(names[:count]) or "-1"}


def planned(environment: Mapping[str, str]) -> Accelerators | None:
    """Return the accelerators that this machine should have, with count 0 for any number; None for CPUs.

    Raises:
        UserError: The variable is not valid.
    """
    text = environment.get(PLANNED_VARIABLE)
    if not text:
        served = environment.get(SERVED_VARIABLE, "").startswith("NVIDIA")
        return Accelerators("gpu", 0, SERVED_VARIABLE) if served else None
    if (valid := re.fullmatch(r"(gpu|tpu):([1-9]\d*)", text)) is None:
        allowed = "gpu:COUNT, tpu:COUNT, or not set for CPUs"
        raise UserError(f"{PLANNED_VARIABLE} is not valid.", setting=PLANNED_VARIABLE, value=text, allowed=allowed)
    return Accelerators("gpu" if valid[1] == "gpu" else "tpu", int(valid[2]), PLANNED_VARIABLE)


def pci_chips(system: Path) -> int:
    """Return the number of TPU chips on the PCI bus."""
    folder = system / "bus" / "pci" / "devices"
    slots = [(path / "vendor", path / "device") for path in folder.iterdir()] if folder.is_dir() else []
    ids = [
        (vendor_file.read_text().strip(), device_file.read_text().strip())
        for vendor_file, device_file in slots
        if vendor_file.is_file()
    ]
    return sum(vendor == _PCI_VENDOR and device in _PCI_TPUS for vendor, device in ids)


def count_files(devices: Path, patterns: tuple[re.Pattern[str], ...]) -> int:
    folders = [folder for folder in (devices, devices / "vfio") if folder.is_dir()]
    names = [str(path.relative_to(devices)) for folder in folders for path in folder.iterdir()]
    return sum(1 for name in names if any(pattern.fullmatch(name) for pattern in patterns))


def _node_name(text: str) -> str:
    try:
        return str(json.loads(text)["tpu_node_name"])
    except (ValueError, KeyError, TypeError):
        raise UserError(
            "TPU_CONFIG is not a valid TPU node description.",
            setting="TPU_CONFIG",
            value=text,
            allowed='JSON like {"project": "p", "zone": "us-central1-b", "tpu_node_name": "node"}',
            fix="unset TPU_CONFIG (if this is not a TPU VM)",
        ) from None


def wait_for_tpu(
    accelerators: Accelerators,
    connect: Callable[[], Connected],
    temporary: tuple[type[Exception], ...],
    seconds: float,
) -> Connected:
    """Call `connect` until the TPU responds, and return its result; a TPU may still be provisioning or was preempted.

    Args:
        accelerators: The accelerators, for the TPU's name in messages.
        connect: Connects to the TPU.
        temporary: Exceptions of `connect` that are retried; any other is raised.
        seconds: The timeout.

    Raises:
        UserError: The TPU did not respond in time.
    """
    name = f"the TPU {accelerators.name}" if accelerators.name else "the TPU"
    started = time.monotonic()
    report_at = started
    while True:
        try:
            return connect()
        except temporary as error:
            now = time.monotonic()
            reason = str(error).partition("\n")[0] or type(error).__name__
            if now - started + _RETRY_SECONDS > seconds:
                raise UserError(
                    f"{name[0].upper()}{name[1:]} did not respond within {seconds:g} s: {reason}.",
                    setting=TPU_SECONDS_VARIABLE,
                    value=seconds,
                    fix=f"check in the Google Cloud console that the TPU is provisioned; to wait longer, "
                    f"export {TPU_SECONDS_VARIABLE}={2 * seconds:g}",
                ) from error
            if now >= report_at:
                logger.info("waiting for %s (%.0f s of %g): %s", name, now - started, seconds, reason)
                report_at = now + _REPORT_SECONDS
            time.sleep(_RETRY_SECONDS)
