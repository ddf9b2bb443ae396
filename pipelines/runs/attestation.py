"""The signed provenance of a registered model: an in-toto statement in a DSSE envelope, beside the model's files.

Formats: https://github.com/in-toto/attestation/tree/main/spec/v1 (statement), https://slsa.dev/spec/v1.0/provenance
(predicate). With a key of an elliptic curve, `model.sig` is written as well, for the verifiers of OpenSSF's format:
https://github.com/ossf/model-signing-spec.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

from slipway.core import dsse, integrity, manifest
from slipway.core.atomic import replace_file
from slipway.core.dsse import Key
from slipway.core.paths import is_remote
from slipway.core.statement import DATA_SET, PAYLOAD, PREDICATE, STATEMENT, contents
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.runs import provenance
from slipway.pipelines.runs.record import RunFolder, RunRecord

MODEL_SIGNATURE = "https://model_signing/signature/v1.0"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
# What verifiers of OpenSSF's format never read.
GIT = (".git", ".gitattributes", ".github", ".gitignore")


def sign(folder: RunFolder, config: RunConfig, record: RunRecord) -> None:
    """Write the signed statement of a run's registered version, if `register.signing_key` is set.

    Raises:
        UserError: The key cannot be used.
        OSError: A file cannot be read or written.
    """
    if config.register_.signing_key is None or record.model is None:
        return
    key = dsse.read_key(config.register_.signing_key, private=True, setting="register.signing_key")
    version = Path(record.model)
    if dsse.is_elliptic(key) and not (version / integrity.SIGNATURE_FILE).exists():
        _write(version / integrity.SIGNATURE_FILE, _model_signature(version, key))
    payload = json.dumps(_statement(version, folder, config, record)).encode()
    _write(version / integrity.STATEMENT_FILE, dsse.envelope(payload, PAYLOAD, key, dsse.key_id(key.public_key())))


def digest_of(data_set: Path) -> str:
    """Return the SHA-256 of a data set's manifest, which has those of the shards."""
    return hashlib.sha256((data_set / manifest.FILE_NAME).read_bytes()).hexdigest()


def _statement(version: Path, folder: RunFolder, config: RunConfig, record: RunRecord) -> JsonObject:
    # Without the address of a webhook, which is a secret.
    configuration = config.model_dump(mode="json", by_alias=True, exclude={"notify"})
    ended = datetime.now(UTC).isoformat()
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in contents(version).items()],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:slipway:run:v1",
                "externalParameters": {"configuration": configuration, "arguments": record.arguments},
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
    prepared = record.outputs("prepare_data")
    made_with = provenance.read(folder.path)
    dependencies: list[JsonObject] = []
    if uri := prepared.get("dataset"):
        data = {"name": DATA_SET, "uri": uri, "annotations": {"fingerprint": prepared.get("fingerprint")}}
        if not is_remote(uri):
            data |= {"uri": Path(uri).as_uri(), "digest": {"sha256": digest_of(Path(uri))}}
        dependencies.append(data)
    if commit := made_with.get("commit"):
        commit, _, modified = commit.partition("-")
        about = {"modified": bool(modified), "files": made_with.get("files")}
        dependencies.append({"name": "code", "digest": {"gitCommit": commit}, "annotations": about})
    if folder.image_file.is_file():
        image = folder.image_file.read_text()
        dependencies.append({"name": "image", "uri": image, "digest": {"sha256": image.rpartition("sha256:")[2]}})
    packages = made_with.get("packages", {}).items()
    return [*dependencies, *({"name": name, "uri": f"pkg:pypi/{name}@{version}"} for name, version in packages)]


def _model_signature(version: Path, key: Key) -> JsonObject:
    """Return the signature of a version in OpenSSF's format, a Sigstore bundle."""
    files = {
        name: digest
        for name, digest in contents(version).items()
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
