"""What cannot be reached is one sentence, after seconds, whichever client library says so; proxies and authorities."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import trustme
from google.auth.credentials import AnonymousCredentials

from slipway.components.cloud import network, retries
from slipway.components.cloud.connection import Connection
from slipway.components.cloud.network import NetworkError, Session, unreachable
from slipway.components.cloud.refusals import is_answer, refusal
from slipway.core.errors import UserError
from slipway.core.network import share_settings
from tests.fakes.certificates import certificates

GOOGLE = "europe-west4-aiplatform.googleapis.com"
REFUSES = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
JOB = "projects/p/locations/europe-west4/pipelineJobs/x"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in certificates().environment.items():  # gRPC reads the file once per process
        monkeypatch.setenv(name, value)
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def over_rest(host: str) -> NetworkError:
    with pytest.raises(NetworkError) as error:
        Session(AnonymousCredentials()).get(f"https://{host}/x")
    return error.value


def over_grpc(host: str) -> NetworkError:
    connection = Connection("p", "europe-west4", {"aiplatform": host})
    vars(connection)["credentials"] = AnonymousCredentials()
    with pytest.raises(Exception, match="503") as error:
        connection.pipelines.get_pipeline_job(name=JOB)
    assert is_answer(error.value)
    known = unreachable(error.value, host)
    assert known is not None, error.value
    return known


@contextlib.contextmanager
def server(answer: bytes) -> Iterator[str]:
    """A server that answers everything with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@contextlib.contextmanager
def silent_address() -> Iterator[str]:
    """An address that answers no SYN, because its queue is full."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("call", [over_rest, over_grpc])
@pytest.mark.parametrize(
    ("host", "proxy", "sentence"),
    [
        ("localhost:1", "", "Cannot reach localhost:1: connection refused."),
        ("nowhere.invalid:443", "", "This machine's name server does not know nowhere.invalid:443."),
        (
            GOOGLE,
            "http://ada:secret@127.0.0.1:9",
            r"Cannot reach .*the proxy http://…@127.0.0.1:9: connection refused.",
        ),
    ],
)
def test_an_address_that_cannot_be_reached_is_named_with_the_reason(
    call: Callable[[str], NetworkError], host: str, proxy: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        monkeypatch.setenv("https_proxy", proxy)
    error = call(host)
    assert re.fullmatch(sentence, error.message), error.message
    assert "check this machine's network, proxy" in str(error.fix)
    assert "secret" not in str(error)


@pytest.mark.parametrize("call", [over_rest, over_grpc])
def test_a_proxy_that_refuses_is_named_with_its_answer(
    call: Callable[[str], NetworkError], monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(REFUSES) as proxy:
        for name in ("HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(name, f"http://{proxy}")
        message = call(GOOGLE).message
    assert message.startswith(f"The proxy http://{proxy} refuses a connection to {GOOGLE}")
    assert "407" in message


def test_a_certificate_of_another_authority_is_named_with_the_setting() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True):
                pass

        threading.Thread(target=serve, daemon=True).start()
        error = over_rest(f"localhost:{listening.getsockname()[1]}")
    assert error.message.startswith("The certificate of localhost:")
    assert str(error.fix).startswith("export SSL_CERT_FILE=FILE")


@pytest.mark.slow
@pytest.mark.parametrize("call", [over_rest, over_grpc])
def test_an_address_that_does_not_respond_is_given_up_after_seconds(
    call: Callable[[str], NetworkError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "CONNECT_SECONDS", 0.5)
    started = time.monotonic()
    with silent_address() as address:
        assert call(address).message == f"Cannot reach {address}: it does not respond."
    assert time.monotonic() - started < 20  # the libraries' own limits are 20 s, 60 s and 127 s


@pytest.mark.parametrize(("step", "least", "most"), [("", 1.0, 7.0), ("train", 10.0, 110.0)])
def test_a_command_tries_for_seconds_and_a_step_for_longer(
    step: str, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPWAY_RETRY_SECONDS", "0.5")
    monkeypatch.setenv(network.events.STEP_VARIABLE, step)
    if not step:
        monkeypatch.delenv(network.events.STEP_VARIABLE)
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    def refused() -> None:
        clock[0] += 0.01
        raise NetworkError("Cannot reach localhost:1: connection refused.")

    monkeypatch.setattr(retries, "policy", functools.partial(retries.policy, sleep=sleep))
    with pytest.raises(NetworkError):
        retries.retried(refused)
    assert least <= clock[0] <= most


def test_a_refusal_says_what_could_not_be_done() -> None:
    connection = Connection("p", "europe-west4")
    cause = NetworkError("Cannot reach localhost:1: connection refused.", fix="check it")
    error = refusal(cause, connection, "read the run")
    assert (error.message, error.fix) == (
        "Could not read the run: cannot reach localhost:1: connection refused.",
        "check it",
    )


def test_one_setting_is_that_of_all_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH")
    with monkeypatch.context() as patch:
        for name in (*names, "https_proxy", "no_proxy"):
            patch.setenv(name, "")  # so that the context restores it
        patch.setenv("REQUESTS_CA_BUNDLE", "/etc/company.pem")
        patch.setenv("HTTPS_PROXY", "http://proxy:3128")
        patch.setenv("NO_PROXY", "localhost")
        patch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "/etc/other.pem")
        share_settings()
        assert [os.environ[name] for name in names] == ["/etc/company.pem"] * 3 + ["/etc/other.pem"]
        assert (os.environ["https_proxy"], os.environ["no_proxy"]) == ("http://proxy:3128", "localhost")


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
def test_a_proxy_that_is_not_of_http_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.setenv(other, "")  # so that they are restored
    monkeypatch.setenv(name, "socks5h://ada:secret@127.0.0.1:1080")
    with pytest.raises(UserError, match="not a proxy of HTTP") as error:
        Connection("p", "europe-west4")
    assert error.value.value == "socks5h://127.0.0.1:1080"
    with monkeypatch.context() as as_fixed:
        for assignment in str(error.value.fix).removeprefix("export ").split():
            as_fixed.setenv(*assignment.split("=", 1))
        Connection("p", "europe-west4")
    monkeypatch.setenv("no_proxy", "googleapis.com")
    Connection("p", "europe-west4")


@pytest.mark.parametrize("proxy", ["", "proxy:3128", "http://proxy:3128", "HTTPS://ada@proxy"])
def test_a_proxy_of_http_is_used(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(other, "")
    monkeypatch.setenv("ALL_PROXY", proxy)
    Connection("p", "europe-west4")
    assert os.environ["https_proxy"] == proxy
