"""Small files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Write a small file so that it is there whole, on the disk, or not at all."""
    writing = path.with_name(f".{path.name}.{os.getpid()}")
    with writing.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    writing.replace(path)
