"""Shared, cached state of a Google Cloud project for the checks of Vertex AI."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.refusals import refusal
from slipway.components.cloud.retries import pages, status_of
from slipway.components.setup_access.desired import apis
from slipway.components.setup_access.difference import Line, difference
from slipway.components.setup_access.observed import COMPUTE_ACCOUNT, Observed, observe, services
from slipway.components.setup_access.settings import AccessSettings
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.base import NotApplicableError
from slipway.pipelines.platforms.vertex.access import access_settings
from slipway.pipelines.platforms.vertex.settings import VertexSettings, vertex_of

PAGE = 1000

Result = TypeVar("Result")


class Once(Generic[Result]):
    """A function that is called at most once; its result or error is shared by all threads."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._outcome: Future[Result] = Future()

    def __call__(self) -> Result:
        with self._lock:
            if not self._outcome.done():
                try:
                    self._outcome.set_result(self._work())
                except Exception as error:
                    self._outcome.set_exception(error)
        return self._outcome.result()


class Project:
    """Cached state of a project for the checks of one configuration.

    Missing credentials or a missing project fail in the check for them; all other checks are then skipped.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._caller = Once(lambda: self.connection.caller)
        self._services = Once(lambda: services(self.connection, [api.name for api in apis(self.settings)]))
        self._observed = Once(lambda: observe(self.settings))
        self._lines = Once(lambda: difference(self.settings, self.observed))
        self._quotas = Once(self._read_quotas)

    @functools.cached_property
    def vertex(self) -> VertexSettings:
        """The section `vertex`. If it is missing, checks are skipped; the check of the hardware reports it."""
        return self._after(lambda: vertex_of(self.config), "the section vertex is missing")

    @property
    def settings(self) -> AccessSettings:
        """The settings that permissions depend on."""
        _ = self.vertex
        return access_settings(self.config)

    @functools.cached_property
    def connection(self) -> Connection:
        """The connection to Google, shared by all checks."""
        return self.vertex.connection

    def caller(self) -> str:
        """Return the account of the credentials.

        Raises:
            UserError: There are no valid credentials.
        """
        return self._caller()

    def services(self) -> tuple[int, frozenset[str] | None]:
        """Return the project's number and the enabled APIs (None if the caller may not list them).

        Raises:
            UserError: The project does not exist.
        """
        self._after(self._caller, "there are no credentials")
        return self._services()

    @property
    def number(self) -> int:
        """The project's number."""
        return self._after(self.services, "the project is not accessible")[0]

    @property
    def observed(self) -> Observed:
        """The observed state of everything that permissions depend on."""
        _ = self.number
        return self._observed()

    def lines(self, predicate: Callable[[Line], bool]) -> list[Line]:
        """Return the lines of setup's difference that match `predicate`; skip the check if they cannot be observed."""
        _ = self.number
        lines = [line for line in self._lines() if predicate(line)]
        unseen = [line for line in lines if line.status == "unseen"]
        if unseen and not any(line.status in ("missing", "wrong") for line in lines):
            raise NotApplicableError(unseen[0].observed)
        return lines

    @property
    def account(self) -> str:
        """The run-as account; by default, Compute Engine's default account."""
        return self.vertex.service_account or COMPUTE_ACCOUNT.format(number=self.number)

    def limits(self, metric: str) -> dict[str, int] | None:
        """Return a quota's limit by region ("" for all other regions), or None if it is not listed; -1 is no limit."""
        return self.quotas().get(metric)

    def quotas(self) -> dict[str, dict[str, int]]:
        """Return all quotas of Vertex AI by metric and region."""
        _ = self.number
        return self._quotas()

    def _read_quotas(self) -> dict[str, dict[str, int]]:
        metrics = quota_metrics(self.connection, "aiplatform.googleapis.com")
        return {name: limits_by(metric, "region") or {} for name, metric in metrics.items()}

    def _after(self, first: Callable[[], Result], why: str) -> Result:
        """Return the result of `first`; on failure skip this check, because another check reports it."""
        try:
            return first()
        except UserError:
            raise NotApplicableError(why) from None


def quota_metrics(connection: Connection, service: str) -> dict[str, JsonObject]:
    """Return the quotas of a service by the metric's name, as the Service Usage API describes them.

    Raises:
        NotApplicableError: The caller may not see them.
    """
    listing = connection.api("serviceusage", "v1beta1").services().consumerQuotaMetrics()
    parent = f"projects/{connection.project}/services/{service}"
    try:
        every = [page.get("metrics", ()) for page in pages(listing, parent=parent, view="BASIC", pageSize=PAGE)]
    except Exception as error:
        if status_of(error) == 403:
            problem = refusal(error, connection, "see the quotas", "serviceusage.quotas.get")
            raise NotApplicableError(problem.message) from None
        raise
    return {metric["metric"]: metric for metrics in every for metric in metrics}


def limits_by(metric: JsonObject, kind: str) -> dict[str, int] | None:
    """Return a metric's limits by region or zone; the default has the key "". None if it has none of the kind."""
    limits = [limit for limit in metric.get("consumerQuotaLimits", ()) if f"{{{kind}}}" in limit.get("unit", "")]
    if not limits:
        return None
    # The response omits zeros, so a missing limit is 0.
    return {
        bucket.get("dimensions", {}).get(kind, ""): int(bucket.get("effectiveLimit", 0))
        for limit in limits
        for bucket in limit.get("quotaBuckets", ())
    }
