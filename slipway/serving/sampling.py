"""A sample of the requests that were answered, as JSONL files of instances, with which `slipway drift` compares."""

from __future__ import annotations

import json
import logging
import os
import random
from datetime import UTC, datetime
from pathlib import Path

from slipway.core.errors import UserError
from slipway.serving import instances
from slipway.serving.instances import CSV, FILE_TYPES

# Of the file of a day, after which nothing is added to it.
MAX_BYTES = 1 << 30

logger = logging.getLogger(__name__)


class RequestLog:
    """Writes the instances of a share of the requests to `folder`/requests-DAY.jsonl, which only this user may read.

    What cannot be written is not: a full disk is reported once, and fails no request. Tables are not logged.

    Raises:
        UserError: The folder cannot be written to.
    """

    def __init__(self, folder: Path, share: float) -> None:
        self.folder, self.share = folder, share
        self._failed = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError("permission denied")
        except OSError as error:
            raise UserError(
                f"Requests cannot be logged in {folder}: {error.strerror or error}.",
                setting="--log-requests",
                value=str(folder),
            ) from None

    def add(self, body: bytes, media_type: bytes) -> None:
        """Write an answered request, if it is in the sample."""
        if random.random() >= self.share or media_type.startswith(CSV):
            return
        is_file = media_type.startswith(FILE_TYPES)
        rows = [instances.of_image(body)] if is_file else instances.read(body)
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        path = self.folder / f"requests-{datetime.now(UTC):%Y-%m-%d}.jsonl"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(descriptor).st_size + len(lines) > MAX_BYTES:
                    raise OSError(f"it has {MAX_BYTES:,} bytes")
                os.write(descriptor, lines)
            finally:
                os.close(descriptor)
        except OSError as error:
            if not self._failed:
                logger.warning("cannot log requests in %s: %s", path, error.strerror or error)
            self._failed = True
        else:
            self._failed = False
