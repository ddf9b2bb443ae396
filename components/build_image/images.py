"""Which images there are: the steps' and the trainer's, for each kind of accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipway.core.errors import UserError, nearest

# TPU VMs open their chips to root only.
ROOT_USER = "0:0"
ANY_USER = "65534:65534"
# Which folders of the source tree an image holds, by their place in it.
TRAINER_CODE = {"slipway": "slipway", "slipway/trainer": "trainer"}
CODE = {"steps": {**TRAINER_CODE, "slipway/components": "components"}, "trainer": TRAINER_CODE}


@dataclass(frozen=True)
class ImageKind:
    """One image: its name, the folders of ours that it holds by their place in it, and the build arguments."""

    name: str
    code: Mapping[str, str]
    arguments: Mapping[str, str]

    @property
    def requirements(self) -> str:
        """Its locked packages, below the source tree."""
        return f"requirements/{self.name}.txt"


def image_kind(source: Path, role: str, accelerator: str, engine: str = "tensorflow") -> ImageKind:
    """The image of a role ("steps", "trainer") for an accelerator ("cpu", "gpu", "tpu").

    Where none is locked for CPUs, the one for GPUs does: PyTorch's packages are the same for both.

    Args:
        source: The source tree: what images there are follows from its requirements/.
        role: What runs in it.
        accelerator: What it runs on.
        engine: What trains; packages differ by it.

    Raises:
        UserError: No packages are locked for it.
    """
    ending = "" if engine == "tensorflow" else f"-{engine}"
    name = f"{role}-{accelerator}{ending}"
    known = sorted(path.stem for path in (source / "requirements").glob(f"{role}-*.txt"))
    for_both = f"{role}-gpu{ending}"
    if name not in known and accelerator == "cpu" and for_both in known:
        name = for_both
    if name not in known:
        raise UserError(
            f"There is no image in which {engine} trains on this hardware.",
            setting="train.engine",
            value=engine,
            allowed=", ".join(known),
            nearest=nearest(name, known),
            fix=f"write requirements/{name}.in, then make lock; or choose other hardware",
        )
    user = ROOT_USER if accelerator == "tpu" else ANY_USER
    return ImageKind(name, CODE[role], {"REQUIREMENTS": name, "RUN_AS": user})
