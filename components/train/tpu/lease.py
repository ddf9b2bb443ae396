"""The launcher's lease on a run: one object in the bucket, which the hosts of the TPU watch.

The object's metadata name the queued resource that may run, and its age tells whether the launcher is alive. It is
written before a queued resource is requested, so that a later launcher finds what an earlier one left behind.
"""

from __future__ import annotations

import logging
import threading
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.refusals import is_answer, refusal, refusing
from slipway.components.cloud.retries import retried, status_of
from slipway.components.step import WorkFailed
from slipway.core.errors import UserError

# The lease is renewed this many times before it lapses.
RENEWALS = 5
PRECONDITION_FAILED = 412

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Holder:
    """The queued resource `holder` in `zone`, the run's request number `attempt`; "" if none may run."""

    holder: str = ""
    zone: str = ""
    attempt: int = 0


def has_lapsed(connection: Connection, bucket: str, name: str, seconds: float) -> bool:
    """Return whether no launcher renewed a run's lease in the last `seconds`.

    Raises:
        UserError: The bucket refuses the access.
    """
    with refusing(connection, f"read gs://{bucket}/{name}"):
        blob = retried(lambda: connection.storage.bucket(bucket).get_blob(name))
    return blob is None or (datetime.now(UTC) - blob.updated).total_seconds() > seconds


class Lease:
    """The lease of one run; a context manager that renews it in a thread.

    Args:
        connection: To the bucket's project.
        bucket: The bucket, without gs://.
        name: The object.
        launcher: A file with this run folder's id, by which a resumed run recognizes its own lease.
        seconds: The age at which the lease has lapsed.
    """

    def __init__(self, connection: Connection, bucket: str, name: str, launcher: Path, seconds: float) -> None:
        # The client of this thread and the renewing one.
        self._connection = replace(connection)
        self._blob: Any = self._connection.storage.bucket(bucket).blob(name)
        self._name, self._seconds = f"gs://{bucket}/{name}", seconds
        if not launcher.exists():
            launcher.write_text(uuid.uuid4().hex)
        self._launcher = launcher.read_text()
        self._writer = uuid.uuid4().hex
        self._held = Holder()
        self._generation = 0
        self._updated = datetime.now(UTC)
        self._lost = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def take(self) -> Holder:
        """Take the lease over; return what held it last.

        Raises:
            UserError: Another launcher renewed it not long ago, or the bucket refuses the access.
        """
        with refusing(self._connection, f"read {self._name}"):
            earlier = self._read()
        age = (datetime.now(UTC) - self._updated).total_seconds() if self._generation else 0.0
        if earlier.get("launcher", self._launcher) != self._launcher and earlier["holder"] and age < self._seconds:
            raise UserError(
                f"Another command trains this run on the TPU {earlier['holder']} in {earlier['zone']}: it renewed "
                f"{self._name} {age:.0f} s ago.",
                fix="let it finish, or stop it there",
            )
        last = Holder(earlier.get("holder", ""), earlier.get("zone", ""), int(earlier.get("attempt", 0)))
        self.hold(last)
        return last

    def hold(self, holder: Holder) -> datetime:
        """Let `holder` run, and no other; return the time of the storage service.

        Raises:
            WorkFailed: Another launcher has taken the lease.
            UserError: The bucket refuses the access.
        """
        with self._lock:
            self._held = holder
            try:
                return self._write()
            except WorkFailed:
                raise
            except Exception as error:
                raise refusal(error, self._connection, f"write {self._name}") from error

    def release(self) -> None:
        """Let no queued resource run any more, and end the renewals."""
        self._stop()
        self.hold(Holder(attempt=self._held.attempt))

    def check(self) -> None:
        """Raise WorkFailed if another launcher has taken the lease."""
        if self._lost:
            raise WorkFailed(f"Another command has taken over this run: it writes {self._name}.")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds / RENEWALS):
            with self._lock:
                if self._lost or self._ended.is_set():
                    return
                try:
                    self._write()
                except WorkFailed:
                    return
                except Exception as error:  # the storage may respond again before the lease lapses
                    logger.warning("could not renew %s: %s", self._name, error, exc_info=not is_answer(error))

    def _read(self) -> dict[str, str]:
        # Another blob: one that has been written asks for the generation that it knows.
        blob = retried(lambda: self._blob.bucket.get_blob(self._blob.name))
        self._generation = int(blob.generation) if blob else 0
        self._updated = blob.updated if blob else self._updated
        return dict(blob.metadata or {}) if blob else {}

    def _write(self) -> datetime:
        """Write the object if nobody else has; an earlier write of ours may have succeeded without an answer."""

        def put() -> None:
            try:
                self._put()
            except Exception as error:
                if status_of(error) != PRECONDITION_FAILED:
                    raise
                if self._read().get("writer") != self._writer:
                    self._lost = True
                    self.check()
                self._put()

        retried(put)
        return self._updated

    def _put(self) -> None:
        values = {key: str(value) for key, value in asdict(self._held).items()}
        self._blob.metadata = {**values, "launcher": self._launcher, "writer": self._writer}
        self._blob.upload_from_string(b"", content_type="text/plain", if_generation_match=self._generation, retry=None)
        self._generation, self._updated = int(self._blob.generation), self._blob.updated
