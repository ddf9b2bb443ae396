"""The metadata server of a Google Cloud machine, from which processes without a key get tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from tests.fakes.errors import Faults
from tests.fakes.http_service import HttpService, Raw, Request

ACCOUNTS = "/computeMetadata/v1/instance/service-accounts"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class MetadataServer:
    """A metadata server of `project` and the service account `email`; a context manager.

    `attributes` are the instance's, `instance` has more values of the instance, read at every request. Requests need
    the header Metadata-Flavor: Google (https://cloud.google.com/compute/docs/metadata/querying-metadata).
    """

    def __init__(
        self,
        project: str,
        number: int,
        email: str,
        attributes: Mapping[str, str] | None = None,
        instance: Mapping[str, Callable[[], str]] | None = None,
    ) -> None:
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
        for name, value in (attributes or {}).items():
            self._add(f"/computeMetadata/v1/instance/attributes/{name}", value)
        for name, read in (instance or {}).items():
            self._add(f"/computeMetadata/v1/instance/{name}", read)
        self.environment: dict[str, str] = {}

    def __enter__(self) -> MetadataServer:
        address = f"127.0.0.1:{self._service.start(None)}"
        self.environment = {"GCE_METADATA_HOST": address, "GCE_METADATA_IP": address}
        return self

    def __exit__(self, *_: object) -> None:
        self._service.stop()

    def _add(self, path: str, content: object) -> None:
        @self._service.route("GET", path)
        def answer(request: Request) -> Raw:
            if request.headers.get("Metadata-Flavor") != "Google":
                return Raw(b"Missing required header Metadata-Flavor: Google", 403)
            found = content() if callable(content) else content
            text = found if isinstance(found, str) else json.dumps(found)
            kind = "application/text" if isinstance(found, str) else "application/json"
            return Raw(text.encode(), 200, {"Content-Type": kind, "Metadata-Flavor": "Google"})
