"""Long-running operations of Vertex AI, which are done after a few polls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.longrunning import operations_pb2
from google.protobuf import any_pb2

from tests.fakes.errors import ServiceError
from tests.fakes.world import World


class Operations:
    """google.longrunning.Operations. `looks`: the number of polls until an operation is done."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.looks = 1
        self._running: dict[str, tuple[int, operations_pb2.Operation, Callable[[], Any]]] = {}

    def methods(self) -> dict[str, tuple[Any, Any]]:
        return {"GetOperation": (operations_pb2.GetOperationRequest, self._get)}

    def start(self, parent: str, work: Callable[[], Any]) -> operations_pb2.Operation:
        """Return an operation below `parent`; its response is the message that `work` returns."""
        with self.world.lock:
            operation = operations_pb2.Operation(name=f"{parent}/operations/{self.world.number()}")
            self._running[operation.name] = (self.looks, operation, work)
            return operation

    def pass_time(self) -> None:
        """Advance all operations, whether or not they are polled: their response may have been lost."""
        with self.world.lock:
            for name in list(self._running):
                self._look(name)

    def _get(self, request: operations_pb2.GetOperationRequest, caller: str) -> operations_pb2.Operation:
        with self.world.lock:
            if request.name not in self._running:
                raise ServiceError(404, f"The operation {request.name} does not exist.")
            return self._look(request.name)

    def _look(self, name: str) -> operations_pb2.Operation:
        looks, operation, work = self._running[name]
        if not operation.done:
            if looks <= 1:
                self._finish(operation, work)
            self._running[name] = (looks - 1, operation, work)
        return operation

    def _finish(self, operation: operations_pb2.Operation, work: Callable[[], Any]) -> None:
        operation.done = True
        try:
            answer = work()
        except ServiceError as error:
            operation.error.code = 9
            operation.error.message = error.message
            return
        packed = any_pb2.Any()
        packed.Pack(type(answer).pb(answer) if hasattr(type(answer), "pb") else answer)
        operation.response.CopyFrom(packed)
