"""The signed provenance of a registered model: an in-toto statement in a DSSE envelope.

It is a file beside the model's.
Formats: https://github.com/in-toto/attestation/tree/main/spec/v1 (statement), https://slsa.dev/spec/v1.0/provenance
(predicate), https://github.com/secure-systems-lab/dsse/blob/master/protocol.md (envelope, and what is signed).
"""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from slipway.core import integrity, manifest
from slipway.core.atomic import replace_file
from slipway.core.errors import UserError
from slipway.core.paths import is_remote
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.runs import provenance
from slipway.pipelines.runs.record import RunFolder, RunRecord

# An Ed25519 key of the package cryptography, which is imported only if models are signed.
Key: TypeAlias = Any

STATEMENT, PREDICATE = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
PAYLOAD = "application/vnd.in-toto+json"
DATA_SET = "dataset"
NEW_KEY = "openssl genpkey -algorithm ed25519 -out signing.key && openssl pkey -in signing.key -pubout -out signing.pub"


def sign(folder: RunFolder, config: RunConfig, record: RunRecord) -> None:
    """Write the signed statement of a run's registered version, if `register.signing_key` is set.

    Raises:
        UserError: The key cannot be used.
        OSError: A file cannot be read or written.
    """
    if config.register_.signing_key is None or record.model is None:
        return
    key, version = read_key(config.register_.signing_key, private=True), Path(record.model)
    payload = json.dumps(_statement(version, folder, config, record)).encode()
    key_id = hashlib.sha256(key.public_key().public_bytes_raw()).hexdigest()
    envelope = {
        "payloadType": PAYLOAD,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": key_id, "sig": base64.b64encode(key.sign(_signed(payload))).decode()}],
    }
    replace_file(version / integrity.STATEMENT_FILE, (json.dumps(envelope) + "\n").encode())


def verified_data_set(version: Path, key: Key) -> tuple[Path, str] | None:
    """Verify a registered version with a public key, and return the data set in its statement.

    Returns:
        The data set's folder and the SHA-256 of its manifest; None if the data were not prepared on a local disk.

    Raises:
        UserError: The version is not signed with this key, or its files are not those that were signed.
        OSError: A file cannot be read.
    """
    from cryptography.exceptions import InvalidSignature

    try:
        envelope = json.loads((version / integrity.STATEMENT_FILE).read_bytes())
        payload = base64.b64decode(envelope["payload"])
        key.verify(base64.b64decode(envelope["signatures"][0]["sig"]), _signed(payload))
        statement = json.loads(payload)  # which the owner of the key has written
        if (statement["_type"], statement["predicateType"]) != (STATEMENT, PREDICATE):
            raise _refused(version, "another kind of statement is signed")
    except FileNotFoundError:
        raise _refused(version, "it is not signed") from None
    except (InvalidSignature, ValueError, LookupError, TypeError):
        raise _refused(version, "its provenance is not signed with this key, or was changed") from None
    signed = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    found = _digests(version)
    if different := sorted(name for name in signed.keys() | found.keys() if signed.get(name) != found.get(name)):
        raise _refused(version, f"{different[0]} is not what was signed")
    made_from = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    data = next((each for each in made_from if each["name"] == DATA_SET and "digest" in each), None)
    return None if data is None else (Path(unquote(urlsplit(data["uri"]).path)), data["digest"]["sha256"])


def digest_of(data_set: Path) -> str:
    """Return the SHA-256 of a data set's manifest, which has those of the shards."""
    return hashlib.sha256((data_set / manifest.FILE_NAME).read_bytes()).hexdigest()


def read_key(file: str, *, private: bool) -> Key:
    """Return the private or public key in a PEM file.

    Raises:
        UserError: There is no such file, or it has no Ed25519 key of this kind.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

    kind = "private" if private else "public"
    try:
        content = Path(file).read_bytes()
        key: Key = load_pem_private_key(content, None) if private else load_pem_public_key(content)
        if isinstance(key, Ed25519PrivateKey | Ed25519PublicKey):
            return key
        problem = "it is of another kind"
    except OSError as error:
        problem = str(error.strerror)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it is encrypted
        problem = f"it contains no {kind} key that can be read"
    raise UserError(
        f"The key {file} cannot be used: {problem}.",
        setting="register.signing_key" if private else "--key",
        value=file,
        allowed=f"an Ed25519 {kind} key in a PEM file, not encrypted",
        fix=NEW_KEY,
    )


def _statement(version: Path, folder: RunFolder, config: RunConfig, record: RunRecord) -> JsonObject:
    # Without the address of a webhook, which is a secret.
    configuration = config.model_dump(mode="json", by_alias=True, exclude={"notify"})
    ended = datetime.now(UTC).isoformat()
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in _digests(version).items()],
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


def _digests(version: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a version but the statement, by path."""
    files = integrity.files(version).items()
    return {name: str(digest) for name, (_, digest) in files if name != integrity.STATEMENT_FILE}


def _signed(payload: bytes) -> bytes:
    """Return the bytes that are signed: DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD), PAYLOAD.encode(), len(payload), payload)


def _refused(version: Path, what: str) -> UserError:
    fix = "restore it from a copy, or train it again"
    return UserError(f"The model in {version} cannot be trusted: {what}.", fix=fix)
