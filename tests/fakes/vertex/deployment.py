"""The replicas of one deployed model: they start, predict, are scaled, drained and ended."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from google.cloud import aiplatform_v1 as vertex

from tests.fakes.errors import ServiceError
from tests.fakes.vertex.endpoint_checks import failed_precondition
from tests.fakes.vertex.serving import Answer, ModelServer, Servers

# A container that ends so often before it is healthy is given up.
RESTARTS = 3
POLL_SECONDS = 0.05


class Deployment:
    """A deployed model. `begin` and `end` enclose a request, so that no server ends with one in progress."""

    def __init__(
        self,
        servers: Servers,
        message: vertex.DeployedModel,
        model: vertex.Model,
        endpoint: str,
        hear: Callable[[str], object],
    ) -> None:
        self.message = message
        self.model = model
        self.leaving = False
        self._endpoint = endpoint
        self._servers = servers
        self._hear = hear
        self._replicas: list[ModelServer] = []
        self._turn = 0
        self._requests = 0
        self._busy: Counter[ModelServer] = Counter()
        self._changed = threading.Condition()

    @property
    def replicas(self) -> list[ModelServer]:
        """The servers that receive requests."""
        return list(self._replicas)

    @property
    def available(self) -> int:
        """Number of replicas whose process runs."""
        return sum(replica.process.is_running for replica in self._replicas)

    def scale(self, seconds: float) -> None:
        """Start or end replicas until there are as many as `min_replica_count`.

        "By default, the deployment operation is only considered successful if the number of inference nodes reaches
        minReplicaCount before the deployment request timeout value"; with requiredReplicaCount, if it reaches this:
        https://docs.cloud.google.com/vertex-ai/docs/predictions/autoscaling.

        Raises:
            ServiceError: Not enough of them became healthy in time; the new ones are ended.
        """
        resources = self.message.dedicated_resources
        count = resources.min_replica_count
        new = [self._start() for _ in range(count - len(self._replicas))]
        deadline = time.monotonic() + seconds
        needed = (resources.required_replica_count or count) - len(self._replicas)
        healthy: list[ModelServer] = []
        while len(healthy) < min(needed, len(new)):
            healthy = [server for server in new if server in healthy or server.is_healthy()]
            failure = self._failure(new, deadline)
            if failure and len(healthy) < needed:
                self._servers.stop(new)
                raise failure
            time.sleep(POLL_SECONDS)
        with self._changed:
            self._replicas += new
            leaving, self._replicas = self._replicas[count:], self._replicas[:count]
            self._changed.wait_for(lambda: not any(self._busy[server] for server in leaving))
        self._servers.stop(leaving)

    def begin(self) -> None:
        """Count a request that was routed here."""
        with self._changed:
            self._requests += 1

    def end(self) -> None:
        """Count the end of a request."""
        with self._changed:
            self._requests -= 1
            self._changed.notify_all()

    def predict(self, body: bytes, content_type: str, seconds: float) -> Answer:
        """Return the answer of a replica, in turn; a replica that accepts no connection is passed over.

        Raises:
            ServiceError: No replica answered, or not in time. "503 Took too long to respond when processing" is quoted
                in vertex-ai-samples; the message of a broken connection is not documented.
        """
        where = f"endpoint_id: {self._endpoint}, deployed_model_id: {self.message.id}"
        for _ in range(len(self._replicas)):
            with self._changed:
                server = self._replicas[self._turn % len(self._replicas)]
                self._turn += 1
                self._busy[server] += 1
            try:
                return server.predict(body, content_type, seconds)
            except ConnectionRefusedError:
                continue
            except TimeoutError:
                raise ServiceError(503, f"Took too long to respond when processing {where}") from None
            except OSError as error:
                raise ServiceError(503, f"The model server closed the connection. {where} ({error})") from error
            finally:
                with self._changed:
                    self._busy[server] -= 1
                    self._changed.notify_all()
        raise ServiceError(503, f"No healthy model server. {where}")

    def stop(self) -> None:
        """End all servers, after the requests in progress."""
        with self._changed:
            self._changed.wait_for(lambda: not self._requests)
        self._servers.stop(self._replicas)

    def _start(self) -> ModelServer:
        machine = self.message.dedicated_resources.machine_spec
        return self._servers.start(
            self.model, machine, self._hear, endpoint=self._endpoint, deployed_model=self.message.id
        )

    def _failure(self, new: list[ModelServer], deadline: float) -> ServiceError | None:
        """Return the error of a deployment that cannot succeed.

        Sources: python-aiplatform#4559 ("Model server exited unexpectedly"); the other message is on
        https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/predictions/
        get-batch-predictions.
        """
        project, location = self.model.name.split("/")[1], self.model.name.split("/")[3]
        logs = (
            "Model server logs can be found at https://console.cloud.google.com/logs/viewer?project="
            f"{project}&resource=aiplatform.googleapis.com%2FEndpoint&endpoint_id={self._endpoint}&location={location}."
        )
        if any(server.restarts >= RESTARTS for server in new):
            return failed_precondition(f"Model server exited unexpectedly. {logs}")
        if time.monotonic() > deadline:
            return failed_precondition(
                "Error: model server never became ready. Please validate that your model file or container "
                f"configuration are valid. {logs}"
            )
        return None
