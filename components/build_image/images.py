"""The kinds of images: for the steps, the trainer and the prediction server, by accelerator and engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipway import extensions
from slipway.components.build_image.settings import ROOT_USER
from slipway.core.errors import UserError, nearest

# The names of the images that Slipway builds, in whatever version: ROLE-ACCELERATOR, with the engine.
NAME = re.compile(r"(?:steps|trainer|serving|beam)-(?:cpu|gpu|tpu)(?:-[a-z]+)?")
# The user of an image that runs as any user, such as the host's with `--runner docker`.
ANY_USER = "65534:65534"
# Slipway's code in an image, with the same paths as in a checkout or beside the installed package.
TRAINER_CODE = (
    "slipway/__init__.py",
    "slipway/core",
    "slipway/extensions.py",
    "slipway/trainer",
    "slipway/training.py",
)
SERVING_CODE = (*TRAINER_CODE, "slipway/serving")
CODE = {"steps": (*SERVING_CODE, "slipway/components"), "trainer": TRAINER_CODE, "serving": SERVING_CODE}
REQUIREMENTS = "slipway/requirements"
# Apache's images of Beam's SDK, for the Python of `BASE`; its entry point; the label of its version.
BEAM_SDK = "docker.io/apache/beam_python3.11_sdk"
BEAM_BOOT = "/opt/apache/beam/boot"
BEAM_LABEL = "org.apache.beam.version"


@dataclass(frozen=True)
class ImageKind:
    """A kind of image: its name, Slipway's folders and files in it, and the build arguments."""

    name: str
    code: tuple[str, ...]
    arguments: Mapping[str, str]

    @property
    def requirements(self) -> str:
        """Its lock file, relative to the folder that contains the package slipway."""
        return f"{REQUIREMENTS}/{self.name}.txt"


def image_kind(
    source: Path, role: str, accelerator: str, engine: str = "tensorflow", run_as: str = ANY_USER
) -> ImageKind:
    """Return the image kind of a role for an accelerator and an engine.

    Without a lock file for CPUs, the one for GPUs is used: PyTorch's packages are the same for both.

    Args:
        source: The folder that contains the package slipway, whose requirements determine the available images.
        role: "steps", "trainer" or "serving".
        accelerator: "cpu", "gpu" or "tpu".
        engine: The training engine.
        run_as: The image's user, as UID:GID.

    Raises:
        UserError: There is no lock file for this combination, or the user cannot use the accelerator.
    """
    ending = "" if engine == "tensorflow" else f"-{engine}"
    name = f"{role}-{accelerator}{ending}"
    known = sorted(path.stem for path in (source / REQUIREMENTS).glob(f"{role}-*.txt"))
    for_both = f"{role}-gpu{ending}"
    if name not in known and accelerator == "cpu" and for_both in known:
        name = for_both
    if name not in known:
        raise UserError(
            f"There is no image for training with {engine} on this hardware.",
            setting="train.engine",
            value=engine,
            allowed=", ".join(known),
            nearest=nearest(name, known),
            fix=f"add requirements/{name}.in, then make lock; or choose other hardware",
        )
    if accelerator == "tpu" and run_as != ROOT_USER:
        raise UserError(
            "On TPU VMs, only root can open the chips.",
            setting="vertex.build.run_as",
            value=run_as,
            allowed=ROOT_USER,
            fix=f"--set vertex.build.run_as={ROOT_USER}",
        )
    code = (*CODE[role], *_rows(source)) if role == "steps" else CODE[role]
    return ImageKind(name, code, {"REQUIREMENTS": name, "RUN_AS": run_as})


def _rows(source: Path) -> list[str]:
    """Return the modules of extensions outside of the steps' code, and their packages: steps find there what to use."""
    folders = tuple(f"{path}/" for path in CODE["steps"])
    paths = set()
    for module in extensions.MODULES:
        path = Path(*module.split("."))
        paths |= {f"{path}.py", *(f"{parent}/__init__.py" for parent in path.parents if parent.name)}
    return sorted(
        path
        for path in paths
        if path not in CODE["steps"] and not path.startswith(folders) and (source / path).exists()
    )


def beam_kind(source: Path) -> ImageKind:
    """Return the image kind of Beam's workers, which is built on the steps' image: it has Beam's boot of their version.

    Args:
        source: The folder that contains the package slipway.
    """
    version = beam_version(source)
    return ImageKind("beam-cpu", (), {"BEAM_SDK": f"{BEAM_SDK}:{version}", "BEAM_VERSION": version})


def beam_version(source: Path) -> str:
    """Return the version of Beam in the steps' images."""
    requirements = f"{REQUIREMENTS}/steps-cpu.txt"
    locked = re.search(r"^apache-beam(?:\[[^]]*\])?==([^\s;]+)", (source / requirements).read_text(), re.MULTILINE)
    assert locked, f"{requirements} has apache-beam"
    return locked[1]
