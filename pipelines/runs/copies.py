"""Folders in buckets, such as the models of runs in the cloud, copied to this machine on request by an extension."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from slipway import extensions
from slipway.core import paths
from slipway.core.buckets import SCHEME
from slipway.core.errors import UserError


class Folders(Protocol):
    """Copies folders of buckets; raises UserError if one is empty, may not be read, or does not fit the disk."""

    def copy(self, uri: str, target: Path, configuration: Path | None, say: Callable[[str], None]) -> None:
        """Copy a folder or file of a bucket; files that are there already, of the same content, are kept.

        Args:
            uri: The folder or file, gs://BUCKET/PATH.
            target: The folder or file to write; files that the bucket does not have are removed from it.
            configuration: That of the project in the cloud; None for slipway.yaml.
            say: Receives what is copied, and how large it is.
        """

    def names_in(self, uri: str, configuration: Path | None) -> list[str]:
        """Return the names of the objects in a folder of a bucket, relative to it."""


def folders() -> Folders:
    """Return what copies folders of buckets.

    Raises:
        UserError: No extension does.
    """
    references = extensions.references("folders")
    if not references:
        raise UserError(f"No extension is installed that reads {SCHEME} buckets.", fix="copy it with another tool")
    return cast("Folders", extensions.load(references[0]))


def is_remote(uri: str) -> bool:
    """Return whether a folder is in a bucket from which it can be copied."""
    return uri.startswith(SCHEME)


def cached(uri: str) -> Path:
    """Return the folder of this user to which a folder in a bucket is copied."""
    return paths.cached(uri.removeprefix(SCHEME).strip("/"))


def local(uri: str, say: Callable[[str], None]) -> Path:
    """Return the copy of a folder or file of a bucket, by the project of slipway.yaml; see `Folders.copy`."""
    folders().copy(uri, cached(uri), None, say)
    return cached(uri)
