"""The metadata server of a Google Cloud machine, from which processes without a key get tokens."""

from __future__ import annotations

import json

from tests.fakes.errors import Faults
from tests.fakes.http_service import HttpService, Raw, Request

ACCOUNTS = "/computeMetadata/v1/instance/service-accounts"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class MetadataServer:
    """A metadata server of `project` and the service account `email`; a context manager."""

    def __init__(self, project: str, number: int, email: str) -> None:
        self._service = HttpService("metadata", Faults(), lambda _headers: "")
        account = {"aliases": ["default"], "email": email, "scopes": [SCOPE]}
        token = {"access_token": f"fake.{email}", "expires_in": 3600, "token_type": "Bearer"}
        self._add("/", "computeMetadata/")
        self._add("/computeMetadata/v1/project/project-id", project)
        self._add("/computeMetadata/v1/project/numeric-project-id", str(number))
        self._add("/computeMetadata/v1/universe/universe-domain", "googleapis.com")
        for name in ("default", email):
            self._add(f"{ACCOUNTS}/{name}/", account)
            self._add(f"{ACCOUNTS}/{name}/email", email)
            self._add(f"{ACCOUNTS}/{name}/token", token)
        self.environment: dict[str, str] = {}

    def __enter__(self) -> MetadataServer:
        address = f"127.0.0.1:{self._service.start(None)}"
        self.environment = {"GCE_METADATA_HOST": address, "GCE_METADATA_IP": address}
        return self

    def __exit__(self, *_: object) -> None:
        self._service.stop()

    def _add(self, path: str, content: object) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        kind = "application/text" if isinstance(content, str) else "application/json"

        @self._service.route("GET", path)
        def answer(_request: Request) -> Raw:
            return Raw(text.encode(), 200, {"Content-Type": kind, "Metadata-Flavor": "Google"})
