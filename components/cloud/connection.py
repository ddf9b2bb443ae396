"""Google Cloud clients for one project and region, with optional custom endpoints.

Custom endpoints (host[:port] by service name) are for private access: Private Service Connect or a proxy. Google's
libraries are imported on first use.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slipway.components.cloud.quick_import import import_module
from slipway.components.cloud.retries import is_logged_out, retried
from slipway.core.errors import UserError, lowered
from slipway.core.network import check_proxy, share_settings

if TYPE_CHECKING:
    from google.auth.exceptions import GoogleAuthError
    from google.cloud import aiplatform_v1, aiplatform_v1beta1

# Services in use, by the first part of their host name.
SERVICES = (
    "aiplatform",
    "artifactregistry",
    "bigquery",
    "bigquerystorage",
    "cloudbilling",
    "cloudbuild",
    "cloudkms",
    "cloudresourcemanager",
    "dataflow",
    "docker",  # Artifact Registry's images, at REGION-docker.pkg.dev
    "iam",
    "logging",
    "pubsub",
    "secretmanager",
    "serviceusage",
    "storage",
    "tpu",
)
# The paths of HTTP APIs below their host, of those that have one.
PATHS = {"bigquery": "/bigquery/v2/"}
# The modules that calls of HTTP APIs and of Cloud Storage import.
CLIENTS = (
    "google.auth.transport.requests",
    "google.cloud.storage",
    "google.oauth2.credentials",
    "google.oauth2.service_account",
    "googleapiclient.discovery",
    "googleapiclient.discovery_cache",
    "google.protobuf.json_format",
    "slipway.components.cloud.network",
    "tenacity",
)
CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
# gRPC's time to connect, in milliseconds, has the name of another one.
CONNECT_OPTION = ("grpc.min_reconnect_backoff_ms", 5000)
OUTAGE = "try again in a few minutes; https://status.cloud.google.com lists known outages"
LOG_IN = "gcloud auth application-default login"
# Timeout of a call that has no other; one that times out is retried.
CALL_SECONDS = 60.0


@dataclass(frozen=True)
class Connection:
    """One project and region of Google Cloud; `endpoints` overrides the host[:port] of services.

    `section` is the section of the configuration that it comes from, for error messages.
    """

    project: str
    region: str
    endpoints: Mapping[str, str] = field(default_factory=dict)
    section: str = "vertex"

    def __post_init__(self) -> None:
        check_endpoints(self.endpoints, self.section)
        share_settings()
        check_proxy(self.endpoint("aiplatform"))

    @functools.cached_property
    def credentials(self) -> Any:
        """The caller's Application Default Credentials.

        Raises:
            UserError: There are none.
        """
        import google.auth
        from google.auth import exceptions
        from google.oauth2.credentials import Credentials

        try:
            credentials, _ = google.auth.default(scopes=SCOPES, quota_project_id=None)
        except exceptions.DefaultCredentialsError as error:
            raise UserError(
                f"There are no credentials for Google Cloud: {_first_sentence(error)}.",
                setting=CREDENTIALS,
                value=os.environ.get(CREDENTIALS),
                fix=LOG_IN,
            ) from None
        if isinstance(credentials, Credentials) and not credentials.quota_project_id:
            # User credentials need a quota project for several APIs.
            credentials = credentials.with_quota_project(self.project)
        return credentials

    @functools.cached_property
    def caller(self) -> str:
        """The e-mail of the service account; "" for user credentials, which do not contain it.

        Raises:
            UserError: The credentials have expired or been revoked, or Google's login server does not respond.
        """
        from google.auth import exceptions

        from slipway.components.cloud.network import login_request

        try:
            retried(lambda: self.credentials.refresh(login_request()))
        except exceptions.GoogleAuthError as error:
            raise login_error(error) from None
        return str(getattr(self.credentials, "service_account_email", ""))

    def endpoint(self, service: str) -> str:
        """Return the host[:port] of a service."""
        host = f"{self.region}-aiplatform" if service == "aiplatform" else service
        return self.endpoints.get(service, f"{host}.googleapis.com")

    def api(self, service: str, version: str) -> Any:
        """Return the discovery-based client of a service; one per thread, as sessions are."""
        name = f"{service} {version}"
        if not hasattr(self._clients, name):
            setattr(self._clients, name, self._discovered(service, version))
        return getattr(self._clients, name)

    @functools.cached_property
    def _clients(self) -> threading.local:
        return threading.local()

    def _discovered(self, service: str, version: str) -> Any:
        from googleapiclient.discovery import build

        from slipway.components.cloud.network import Session, Transport

        return build(
            service,
            version,
            http=Transport(Session(self.credentials)),
            client_options={"api_endpoint": f"https://{self.endpoint(service)}{PATHS.get(service, '')}"},
            cache_discovery=False,
            static_discovery=True,
        )

    @functools.cached_property
    def storage(self) -> Any:
        """The google.cloud.storage client."""
        from google.cloud import storage

        from slipway.components.cloud.network import Session

        options = {"api_endpoint": f"https://{self.endpoints['storage']}"} if "storage" in self.endpoints else None
        session = Session(self.credentials)
        return storage.Client(self.project, self.credentials, session, client_options=options)

    @functools.cached_property
    def pipelines(self) -> aiplatform_v1.PipelineServiceClient:
        """Vertex AI's PipelineServiceClient."""
        return self._vertex("PipelineServiceClient")

    @functools.cached_property
    def jobs(self) -> aiplatform_v1.JobServiceClient:
        """Vertex AI's JobServiceClient."""
        return self._vertex("JobServiceClient")

    @functools.cached_property
    def beta_jobs(self) -> aiplatform_v1beta1.JobServiceClient:
        """Vertex AI's JobServiceClient of v1beta1, which has fields that v1 lacks."""
        return self._vertex("JobServiceClient", "aiplatform_v1beta1")

    @functools.cached_property
    def schedules(self) -> aiplatform_v1.ScheduleServiceClient:
        """Vertex AI's ScheduleServiceClient."""
        return self._vertex("ScheduleServiceClient")

    @functools.cached_property
    def models(self) -> aiplatform_v1.ModelServiceClient:
        """Vertex AI's ModelServiceClient."""
        return self._vertex("ModelServiceClient")

    @functools.cached_property
    def serving(self) -> aiplatform_v1.EndpointServiceClient:
        """Vertex AI's EndpointServiceClient."""
        return self._vertex("EndpointServiceClient")

    def predictions(self, host: str = "") -> aiplatform_v1.PredictionServiceClient:
        """Return Vertex AI's PredictionServiceClient; `host` is the DNS name of a dedicated endpoint."""
        if not host:
            return self._vertex("PredictionServiceClient")
        return self._vertex("PredictionServiceClient", address=host, transport="rest")

    @functools.cached_property
    def metadata(self) -> aiplatform_v1.MetadataServiceClient:
        """Vertex AI's MetadataServiceClient."""
        return self._vertex("MetadataServiceClient")

    @functools.cached_property
    def table_reader(self) -> Any:
        """The BigQueryReadClient of BigQuery's Storage Read API."""
        module = import_module("google.cloud.bigquery_storage_v1.services.big_query_read")
        return self._grpc(module.BigQueryReadClient, self.endpoint("bigquerystorage"))

    @property
    def parent(self) -> str:
        """The parent of Vertex AI's resource names: projects/…/locations/…."""
        return f"projects/{self.project}/locations/{self.region}"

    def _vertex(
        self, client: str, package: str = "aiplatform_v1", *, address: str = "", transport: str = "grpc"
    ) -> Any:
        service = re.sub(r"(?<!^)(?=[A-Z])", "_", client.removesuffix("Client")).lower()
        make = getattr(import_module(f"google.cloud.{package}.services.{service}"), client)
        return self._grpc(make, address or self.endpoint("aiplatform"), transport)

    def _grpc(self, make: Any, address: str, transport: str = "grpc") -> Any:
        """Return a client of the class `make` at an address."""
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it logs each failed connection to stderr
        channels = make.get_transport_class(transport)

        def channel(host: str, *, options: list[tuple[str, int]], **more: Any) -> Any:
            """Return a channel that does not wait for 20 seconds for an address that does not respond."""
            return channels.create_channel(host, options=[*options, CONNECT_OPTION], **more)

        return make(
            credentials=self.credentials,
            transport=functools.partial(channels, channel=channel) if transport == "grpc" else transport,
            client_options={"api_endpoint": address},
        )


def login_error(error: GoogleAuthError) -> UserError:
    """Return what an error of google-auth says: credentials that were rejected, or a login server that fails."""
    from slipway.components.cloud.network import unreachable

    if unreached := unreachable(error):
        return UserError(f"Could not log in to Google Cloud: {lowered(unreached.message)}", fix=unreached.fix)
    if is_logged_out(error):
        return UserError(f"The credentials for Google Cloud were rejected: {_first_sentence(error)}.", fix=LOG_IN)
    return UserError(f"Could not log in to Google Cloud: {_first_sentence(error)}.", fix=OUTAGE)


def import_clients(*names: str) -> None:
    """Import the modules of CLIENTS and those named, before threads make calls.

    Two threads that import modules which import each other, as those of Vertex AI's clients do, get half of one.
    A package that is not installed is reported by the call that needs it.
    """
    for name in (*CLIENTS, *names):
        with contextlib.suppress(ModuleNotFoundError):
            import_module(name)


def check_endpoints(endpoints: Mapping[str, str], section: str = "vertex") -> None:
    """Raise UserError if a service is unknown or an endpoint is not host[:port]."""
    for service, endpoint in endpoints.items():
        if service not in SERVICES:
            raise UserError.unknown("service", service, SERVICES, setting=f"{section}.endpoints")
        if not endpoint or "/" in endpoint or " " in endpoint:
            raise UserError(
                f"The endpoint of {service} is not a valid host.",
                setting=f"{section}.endpoints.{service}",
                value=endpoint,
                allowed="host or host:port, reached over TLS",
                nearest=endpoint.removeprefix("https://").removeprefix("http://").partition("/")[0] or None,
            )


def _first_sentence(error: BaseException) -> str:
    # A RefreshError's second argument is the body of the response.
    text = str(error.args[0]) if error.args else str(error)
    return text.partition(". ")[0].rstrip(".")
