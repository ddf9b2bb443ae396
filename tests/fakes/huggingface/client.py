"""The hub's client in the process of a test: its constants, which it reads when it is imported."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.fakes.huggingface.hub import WRITER, FakeHub


def use(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, folder: Path, token: str = WRITER) -> None:
    """Let the client find the hub, with a cache in `folder`."""
    for name, value in {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
        "HF_HUB_CACHE": str(folder / "cache"),
        "HF_ASSETS_CACHE": str(folder / "assets"),
        "HF_HUB_DISABLE_XET": True,
    }.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("HF_TOKEN", token)
