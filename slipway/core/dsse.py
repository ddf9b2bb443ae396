"""Signatures of registered models: keys, and files of DSSE envelopes.

The protocol: https://github.com/secure-systems-lab/dsse/blob/master/protocol.md. A file may have an envelope in each
line: https://github.com/in-toto/attestation/blob/main/spec/v1/bundle.md.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from slipway.core.atomic import read_regular
from slipway.core.errors import UserError
from slipway.core.values import JsonObject

# A key of the package cryptography, which is imported only if models are signed.
Key: TypeAlias = Any

NEW_KEY = "openssl genpkey -algorithm ed25519 -out signing.key && openssl pkey -in signing.key -pubout -out signing.pub"
# The hash function that is used with an elliptic curve: RFC 5656, 6.2.1, as in securesystemslib and model-signing.
CURVES = {"secp256r1": ("nistp256", "SHA256"), "secp384r1": ("nistp384", "SHA384"), "secp521r1": ("nistp521", "SHA512")}
MAX_KEY_BYTES = 1 << 20


def _decoded(text: object) -> bytes:
    """Return what a text in standard or URL-safe Base64 encodes, with or without padding."""
    if not isinstance(text, str):
        raise ValueError("not Base64")
    plain = text.replace("-", "+").replace("_", "/").rstrip("=")
    return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)


Base64: TypeAlias = Annotated[bytes, BeforeValidator(_decoded)]


class _Signature(BaseModel):
    sig: Base64


class _Envelope(BaseModel):
    payload_type: str = Field(alias="payloadType")
    payload: Base64
    signatures: list[_Signature]


def envelope(payload: bytes, kind: str, key: Key, key_id: str) -> JsonObject:
    """Return the envelope of a payload of the media type `kind`, signed with a private key."""
    signature = key.sign(_signed(kind, payload), *_scheme(key))
    return {
        "payloadType": kind,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": key_id, "sig": base64.b64encode(signature).decode()}],
    }


def payloads(content: bytes, key: Key) -> Iterator[tuple[str, bytes]]:
    """Yield the media type and payload of each envelope of a file that is signed with a public key, maybe among others.

    `content` is an envelope, or has one in each line; other lines are ignored. A `keyid` is only a hint, and not used.
    """
    from cryptography.exceptions import InvalidSignature

    for text in (content, *content.splitlines()):
        try:
            parsed = _Envelope.model_validate_json(text)
        except ValidationError:
            continue
        for signature in parsed.signatures:
            try:
                key.verify(signature.sig, _signed(parsed.payload_type, parsed.payload), *_scheme(key))
            except InvalidSignature:
                continue
            yield parsed.payload_type, parsed.payload
            break


def key_id(public: Key) -> str:
    """Return the id of a public key, as securesystemslib computes it: the SHA-256 of its canonical JSON."""
    if is_elliptic(public):
        curve = CURVES[public.curve.name][0]
        described = {"keytype": "ecdsa", "keyval": {"public": pem(public)}, "scheme": f"ecdsa-sha2-{curve}"}
    else:
        described = {"keytype": "ed25519", "keyval": {"public": public.public_bytes_raw().hex()}, "scheme": "ed25519"}
    # Canonical JSON has line breaks as they are.
    canonical = json.dumps(described, sort_keys=True, separators=(",", ":")).replace("\\n", "\n")
    return hashlib.sha256(canonical.encode()).hexdigest()


def pem(public: Key) -> str:
    """Return a public key as the content of a PEM file."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    text: bytes = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return text.decode()


def is_elliptic(key: Key) -> bool:
    """Return whether a key is one of an elliptic curve of `CURVES`."""
    return getattr(getattr(key, "curve", None), "name", None) in CURVES


def read_key(file: str, *, private: bool, setting: str) -> Key:
    """Return the private or public key in a PEM file, which `setting` names.

    Raises:
        UserError: There is no such file, or it has no key of this kind.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

    kind = "private" if private else "public"
    try:
        content = read_regular(Path(file), MAX_KEY_BYTES)
        key: Key = load_pem_private_key(content, None) if private else load_pem_public_key(content)
        if isinstance(key, Ed25519PrivateKey | Ed25519PublicKey) or is_elliptic(key):
            return key
        problem = "it is of another kind"
    except OSError as error:
        problem = str(error.strerror)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it is encrypted
        problem = f"it contains no {kind} key that can be read"
    raise UserError(
        f"The key {file} cannot be used: {problem}.",
        setting=setting,
        value=file,
        allowed=f"an Ed25519, P-256, P-384 or P-521 {kind} key in a PEM file, not encrypted",
        fix=NEW_KEY,
    )


def _scheme(key: Key) -> tuple[Any, ...]:
    """Return what a key's `sign` and `verify` need beside the bytes."""
    if not is_elliptic(key):
        return ()
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    return (ECDSA(getattr(hashes, CURVES[key.curve.name][1])()),)


def _signed(kind: str, payload: bytes) -> bytes:
    """Return the bytes that are signed: DSSE's pre-authentication encoding."""
    name = kind.encode()
    return b"DSSEv1 %d %s %d %s" % (len(name), name, len(payload), payload)
