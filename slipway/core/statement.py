"""What the signature of a registered model says: an in-toto statement with the digests of all files, and its check.

`slipway.pipelines.runs.attestation` writes it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, Field, ValidationError

from slipway.core import dsse, integrity
from slipway.core.atomic import read_regular
from slipway.core.dsse import Key
from slipway.core.errors import UserError

STATEMENT, PREDICATE = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
PAYLOAD = "application/vnd.in-toto+json"
DATA_SET = "dataset"
EMPTY = hashlib.sha256(b"").hexdigest()


class _Resource(BaseModel):
    name: str = ""
    uri: str = ""
    digest: dict[str, str] = {}


class _Build(BaseModel):
    dependencies: list[_Resource] = Field(alias="resolvedDependencies")


class _Predicate(BaseModel):
    build: _Build = Field(alias="buildDefinition")


class _Statement(BaseModel):
    """What is read of a statement."""

    kind: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    predicate_type: Literal["https://slsa.dev/provenance/v1"] = Field(alias="predicateType")
    subject: list[_Resource]
    predicate: _Predicate


def verified_data_set(version: Path, key: Key, name: str | None) -> tuple[Path, str] | None:
    """Verify a registered version with a public key, and return the data set in its statement.

    Args:
        version: Its folder.
        key: The key.
        name: As what it is used, as NAME/VERSION; None if its folder has another name than in a registry.

    Returns:
        The data set's folder and the SHA-256 of its manifest; None if the data were not prepared on a local disk.

    Raises:
        UserError: The version is not signed with this key, or its files, name or number are not those that were signed.
        OSError: A file cannot be read.
    """
    try:
        signed = [*dsse.payloads(read_regular(version / integrity.STATEMENT_FILE), key)]
    except FileNotFoundError:
        raise _refused(version, "it is not signed") from None
    if not signed:
        raise _refused(version, "its provenance is not signed with this key, or was changed")
    statements = [statement for kind, payload in signed if (statement := _parsed(kind, payload))]
    if not statements:
        raise _refused(version, "another kind of statement is signed")
    observed = contents(version)
    differences = [_difference(statement, observed) for statement in statements]
    if None not in differences:
        raise _refused(version, f"{differences[0]} is not what was signed")
    registered = json.loads(read_regular(version / integrity.REGISTRATION_FILE))
    signed_as = f"{registered.get('model')}/{registered.get('version')}"
    if name not in (None, signed_as):
        raise _refused(version, f"it was signed as {signed_as}")
    made_from = statements[differences.index(None)].predicate.build.dependencies
    data = next((resource for resource in made_from if resource.name == DATA_SET and "sha256" in resource.digest), None)
    return None if data is None else (Path(unquote(urlsplit(data.uri).path)), data.digest["sha256"])


def contents(version: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a version but the statement, by path, and of nothing for each empty folder.

    For what is neither file nor folder, and is therefore never signed, it is "". No link is followed.
    """
    if version.is_symlink():
        return {".": ""}
    contents, waiting = {}, [version]
    while waiting:
        folder = waiting.pop()
        paths = [Path(entry.path) for entry in os.scandir(folder)]
        for path in paths:
            name, mode = path.relative_to(version).as_posix(), path.lstat().st_mode
            if stat.S_ISDIR(mode):
                waiting.append(path)
            elif name != integrity.STATEMENT_FILE or not stat.S_ISREG(mode):
                contents[name] = _digest(path) if stat.S_ISREG(mode) and name.isprintable() else ""
        if not paths:
            contents[f"{folder.relative_to(version).as_posix()}/"] = EMPTY
    return dict(sorted(contents.items()))


def _digest(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _difference(statement: _Statement, observed: dict[str, str]) -> str | None:
    """Return the first path whose content is not the one that is signed, None if there is none."""
    signed = {resource.name: resource.digest.get("sha256") for resource in statement.subject}
    different = sorted(
        name for name in signed.keys() | observed if not signed.get(name) or signed[name] != observed.get(name)
    )
    return (different[0] if different[0].isprintable() else ascii(different[0])) if different else None


def _parsed(kind: str, payload: bytes) -> _Statement | None:
    try:
        return _Statement.model_validate_json(payload) if kind == PAYLOAD else None
    except ValidationError:
        return None


def _refused(version: Path, problem: str) -> UserError:
    fix = "restore it from a copy, or train it again"
    return UserError(f"The model in {version} cannot be trusted: {problem}.", fix=fix)
