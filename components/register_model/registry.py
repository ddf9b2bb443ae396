"""The local registry: folders `<root>/<model>/<version>/` with a `metadata.json`, and the alias file `champion`.

Versions are added atomically and never change. `champion` is a text file with a version's number, replaced atomically.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import Field

from slipway.core import formats
from slipway.core.atomic import FULL, read_regular, replace_file, sync, sync_tree
from slipway.core.errors import UserError
from slipway.core.integrity import (
    FILES_CHECKSUM,
    REGISTRATION_FILE,
    SIGNATURE_FILE,
    STATEMENT_FILE,
    checksum,
    files,
    verify,
)
from slipway.core.values import JsonObject
from slipway.trainer.settings import Settings

METADATA = REGISTRATION_FILE
# Its key with the function that loads a custom program's model.
SERVE_MODULE = "serve_module"
CHAMPION = "champion"
LOCK = ".lock"
MAX_DIGITS = 10
UNFINISHED = ".unfinished-"

# The champion that a model was compared with: a version number, None for no champion, "any" for no comparison.
PromoteOver = int | None | Literal["any"]


class RegisterSettings(Settings):
    """Where model versions are registered."""

    registry: str = Field(
        default="models",
        description="Folder of the local registry. Not used on Vertex AI, which has its own Model Registry.",
    )
    signing_key: str | None = Field(
        default=None,
        description="Private key (Ed25519, P-256, P-384 or P-521, in a PEM file) with which the provenance of versions "
        "that are registered on this machine is signed, for `slipway runs verify --key`; null: it is not signed.",
    )
    model: str | None = Field(
        default=None,
        pattern=r"^[a-z][a-z0-9-]*$",
        max_length=63,  # UploadModelRequest.model_id
        description="Name of the model in the registry; null: the name of the configuration.",
    )


@dataclass(frozen=True)
class Version:
    """A registered version: the model's name, its number, its folder and the content of metadata.json."""

    model: str
    number: int
    folder: Path
    metadata: JsonObject


@dataclass(frozen=True)
class Registration:
    """The result of a registration: the version, whether it is the champion, and why not."""

    version: Version
    champion: bool
    note: str | None = None


class Registry:
    """The models in the folder `root`, which is created when the first model is registered."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def models(self) -> list[str]:
        """Return the names of the models that have a version."""
        if not self.root.is_dir():
            return []
        return sorted(path.name for path in self.root.iterdir() if path.is_dir() and self.numbers(path.name))

    def versions(self, model: str) -> list[Version]:
        """Return a model's versions, oldest first.

        Raises:
            UserError: A version's metadata cannot be read.
        """
        return [self.version(model, number) for number in self.numbers(model)]

    def numbers(self, model: str) -> list[int]:
        """Return the numbers of a model's versions, oldest first."""
        folder = self.root / model
        if not folder.is_dir():
            return []
        names = (path.name for path in folder.iterdir() if path.is_dir())
        return sorted(int(name) for name in names if name.isascii() and name.isdigit() and not name.startswith("0"))

    def version(self, model: str, number: int) -> Version:
        """Return an existing version of a model.

        Raises:
            UserError: Its metadata cannot be read.
        """
        folder = self._folder(model, number)
        try:
            metadata = json.loads(read_regular(folder / METADATA))
        except (OSError, ValueError, RecursionError):
            metadata = None
        if not isinstance(metadata, dict):
            raise UserError(
                f"The registered version {folder} cannot be read: its {METADATA} is missing or damaged.",
                setting="register.registry",
                value=str(self.root),
                fix=f"restore {METADATA}, or move the version away: mv {shlex.quote(str(folder))} {model}-{number}",
            )
        formats.check(metadata, folder / METADATA)
        return Version(model, number, folder, metadata)

    def champion(self, model: str) -> Version | None:
        """Return the version to beat, or None if there is none yet.

        Raises:
            UserError: The alias does not name an existing version.
        """
        number = self._champion_number(model)
        return None if number is None else self.version(model, number)

    def register(self, model: str, source: Path, metadata: JsonObject, promote_over: PromoteOver) -> Registration:
        """Copy a model's folder as the next version, and make it the champion.

        Idempotent: a model with the same `run_id` and `weights_checksum` in its metadata is registered once, and
        repeating the call returns that version.

        Args:
            model: The model's name.
            source: The folder to copy.
            metadata: Metadata to store; the registry adds model, version, created, source and files_checksum.
            promote_over: The champion that the model was compared with. If the champion has changed since, the version
                is registered but the alias does not move.

        Raises:
            UserError: The disk is full or read-only, or the alias does not name an existing version; nothing is
                registered then.
        """
        with self._writing(model):
            current = None if promote_over == "any" else self._champion_number(model)
            version = self._registered_before(model, metadata) or self._add(model, source, metadata)
            return self._promote(version, current, promote_over)

    def _promote(self, version: Version, current: int | None, over: PromoteOver) -> Registration:
        """Move the alias to `version` unless it has changed since the verdict; the caller holds the lock."""
        if current == version.number:
            return Registration(version, champion=True)
        if over != "any" and current != over:
            return Registration(version, champion=False, note=superseded(version.model, version.number, over, current))
        replace_file(self._champion_file(version.model), f"{version.number}\n".encode())
        return Registration(version, champion=True)

    def _registered_before(self, model: str, metadata: JsonObject) -> Version | None:
        identity = (metadata.get("run_id"), metadata.get("weights_checksum"))
        if identity[0] is None:
            return None
        for version in self.versions(model):
            if (version.metadata.get("run_id"), version.metadata.get("weights_checksum")) == identity:
                return version
        return None

    def _add(self, model: str, source: Path, metadata: JsonObject) -> Version:
        """Copy to a temporary folder, then rename it; the caller holds the lock."""
        number = max([0, *self.numbers(model), self._alias_number(model) or 0]) + 1
        target = self._folder(model, number)
        unfinished = target.with_name(f"{UNFINISHED}{number}")
        record = {
            **metadata,
            formats.KEY: formats.FORMAT,
            "model": model,
            "version": number,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "source": str(source),
        }
        try:
            _copy_folder(source, unfinished)
            _verify_copy(source, unfinished)
            if (unfinished / STATEMENT_FILE).exists():  # of a model copied from a registry, as all of these
                for signature in (STATEMENT_FILE, SIGNATURE_FILE):
                    (unfinished / signature).unlink(missing_ok=True)
            record[FILES_CHECKSUM] = checksum(unfinished)
            # It replaces that of a model copied from a registry.
            replace_file(unfinished / METADATA, (json.dumps(record, indent=2) + "\n").encode())
            sync_tree(unfinished)
            unfinished.rename(target)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        for parent in (target.parent, self.root):  # both may be new
            sync(parent)
        return Version(model, number, target, record)

    @contextlib.contextmanager
    def _writing(self, model: str) -> Iterator[None]:
        """Hold the model's lock, and delete unfinished versions, which only a dead process can have left."""
        from filelock import FileLock  # imports asyncio, which the readers of the settings do not need

        folder = self.root / model
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / LOCK, mode=folder.stat().st_mode & 0o666):  # whoever may write there may lock it
                for left in folder.glob(f"{UNFINISHED}*"):
                    shutil.rmtree(left, ignore_errors=True)
                yield
        except OSError as error:
            full = error.errno in FULL
            reason = "its disk is full" if full else (error.strerror or str(error))
            raise UserError(
                f"Could not register the model in {folder}: {reason}.",
                setting="register.registry",
                value=str(self.root),
                allowed="a folder that can be written to, with room for a copy of the model",
                fix=("free space there" if full else f"make {folder} writable")
                + ", or --set register.registry=FOLDER; then slipway run --resume latest",
            ) from error

    def _champion_number(self, model: str) -> int | None:
        """Return the number of the existing version that the alias names; None if there is no alias."""
        file = self._champion_file(model)
        if not file.exists():
            return None
        number, numbers = self._alias_number(model), self.numbers(model)
        if number in numbers:
            return number
        named = "no version" if number is None else f"version {number}, which does not exist"
        repairs = [f"mv {shlex.quote(str(file))} {file.name}-{model}"] if file.is_dir() or not numbers else []
        repairs += [f"echo {numbers[-1]} > {file}"] if numbers else []
        raise UserError(
            f"The champion of {model} is unknown: {file} names {named}.",
            setting="evaluate.champion",
            value="registered",
            allowed=", ".join(f"version {existing}" for existing in numbers) or "no version is registered",
            fix=f"{'; '.join(repairs)}, or evaluate without a champion: --set evaluate.champion=none",
        )

    def _alias_number(self, model: str) -> int | None:
        """Return the number in the alias file, None if it is missing or invalid."""
        try:
            text = self._champion_file(model).read_bytes().strip()
        except OSError:
            return None
        return int(text) if text.isdigit() and len(text) < MAX_DIGITS else None

    def _folder(self, model: str, number: int) -> Path:
        return self.root / model / str(number)

    def _champion_file(self, model: str) -> Path:
        return self.root / model / CHAMPION


def superseded(model: str, version: int | str, over: int | str | None, current: int | str | None) -> str:
    """Return the sentence that says why a version is not the champion, which has changed from `over` to `current`."""
    against = f"version {over}" if over else "no champion"
    holder = f"version {current} has become champion since" if current else "there is none now"
    outcome = f"Version {version} of {model} is registered but not the champion"
    return f"{outcome}: it was compared with {against}, and {holder}."


def _copy_folder(source: Path, target: Path) -> None:
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.is_dir():
            _copy_folder(path, target / path.name)
        else:
            shutil.copyfile(path, target / path.name)


def _verify_copy(source: Path, target: Path) -> None:
    """Raise UserError if the model is damaged, OSError if its files differ from those of `source`."""
    verify(target)
    written, copied = files(source), files(target)
    if different := sorted(name for name in copied if copied[name] != written.get(name)):
        raise OSError(errno.EIO, f"{different[0]} was copied with other content")
