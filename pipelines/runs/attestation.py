"""The signed provenance of a registered model: an in-toto statement in a DSSE envelope, beside the model's files.

Formats: https://github.com/in-toto/attestation/tree/main/spec/v1 (statement), https://slsa.dev/spec/v1.0/provenance
(predicate). With a key of an elliptic curve, `model.sig` is written as well, for the verifiers of OpenSSF's format:
https://github.com/ossf/model-signing-spec.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, Field, ValidationError

from slipway.core import integrity, manifest
from slipway.core.atomic import read_regular, replace_file
from slipway.core.errors import UserError
from slipway.core.paths import is_remote
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.runs import dsse, provenance
from slipway.pipelines.runs.dsse import Key
from slipway.pipelines.runs.record import RunFolder, RunRecord

STATEMENT, PREDICATE = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
PAYLOAD = "application/vnd.in-toto+json"
DATA_SET = "dataset"
MODEL_SIGNATURE = "https://model_signing/signature/v1.0"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
# What verifiers of OpenSSF's format never read.
GIT = (".git", ".gitattributes", ".github", ".gitignore")
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


def sign(folder: RunFolder, config: RunConfig, record: RunRecord) -> None:
    """Write the signed statement of a run's registered version, if `register.signing_key` is set.

    Raises:
        UserError: The key cannot be used.
        OSError: A file cannot be read or written.
    """
    if config.register_.signing_key is None or record.model is None:
        return
    key, version = dsse.read_key(config.register_.signing_key, private=True), Path(record.model)
    if dsse.is_elliptic(key) and not (version / integrity.SIGNATURE_FILE).exists():
        _write(version / integrity.SIGNATURE_FILE, _model_signature(version, key))
    payload = json.dumps(_statement(version, folder, config, record)).encode()
    _write(version / integrity.STATEMENT_FILE, dsse.envelope(payload, PAYLOAD, key, dsse.key_id(key.public_key())))


def verified_data_set(version: Path, key: Key) -> tuple[Path, str] | None:
    """Verify a registered version with a public key, and return the data set in its statement.

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
    observed = _contents(version)
    differences = [_difference(statement, observed) for statement in statements]
    if None not in differences:
        raise _refused(version, f"{differences[0]} is not what was signed")
    registered = json.loads(read_regular(version / integrity.REGISTRATION_FILE))
    if (registered.get("model"), str(registered.get("version"))) != (version.parent.name, version.name):
        raise _refused(version, f"it was signed as {registered.get('model')}/{registered.get('version')}")
    made_from = statements[differences.index(None)].predicate.build.dependencies
    data = next((resource for resource in made_from if resource.name == DATA_SET and "sha256" in resource.digest), None)
    return None if data is None else (Path(unquote(urlsplit(data.uri).path)), data.digest["sha256"])


def digest_of(data_set: Path) -> str:
    """Return the SHA-256 of a data set's manifest, which has those of the shards."""
    return hashlib.sha256((data_set / manifest.FILE_NAME).read_bytes()).hexdigest()


def _statement(version: Path, folder: RunFolder, config: RunConfig, record: RunRecord) -> JsonObject:
    # Without the address of a webhook, which is a secret.
    configuration = config.model_dump(mode="json", by_alias=True, exclude={"notify"})
    ended = datetime.now(UTC).isoformat()
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in _contents(version).items()],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:slipway:run:v1",
                "externalParameters": {"configuration": configuration},
                "resolvedDependencies": _dependencies(folder, record),
            },
            "runDetails": {
                "builder": {"id": f"urn:slipway:platform:{record.platform}"},
                "metadata": {
                    "invocationId": record.run_id,
                    "startedOn": record.created.isoformat(),
                    "finishedOn": ended,
                },
            },
        },
    }


def _dependencies(folder: RunFolder, record: RunRecord) -> list[JsonObject]:
    """Return what the model was made from: data set, code, image and packages."""
    prepared = next((step.outputs for step in record.steps if step.name == "prepare_data"), {})
    made_with = provenance.read(folder.path)
    found: list[JsonObject] = []
    if uri := prepared.get("dataset"):
        data = {"name": DATA_SET, "uri": uri, "annotations": {"fingerprint": prepared.get("fingerprint")}}
        if not is_remote(uri):
            data |= {"uri": Path(uri).as_uri(), "digest": {"sha256": digest_of(Path(uri))}}
        found.append(data)
    if commit := made_with.get("commit"):
        commit, _, modified = commit.partition("-")
        about = {"modified": bool(modified), "files": made_with.get("files")}
        found.append({"name": "code", "digest": {"gitCommit": commit}, "annotations": about})
    if folder.image_file.is_file():
        image = folder.image_file.read_text()
        found.append({"name": "image", "uri": image, "digest": {"sha256": image.rpartition("sha256:")[2]}})
    packages = made_with.get("packages", {}).items()
    return [*found, *({"name": name, "uri": f"pkg:pypi/{name}@{version}"} for name, version in packages)]


def _contents(version: Path) -> dict[str, str]:
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


def _model_signature(version: Path, key: Key) -> JsonObject:
    """Return the signature of a version in OpenSSF's format, a Sigstore bundle."""
    files = {
        name: digest
        for name, digest in _contents(version).items()
        if name.partition("/")[0] not in GIT and not name.endswith("/")
    }
    root = hashlib.sha256(b"".join(map(bytes.fromhex, files.values()))).hexdigest()
    statement = {
        "_type": STATEMENT,
        "subject": [{"name": version.parent.name, "digest": {"sha256": root}}],
        "predicateType": MODEL_SIGNATURE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": [integrity.SIGNATURE_FILE, integrity.STATEMENT_FILE],
            },
            "resources": [{"name": name, "algorithm": "sha256", "digest": digest} for name, digest in files.items()],
        },
    }
    hint = hashlib.sha256(dsse.pem(key.public_key()).encode()).hexdigest()
    return {
        "mediaType": BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": hint}, "tlogEntries": []},
        "dsseEnvelope": dsse.envelope(json.dumps(statement).encode(), PAYLOAD, key, ""),
    }


def _write(file: Path, content: JsonObject) -> None:
    replace_file(file, (json.dumps(content) + "\n").encode())


def _refused(version: Path, what: str) -> UserError:
    fix = "restore it from a copy, or train it again"
    return UserError(f"The model in {version} cannot be trusted: {what}.", fix=fix)
