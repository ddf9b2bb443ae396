"""A Kubeflow Pipelines server on loopback, and a configuration that names it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from slipway.pipelines.config.config import RunConfig, validate
from tests.fakes.kubeflow import FakeKubeflow

IMAGE = "registry.example.com/slipway/trainer@sha256:" + "0" * 64
DIGITS = Path("configs/digits.yaml").absolute()


@pytest.fixture
def kubeflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeKubeflow]:
    """A single-user server; runs' folders are in the test's temporary folder."""
    monkeypatch.setenv("SLIPWAY_RETRY_SECONDS", "0.01")
    monkeypatch.setattr("slipway.pipelines.platforms.kubeflow.launch.POLL_SECONDS", 0)
    monkeypatch.chdir(tmp_path)
    # kfp's client waits five seconds after a failed look at the server's health.
    monkeypatch.setattr("kfp.client.client.time", SimpleNamespace(sleep=lambda _seconds: None))
    with FakeKubeflow() as server:
        yield server


def configuration(hardware: str = "cpu", notify: dict[str, Any] | None = None, **kubeflow: Any) -> RunConfig:
    """The digits configuration for a cluster with these settings; by default with a volume."""
    place = {} if "pipeline_root" in kubeflow else {"volume": "slipway"}
    section = {"host": "http://localhost:1", "image": IMAGE, **place, **kubeflow}
    values = yaml.safe_load(DIGITS.read_text()) | {"hardware": hardware, "notify": notify, "kubeflow": section}
    return validate(values, "the test's configuration")
