"""`slipway run --target tpu` against the fake TPU API, whose machines run the start-up script."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.end_to_end.workspace import Workspace
from tests.fakes.google import PROJECT, FakeGoogle
from tests.fakes.ready import BUCKET, IMAGE, RUNNER, grant

ZONE = "europe-west4-b"


class Tpu:
    """A working folder whose runs train on the fake TPUs."""

    def __init__(self, workspace: Workspace, google: FakeGoogle) -> None:
        self.workspace, self.google = workspace, google

    def arguments(self, hardware: str = "tpu-v5e-1x1", **settings: Any) -> list[str]:
        section = {
            "project": PROJECT,
            "zones": [ZONE],
            "bucket": f"gs://{BUCKET}",
            "image": IMAGE,
            "service_account": RUNNER,
            "endpoints": dict(self.google.endpoints),
            **settings,
        }
        options = [f"tpu.{name}={json.dumps(value)}" for name, value in section.items()]
        return ["-c", "configs/digits.yaml", "--target", "tpu", "--hardware", hardware, *(
            word for option in options for word in ("--set", option)
        )]  # fmt: skip


@pytest.fixture
def tpu(workspace: Workspace, ready_google: FakeGoogle) -> Tpu:
    grant(ready_google, f"projects/{PROJECT}", "roles/tpu.admin", RUNNER)
    return Tpu(workspace, ready_google)


def test_a_run_with_target_tpu_trains_on_a_machine_that_is_deleted(tpu: Tpu) -> None:
    done = tpu.workspace.slipway("run", *tpu.arguments())
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout, done.stderr)
    print(tpu.workspace.log("train"))
    print(tpu.google.tpu.history, tpu.google.tpu.resources, tpu.google.storage.names(BUCKET))
    print(tpu.google.tpu.states("slipway-x"))
