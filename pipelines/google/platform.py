"""Checks that call the run's project on Google Cloud."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from slipway.core.errors import UserError
from slipway.pipelines.platforms.capabilities import WithRemoteChecks

if TYPE_CHECKING:
    from slipway.components.cloud.connection import Connection
    from slipway.pipelines.config.config import RunConfig
    from slipway.pipelines.platforms.base import Context


class WithProject(WithRemoteChecks):
    """A platform with a project on Google Cloud."""

    name: ClassVar[str]

    @abstractmethod
    def connection(self, config: RunConfig) -> Connection:
        """Return the connection to the run's project."""

    def import_modules(self, *names: str) -> None:
        from slipway.components.cloud.connection import import_clients

        import_clients(*names)

    def problem_of(self, error: Exception, context: Context, action: str) -> UserError | None:
        from slipway.components.cloud.refusals import is_answer, refusal

        return refusal(error, connection_of(context), action) if is_answer(error) else None

    def late(self, seconds: float, failure: str) -> UserError:
        from slipway.components.cloud.connection import OUTAGE

        if failure:
            return UserError(f"Google kept failing for {seconds:.0f} s: {failure}.", fix=OUTAGE)
        return UserError(
            f"Google did not respond within {seconds:.0f} s.",
            fix=f"try again; behind a proxy or in a private network, set {self.name}.endpoints",
        )


def connection_of(context: Context) -> Connection:
    """Return the connection to the run's Google Cloud project, which its checks share."""
    assert isinstance(context.platform, WithProject)
    return context.shared(context.platform.connection)
