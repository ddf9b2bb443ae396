"""Signs of life of a training: what it does or has done last, for the check whether it is idle.

Whoever checks (`slipway.trainer.distributed.idle`) names a file in the environment; without one, signs cost nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

SIGNS_VARIABLE = "SLIPWAY_SIGNS_FILE"
# Signs of the same kind are not written more often.
SIGN_SECONDS = 0.2

_last: dict[bool, float] = {}


def sign(text: str, *, busy: bool = False) -> None:
    """Note that something was done, such as "step 12"; `busy` until the next sign, whatever the processes do."""
    path = os.environ.get(SIGNS_VARIABLE)
    now = time.time()
    if not path or now - _last.get(busy, 0.0) < SIGN_SECONDS:
        return
    _last.clear()  # a sign of the other kind is always written
    _last[busy] = now
    with contextlib.suppress(OSError), Path(path).open("r+") as file:
        file.write(json.dumps({"time": now, "text": text, "busy": busy}).ljust(200))
