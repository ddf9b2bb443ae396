"""What is needed to compile or trace a step for all GPUs or TPUs, as its command says."""

from __future__ import annotations

import pytest

from slipway.pipelines.hardware import compiled, profile


@pytest.mark.parametrize(
    ("platform", "engine", "said"),
    [
        ("cuda", "jax", "without jax_cuda12_plugin and jax_plugins: pip install 'slipway-ml[jax,compile-gpu]'"),
        ("tpu", "tensorflow", "without libtpu: pip install 'slipway-ml[jax,compile-tpu]'"),
        ("cuda", "pytorch", "without torch: pip install 'slipway-ml[pytorch]'"),
    ],
)
def test_what_is_missing_and_the_command_that_installs_it(
    platform: compiled.Platform, engine: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "is_installed", lambda name: name == "jax")
    assert profile.missing(platform, engine) == said
    monkeypatch.setattr(profile, "is_installed", lambda _name: True)
    assert profile.missing(platform, engine) is None
