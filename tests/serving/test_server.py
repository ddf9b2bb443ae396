"""The server over real sockets: contract, limits, faults, replaced models, and SIGTERM under load."""

from __future__ import annotations

import base64
import contextlib
import gzip
import http.client
import json
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

pytest.importorskip("starlette")

from slipway.components.register_model.registry import Registry
from slipway.core import images
from slipway.core.errors import UserError
from slipway.pipelines.prediction import models
from slipway.serving import model
from slipway.serving.app import Server
from slipway.serving.kinds import Field
from slipway.serving.model import Model
from slipway.serving.reloader import Served
from slipway.serving.settings import Limits, ServerSettings
from tests.components.evaluate.conftest import export_model, png
from tests.ports import free_port
from tests.serving.client import Load, ask, health, logged, predict, process, serving, settings, until
from tests.serving.conftest import HOUSE, HOUSE_PRICE
from tests.trainer.driver import REFUSAL_SECONDS, run_with_gpus

pytestmark = pytest.mark.slow
IMAGE = png(np.random.default_rng(0).integers(0, 256, (8, 8)))


@pytest.fixture(scope="module")
def port(classifier_folder: Path) -> Iterator[int]:
    with serving(Server(settings(max_body=1 << 20), lambda: Served("digits/1", classifier_folder))) as port:
        yield port


def test_json_and_image_bytes_have_the_same_answer(port: int) -> None:
    status, found = predict(port, {"b64": base64.b64encode(IMAGE).decode()})
    assert status == 200
    assert set(found["predictions"][0]) == {"label", "classes", "probabilities"}
    assert ask(port, "/predict", IMAGE, "image/png") == (200, found)


def test_health_metrics_page_and_description(port: int) -> None:
    predict(port, {"b64": base64.b64encode(IMAGE).decode()})
    assert ask(port, "/health") == (200, "ok")
    metrics = ask(port, "/metrics")[1]
    assert 'slipway_requests_total{status="200"}' in metrics
    assert "slipway_batch_examples_count" in metrics
    described = ask(port, "/model")[1]
    assert (described["model"], described["task"], described["predict"]) == ("digits/1", "classification", "/predict")
    image = {
        "name": "image",
        "kind": "image",
        "media_types": ",".join(images.MEDIA_TYPES),
        "file": "an image",
    }
    unknown = {
        "is_text": False,
        "is_long": False,
        "shape": [],
        "nullable": False,
        "categories": [],
        "unlisted": 0,
        "example": None,
        "usual": "",
    }
    assert described["inputs"] == [image | unknown]
    assert described["max_body"] == 1 << 20
    assert "<!doctype html>" in ask(port, "/")[1]


@pytest.mark.parametrize(
    ("body", "kind", "status", "says"),
    [
        (b"{", "application/json", 400, "not JSON"),
        (b'{"instances": [3]}', "application/json", 400, "instances[0].image: The value is a number"),
        (IMAGE[:-30], "image/png", 400, "instances[0].image: The image cannot be decoded"),
        (IMAGE[:16] + (10_000).to_bytes(4) * 2 + IMAGE[24:], "image/png", 400, "10000x10000 pixels"),
        (b"x" * ((1 << 20) + 1), "application/json", 413, "more than 1,048,576 bytes"),
    ],
)
def test_bad_requests_are_refused_with_the_reason(port: int, body: bytes, kind: str, status: int, says: str) -> None:
    found, answer = ask(port, "/predict", body, kind)
    assert found == status
    assert says in answer["error"]["message"]
    assert answer["error"]["code"] == status
    assert ("problem" in answer["error"]) == (status == 400)
    assert predict(port, {"b64": base64.b64encode(IMAGE).decode()})[0] == 200


def test_a_compressed_body_is_unpacked_or_refused_by_name(port: int) -> None:
    uri = "data:image/png;base64," + base64.b64encode(IMAGE).decode()
    body = json.dumps({"instances": [{"b64": uri}]}).encode()
    plain = predict(port, {"b64": base64.b64encode(IMAGE).decode()})
    assert ask(port, "/predict", gzip.compress(body), **{"Content-Encoding": "gzip"}) == plain
    for sent, encoding, status, says in [
        (body, "br", 415, "The content encoding br is unknown: use gzip, or none"),
        (body, "gzip", 400, "is not gzip"),
        (gzip.compress(body)[:-30], "gzip", 400, "cut short"),
        (gzip.compress(b" " * (1 << 22)), "gzip", 413, "more than 1,048,576 bytes"),
    ]:
        found, answer = ask(port, "/predict", sent, **{"Content-Encoding": encoding})
        assert (found, says in answer["error"]["message"]) == (status, True)
    assert predict(port, {"b64": uri}) == plain


def test_a_body_without_a_length_is_limited_too(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=180) as client:
        client.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n%s\r\n" % (1 << 16, b" " * (1 << 16))
        for _ in range(17):
            client.sendall(chunk)
        assert client.recv(100).startswith(b"HTTP/1.1 413")


def test_clients_that_do_not_read_or_finish_hold_up_nobody(port: int) -> None:
    body = json.dumps({"instances": [{"b64": base64.b64encode(IMAGE).decode()}] * 500}).encode()
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with contextlib.ExitStack() as stack:
        for sent in (head + body, head + body[:100], head[:20]):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.sendall(sent)
        started = time.monotonic()
        for _ in range(20):
            assert ask(port, "/predict", IMAGE, "image/png")[0] == 200
        assert time.monotonic() - started < 60


def test_named_inputs_and_the_variables_of_vertex_ai(houses_folder: Path) -> None:
    environment = {"AIP_HTTP_PORT": str(free_port()), "AIP_PREDICT_ROUTE": "/v1/predict", "AIP_HEALTH_ROUTE": "/ping"}
    own = ServerSettings.of(environment)
    with serving(Server(own, lambda: Served("houses", houses_folder))) as port:
        assert ask(port, "/ping") == (200, "ok")
        status, found = ask(port, "/v1/predict", json.dumps({"instances": [HOUSE], "parameters": {}}).encode())
        assert (status, found["predictions"][0]["prediction"]) == (200, pytest.approx(HOUSE_PRICE))
        described = ask(port, "/model")[1]
        assert [each["name"] for each in described["inputs"]] == list(HOUSE)
        assert [each["usual"] for each in described["inputs"]] == [
            "mean 50, standard deviation 5",
            "",
            "up to 9",
            "2 categories",
        ]
        assert described["target"] == "price"
        assert ask(port, "/examples") == (200, {"instances": [], "keys": []})
    assert (ServerSettings.of({}).port, ServerSettings.of({}).predict_route) == (8080, "/predict")
    for wrong in ({"AIP_HTTP_PORT": "http"}, {"AIP_PREDICT_ROUTE": "predict"}):
        with pytest.raises(UserError):
            ServerSettings.of(wrong)


def test_it_is_not_healthy_before_the_first_prediction(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"damaged")
    with serving(Server(settings(), lambda: Served("damaged", tmp_path))) as port:
        assert ask(port, "/health")[0] == 503
        for status, answer in (ask(port, "/predict", IMAGE, "image/png"), ask(port, "/model")):
            assert status == 503
            assert answer["error"]["message"].startswith("The server could not load damaged: ")
        assert ask(port, "/examples") == (200, {"instances": [], "keys": []})


def test_an_answer_names_the_model_and_a_page_receives_its_examples(tmp_path: Path) -> None:
    (tmp_path / "weights").touch()
    many = {"keys": ["line 1", 2], "instances": [{"x": index} for index in range(20)]}
    (tmp_path / "examples.json").write_text(json.dumps(many))
    inputs = {"x": Field("number", np.dtype(np.float32))}
    made = [
        Model(tmp_path, "regression", inputs, ("prediction",), {}, lambda arrays: (None, {"prediction": arrays["x"]}))
        for _ in range(2)
    ]
    server = Server(settings(), lambda: Served("häuser/1", tmp_path))
    server.reloader.use(made[0], Served("häuser/1", tmp_path))

    def headers(port: int) -> tuple[str | None, str | None]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
        connection.request("POST", "/predict", '{"instances": [1]}')
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.getheader("slipway-model"), answer.getheader("slipway-model-load")

    with serving(server) as port:
        assert headers(port) == ("h%C3%A4user/1", server.reloader.load)
        assert ask(port, "/model")[1]["load"] == server.reloader.load
        before = server.reloader.load
        server.reloader.use(made[1], Served("häuser/1", tmp_path))
        assert headers(port) == ("h%C3%A4user/1", server.reloader.load) != ("h%C3%A4user/1", before)
        assert ask(port, "/examples")[1] == {"keys": ["line 1", "2"], "instances": [{"x": index} for index in range(8)]}
        (tmp_path / "examples.json").write_text('{"instances": 3}')
        assert ask(port, "/examples")[1] == {"keys": [], "instances": []}
        (tmp_path / "examples.json").write_text(json.dumps(many))
    open_to_all = Server(settings(host="0.0.0.0"), lambda: Served("häuser/1", tmp_path))
    open_to_all.reloader.use(made[0], Served("häuser/1", tmp_path))
    with serving(open_to_all) as port:
        assert ask(port, "/examples")[1] == {"keys": [], "instances": []}


def test_a_full_queue_is_429(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun, release = threading.Event(), threading.Event()

    def function(arrays: Any) -> Any:
        if arrays["x"][0]:
            begun.set()
            release.wait(60)
        return None, {"prediction": arrays["x"]}

    slow = Model(tmp_path, "regression", {"x": Field("number", np.dtype(np.float32))}, ("prediction",), {}, function)
    (tmp_path / "weights").touch()
    server = Server(settings(limits=Limits(max_batch=1, max_queue=2)), lambda: Served("slow", tmp_path))
    server.reloader.use(slow, Served("slow", tmp_path))
    with serving(server) as port:
        found: list[int] = []
        threads = [threading.Thread(target=lambda: found.append(predict(port, 1)[0])) for _ in range(6)]
        threads[0].start()
        assert begun.wait(60)  # so that the queue is empty
        for thread in threads[1:]:
            thread.start()
        until(lambda: len(found) >= 3)
        release.set()
        for thread in threads:
            thread.join()
    assert sorted(found) == [200, 200, 200, 429, 429, 429]


def test_a_moved_champion_is_served_without_a_failed_request(tmp_path: Path, classifier_folder: Path) -> None:
    registry = Registry(tmp_path / "models")
    registry.register("digits", classifier_folder, {"run_id": "one"}, None)
    other = export_model(tmp_path / "other", np.zeros((64, 10)), np.zeros(10))

    def source() -> Served:
        found = models.find("digits", tmp_path / "models")
        return Served(str(found), found.folder)

    with serving(Server(settings(), source)) as port:
        before = ask(port, "/predict", IMAGE, "image/png")[1]["predictions"][0]
        statuses: list[int] = []
        ended = threading.Event()

        def client() -> None:
            while not ended.is_set():
                statuses.append(ask(port, "/predict", IMAGE, "image/png")[0])

        threads = [threading.Thread(target=client) for _ in range(4)]
        for thread in threads:
            thread.start()
        registry.register("digits", other, {"run_id": "two"}, 1)
        until(lambda: ask(port, "/model")[1]["model"] == "digits/2")
        ended.set()
        for thread in threads:
            thread.join()
        after = ask(port, "/predict", IMAGE, "image/png")[1]["predictions"][0]
    assert set(statuses) == {200}
    assert before["probabilities"] != after["probabilities"] == pytest.approx([0.1] * 10)


def test_a_replaced_folder_is_served_and_a_damaged_one_is_not(tmp_path: Path, classifier_folder: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(classifier_folder, folder)
    server = Server(settings(), lambda: Served("model", folder))
    with serving(server) as port:
        before = ask(port, "/predict", IMAGE, "image/png")
        shutil.rmtree(folder)
        folder.mkdir()
        (folder / "saved_model.pb").write_bytes(b"half a model")
        until(lambda: server.reloader.failure is not None)
        assert ask(port, "/predict", IMAGE, "image/png") == before
        status, says = ask(port, "/health")
        assert (status, says.partition(":")[0]) == (200, "serving model; could not load model")
        shutil.rmtree(folder)
        export_model(folder, np.zeros((64, 10)), np.zeros(10))
        until(lambda: server.reloader.failure is None)
        found = ask(port, "/predict", IMAGE, "image/png")[1]["predictions"][0]
        assert found["probabilities"] == pytest.approx([0.1] * 10)


def test_a_new_champion_that_once_could_not_be_read_is_tried_again_and_said(
    tmp_path: Path, classifier_folder: Path, monkeypatch: Any, caplog: Any
) -> None:
    other = export_model(tmp_path / "other", np.zeros((64, 10)), np.zeros(10))
    served = [Served("digits/1", classifier_folder)]
    failing = threading.Event()
    read = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path == other / "model.json" and failing.is_set():
            raise OSError(5, "Input/output error")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with serving(Server(settings(retry=0.05), lambda: served[0])) as port:
        failing.set()
        served[0] = Served("digits/2", other)
        until(lambda: ask(port, "/model")[1]["problem"], 10)
        says = "could not load digits/2: [Errno 5] Input/output error"
        assert ask(port, "/health") == (200, f"serving digits/1; {says}")
        described = ask(port, "/model")[1]
        assert (described["model"], described["problem"]) == ("digits/1", says)
        assert f"{says}; serving digits/1, and trying again" in caplog.text
        failing.clear()
        until(lambda: ask(port, "/model")[1]["model"] == "digits/2", 10)
        assert (ask(port, "/health"), ask(port, "/model")[1]["problem"]) == ((200, "ok"), None)


def test_sigterm_under_load_loses_no_accepted_request(classifier_folder: Path) -> None:
    with process(classifier_folder) as (server, port):
        until(lambda: health(port) == 200, 60)
        load = Load(port, IMAGE)
        load.start()
        server.send_signal(signal.SIGTERM)
        until(lambda: health(port) != 200)
        load.join()
        assert server.wait(60) == 0
        log = logged(server)
    assert (load.lost, set(load.statuses)) == ([], {200})
    assert '"message": "stopped"' in log
    assert base64.b64encode(IMAGE).decode()[:40] not in log


def test_bodies_of_50_mb_use_no_memory_and_a_killed_server_starts_again_on_its_port(classifier_folder: Path) -> None:
    body = json.dumps({"instances": [{"b64": "A" * 50_000_000}]}).encode()
    with process(classifier_folder) as (server, port):
        until(lambda: health(port) == 200, 60)
        before = psutil.Process(server.pid).memory_info().rss
        for _ in range(5):
            assert ask(port, "/predict", body)[0] == 413
        assert psutil.Process(server.pid).memory_info().rss - before < 20 << 20
        load = Load(port, IMAGE)
        load.start()
        server.kill()
        load.join()
        assert len(load.lost) == 16  # each client is told at once, none waits
    with process(classifier_folder, AIP_HTTP_PORT=str(port)):
        until(lambda: health(port) == 200, 60)
        assert ask(port, "/predict", IMAGE, "image/png")[0] == 200


@pytest.mark.usefixtures("real_processes")
def test_sigterm_ends_a_server_that_is_still_starting(classifier_folder: Path) -> None:
    """In a new interpreter, which imports for tenths of a second: a fork listens before it can be asked."""

    def handles_sigterm(server: Any) -> bool:
        status = Path(f"/proc/{server.pid}/status").read_text()
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        return bool(caught >> (signal.SIGTERM - 1) & 1)

    with process(classifier_folder) as (server, port):
        until(lambda: handles_sigterm(server), 60)
        assert health(port) is None
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


@pytest.mark.parametrize("driver", [0, 1])
def test_a_server_on_a_machine_with_gpus_refuses_to_predict_on_the_cpu(
    tmp_path: Path, classifier_folder: Path, driver: int
) -> None:
    """On machines with accelerators, Vertex AI sets AIP_ACCELERATOR_TYPE.

    Source (read): Google's page "Custom container requirements for prediction", environment variables.
    """
    variables = {"AIP_HTTP_PORT": str(free_port()), "AIP_ACCELERATOR_TYPE": "NVIDIA_L4"}
    status, said, seconds = run_with_gpus(
        driver, "slipway.serving", str(classifier_folder), folder=tmp_path, **variables
    )
    assert status == 2, said
    reason = "TensorFlow sees 0" if driver else "NVIDIA's driver does not start (CUDA error 100: no device)"
    assert f"This machine should have GPUs, but {reason}. Found: " in said
    assert seconds < REFUSAL_SECONDS


def test_a_function_that_cannot_be_imported_ends_the_server(tmp_path: Path) -> None:
    (tmp_path / "weights").touch()
    with process(tmp_path, SLIPWAY_SERVE_MODULE="nowhere:load") as (server, _):
        assert server.wait(60) == 2
        error = json.loads(logged(server).splitlines()[-1])
    assert (error["message"], error["setting"]) == ("There is no module 'nowhere'.", "serve.module")


def test_the_model_is_loaded_once_more_only_if_it_has_changed(classifier_folder: Path, monkeypatch: Any) -> None:
    loads: list[Path] = []
    load = model.load
    monkeypatch.setattr(model, "load", lambda folder, module: loads.append(folder) or load(folder, module))
    with serving(Server(settings(), lambda: Served("digits", classifier_folder))):
        time.sleep(0.5)
    assert loads == [classifier_folder]
