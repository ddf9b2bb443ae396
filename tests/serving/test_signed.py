"""A server with a key serves only signed models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

pytest.importorskip("starlette")

from slipway.core import dsse, statement
from slipway.core.errors import UserError
from slipway.core.integrity import STATEMENT_FILE
from slipway.serving.app import Server
from slipway.serving.reloader import Served
from slipway.serving.settings import ServerSettings
from tests.serving.client import ask, logged, process, serving, settings, until
from tests.serving.conftest import houses_folder

__all__ = ["houses_folder"]


@pytest.fixture
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@pytest.fixture
def signed(tmp_path: Path, houses_folder: Path, key: Ed25519PrivateKey) -> Path:
    """A signed version of a registered model."""
    folder = tmp_path / "model"
    shutil.copytree(houses_folder, folder)
    (folder / "metadata.json").write_text('{"model": "houses", "version": 3}')
    payload = {
        "_type": statement.STATEMENT,
        "predicateType": statement.PREDICATE,
        "subject": [
            {"name": name, "digest": {"sha256": digest}} for name, digest in statement.contents(folder).items()
        ],
        "predicate": {"buildDefinition": {"resolvedDependencies": []}},
    }
    envelope = dsse.envelope(json.dumps(payload).encode(), statement.PAYLOAD, key, "")
    (folder / STATEMENT_FILE).write_text(json.dumps(envelope))
    return folder


@pytest.mark.slow
def test_a_signed_model_is_served_and_not_replaced_by_one_that_is_not(signed: Path, key: Ed25519PrivateKey) -> None:
    server = Server(settings(key=key.public_key()), lambda: Served("houses/3", signed, None, "houses/3"))
    with serving(server) as port:
        assert (server.reloader.failure, server.reloader.name) == (None, "houses/3")
        (signed / "added.py").write_text("")
        (signed / "saved_model.pb").touch()  # another model, as the server sees it
        until(lambda: server.reloader.failure is not None)
        assert "added.py is not what was signed" in str(server.reloader.failure)
        assert ask(port, "/health")[0] == 200


def test_a_server_does_not_load_another_model_than_the_signed_one(signed: Path, key: Ed25519PrivateKey) -> None:
    for settled, name, problem in (
        (key, "houses/4", "it was signed as houses/3"),
        (Ed25519PrivateKey.generate(), "houses/3", "its provenance is not signed with this key"),
    ):
        server = Server(settings(key=settled.public_key()), lambda name=name: Served(name, signed, None, name))
        with serving(server):
            assert server.reloader.model is None
            assert problem in str(server.lifecycle.refusal)


@pytest.mark.slow
def test_a_container_with_a_key_ends_with_the_reason(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    (tmp_path / "signing.pub").write_text(dsse.pem(key.public_key()))
    (tmp_path / "model").mkdir()
    (tmp_path / "model/saved_model.pb").touch()
    with process(tmp_path / "model", SLIPWAY_SERVE_KEY=str(tmp_path / "signing.pub")) as (server, _):
        assert server.wait(120) == 2
        assert f"The model in {tmp_path / 'model'} cannot be trusted: it is not signed." in logged(server)
    with pytest.raises(UserError, match="cannot be used: No such file or directory") as refused:
        ServerSettings.of({"SLIPWAY_SERVE_KEY": str(tmp_path / "none.pub")})
    assert refused.value.setting == "SLIPWAY_SERVE_KEY"
