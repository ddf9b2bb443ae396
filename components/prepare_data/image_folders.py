"""A set of TensorFlow Datasets as a folder of image files, `split/class/*`, which the source `images:FOLDER` reads."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.source import Ignored, readable
from slipway.components.prepare_data.sources.tfds_set import open_tfds
from slipway.core.errors import UserError


def save_images(settings: DataSettings, folder: Path) -> int:
    """Write the images of the TFDS set that `settings` name to `folder`, unchanged; how many there are.

    The folder has its name only when it is complete.

    Raises:
        UserError: The folder exists, the set cannot be had, or one of its examples or classes has no place in a folder.
    """
    if folder.exists():
        raise UserError(
            f"{folder} exists already.",
            setting="FOLDER",
            value=str(folder),
            fix=f"slipway run --set data.source=images:{folder}, or name another folder",
        )
    reference = settings.source.removeprefix("tfds:")
    source = open_tfds(reference, settings, None)
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.absolute().parent) as scratch:
        ignored, reader, root = Ignored(), source.reader(Path(scratch)), Path(scratch) / "images"
        for part in source.parts():
            for key, label, split, size, _, place, _ in source.entries(part, ignored, Path(scratch)):
                if "/" in label or label.startswith("."):
                    raise _unsuitable(settings, f"the class {label!r} cannot be the name of a folder")
                image = reader.read(key, place, size)
                ending = "png" if image.startswith(b"\x89PNG") else "jpg"
                path = root / str(split) / label / f"{count:07d}.{ending}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(image)
                count += 1
        if ignored.unusable_count:
            key, reason = ignored.unusable[0]
            raise _unsuitable(
                settings, f"{ignored.unusable_count:,} examples cannot be used: {readable(key)}, {reason}"
            )
        shutil.move(root, folder)
    return count


def _unsuitable(settings: DataSettings, reason: str) -> UserError:
    return UserError(
        f"{settings.source} cannot be saved as a folder of images: {reason}.",
        setting="data.source",
        value=settings.source,
        fix=f"--set data.source={settings.source} reads it without a folder",
    )
