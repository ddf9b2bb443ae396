"""A certificate authority for tests, and service account credentials that only the fakes accept."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import ssl
import tempfile
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

HOSTS = (
    "localhost",
    "127.0.0.1",
    "*.slipway.test",  # of tests/fakes/proxy.py
    *(
        f"{name}.googleapis.com"
        for name in ("us-central1-aiplatform", "europe-west4-aiplatform", "logging", "storage", "tpu")
    ),
)


class Certificates:
    """The authority, a server certificate for all HOSTS, and the files for clients and servers."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        certificate = authority.issue_cert(*HOSTS)
        self.authority_file = folder / "authority.pem"
        authority.cert_pem.write_to_path(str(self.authority_file))
        self.key = certificate.private_key_pem.bytes()
        self.chain = b"".join(part.bytes() for part in certificate.cert_chain_pems)
        self.server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(self.server_context)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that make gRPC, requests and OpenSSL trust this authority."""
        path = str(self.authority_file)
        return {
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": path,
            "REQUESTS_CA_BUNDLE": path,
            "SSL_CERT_FILE": path,
        }


@functools.cache
def certificates() -> Certificates:
    """Return this process's authority; there is only one, because gRPC reads its trusted file once per process."""
    folder = Path(tempfile.mkdtemp(prefix="certificates-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Certificates(folder)


def service_account_file(folder: Path, project: str, email: str, token_uri: str) -> Path:
    """A key file of a service account, whose tokens come from `token_uri`."""
    path = folder / f"{email.partition('@')[0]}.json"
    fields = {
        "type": "service_account",
        "project_id": project,
        "private_key_id": "0" * 40,
        "private_key": _private_key(),
        "client_email": email,
        "client_id": "1",
        "token_uri": token_uri,
    }
    path.write_text(json.dumps(fields))
    path.chmod(0o600)
    return path


@functools.cache
def _private_key() -> str:
    # It protects nothing: a short key, because loading a key checks it, and every client loads it.
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
