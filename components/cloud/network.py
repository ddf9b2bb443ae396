"""The network between this machine and Google: one HTTP session for all APIs, and what cannot be reached."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import requests
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession, Request
from httplib2 import Response
from urllib3 import exceptions as http

from slipway.core import events, waiting
from slipway.core.errors import UserError
from slipway.core.network import AUTHORITIES, PROXY

# Time to connect, and to wait for each part of an answer.
CONNECT_SECONDS, READ_SECONDS = 5.0, 60.0
# For how long a connection is attempted again: by a command, for which somebody waits, and by a step.
COMMAND_SECONDS, STEP_SECONDS = 4.0, 90.0
PAGE = "docs/vertex-reference.md, section Proxies"
# What gRPC, and google-auth within it, say of a connection that could not be established.
GRPC = (
    (r"CERTIFICATE_VERIFY_FAILED(?:: ([\w -]+))?", "The certificate of {host} is not trusted here: {reason}"),
    (r"HTTP proxy returned response code (\d+)", "The proxy {proxy} refuses a connection to {host}: {reason}"),
    (
        r"DNS resolution failed|Domain name not found|Failed to resolve",
        "This machine's name server does not know {host}",
    ),
    (r"failed to connect to all addresses(?:.*remote host: ([A-Z][\w ]+))?", "Cannot reach {host}{by}: {reason}"),
    (r"plugin failed with error: .*Max retries exceeded(?:.*\] ([A-Z][\w ]+)\b)?", "Cannot reach {host}{by}: {reason}"),
)


class NetworkError(UserError):
    """An address cannot be reached from this machine; nothing was sent there."""


class Session(AuthorizedSession):
    """A session with the caller's credentials, which raises NetworkError for what cannot be reached."""

    def __init__(self, credentials: Any) -> None:
        super().__init__(credentials, auth_request=login_request())

    def request(self, method: str, url: str, *arguments: Any, **options: Any) -> requests.Response:
        waiting.asked(urlsplit(url).netloc)
        timeout = options.get("timeout") or READ_SECONDS
        options["timeout"] = (CONNECT_SECONDS, timeout) if isinstance(timeout, int | float) else timeout
        try:
            answer: requests.Response = super().request(method, url, *arguments, **options)
        except (OSError, GoogleAuthError) as error:
            raise unreachable(error, url) or error from error
        return answer


class Transport:
    """What googleapiclient sends requests with, in place of httplib2, which ignores proxies without a word."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def request(
        self, uri: str, method: str = "GET", body: Any = None, headers: Any = None, **_: Any
    ) -> tuple[Response, bytes]:
        """Send a request as httplib2.Http does."""
        answer = self._session.request(method, uri, data=body, headers=headers)
        response = Response({**answer.headers, "status": str(answer.status_code)})
        response.reason = answer.reason
        return response, answer.content

    def close(self) -> None:
        """Close the connections."""
        self._session.close()


def login_request() -> Callable[..., Any]:
    """Return how google-auth sends requests to a login server: once, and not for minutes."""
    return partial(Request(), timeout=(CONNECT_SECONDS, READ_SECONDS))


def patience() -> float:
    """Return for how many seconds a connection that cannot be established is attempted again."""
    return STEP_SECONDS if events.STEP_VARIABLE in os.environ else COMMAND_SECONDS


def unreachable(error: BaseException, address: str = "") -> NetworkError | None:
    """Return which address cannot be reached and why, if that is what a client library or socket says; else None.

    Args:
        error: The exception.
        address: The host or URL of the call, for errors that do not name it.
    """
    if isinstance(error, NetworkError):
        return error
    host = urlsplit(address).netloc or address
    proxy = _proxy(host)
    for cause in _causes(error):
        match cause:
            case http.MaxRetryError():
                host = f"{cause.pool.host}:{cause.pool.port}"
                proxy = _proxy(host)
            case http.ProxyError(original_error=http.NewConnectionError() | http.ConnectTimeoutError()):
                return _error(f"Cannot reach the proxy {proxy}: {_reason(cause.original_error)}", proxy)
            case http.ProxyError():
                return _error(
                    f"The proxy {proxy} refuses a connection to {host}: {_reason(cause.original_error)}", proxy
                )
            case (
                requests.exceptions.InvalidProxyURL() | requests.exceptions.InvalidSchema() | http.ProxySchemeUnknown()
            ):
                return _error(f"The proxy {proxy} cannot be used: {_reason(cause)}", proxy)
            case http.NameResolutionError() | socket.gaierror():
                return _error(f"This machine's name server does not know {host}", proxy)
            case http.NewConnectionError() | ConnectionRefusedError():
                return _error(f"Cannot reach {host}: {_reason(cause)}", proxy)
            case http.ConnectTimeoutError():
                return _error(f"Cannot reach {host}: it does not respond", proxy)
            case http.SSLError() if "CERTIFICATE_VERIFY_FAILED" in str(cause):
                return _error(f"The certificate of {host} is not trusted here: {_reason(cause)}", proxy)
    status = getattr(error, "grpc_status_code", None)
    if getattr(status, "name", "") != "UNAVAILABLE":
        return None
    if login := re.search(r"host='([^']+)', port=(\d+)", str(error)):
        host = f"{login[1]}:{login[2]}"
        proxy = _proxy(host)
    for pattern, sentence in GRPC:
        if match := re.search(pattern, str(error), re.DOTALL):
            reason = str((match.groups() and match[1]) or "it does not respond")
            by = f" through the proxy {proxy}" if proxy else ""
            return _error(sentence.format(host=host, proxy=proxy, by=by, reason=reason.strip().lower()), proxy)
    return None


def _proxy(host: str) -> str:
    """Return the proxy by which a host is called, without its password; "" if there is none."""
    return re.sub(r"//[^/@]*@", "//…@", requests.utils.get_environ_proxies(f"https://{host}").get("https", ""))


def _error(sentence: str, proxy: str) -> NetworkError:
    of_proxy = f"proxy ({PROXY}={proxy})" if proxy else f"proxy ({PROXY})"
    fix = f"check this machine's network, {of_proxy} and name server, then try again; see {PAGE}"
    if "is not trusted" in sentence:
        fix = f"export {AUTHORITIES}=FILE, which has your company's authorities in PEM format; see {PAGE}"
    return NetworkError(f"{sentence.rstrip(': ')}.", fix=fix)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that client libraries have wrapped in it, from the outside to the inside."""
    waiting, seen = [error], {id(error)}
    while waiting:
        cause = waiting.pop(0)
        yield cause
        for inner in (*cause.args, getattr(cause, "reason", None), getattr(cause, "cause", None), cause.__cause__):
            if isinstance(inner, BaseException) and id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)


def _reason(error: BaseException) -> str:
    """Return the innermost words of an exception: "Connection refused", without its number and object."""
    text = str(error).rpartition("[Errno")[2].rpartition("] ")[2] or str(error)
    match = re.search(r"verify failed: ([^(]+)", text)
    return (match[1] if match else text).strip(" .)'\"").lower()
