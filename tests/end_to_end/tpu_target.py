"""Runs with the target tpu against the fake TPU API."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from tests.end_to_end.workspace import Workspace, wait_for
from tests.fakes.google import FakeGoogle
from tests.fakes.ready import BUCKET, let_use_tpus, tpu_settings
from tests.fakes.tpu.hosts import require_curl


class TpuRuns:
    """A working folder whose runs train on the fake TPUs."""

    def __init__(self, workspace: Workspace, google: FakeGoogle) -> None:
        require_curl()
        self.workspace, self.google = workspace, google
        let_use_tpus(google)

    def arguments(self, hardware: str = "tpu-v5e-1x1", *settings: str, **section: Any) -> list[str]:
        """Return the arguments of `slipway run`; `settings` are values for --set, `section` changes the section tpu."""
        own = [f"tpu.{name}={json.dumps(value)}" for name, value in tpu_settings(self.google, **section).items()]
        options = [word for value in (*own, *settings) for word in ("--set", value)]
        return ["--target", "tpu", "--hardware", hardware, *options]

    def requested(self) -> list[str]:
        """Return the names of all queued resources that there were, in order."""
        return [name.rpartition("/")[2] for name, state in self.google.tpu.history if state == "CREATING"]

    def wait_until_active(self, attempt: int) -> str:
        """Wait until the TPU of the run's request of that number is active; return its name."""
        wait_for(lambda: len(self.requested()) >= attempt)
        name = self.requested()[attempt - 1]
        wait_for(lambda: "ACTIVE" in self.google.tpu.states(name))
        return name

    def wait_for_objects(self, ending: str, besides: Collection[str] = ()) -> set[str]:
        """Wait until the bucket has objects whose names end like this, and which are not in `besides`; return them."""
        return wait_for(lambda: self.objects(ending) - {*besides}, 180)

    def objects(self, ending: str) -> set[str]:
        storage = self.google.storage
        with self.google.world.lock:
            if storage.mount is not None:
                storage.mount.take_in(BUCKET)
            return {name for name in storage.names(BUCKET) if name.endswith(ending)}
