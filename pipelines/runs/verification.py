"""Verification of stored artifacts: every file of models, checkpoints and data sets is compared with its checksum."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from slipway.components.register_model.registry import CHAMPION, Registry
from slipway.core import integrity, locked, manifest, statement
from slipway.core.dsse import Key
from slipway.core.errors import UserError, nearest
from slipway.core.paths import in_project, local_path
from slipway.core.values import JsonObject
from slipway.pipelines.runs import attestation, copies
from slipway.pipelines.runs import record as runs
from slipway.pipelines.terminal import say
from slipway.trainer.checkpoint.best import FOLDER as BEST_FOLDER
from slipway.trainer.checkpoint.store import Checkpoints

NAMES = "a registered model, NAME/VERSION, a run's id, or the folder of a model or prepared data set, also in gs://"
MARKS = (integrity.RECORD_FILE, integrity.CHECKSUMS_FILE, manifest.FILE_NAME)


@dataclass
class Verified:
    """An artifact, with an error for each of its damaged files; `sealed` is whether it has checksums.

    `note` is what is not verified.
    """

    kind: str
    path: Path | str
    damages: list[UserError] = field(default_factory=list)
    sealed: bool = True
    note: str = ""

    def as_dict(self) -> JsonObject:
        """Return it as JSON."""
        damages = [error.as_dict() for error in self.damages]
        return {"kind": self.kind, "path": str(self.path), "sealed": self.sealed, "note": self.note, "damages": damages}

    def lines(self) -> list[str]:
        """Return the lines of output: the artifact, then its errors."""
        if self.damages:
            return [f"✗ {self.kind} {self.path}", *(f"  {line}" for e in self.damages for line in str(e).split("\n"))]
        note = self.note if self.sealed else "has no checksums"
        return [f"✓ {self.kind} {self.path}" + (f": {note}" if note else "")]


def verify(name: str, registry: Path, key: Key = None) -> Iterator[Verified]:
    """Verify the artifacts that `name` names; see `NAMES`. Registered models have to be signed with `key`, if given.

    Raises:
        UserError: There is no such artifact.
    """
    known, folder = Registry(in_project(registry)), Path(name).expanduser()
    model, _, version = name.partition("/")
    run_ids = [run_folder.run_id for run_folder in runs.folders()]
    if copies.is_remote(name):
        yield _in_bucket(name.rstrip("/"), None)
    elif name in known.models():
        yield from _versions(known, name, key)
    elif version.isdecimal() and int(version) in known.numbers(model):
        yield from _version(known, model, int(version), key)
    elif name == runs.LATEST or name in run_ids:
        yield from _run(runs.find(name))
    elif (folder / manifest.FILE_NAME).is_file():
        yield _data_set(folder)
    elif any((folder / file).exists() for file in (integrity.RECORD_FILE, integrity.CHECKSUMS_FILE)):
        yield _model(folder)
    else:
        near = nearest(name, [*known.models(), *run_ids])
        raise UserError(
            f"There is no artifact {name}.",
            setting="WHAT",
            value=name,
            allowed=NAMES,
            nearest=near,
            fix=f"slipway runs verify {near or ''}".strip(),
        )


def everything(registry: Path, key: Key = None) -> Iterator[Verified]:
    """Verify all registered models, and the checkpoints, model and data set of each run in this folder."""
    known = Registry(in_project(registry))
    for name in known.models():
        yield from _versions(known, name, key)
    seen: set[Path | str] = set()
    for folder in runs.folders():
        for verified in _run(folder, seen):
            seen.add(verified.path)
            yield verified


def _in_bucket(uri: str, configuration: Path | None) -> Verified:
    """Verify a model or data set in a bucket by a copy of it.

    Raises:
        UserError: There is neither, or it may not be read.
    """
    names = copies.folders().names_in(uri, configuration)
    if not {*names} & {*MARKS}:
        folders = sorted({f"{uri}/{name.rpartition('/')[0]}" for name in names if name.rpartition("/")[2] in MARKS})
        near = folders[0] if folders else None
        raise UserError(
            f"There is no model or data set in {uri}: it has neither {' nor '.join((MARKS[0], MARKS[-1]))}.",
            setting="WHAT",
            value=uri,
            allowed=NAMES,
            nearest=near,
            fix=f"slipway runs verify {near}" if near else f"gcloud storage ls {uri.rpartition('/')[0]}",
        )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copies.folders().copy(uri, folder, configuration, say)
        verified = _data_set(folder) if (folder / manifest.FILE_NAME).is_file() else _model(folder)
        damages = [replace(error, message=error.message.replace(name, uri), fix=None) for error in verified.damages]
    return replace(verified, path=uri, damages=damages)


def _versions(known: Registry, name: str, key: Key) -> Iterator[Verified]:
    for number in known.numbers(name):
        yield from _version(known, name, number, key)
    try:
        known.champion(name)
    except UserError as error:
        yield Verified("champion", known.root / name / CHAMPION, [error])


def _version(known: Registry, name: str, number: int, key: Key) -> Iterator[Verified]:
    """Verify a version; with a key, also that it and its data set are those that were signed."""
    folder = known.root / name / str(number)
    try:
        checksum = known.version(name, number).metadata.get(integrity.FILES_CHECKSUM)
    except UserError as error:
        yield Verified("model", folder, [error])
        return
    verified, data = _model(folder, checksum), None
    if key is not None:
        try:
            data = statement.verified_data_set(folder, key, f"{name}/{number}")
        except (UserError, OSError) as error:
            verified.damages.append(_told(error, folder))
    elif (folder / integrity.STATEMENT_FILE).is_file():
        verified.note = "signed; to verify that: --key FILE"
    yield verified
    if data is not None:
        yield _signed_data_set(*data)


def _signed_data_set(folder: Path, digest: str) -> Verified:
    """Verify the data set of a signed model: `digest` is the SHA-256 of its manifest, which has those of the shards."""
    if not folder.is_dir():
        return Verified("data set", folder, note="not verified: it is not on this machine")
    verified = _data_set(folder)
    if not verified.damages and attestation.digest_of(folder) != digest:
        problem = (
            f"The data set in {folder} is not the one with which the model was trained: another {manifest.FILE_NAME}"
        )
        verified.damages.append(UserError(f"{problem} was signed.", fix=manifest.prepare_again(folder)))
    return verified


def _model(folder: Path, checksum: str | None = None) -> Verified:
    """Verify a model; it is damaged, too, if it has not the checksums of which `checksum` is known."""
    try:
        damages = list(integrity.damages(folder))
        observed = None if damages else integrity.checksum(folder)
    except OSError as error:
        return Verified("model", folder, [_told(error, folder)])
    if not damages and checksum not in (None, observed):
        damages = ["its checksums are missing" if observed is None else "its checksums are those of another model"]
    sealed = bool(damages) or observed is not None
    return Verified("model", folder, [integrity.damaged(folder, damage) for damage in damages], sealed)


def _run(folder: runs.RunFolder, but: set[Path | str] | None = None) -> Iterator[Verified]:
    """Verify a run's data set, checkpoints and model, except those in `but`; those in a bucket only without it."""
    try:
        record = folder.read()
    except UserError as error:
        yield Verified("run", folder.path, [error])
        return
    data = local_path(str(record.outputs("prepare_data").get("dataset", "")))
    if data != Path() and data.is_dir() and data not in (but or ()):
        yield _data_set(data)
    for checkpoints in (folder.path / "train" / "checkpoints", folder.path / "train" / "checkpoints" / BEST_FOLDER):
        yield from _checkpoints(checkpoints)
    uri = str(record.outputs("train").get("model", ""))
    model = local_path(uri)
    if copies.is_remote(uri) and not model.is_dir():
        note = f"not verified: slipway runs verify {folder.run_id} copies it to this machine"
        yield _in_bucket(uri, folder.configuration_file) if but is None else Verified("model", uri, note=note)
    elif model != Path() and model.is_dir():
        yield _model(model, record.outputs("train").get(integrity.FILES_CHECKSUM))


def _checkpoints(folder: Path) -> Iterator[Verified]:
    try:
        for path, damage in Checkpoints(folder, keep=1).damages():
            fix = f"rm -r {shlex.quote(str(path))}; training resumes from the one before it"
            error = UserError(f"The checkpoint {path} is damaged: {damage}.", fix=fix)
            yield Verified("checkpoint", path, [error] if damage else [])
    except UserError as error:
        yield Verified("checkpoints", folder, [error])


def _data_set(folder: Path) -> Verified:
    verified = Verified("data set", folder)
    try:
        splits = manifest.read(folder).splits
        shards = [(locked.folder_of(folder, name), shard) for name, split in splits.items() for shard in split.shards]
    except (UserError, OSError) as error:
        return Verified("data set", folder, [_told(error, folder)])
    for place, shard in shards:
        try:
            manifest.verify_shard(place / shard.file, shard)
        except (UserError, OSError) as error:
            verified.damages.append(_told(error, place / shard.file))
    return verified


def _told(error: UserError | OSError, path: Path) -> UserError:
    if isinstance(error, UserError):
        return error
    return UserError(f"{error.filename or path} cannot be read: {error.strerror}.", fix="check the disk or mount")
