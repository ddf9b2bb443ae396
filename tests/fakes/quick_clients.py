"""Google's client libraries, without the work that they repeat for each client: that is most of what a client costs.

Slipway asks the services for the state of what they do every five seconds, times the pace of a test: here, every one.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

POLLING = (
    "slipway.components.build_image.cloud_build",
    "slipway.components.cloud.operations",
    "slipway.components.deploy.service",
    "slipway.components.prepare_data.beam.dataflow",
    "slipway.components.train.tpu.service",
)

_lock = threading.RLock()
_methods: dict[tuple[str, str, str], Any] = {}
_load_key = functools.cache(serialization.load_pem_private_key)  # which checks a key whenever it is loaded


def install(patch: pytest.MonkeyPatch) -> None:
    """Let clients share keys, the documents that describe APIs, and the methods made of these; poll more often."""
    from google.auth import credentials
    from googleapiclient import discovery, discovery_cache

    for module in POLLING:
        patch.setattr(f"{module}.POLL_SECONDS", 1.0)

    # Credentials ask Google's public address where they may be used, on a thread of their own: tests stay on loopback.
    asks = credentials.CredentialsWithRegionalAccessBoundary
    patch.setattr(asks, "_is_regional_access_boundary_lookup_required", lambda _self: False)
    patch.setattr(serialization, "load_pem_private_key", _load_key)
    read = functools.partial(_document, discovery_cache.get_static_doc)
    patch.setattr(discovery_cache, "get_static_doc", read)
    patch.setattr(discovery, "createMethod", functools.partial(_method, discovery.createMethod))


@functools.cache
def _document(read: Callable[[str, str], str], service: str, version: str) -> Any:
    return json.loads(read(service, version))


def _method(
    make: Callable[..., Any], name: str, description: dict[str, Any], document: dict[str, Any], schema: Any
) -> Any:
    """Return what googleapiclient makes of a method's description, which it also completes."""
    key = (document["id"], description["id"], name)
    with _lock:
        if key not in _methods:
            _methods[key] = make(name, description, document, schema)
        return _methods[key]
