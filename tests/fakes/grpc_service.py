"""Google's gRPC services on loopback over TLS: methods of a plain class with Google's messages."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any

import grpc

from tests.fakes.certificates import Certificates
from tests.fakes.errors import ConnectionReset, Faults, ServiceError

# Two threads that import Google's messages at once get half of a module.
_starting = threading.RLock()


class GrpcServer:
    """Several services on one port, as a region's Vertex AI is.

    `add` accepts a service's full name (google.cloud.aiplatform.v1.JobService) and its methods by name: the class of
    the request and the function (request, caller) -> response. Messages are proto-plus or protobuf. A function that
    is a generator answers with a stream, whose lost answers are those after its first message.
    """

    def __init__(self, faults: Faults, caller_of: Callable[[Mapping[str, str]], str]) -> None:
        self._faults = faults
        self._caller_of = caller_of
        # Long calls of one client (a fake's own work) must not keep others waiting.
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))

    def add(self, service: str, methods: Mapping[str, tuple[Any, Callable[[Any, str], Any]]]) -> None:
        handlers = {name: self._handler(service, name, *method) for name, method in methods.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    def start_on_first_call(self, start: Callable[[], object]) -> None:
        """Let the first call of any method call `start`, which adds the services."""
        self._server.add_generic_rpc_handlers((_Starter(start),))

    def start(self, certificates: Certificates, also: str | None = None) -> int:
        """Serve on a port of 127.0.0.1 and at the address `also`; return the port."""
        credentials = grpc.ssl_server_credentials([(certificates.key, certificates.chain)])
        bound = self._server.add_secure_port("127.0.0.1:0", credentials)
        if also is not None:
            self._server.add_secure_port(also, credentials)
        self._server.start()
        return bound

    def stop(self) -> None:
        self._server.stop(grace=None).wait(5)

    def _handler(self, service: str, name: str, request_type: Any, function: Callable[[Any, str], Any]) -> Any:
        method = f"{service.rpartition('.')[2]}.{name}"

        def call(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                self._faults.before(method)
                answer = function(request, self._caller_of(dict(context.invocation_metadata())))
                self._faults.after(method)
                return answer
            except ServiceError as error:
                context.abort(error.code, error.message)
            except ConnectionReset:
                context.abort(grpc.StatusCode.UNAVAILABLE, "recvmsg:Connection reset by peer")

        def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            try:
                self._faults.before(method)
                for number, answer in enumerate(
                    function(request, self._caller_of(dict(context.invocation_metadata())))
                ):
                    yield answer
                    if number == 0:
                        self._faults.after(method)
            except ServiceError as error:
                context.abort(error.code, error.message)
            except ConnectionReset:
                context.abort(grpc.StatusCode.UNAVAILABLE, "recvmsg:Connection reset by peer")

        if inspect.isgeneratorfunction(function):
            return grpc.unary_stream_rpc_method_handler(
                stream, request_deserializer=_deserializer(request_type), response_serializer=_serialize
            )
        return grpc.unary_unary_rpc_method_handler(
            call, request_deserializer=_deserializer(request_type), response_serializer=_serialize
        )


class _Starter(grpc.GenericRpcHandler):
    """Adds services with the first call; gRPC then asks their handlers, which come after this one."""

    def __init__(self, start: Callable[[], object]) -> None:
        self._start = start

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> None:
        with _starting:
            self._start()


def _deserializer(message: Any) -> Callable[[bytes], Any]:
    return message.deserialize if hasattr(message, "deserialize") else message.FromString


def _serialize(message: Any) -> bytes:
    kind = type(message)
    return kind.serialize(message) if hasattr(kind, "serialize") else message.SerializeToString()
