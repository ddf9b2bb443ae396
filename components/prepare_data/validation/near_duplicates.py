"""Images that look the same but differ in their bytes: saved again, resized, or frames of one scene.

Whoever decodes an image to validate or to store it passes it to `Thumbnails`, which keeps 16x16 gray pixels of it;
`perceptual_hash` compares these.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slipway.components.prepare_data.examples import readable
from slipway.components.prepare_data.validation.duplicates import Copy, Stored, copies_of
from slipway.components.prepare_data.validation.thumbnails import COUNT_BYTES

MAX_NAMED = 5


def find_groups(files: Sequence[Path]) -> list[list[bytes]]:
    """Return the keys of images that look the same, by files with `Thumbnails.encoded`; see `perceptual_hash`."""
    if all(file.stat().st_size == COUNT_BYTES for file in files):
        return []
    from slipway.components.prepare_data.validation import perceptual_hash  # imports NumPy and SciPy

    return perceptual_hash.find_groups(files)


def across_splits(groups: Sequence[Sequence[bytes]], split_of: dict[bytes, str]) -> list[Copy]:
    """Return the images that look the same as one in another split, sorted; see `copies_of`."""
    stored = ([Stored(key, split_of[key], ()) for key in group if key in split_of] for group in groups)
    return sorted(copy for group in stored if group for copy in copies_of(group))


def near_duplicate_notes(copies: Sequence[Copy]) -> list[str]:
    """Return a note on images that look the same as one in another split, if there are any."""
    if not copies:
        return []
    named = [f"{readable(copy.key)} ({copy.split}) ~ {readable(copy.kept)} ({copy.keeper})" for copy in copies]
    more = f"; and {len(copies) - MAX_NAMED:,} more" if len(copies) > MAX_NAMED else ""
    many = "1 image looks" if len(copies) == 1 else f"{len(copies):,} images look"
    return [
        f"{many} the same as one in another split: {'; '.join(named[:MAX_NAMED])}{more}. The evaluation metrics may be "
        "better than for new images; --set data.near_duplicates=group keeps such images in one split."
    ]
