"""What this machine has to train on, as the environment and its device files tell without a framework's help."""

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

VIRTUAL_DEVICES_VARIABLE = "SLIPWAY_VIRTUAL_DEVICES"
TPU_SECONDS_VARIABLE = "SLIPWAY_TPU_SECONDS"
DEFAULT_TPU_SECONDS = 600.0
# A TPU VM's chips, up to v4 and from v5e on; a GPU.
_TPU_FILES = (re.compile(r"accel\d+"), re.compile(r"vfio/\d+"))
_GPU_FILES = (re.compile(r"nvidia\d+"),)
_RETRY_SECONDS = 5.0
_REPORT_SECONDS = 15.0

Connected = TypeVar("Connected")
Kind = Literal["tpu", "gpu", "virtual", "cpu"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Accelerators:
    """`count` of a kind: TPU chips, GPUs, or virtual devices of the CPU in their place; 0 where it is not known.

    `name` is the TPU node's, or "". `source` is what told: a variable, or the device files.
    """

    kind: Kind
    count: int
    source: str
    name: str = ""

    def describe(self) -> str:
        """A few words for the log."""
        if self.kind == "cpu":
            return "no accelerator"
        what = {"tpu": "TPU", "gpu": "GPU", "virtual": "virtual device"}[self.kind]
        name = f" {self.name}" if self.name else ""
        if not self.count:
            return f"{what}{name} (by {self.source})"
        chips = " chip" if self.kind == "tpu" else ""
        return f"{self.count} {what}{chips}{'s' if self.count > 1 else ''}{name} (by {self.source})"


def virtual_devices(environment: Mapping[str, str]) -> int:
    """How many devices the CPU is to pass for; 0 where it is just a CPU."""
    return int(environment.get(VIRTUAL_DEVICES_VARIABLE) or 0)


def find(environment: Mapping[str, str], devices: Path = Path("/dev")) -> Accelerators:
    """The accelerators that virtual ones, a TPU VM's variables, or the files in `devices` tell of, in this order.

    Raises:
        UserError: TPU_CONFIG is not what a TPU VM of Vertex's would have.
    """
    virtual = virtual_devices(environment)
    if virtual:
        return Accelerators("virtual", virtual, VIRTUAL_DEVICES_VARIABLE)
    chips = _count(devices, _TPU_FILES)
    if environment.get("TPU_CONFIG"):
        return Accelerators("tpu", chips, "TPU_CONFIG", _node_name(environment["TPU_CONFIG"]))
    if environment.get("TPU_NODE_NAME"):
        return Accelerators("tpu", chips, "TPU_NODE_NAME", environment["TPU_NODE_NAME"])
    if _count(devices, _TPU_FILES[:1]):  # a file of vfio's may be of any device that is handed to a user's program
        return Accelerators("tpu", chips, "device files")
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    cards = _count(devices, _GPU_FILES)
    if cards and visible is not None:
        listed = [name for name in visible.split(",") if name.strip() not in ("", "-1")]
        return Accelerators("gpu" if listed else "cpu", min(cards, len(listed)), "CUDA_VISIBLE_DEVICES")
    return Accelerators("gpu", cards, "device files") if cards else Accelerators("cpu", 0, "nothing")


def _count(devices: Path, patterns: tuple[re.Pattern[str], ...]) -> int:
    folders = [folder for folder in (devices, devices / "vfio") if folder.is_dir()]
    names = [str(path.relative_to(devices)) for folder in folders for path in folder.iterdir()]
    return sum(1 for name in names if any(pattern.fullmatch(name) for pattern in patterns))


def _node_name(text: str) -> str:
    """The TPU node's name in TPU_CONFIG."""
    try:
        return str(json.loads(text)["tpu_node_name"])
    except (ValueError, KeyError, TypeError):
        raise UserError(
            "TPU_CONFIG is not the description of a TPU node.",
            setting="TPU_CONFIG",
            value=text,
            allowed='JSON like {"project": "p", "zone": "us-central1-b", "tpu_node_name": "node"}',
            fix="unset TPU_CONFIG, unless this is a TPU VM",
        ) from None


def wait_for_tpu(
    accelerators: Accelerators,
    connect: Callable[[], Connected],
    temporary: tuple[type[Exception], ...],
    seconds: float,
) -> Connected:
    """What `connect` gives, once the TPU answers: one that is being provisioned, or was just taken away, does not yet.

    Args:
        accelerators: Whose name to say.
        connect: Takes the TPU.
        temporary: What it raises as long as there is none; anything else ends the waiting.
        seconds: How long to try.

    Raises:
        UserError: It did not answer in time.
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
                    f"There was no {name.removeprefix('the ')} within {seconds:g} s: {reason}.",
                    setting=TPU_SECONDS_VARIABLE,
                    value=seconds,
                    fix=f"see whether the TPU is provisioned in the Google Cloud console; if it only needs longer, "
                    f"set {TPU_SECONDS_VARIABLE}",
                ) from error
            if now >= report_at:
                logger.info("waiting for %s (%.0f s of %g): %s", name, now - started, seconds, reason)
                report_at = now + _REPORT_SECONDS
            time.sleep(_RETRY_SECONDS)
