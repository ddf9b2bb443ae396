"""64-bit hashes of examples: of each split of a data set, and of the examples on which a model was trained or selected.

A data set has one file for each split, with the hash of each record, in order. A model's folder has one file with the
sorted hashes of the training and the validation split. By them the gate compares two models on examples that neither
has seen. An example with an image has the hash of its bytes in the source, any other that of its inputs and label, or
of its key if equal ones are separate observations (data.duplicates).
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.core.manifest import Manifest, damaged

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HASH_BYTES = 8
# In a model's folder.
SEEN_FILE = "seen.u64"
SEEN_SPLITS = ("train", "validation")


def key_hash(key: bytes) -> int:
    """Return the hash of an example without an image."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=HASH_BYTES, person=b"seen").digest())


def key_hashes(keys: Iterable[bytes]) -> array[int]:
    """Return the hashes of many examples without an image."""
    fresh = hashlib.blake2b(digest_size=HASH_BYTES, person=b"seen").copy  # faster than a new one for each
    digests = []
    for key in keys:
        hashed = fresh()
        hashed.update(key)
        digests.append(hashed.digest())
    hashes = array("Q", b"".join(digests))
    if sys.byteorder == "little":
        hashes.byteswap()
    return hashes


def split_file(split: str) -> str:
    """Return the name of the file with the hashes of a data set's split."""
    return f"{split}.u64"


def of_split(data: Path, manifest: Manifest, split: str) -> NDArray[np.uint64] | None:
    """Return the hashes of a split's records, in order; None if the data set has none.

    Raises:
        UserError: Their number is not that of the records.
    """
    import numpy as np

    path = data / split_file(split)
    if split not in manifest.splits or not path.is_file():
        return None
    hashes = np.fromfile(path, np.uint64)
    if len(hashes) != manifest.splits[split].examples:
        raise damaged(
            path, f"it has {len(hashes):,} hashes, and the split {manifest.splits[split].examples:,} examples"
        )
    return hashes


def write_seen(data: Path, manifest: Manifest, model: Path, base: Path | None = None) -> None:
    """Write to a model's folder what it has seen, if the data set that it was trained on has hashes.

    `base` is the folder of its initial weights: the model has seen what that of another model has.
    """
    import numpy as np

    parts = [of_split(data, manifest, split) for split in SEEN_SPLITS]
    parts += [seen_by(base)] if base else []
    if hashes := [part for part in parts if part is not None]:
        np.unique(np.concatenate(hashes)).tofile(model / SEEN_FILE)


def seen_by(model: Path) -> NDArray[np.uint64] | None:
    """Return the sorted hashes of the examples that a model has seen; None if that was not recorded."""
    import numpy as np

    path = model / SEEN_FILE
    return np.fromfile(path, np.uint64) if path.is_file() else None
