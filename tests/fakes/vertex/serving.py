"""Model servers: what a registered model's container runs, as processes on loopback.

The contract between the service and a container is
https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/predictions/custom-container-requirements
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from google.cloud import aiplatform_v1 as vertex

from slipway.core.parent_death import dying_with_parent
from slipway.core.supervision import Ports
from tests.fakes.errors import ServiceError
from tests.fakes.storage import FakeStorage
from tests.fakes.world import World

# The entry point of every image, unless a test names another.
SERVING = (sys.executable, "-m", "slipway.serving")
# A server that starts in a moment; its options make it misbehave.
STAND_IN = (sys.executable, "-S", str(Path(__file__).with_name("stand_in.py")))
HEALTH_SECONDS = 10
GRACE_SECONDS = 15
POLL_SECONDS = 0.05
# The account of a container that has none of its own; it reads the copies of artifacts.
ACCOUNT = "custom-online-prediction@tenant-tp.iam.gserviceaccount.com"
# A container that has ended is started again after this time, doubled each time.
RESTART_SECONDS = 0.25
LONGEST_RESTART_SECONDS = 10
KEPT_LINES = 100
VARIABLE = re.compile(r"\$\$|\$\((\w+)\)")


@dataclass(frozen=True)
class Answer:
    """What a server answered."""

    status: int
    body: bytes
    content_type: str = ""


class Process:
    """A process whose output is read line by line; `tail` has its end."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], hear: Callable[[str], object]) -> None:
        self.tail: deque[str] = deque(maxlen=KEPT_LINES)
        self._popen = subprocess.Popen(
            dying_with_parent(command),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, args=(hear,), daemon=True)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    def wait(self) -> None:
        """Wait until it has ended and its output was read."""
        self._popen.wait()
        self._reader.join(5)

    def kill(self) -> None:
        self._popen.kill()

    def end(self) -> None:
        """Send SIGTERM, and SIGKILL if it has not ended after a while; wait for the end."""
        self._popen.terminate()
        try:
            self._popen.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()
        self.wait()

    def _read(self, hear: Callable[[str], object]) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self.tail.append(line.rstrip("\n"))
            hear(self.tail[-1])


class ModelServer:
    """A container with a model: its process is started again whenever it ends, until `stop`.

    Args:
        start: Starts the process.
        port: Where it listens.
        health_route: Answers 200 when it can predict.
        predict_route: Accepts predictions.
    """

    def __init__(self, start: Callable[[], Process], ports: Ports, health_route: str, predict_route: str) -> None:
        self.port = ports.numbers[0]
        self.restarts = 0
        self._ports = ports
        self._start = start
        self._health_route, self._predict_route = health_route, predict_route
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.process = start()
        self._keeper = threading.Thread(target=self._keep_running, daemon=True)
        self._keeper.start()

    def is_healthy(self) -> bool:
        """Return whether the server answers the health check: "within 10 seconds with status code 200 OK"."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._ask("GET", self._health_route, None, {}, HEALTH_SECONDS).status == 200
        return False

    def wait_until_healthy(self, seconds: float) -> bool:
        """Return whether the server became healthy within this time."""
        deadline = time.monotonic() + seconds
        while not self.is_healthy():
            if time.monotonic() > deadline or self._stopping.wait(POLL_SECONDS):
                return False
        return True

    def predict(self, body: bytes, content_type: str = "application/json", seconds: float = 60) -> Answer:
        """Send a request to the predict route.

        Raises:
            TimeoutError: There was no answer in time.
            OSError: The server cannot be reached, or closed the connection.
        """
        try:
            return self._ask("POST", self._predict_route, body, {"Content-Type": content_type}, seconds)
        except http.client.HTTPException as error:
            raise ConnectionError(repr(error)) from error

    def kill(self) -> None:
        """Kill the process; it is started again."""
        self.process.kill()

    def stop(self) -> None:
        """End the process and do not start it again."""
        with self._lock:
            self._stopping.set()
        self.process.end()
        self._keeper.join()
        self._ports.__exit__()

    def _keep_running(self) -> None:
        while True:
            self.process.wait()
            if self._stopping.wait(min(RESTART_SECONDS * 2**self.restarts, LONGEST_RESTART_SECONDS)):
                return
            with self._lock:
                if self._stopping.is_set():
                    return
                self.restarts += 1
                self.process = self._start()

    def _ask(self, method: str, route: str, body: bytes | None, headers: Mapping[str, str], seconds: float) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        with contextlib.closing(connection):
            connection.request(method, route, body, dict(headers))
            answer = connection.getresponse()
            return Answer(answer.status, answer.read(), answer.getheader("Content-Type") or "")


class Servers:
    """Starts the servers of models, and ends them all with `close`.

    A server runs what `commands` has for its model's version ("digits@2"), for the model ("digits") or for its image,
    or else the model's `container_spec.command`, or `SERVING`. `environment` is added to that of every process.
    `key_file` returns the credentials of an account. `stock_out` is the service's message while it has no machines.
    """

    def __init__(self, world: World, storage: FakeStorage, region: str) -> None:
        self.commands: dict[str, Sequence[str]] = {}
        self.environment: dict[str, str] = {}
        self.key_file: Callable[[str], Path] | None = None
        self.stock_out = ""
        self._world, self._storage, self._region = world, storage, region
        self._running: set[ModelServer] = set()
        self._copies: dict[str, str] = {}
        self._lock = threading.Lock()
        self.is_closed = False
        # The kernel kills a process when the thread that has started it ends: this one ends with `close`.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="model-servers")

    def start(
        self,
        model: vertex.Model,
        machine: vertex.MachineSpec,
        hear: Callable[[str], object],
        *,
        endpoint: str = "",
        deployed_model: str = "",
        account: str = "",
    ) -> ModelServer:
        """Start a container of a model's version on a free port, whichever port its specification names.

        Args:
            model: A version of the Model Registry.
            machine: What it runs on.
            hear: Receives each line of its output.
            endpoint: The id of its endpoint; "" in a batch prediction.
            deployed_model: The id of its deployed model.
            account: The service account that it runs as, instead of one without access to the project.

        Raises:
            RuntimeError: The servers were closed.
            ServiceError: There are no machines.
        """
        if self.stock_out:
            raise ServiceError(503, self.stock_out)
        spec = model.container_spec
        default = f"/v1/endpoints/{endpoint}/deployedModels/{deployed_model}"
        health_route, predict_route = spec.health_route or default, spec.predict_route or f"{default}:predict"
        ports = Ports(1)
        told = {
            "AIP_DEPLOYED_MODEL_ID": deployed_model,
            "AIP_ENDPOINT_ID": endpoint,
            "AIP_FRAMEWORK": "CUSTOM_CONTAINER",
            "AIP_HEALTH_ROUTE": health_route,
            "AIP_HTTP_PORT": str(ports.numbers[0]),
            "AIP_MACHINE_TYPE": machine.machine_type,
            "AIP_MODE": "PREDICTION",
            "AIP_MODE_VERSION": "1.0.0",
            "AIP_MODEL_NAME": endpoint,
            "AIP_PREDICT_ROUTE": predict_route,
            "AIP_PROJECT_NUMBER": model.name.split("/")[1],
            "AIP_STORAGE_URI": self._artifacts(model, account or ACCOUNT),
            "AIP_VERSION_NAME": deployed_model,
        }
        if machine.accelerator_type:
            told["AIP_ACCELERATOR_TYPE"] = machine.accelerator_type.name
        for variable in spec.env:
            told[variable.name] = expanded(variable.value, told)
        command = [expanded(part, told) for part in [*self._command(model), *spec.args]]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIP_")}
        environment = {**inherited, "PYTHONUNBUFFERED": "1", **self.environment, **told}
        if self.key_file is not None:
            environment["GOOGLE_APPLICATION_CREDENTIALS"] = str(self.key_file(account or ACCOUNT))

        def start() -> Process:
            return self._starter.submit(Process, command, environment, hear).result()

        with self._lock:
            if self.is_closed:
                raise RuntimeError("the servers are closed")
            server = ModelServer(start, ports, health_route, predict_route)
            self._running.add(server)
        return server

    def stop(self, servers: Sequence[ModelServer]) -> None:
        """End servers, all at once."""
        if servers:
            with ThreadPoolExecutor(len(servers)) as pool:
                list(pool.map(lambda server: server.stop(), servers))
        with self._lock:
            self._running.difference_update(servers)

    def close(self) -> None:
        """End all servers; none starts any more."""
        with self._lock:
            self.is_closed = True
        self.stop(list(self._running))
        self._starter.shutdown()

    def _command(self, model: vertex.Model) -> Sequence[str]:
        name = model.name.rpartition("/")[2]
        for key in (f"{name}@{model.version_id}", name, model.container_spec.image_uri):
            if key in self.commands:
                return self.commands[key]
        program, *arguments = model.container_spec.command or SERVING
        return [sys.executable if program == "python" else program, *arguments]

    def _artifacts(self, model: vertex.Model, account: str) -> str:
        """Return the URI of a copy of the model's artifacts, which the account may read; "" if it has none.

        "AIP_STORAGE_URI points to a copy of your model artifact directory in a different Cloud Storage bucket". The
        service copies them when the model is uploaded, here when it is first deployed.
        """
        if not model.artifact_uri:
            return ""
        version = f"{model.name}@{model.version_id}"
        bucket = f"caip-tenant-{model.name.split('/')[1]}-{self._region}"
        with self._world.lock:
            if bucket not in self._world.buckets:
                self._storage.add_bucket(bucket, self._world.project(model.name.split("/")[1]), self._region)
            bindings = self._world.policies[f"buckets/{bucket}"]["bindings"]
            bindings.append({"role": "roles/storage.objectViewer", "members": [f"serviceAccount:{account}"]})
            if version not in self._copies:
                folder = f"models/{len(self._copies)}"
                self._storage.copy(model.artifact_uri, bucket, folder)
                self._copies[version] = f"gs://{bucket}/{folder}"
            return self._copies[version]


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return text with $(NAME) replaced, and $$ by $. Source: ModelContainerSpec.command in model.proto."""
    return VARIABLE.sub(lambda found: "$" if found[1] is None else variables.get(found[1], found[0]), text)
