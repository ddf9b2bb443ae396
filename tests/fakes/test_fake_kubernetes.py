"""The fake cluster itself, where it is not the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.kubernetes.server import NAMESPACE, FakeKubernetes
from tests.fidelity.kubernetes_client import Clients

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps"),
        ("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/one"),
        ("GET", "/apis/apps/v1/deployments"),
    ],
)
def test_a_request_that_the_fake_does_not_know_fails_the_test(tmp_path: Path, method: str, path: str) -> None:
    """It is 501, and the cluster raises at its end, so that no test passes by a wrong answer."""
    with pytest.raises(NotImplementedError, match="the fake has no"), FakeKubernetes(tmp_path) as fake:
        assert Clients(fake).send(method, path)[0] == 501
