"""How a tree of image files says each one's class and split: `split/class/file`, or `class/file` without splits."""

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
# Files with these endings are examples; those with the endings of formats that cannot be used are named as
# unusable instead of being passed over.
ENDINGS = frozenset((b"png", b"jpg", b"jpeg", b"gif", b"bmp", b"webp", b"tif", b"tiff", b"heic", b"avif"))
LAYOUT = "class/*.png|jpg|jpeg or split/class/*.png|jpg|jpeg, with the splits train, validation and test"


def is_image(name: bytes) -> bool:
    """Whether a file's name has an image's ending."""
    return name.rpartition(b".")[2].lower() in ENDINGS


def split_folders(top: Iterable[str], where: object, reference: str) -> dict[str, str]:
    """The splits that folders at the top stand for, by folder; none where the folders are classes.

    Raises:
        UserError: Some are splits, others are not; or one split is there twice; or train is missing.
    """
    top = list(top)
    splits = {name: SPLIT_FOLDERS[name.lower()] for name in top if name.lower() in SPLIT_FOLDERS}
    strange = [name for name in top if name not in splits]
    twice = [name for name in splits if list(splits.values()).count(splits[name]) > 1]
    if not splits:
        return {}
    if strange:
        problem = f"{where} has folders of splits ({', '.join(splits)}) beside others ({_some(strange)})."
    elif twice:
        problem = f"{where} has several folders for one split: {', '.join(twice)}."
    elif "train" not in splits.values():
        problem = f"{where} has the folders {', '.join(splits)}, but none for the split train."
    else:
        return splits
    raise UserError(problem, setting="data.source", value=reference, allowed=LAYOUT)


def check_class_folders(folders: Iterable[str], where: object, reference: str) -> None:
    """Refuse a tree without class folders, and names that cannot be shown."""
    folders = list(folders)
    if not folders:
        raise UserError(
            f"There are no class folders in {where}.", setting="data.source", value=reference, allowed=LAYOUT
        )
    for folder in folders:
        if not folder.isprintable():
            raise UserError(
                f"The class folder {folder!r} in {where} has a name that cannot be printed.",
                setting="data.source",
                value=reference,
                fix="rename the folder",
            )


def groups_of(folders: Iterable[str], where: object, reference: str) -> dict[str, Group]:
    """The split and class of each folder that holds images, by its path; folders around all of them do not count.

    Raises:
        UserError: The folders are not laid out as described.
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
                f"{where} has images in {folder or 'no folder'!r}, which is neither a class nor a class in a split.",
                setting="data.source",
                value=reference,
                allowed=LAYOUT,
            )
        result[folder] = (splits[parts[0]], parts[1]) if splits else (None, parts[0])
    return result


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
