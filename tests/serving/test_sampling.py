"""The requests that the server keeps, for `slipway drift`."""

from __future__ import annotations

import base64
import errno
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette")

from slipway.core.errors import UserError
from slipway.pipelines.prediction.inputs import listed
from slipway.serving import model as models
from slipway.serving import sampling
from slipway.serving.app import Server
from slipway.serving.reloader import Served
from slipway.serving.sampling import RequestLog
from tests.components.evaluate.conftest import png
from tests.serving.client import ask, predict, serving, settings

IMAGE = png(np.random.default_rng(0).integers(0, 256, (8, 8)))
ENCODED = {"b64": base64.b64encode(IMAGE).decode()}
JSON = b"application/json"


@pytest.mark.slow
def test_answered_requests_can_be_compared(classifier_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a log"
    log = RequestLog(folder, 1.0)
    with serving(Server(settings(), lambda: Served("digits/1", classifier_folder), log)) as port:
        assert predict(port, ENCODED, ENCODED)[0] == 200
        assert ask(port, "/predict", IMAGE, "image/png")[0] == 200
        assert predict(port, {"b64": "no image"})[0] == 400
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(file.read_text().splitlines()) == 3
    model = models.load(classifier_folder)
    (part,) = listed([str(file)], "all")
    (chunk,) = part.read(model, 10)
    assert (len(chunk.keys), chunk.faults) == (3, {})
    (values,) = chunk.arrays.values()
    assert [bytes(each) for each in values] == [IMAGE] * 3


def test_a_share_is_kept_and_no_tables(tmp_path: Path) -> None:
    random.seed(5)
    log = RequestLog(tmp_path, 0.25)
    for number in range(400):
        log.add(json.dumps({"instances": [{"x": number}]}).encode(), JSON)
    log.add(b"x\n1\n", b"text/csv; charset=utf-8")
    (file,) = tmp_path.iterdir()
    kept = [json.loads(line)["x"] for line in file.read_text().splitlines()]
    assert 70 <= len(kept) <= 130
    assert kept == sorted(kept)


def test_what_cannot_be_written_fails_no_request_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log, body = RequestLog(tmp_path, 1.0), b'{"instances": [1]}'

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        log.add(body, JSON)
        log.add(body, JSON)
    assert [each.getMessage().rpartition(": ")[2] for each in caplog.records] == ["No space left on device"]
    log.add(body, JSON)
    monkeypatch.setattr(sampling, "MAX_BYTES", 3)
    log.add(body, JSON)
    (file,) = tmp_path.iterdir()
    assert file.read_text() == "1\n"
    assert caplog.records[-1].getMessage().endswith("it has 3 bytes")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be logged"):
        RequestLog(tmp_path / "file" / "log", 0.1)
