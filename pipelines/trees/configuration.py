"""The part of slipway.yaml on training that `slipway init --table --template trees` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipway.components.prepare_data.scan_table import TableScan


def sections(scan: TableScan, rare: str) -> list[str]:  # noqa: ARG001
    """Return the sections; `rare` says which of two classes is rare."""
    arguments = f"""  arguments: ["--threshold", "f1"]  # {rare}"""
    return [
        "train:",
        "  module: program  # program.py",
        *([arguments] if rare else []),
        "build:",
        "  requirements: requirements.txt  # LightGBM, which no image for training has",
    ]
