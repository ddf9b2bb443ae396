"""Long-running operations of Vertex AI, which are done after a few polls, or when their work is."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from google.longrunning import operations_pb2
from google.protobuf import any_pb2

from tests.fakes.errors import ServiceError
from tests.fakes.world import World

WAIT_SECONDS = 0.02


class Operations:
    """google.longrunning.Operations. `looks`: the number of polls until an operation of `start` is done."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.looks = 1
        self._running: dict[str, tuple[int, operations_pb2.Operation, Callable[[], Any] | None]] = {}

    def methods(self) -> dict[str, tuple[Any, Any]]:
        return {
            "GetOperation": (operations_pb2.GetOperationRequest, self._get),
            "WaitOperation": (operations_pb2.WaitOperationRequest, self._wait),
            "ListOperations": (operations_pb2.ListOperationsRequest, self._list),
        }

    def start(self, parent: str, work: Callable[[], Any], metadata: Any = None) -> operations_pb2.Operation:
        """Return an operation below `parent`; its response is the message that `work` returns when it is done."""
        with self.world.lock:
            operation = self._new(parent, metadata)
            self._running[operation.name] = (self.looks, operation, work)
            return operation

    def done(self, parent: str, answer: Any, metadata: Any) -> operations_pb2.Operation:
        """Return an operation below `parent` that is done."""
        operation = self.begin(parent, metadata)
        self.finish(operation.name, lambda: answer)
        return _copy(self._running[operation.name][1])

    def begin(self, parent: str, metadata: Any) -> operations_pb2.Operation:
        """Return an operation below `parent` that is done by `finish`, however often it is polled.

        `metadata` has a field `generic_metadata`, which is filled in.
        """
        with self.world.lock:
            operation = self._new(parent, metadata)
            self._running[operation.name] = (0, operation, None)
            return _copy(operation)

    def update(self, name: str, metadata: Any) -> None:
        """Replace the metadata of an operation of `begin`, usually by the same object with other fields."""
        with self.world.lock:
            _set_metadata(self._running[name][1], metadata)

    def finish(self, name: str, work: Callable[[], Any]) -> None:
        """End an operation of `begin`; its response is the message that `work` returns."""
        with self.world.lock:
            self._finish(self._running[name][1], work)

    def pass_time(self) -> None:
        """Advance all operations, whether or not they are polled: their response may have been lost."""
        with self.world.lock:
            for name in list(self._running):
                self._look(name)

    def _new(self, parent: str, metadata: Any) -> operations_pb2.Operation:
        operation = operations_pb2.Operation(name=f"{parent}/operations/{self.world.number()}")
        if metadata is not None:
            metadata.generic_metadata.create_time = datetime.now(UTC)
            _set_metadata(operation, metadata)
        return operation

    def _get(self, request: operations_pb2.GetOperationRequest, caller: str) -> operations_pb2.Operation:
        with self.world.lock:
            if request.name not in self._running:
                raise ServiceError(404, f"The operation {request.name} does not exist.")
            return _copy(self._look(request.name))

    def _wait(self, request: operations_pb2.WaitOperationRequest, caller: str) -> operations_pb2.Operation:
        """Return an operation that is done, or as it is after the time-out."""
        seconds = request.timeout.ToTimedelta().total_seconds() if request.HasField("timeout") else 60
        deadline = time.monotonic() + seconds
        while True:
            operation = self._get(operations_pb2.GetOperationRequest(name=request.name), caller)
            if operation.done or time.monotonic() > deadline:
                return operation
            time.sleep(WAIT_SECONDS)

    def _list(
        self, request: operations_pb2.ListOperationsRequest, caller: str
    ) -> operations_pb2.ListOperationsResponse:
        with self.world.lock:
            prefix = f"{request.name.rstrip('/')}/operations/"
            found = [_copy(one[1]) for name, one in self._running.items() if name.startswith(prefix)]
            return operations_pb2.ListOperationsResponse(operations=found)

    def _look(self, name: str) -> operations_pb2.Operation:
        looks, operation, work = self._running[name]
        if not operation.done and work is not None:
            if looks <= 1:
                self._finish(operation, work)
            self._running[name] = (looks - 1, operation, work)
        return operation

    def _finish(self, operation: operations_pb2.Operation, work: Callable[[], Any]) -> None:
        operation.done = True
        try:
            answer = work()
        except ServiceError as error:
            operation.error.code = error.code.value[0]
            operation.error.message = error.message
            return
        operation.response.CopyFrom(_packed(answer))


def _set_metadata(operation: operations_pb2.Operation, metadata: Any) -> None:
    metadata.generic_metadata.update_time = datetime.now(UTC)
    operation.metadata.CopyFrom(_packed(metadata))


def _packed(message: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(type(message).pb(message) if hasattr(type(message), "pb") else message)
    return packed


def _copy(operation: operations_pb2.Operation) -> operations_pb2.Operation:
    copy = operations_pb2.Operation()
    copy.CopyFrom(operation)
    return copy
