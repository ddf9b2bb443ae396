"""Errors of the frameworks that become errors for the user."""

from __future__ import annotations

import pytest

from slipway.trainer.failures import not_deterministic


def test_an_operation_without_a_deterministic_implementation_is_named_with_what_to_do():
    tf = pytest.importorskip("tensorflow")
    message = (
        "Detected at node …\nGPU MaxPool gradient ops do not yet have a deterministic XLA implementation.\n\t [[x]]"
    )
    told = not_deterministic(tf.errors.UnimplementedError(None, None, message))
    assert "reproducible results: GPU MaxPool gradient ops do not yet have a deterministic" in told.message
    assert told.fix.startswith("--set train.xla=false")
    assert not_deterministic(tf.errors.UnimplementedError(None, None, "Fused conv implementation")) is None
    assert not_deterministic(ValueError("my deterministic sampler failed")) is None
