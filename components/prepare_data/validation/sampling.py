"""Choose the images that are decoded in full (data.check): all of them, or a sample of a large data set.

The hash of its key determines whether an image is in the sample, so the sample does not depend on the number of workers
or shards or on the machine, and is the same after a killed run resumes.
"""

from __future__ import annotations

import hashlib

from slipway.components.prepare_data.settings import Check, DataSettings
from slipway.core.manifest import Checked

HASH_BYTES = 8
# Larger than any hash: all images are decoded.
ALL = 1 << 8 * HASH_BYTES
# Makes this hash independent of the one that determines split, shard and order.
PURPOSE = b"data.check"


def check_for(settings: DataSettings, images: int) -> Check:
    """Return the effective data.check; it is `decode` if the sample includes all images, or all are resized."""
    if settings.explicit_resize or (settings.check == "sample" and images <= settings.check_sample):
        return "decode"
    return settings.check


def decoded_below(settings: DataSettings, images: int) -> int:
    """Return the threshold for `is_decoded`, for a data set of `images` images."""
    thresholds = {"decode": ALL, "header": 0, "sample": ALL * settings.check_sample // max(images, 1)}
    return thresholds[check_for(settings, images)]


def is_decoded(key: bytes, below: int) -> bool:
    """Whether the image with this key is decoded in full."""
    if below in (0, ALL):
        return below == ALL
    return int.from_bytes(hashlib.blake2b(key, digest_size=HASH_BYTES, person=PURPOSE).digest()) < below


def sentence(checked: Checked) -> str:
    """Describe how the images were validated, and what the sample implies for the others."""
    damaged = ""
    if checked.damaged:
        percent = 100 * checked.damaged / checked.decoded
        damaged = f" {checked.damaged:,} of them ({percent:.3g} %) are damaged: they decode, but with warnings."
    if checked.check == "decode":
        return f"Every image was decoded in full.{damaged}"
    if checked.check == "header":
        return "The header of every image was checked; no image was decoded in full (data.check=header)."
    outcome = "all of them successfully"
    if checked.undecodable:
        percent = 100 * checked.undecodable / checked.decoded
        outcome = (
            f"but {checked.undecodable:,} of them ({percent:.3g} %) cannot be decoded although their headers are "
            "valid; expect about the same fraction of the other images"
        )
    return (
        f"The header of every image was checked. A sample of {checked.decoded:,} of {checked.images:,} images was "
        f"decoded in full, {outcome}.{damaged} To decode all images, use --set data.check=decode."
    )
