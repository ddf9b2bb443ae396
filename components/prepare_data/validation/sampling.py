"""Which images are decoded in full, where a set is so large that a sample of them has to do (data.check).

A hash of its key says whether an image is in the sample, so it is the same one whatever the number of workers or of
shards, on whichever machine, and when a killed run is gone on with.
"""

from __future__ import annotations

import hashlib

from slipway.components.prepare_data.settings import Check, DataSettings
from slipway.core.manifest import Checked

HASH_BYTES = 8
# More than any hash: all images are decoded.
ALL = 1 << 8 * HASH_BYTES
# Another hash than those by which a split, a shard and the place in it are chosen.
PURPOSE = b"data.check"


def check_for(settings: DataSettings, images: int) -> Check:
    """How far so many images are looked at: of few enough of them the sample is all."""
    if settings.check == "sample" and images <= settings.check_sample:
        return "decode"
    return settings.check


def decoded_below(settings: DataSettings, images: int) -> int:
    """Which of so many images are decoded in full: those for which `is_decoded` says so with this number."""
    shares = {"decode": ALL, "header": 0, "sample": ALL * settings.check_sample // max(images, 1)}
    return shares[check_for(settings, images)]


def is_decoded(key: bytes, below: int) -> bool:
    """Whether the image of that key is decoded in full."""
    if below in (0, ALL):
        return below == ALL
    return int.from_bytes(hashlib.blake2b(key, digest_size=HASH_BYTES, person=PURPOSE).digest()) < below


def sentence(checked: Checked) -> str:
    """In a sentence how far the images were looked at, and what a sample says of the others."""
    if checked.check == "decode":
        return "Every image was decoded in full."
    if checked.check == "header":
        return "Of every image the header was checked, none was decoded in full (data.check=header)."
    found = "all of which can be"
    if checked.undecodable:
        share = 100 * checked.undecodable / checked.decoded
        found = (
            f"{checked.undecodable:,} of which ({share:.3g} %) cannot be, though their headers are good: "
            "expect about the same share of the others"
        )
    return (
        f"Of every image the header was checked, and {checked.decoded:,} of {checked.images:,} images, a sample, were "
        f"decoded in full, {found}; --set data.check=decode decodes all."
    )
