"""Errors of the frameworks that become errors for the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.trainer.failures import of_library


def test_an_operation_without_a_deterministic_implementation_is_named_with_what_to_do():
    tf = pytest.importorskip("tensorflow")
    message = (
        "Detected at node …\nGPU MaxPool gradient ops do not yet have a deterministic XLA implementation.\n\t [[x]]"
    )
    told = of_library(tf.errors.UnimplementedError(None, None, message), Path("data"))
    assert "reproducible results: GPU MaxPool gradient ops do not yet have a deterministic" in told.message
    assert told.fix.startswith("--set train.xla=false")
    assert of_library(tf.errors.UnimplementedError(None, None, "Fused conv"), Path("data")) is None
    assert of_library(ValueError("my deterministic sampler failed"), Path("data")) is None
