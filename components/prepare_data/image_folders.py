"""Save a TFDS data set as a folder of image files, `split/class/*`, for the source `images:FOLDER`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.source import Ignored, readable
from slipway.components.prepare_data.sources.tfds_set import open_tfds
from slipway.core.errors import UserError


def save_images(settings: DataSettings, folder: Path) -> int:
    """Write the images of the TFDS data set named by `settings` to `folder`, unchanged; return their number.

    The folder appears under its name only when it is complete.

    Raises:
        UserError: The folder exists, the data set is unavailable, or an example or a class cannot be saved in a folder.
    """
    if folder.exists():
        raise UserError(
            f"{folder} exists already.",
            setting="FOLDER",
            value=str(folder),
            fix=f"slipway run --set data.source=images:{folder}, or choose another folder",
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
                    raise _unsuitable(settings, f"the class {label!r} is not a valid folder name")
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
        fix=f"--set data.source={settings.source}",
    )
