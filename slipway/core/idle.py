"""Signs of life of a training: what it does or has done last, for the check whether it is idle.

The process that checks (`slipway.trainer.distributed.idle`) names a file in the environment of the others; without one,
signs cost nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

# How long a replica may be idle, in seconds: a variable of the containers of a training with `budget.idle`.
IDLE_VARIABLE = "SLIPWAY_IDLE_SECONDS"
SIGNS_VARIABLE = "SLIPWAY_SIGNS_FILE"
# Signs of the same kind are not written more often.
SIGN_SECONDS = 0.2

_last: dict[bool, float] = {}


def sign(text: str, *, busy: bool = False) -> None:
    """Note that something was done, such as "step 12"; `busy`: it is being done until the next sign."""
    path, now = os.environ.get(SIGNS_VARIABLE), time.monotonic()
    if not path or now - _last.get(busy, -SIGN_SECONDS) < SIGN_SECONDS:
        return
    _last.clear()  # a sign of the other kind is always written
    _last[busy] = now
    with contextlib.suppress(OSError), Path(path).open("r+") as file:
        file.write(json.dumps({"time": now, "text": text, "busy": busy}).ljust(200))
