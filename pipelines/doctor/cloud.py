"""What the checks of Vertex AI look at, each thing read once for all of them, and the checks made side by side."""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.refusals import refusal
from slipway.components.cloud.retries import retried, status_of
from slipway.components.setup_access.difference import Line, difference
from slipway.components.setup_access.found import Found, look, services
from slipway.components.setup_access.settings import AccessSettings
from slipway.components.setup_access.wanted import apis
from slipway.core.errors import UserError
from slipway.pipelines.config.config import VertexSettings
from slipway.pipelines.doctor.check import Check, Finding, NotConcernedError, Subject, examine
from slipway.pipelines.platforms.vertex.access import access_settings

SECONDS = 30.0
PAGE = 1000
COMPUTE_ACCOUNT = "{number}-compute@developer.gserviceaccount.com"

Result = TypeVar("Result")


class Once(Generic[Result]):
    """A piece of work that several threads want the result of, or the error, and that is done once."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._result: Result
        self._error: Exception | None = None
        self._done = False

    def __call__(self) -> Result:
        with self._lock:
            if not self._done:
                try:
                    self._result = self._work()
                except Exception as error:
                    self._error = error
                self._done = True
        if self._error is not None:
            raise self._error
        return self._result


class View:
    """A project as the checks of one configuration see it.

    What fails for want of credentials or of the project fails in the check of that, and is skipped in all others.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._caller = Once(lambda: self.connection.caller)
        self._services = Once(lambda: services(self.connection, [api.name for api in apis(self.settings)]))
        self._found = Once(lambda: look(self.settings))
        self._lines = Once(lambda: difference(self.settings, self.found))
        self._quotas = Once(self._read_quotas)

    @functools.cached_property
    def vertex(self) -> VertexSettings:
        """The section `vertex`; not concerned where there is none: the check of the hardware says so."""
        if self.subject.config.vertex is None:
            raise NotConcernedError("the configuration has no section vertex")
        return self.subject.config.vertex

    @property
    def settings(self) -> AccessSettings:
        """What the rights depend on."""
        _ = self.vertex
        return access_settings(self.subject.config)

    @functools.cached_property
    def connection(self) -> Connection:
        """The way to Google, one for all checks."""
        return self.vertex.connection

    def caller(self) -> str:
        """The account whose credentials these are.

        Raises:
            UserError: There are no credentials that are good.
        """
        return self._caller()

    def services(self) -> tuple[int, frozenset[str] | None]:
        """The project's number and the APIs that are enabled, None where that cannot be seen.

        Raises:
            UserError: There is no such project.
        """
        self._after(self._caller, "there are no credentials")
        return self._services()

    @property
    def number(self) -> int:
        """The project's number."""
        return self._after(self.services, "the project cannot be seen")[0]

    @property
    def found(self) -> Found:
        """Everything that the rights depend on."""
        _ = self.number
        return self._found()

    def lines(self, wanted: Callable[[Line], bool]) -> list[Line]:
        """The lines of setup's difference that are `wanted`; not concerned where none of them could be seen."""
        _ = self.number
        lines = [line for line in self._lines() if wanted(line)]
        unseen = [line for line in lines if line.status == "unseen"]
        if unseen and not any(line.status in ("missing", "wrong") for line in lines):
            raise NotConcernedError(unseen[0].found)
        return lines

    @property
    def account(self) -> str:
        """The run-as account; without one, Compute Engine's default."""
        return self.vertex.service_account or COMPUTE_ACCOUNT.format(number=self.number)

    def limits(self, metric: str) -> dict[str, int] | None:
        """A quota by region ("" for those without one of their own); None where it is not listed. -1 is no limit."""
        return self.quotas().get(metric)

    def quotas(self) -> dict[str, dict[str, int]]:
        """All quotas of Vertex AI by metric and region."""
        _ = self.number
        return self._quotas()

    def _read_quotas(self) -> dict[str, dict[str, int]]:
        parent = f"projects/{self.connection.project}/services/aiplatform.googleapis.com"
        quotas: dict[str, dict[str, int]] = {}
        token: str | None = None
        while token != "":
            listing = self.connection.api("serviceusage", "v1beta1").services().consumerQuotaMetrics()
            request = listing.list(parent=parent, view="BASIC", pageSize=PAGE, pageToken=token)
            try:
                answer = retried(request.execute)
            except Exception as error:
                if status_of(error) == 403:
                    raise NotConcernedError(refusal(error, self.connection, "see the quotas").message) from error
                raise
            for metric in answer.get("metrics", ()):
                quotas[metric["metric"]] = _by_region(metric)
            token = answer.get("nextPageToken", "")
        return quotas

    def _after(self, first: Callable[[], Result], why: str) -> Result:
        """What `first` gives; its failure is told by another check."""
        try:
            return first()
        except UserError:
            raise NotConcernedError(why) from None


def _by_region(metric: dict[str, Any]) -> dict[str, int]:
    """A metric's limits a region; the default under ""."""
    limits = {}
    for limit in metric.get("consumerQuotaLimits", ()):
        if "{region}" not in limit.get("unit", ""):
            continue
        for bucket in limit.get("quotaBuckets", ()):
            # A limit of 0 is left out of the answer, as all zeros are.
            limits[bucket.get("dimensions", {}).get("region", "")] = int(bucket.get("effectiveLimit", 0))
    return limits


def examine_side_by_side(
    checks: Sequence[Check], view: View, subject: Subject, seconds: float = SECONDS
) -> list[Finding]:
    """Every check's finding, in order; one that has no answer in time fails, and keeps no other waiting."""
    answers: queue.Queue[tuple[int, Finding]] = queue.Queue()

    def make(place: int, check: Check) -> None:
        answers.put((place, _examine(check, view, subject)))

    for place, check in enumerate(checks):
        # Daemons: one that hangs in a call must not keep the command from ending.
        threading.Thread(target=make, args=(place, check), daemon=True).start()
    findings: dict[int, Finding] = {}
    until = time.monotonic() + seconds
    while len(findings) < len(checks):
        try:
            place, finding = answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        findings[place] = finding
    return [findings.get(place) or _late(check, seconds) for place, check in enumerate(checks)]


def _examine(check: Check, view: View, subject: Subject) -> Finding:
    try:
        return examine(check, subject)
    except Exception as error:
        problem = refusal(error, view.connection, f"look at the {check.name}")
        return Finding(check.name, "fail", problem.message, problem.fix, problem)


def _late(check: Check, seconds: float) -> Finding:
    error = UserError(
        f"Google has not answered within {seconds:.0f} s.",
        fix="try again; behind a proxy or a private network, vertex.endpoints says where the services are",
    )
    return Finding(check.name, "fail", error.message, error.fix, error)
