"""Class and split of image files from their paths: `split/class/file`, or `class/file` without splits."""

from __future__ import annotations

from collections.abc import Iterable

from slipway.components.prepare_data.sources.source import Group
from slipway.core.errors import UserError

SPLIT_FOLDERS = {
    "train": "train",
    "validation": "validation",
    "val": "validation",
    "valid": "validation",
    "test": "test",
}
# Files with these extensions are examples. Unsupported formats are included so that they are reported as unusable
# instead of being ignored.
ENDINGS = frozenset((b"png", b"jpg", b"jpeg", b"gif", b"bmp", b"webp", b"tif", b"tiff", b"heic", b"avif"))
LAYOUT = "class/*.png|jpg|jpeg or split/class/*.png|jpg|jpeg, with the splits train, validation and test"


def is_image(name: bytes) -> bool:
    """Whether a file name has the extension of an image format."""
    return name.rpartition(b".")[2].lower() in ENDINGS


def split_folders(top: Iterable[str], where: object, reference: str) -> dict[str, str]:
    """Map top-level folders to splits; return an empty dict if the folders are classes.

    Raises:
        UserError: Only some folders are splits, a split has several folders, or train is missing.
    """
    top = list(top)
    splits = {name: SPLIT_FOLDERS[name.lower()] for name in top if name.lower() in SPLIT_FOLDERS}
    strange = [name for name in top if name not in splits]
    twice = [name for name in splits if list(splits.values()).count(splits[name]) > 1]
    if not splits:
        return {}
    if strange:
        problem = f"{where} mixes split folders ({', '.join(splits)}) with other folders ({_some(strange)})."
    elif twice:
        problem = f"{where} has several folders for one split: {', '.join(twice)}."
    elif "train" not in splits.values():
        problem = f"{where} has the folders {', '.join(splits)}, but no folder for the split train."
    else:
        return splits
    raise UserError(problem, setting="data.source", value=reference, allowed=LAYOUT)


def check_class_folders(folders: Iterable[str], where: object, reference: str) -> None:
    """Reject a tree without class folders, and class names with unprintable characters."""
    folders = list(folders)
    if not folders:
        raise UserError(
            f"There are no class folders in {where}.", setting="data.source", value=reference, allowed=LAYOUT
        )
    for folder in folders:
        if not folder.isprintable():
            raise UserError(
                f"The class folder {folder!r} in {where} has unprintable characters in its name.",
                setting="data.source",
                value=reference,
                fix="rename the folder",
            )


def groups_of(folders: Iterable[str], where: object, reference: str) -> dict[str, Group]:
    """Return the split and class of each folder of images, by its path. Common parent folders are ignored.

    Raises:
        UserError: The folders have another layout.
    """
    paths = {folder: folder.split("/") if folder else [] for folder in sorted(folders)}
    check_class_folders(paths, where, reference)
    rests = paths
    while all(len(parts) > 1 for parts in rests.values()):
        top = {parts[0] for parts in rests.values()}
        if len(top) > 1 or top & SPLIT_FOLDERS.keys():
            break
        rests = {folder: parts[1:] for folder, parts in rests.items()}
    splits = split_folders(sorted({parts[0] for parts in rests.values() if parts}), where, reference)
    result: dict[str, Group] = {}
    for folder, parts in rests.items():
        if len(parts) != (2 if splits else 1):
            raise UserError(
                f"{where} has images in {folder or 'no folder'!r}, which is neither class/ nor split/class/.",
                setting="data.source",
                value=reference,
                allowed=LAYOUT,
            )
        result[folder] = (splits[parts[0]], parts[1]) if splits else (None, parts[0])
    return result


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
