"""Images as the network sees them, and whether it sees anything: alpha channels, later frames and low bits are lost."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, cast

from slipway.components.prepare_data.encoding.records import read_examples, stored_parts
from slipway.components.prepare_data.encoding.stored import resized
from slipway.core.errors import UserError
from slipway.core.images import PNG_START, plain
from slipway.core.manifest import Manifest

if TYPE_CHECKING:
    from PIL import Image

MAX_EXAMPLES = 128
# An image of fewer levels, of 256, is nearly black or of one color.
FEWEST_LEVELS = 24
# From this share on, and from this number, such images are named.
NOTED, FEWEST_NOTED = 0.1, 2
PNG_DEPTH, PNG_COLOR = 24, 25
PNG_ALPHA = (4, 6)
PAGE = "docs/your-own-data.md, section Blank images"


def as_network_sees(image: bytes, manifest: Manifest) -> Image.Image:
    """Return a stored image as the network receives it: with its channels, and of `manifest.image_size`.

    Pixels are those of TensorFlow's decoder (`slipway.core.images.plain`),
    resized nearly as `trainer.data.images` does.
    """
    from PIL import Image

    height, width = manifest.image_size
    with Image.open(io.BytesIO(image)) as opened:
        decoded = plain(opened).convert("L" if manifest.channels == 1 else "RGB")
    if decoded.size == (width, height):
        return decoded
    return resized(decoded, (width, height), manifest.resize_mode)


def blank_notes(folder: Path, manifest: Manifest) -> list[str]:
    """Return a note if the network sees nothing, or nearly nothing, in many images of the training split.

    Args:
        folder: The folder of the shards.
        manifest: The data set's manifest.

    Raises:
        UserError: All images are equal and of one color, and there is no other input.
    """
    if not manifest.has_image:
        return []
    shards = [folder / shard.file for shard in manifest.splits["train"].shards[:1]]
    colors: Counter[bytes] = Counter()  # of images of one color
    faint, total, causes = 0, 0, set()
    for features in itertools.islice(read_examples(shards), MAX_EXAMPLES):
        image = stored_parts(features)[0]
        try:
            shown = as_network_sees(image, manifest)
        except OSError:  # data.check did not decode it
            continue
        bands = [cast("tuple[int, int]", band.getextrema()) for band in shown.split()]
        levels = 1 + max(high - low for low, high in bands)
        total += 1
        if levels == 1:
            colors[bytes(low for low, _ in bands)] += 1
        elif levels < FEWEST_LEVELS:
            faint += 1
        if levels < FEWEST_LEVELS:
            causes |= _causes(image)
    blank = max(colors.values(), default=0)  # those of other colors differ
    because = f" ({'; '.join(sorted(causes))})" if causes else ""
    if blank == total > 1 and manifest.is_image_only:
        raise UserError(
            f"The network sees the same single color in all {total:,} training images compared{because}.",
            setting="data.source",
            value=manifest.source,
            fix=f"convert the images: {PAGE}, has a program for it",
        )
    if blank + faint < max(FEWEST_NOTED, NOTED * total):
        return []
    appearance = f"fewer than {FEWEST_LEVELS} of 256 levels" if faint else "the same single color"
    return [
        f"The network sees {appearance} in {blank + faint:,} of {total:,} training images{because}: {PAGE}, says what "
        "helps."
    ]


def _causes(image: bytes) -> set[str]:
    """Return why a network may see less than a viewer shows, as a PNG image's header says."""
    if not image.startswith(PNG_START):
        return set()
    if image[PNG_COLOR] in PNG_ALPHA:
        return {"they have an alpha channel, which decoders drop"}
    return {"of their 16 bits, decoders keep the upper 8"} if image[PNG_DEPTH] == 16 else set()
