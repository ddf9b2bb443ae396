"""All fakes together: one world, one set of endpoints, one environment for the clients."""

from __future__ import annotations

import functools
import json
import threading
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fakes.artifact_registry import FakeImages
from tests.fakes.artifact_repositories import FakeRepositories
from tests.fakes.bigquery.service import FakeBigQuery
from tests.fakes.billing import FakeBilling
from tests.fakes.certificates import certificates, service_account_file
from tests.fakes.cloud_build import FakeCloudBuild
from tests.fakes.cloud_kms import add_kms
from tests.fakes.dataflow import FakeDataflow
from tests.fakes.errors import Faults, ServiceError
from tests.fakes.grpc_service import GrpcServer
from tests.fakes.http_service import HttpService, Raw, Request
from tests.fakes.iam import FakeIam
from tests.fakes.logging import Log, add_logging
from tests.fakes.pubsub import FakePubSub
from tests.fakes.resource_manager import add_resource_manager
from tests.fakes.secret_manager import FakeSecrets
from tests.fakes.service_usage import FakeServiceUsage
from tests.fakes.storage import FakeStorage
from tests.fakes.tpu.hosts import Machines
from tests.fakes.tpu.service import FakeTpu
from tests.fakes.world import Project, World

if TYPE_CHECKING:
    from tests.fakes.vertex.region import Region

PROJECT = "slipway-test"
NUMBER = 123456789012
REGION = "europe-west4"
SERVICES = frozenset(
    f"{name}.googleapis.com"
    for name in (
        "aiplatform",
        "artifactregistry",
        "bigquery",
        "bigquerystorage",
        "cloudbuild",
        "cloudresourcemanager",
        "compute",
        "iam",
        "logging",
        "serviceusage",
        "storage",
        "tpu",
    )
)
SUBMITTER = "submitter@slipway-test.iam.gserviceaccount.com"
COMPUTE_ACCOUNT = f"{NUMBER}-compute@developer.gserviceaccount.com"


class FakeGoogle:
    """A project on loopback with all services enabled; a context manager.

    `endpoints` is the value of `vertex.endpoints`. `environment` holds the client's environment variables: trust in
    the fakes' certificates, the credentials of SUBMITTER, who owns the project until a test calls
    `world.owners.clear()`, and a small SLIPWAY_RETRY_SECONDS. Vertex AI also listens at `vertex_address`, for clients
    that use its public name. `faults` strike the token server, too; without them, its faults are its own.
    """

    def __init__(
        self, folder: Path, seed: int = 0, vertex_address: str | None = None, faults: Faults | None = None
    ) -> None:
        self.folder = folder
        self.vertex_address = vertex_address
        self.world = World()
        self.faults = faults or Faults(seed)
        self.world.projects[PROJECT] = Project(PROJECT, NUMBER, set(SERVICES))
        self.world.owners.add(SUBMITTER)
        self.world.add_account(self.world.projects[PROJECT], COMPUTE_ACCOUNT)
        self.location = REGION
        self.certificates = certificates()
        self.http: dict[str, HttpService] = {}
        self.vertex = GrpcServer(self.faults, self.world.identify)
        self.endpoints: dict[str, str] = {}
        self.addresses: dict[str, str] = {}
        self._starting = threading.RLock()
        self._region: Region | None = None
        self._others: list[tuple[GrpcServer, Region]] = []
        self.environment: dict[str, str] = {}
        add_resource_manager(self.service("cloudresourcemanager"), self.world)
        self.table_reads = GrpcServer(self.faults, self.world.identify)
        self.bigquery = FakeBigQuery(self.service("bigquery"), self.world, self.table_reads)
        self.billing = FakeBilling(self.service("cloudbilling"), self.world)
        self.iam = FakeIam(self.service("iam"), self.world)
        add_kms(self.service("cloudkms"), self.world)
        self.dataflow = FakeDataflow(self.service("dataflow"), self.world)
        self.service_usage = FakeServiceUsage(self.service("serviceusage"), self.world)
        self.repositories = FakeRepositories(self.service("artifactregistry"), self.world)
        self.storage = FakeStorage(self.service("storage"), self.world)
        self.log = Log(self.world)
        add_logging(self.service("logging"), self.world, self.log)
        self.pubsub = FakePubSub(self.service("pubsub"), self.world)
        self.secrets = FakeSecrets(self.service("secretmanager"), self.world)
        # Challenges callers without credentials, rather than refuse them.
        self.docker = self.http["docker"] = HttpService("docker", self.faults, lambda _headers: "")
        self.images = FakeImages(self.service("artifactregistry"), self.docker, self.world, self.repositories)
        self.builds = FakeCloudBuild(self.service("cloudbuild"), self.world, self.storage, self.images, self.log)
        self.tpu = FakeTpu(self.service("tpu"), self.world, Machines(self, folder / "tpu"))
        self.tokens = HttpService("tokens", faults or Faults(), lambda _headers: "")
        self.tokens.error_body = _token_error
        self.token_uri = ""
        # Vertex AI's predictions over REST, which is also the address of dedicated endpoints.
        self.prediction_endpoint = ""
        add_predictions(self)

    @property
    def region(self) -> Region:
        """Vertex AI's services at `location`, started on first use because their imports take seconds."""
        with self._starting:
            if self._region is None:
                self._region = self._started_region()
            return self._region

    def _started_region(self) -> Region:
        from tests.fakes.vertex.region import Region

        region = Region(self.vertex, self.world, self.location, self.log, self.storage)
        region.endpoints.dedicated_dns = self.prediction_endpoint
        region.servers.environment = {
            **self.environment,
            "API_ENDPOINT_OVERRIDE": f"https://{self.endpoints['storage']}",
        }
        region.servers.key_file = functools.cache(
            lambda email: service_account_file(self.folder, PROJECT, email, self.token_uri)
        )
        return region

    def other_region(self, name: str) -> Region:
        """Return Vertex AI's services of another region, which have an address of their own: `addresses`."""
        from tests.fakes.vertex.region import Region

        server = GrpcServer(self.faults, self.world.identify)
        region = Region(server, self.world, name, self.log, self.storage)
        self.addresses[name] = f"localhost:{server.start(self.certificates)}"
        self._others.append((server, region))
        return region

    def service(self, name: str) -> HttpService:
        """Return the HTTP service of that name, to add routes."""
        if name not in self.http:
            self.http[name] = HttpService(name, self.faults, self.world.identify)
        return self.http[name]

    def __enter__(self) -> FakeGoogle:
        self.tokens.route("POST", "/token")(_token)
        token_port = self.tokens.start(None)
        self.endpoints["aiplatform"] = f"localhost:{self.vertex.start(self.certificates, self.vertex_address)}"
        self.endpoints["bigquerystorage"] = f"localhost:{self.table_reads.start(self.certificates)}"
        for name, service in self.http.items():
            # Slipway calls registries on loopback without TLS, as docker does.
            port = service.start(None if name == "docker" else self.certificates.server_context)
            if name == "prediction":
                self.prediction_endpoint = f"localhost:{port}"
            else:
                self.endpoints[name] = f"localhost:{port}"
        self.token_uri = f"http://localhost:{token_port}/token"
        key_file = service_account_file(self.folder, PROJECT, SUBMITTER, self.token_uri)
        self.environment = {
            **self.certificates.environment,
            "GOOGLE_APPLICATION_CREDENTIALS": str(key_file),
            "GCE_METADATA_HOST": "127.0.0.1:1",
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "SLIPWAY_RETRY_SECONDS": "0.01",
        }
        return self

    def __exit__(self, *_: Any) -> None:
        self.tpu.stop()
        servers = [
            *self.http.values(),
            self.vertex,
            self.table_reads,
            *(server for server, _ in self._others),
            self.storage,
            self.tokens,
        ]
        with ThreadPoolExecutor(len(servers)) as pool:  # all at once: each waits until its thread notices
            list(pool.map(lambda server: server.stop(), servers))
        for region in (self._region, *(other for _, other in self._others)):
            if region is not None:
                region.stop()


def add_predictions(google: FakeGoogle) -> None:
    """Add the routes of Vertex AI's predictions over REST."""

    @google.service("prediction").route("POST", "/v1/{endpoint=**}:predict")
    @google.service("prediction").route("POST", "/v1/{endpoint=**}:rawPredict")
    def predict(request: Request) -> Any:
        return google.region.predictions.rest(request)


def _token(request: Request) -> Any:
    """The token server: returns a token for the service account that the assertion names, or for the person whose
    e-mail is the refresh token."""
    import base64

    form = dict(urllib.parse.parse_qsl(request.body.decode()))
    if form["grant_type"] == "refresh_token":
        email = form["refresh_token"]
    else:
        claims = form["assertion"].split(".")[1]
        email = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["iss"]
    body = json.dumps({"access_token": f"fake.{email}", "expires_in": 3600, "token_type": "Bearer"}).encode()
    return Raw(body, 200, {"Content-Type": "application/json"})


def _token_error(error: ServiceError) -> dict[str, object]:
    """Return the body of the token server's errors: https://www.rfc-editor.org/rfc/rfc6749#section-5.2."""
    return {"error": "invalid_grant" if error.status == 400 else "internal_failure", "error_description": error.message}
