"""Beam's own job service and pool of worker processes, and a launcher that alone sees buckets as folders."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slipway.components.prepare_data.settings import DataSettings
from slipway.core.manifest import TaskName
from tests.fakes.dataflow import FakeDataflow, JobFailed, Script
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.mount import Mount

ROOT = Path(__file__).parents[2]
BUCKET = "slipway-test-data"
PROGRAM = """
import sys
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.beam.dataflow import owned_by

settings = owned_by(DataSettings.model_validate_json(sys.argv[1]), "gs://bucket/runs/of-the-test")
print(prepare(settings, 3, task=sys.argv[2]).folder)
"""
PORT_FILE = "job-service.port"
# "When running in batch mode, bundles including a failing item are retried 4 times": Dataflow's documentation.
ATTEMPTS = 4
# The wording: https://github.com/apache/beam/issues/30482
LOST = (
    "The job failed because a work item has failed 4 times. Look in previous log entries for the cause of each one of "
    "the 4 failures. For more information, see https://cloud.google.com/dataflow/docs/guides/common-errors. The work "
    "item was attempted on these workers: \n\n      Root cause: The worker lost contact with the service."
)
IN_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
# A root of its own, with the folders of this machine and /gcs; chroot is on no ordinary user's PATH.
SCRIPT = """
mount -t tmpfs none "$root"
for path in /*; do
    if [ -L "$path" ]; then cp -P "$path" "$root/"
    elif [ -d "$path" ]; then mkdir "$root/$path"; mount --rbind "$path" "$root/$path"
    fi
done
mkdir "$root/gcs"
mount --rbind "$buckets" "$root/gcs"
exec unshare --root="$root" --wd="$PWD" "$@"
"""


def can_mount() -> bool:
    """Whether this machine lets users mount folders in a namespace."""
    with contextlib.suppress(FileNotFoundError):
        found = subprocess.run([*IN_NAMESPACE, "mount -t tmpfs none /mnt"], capture_output=True)
        return found.returncode == 0 and not Path("/gcs").exists()
    return False


def with_buckets(buckets: Path, command: Sequence[str]) -> list[str]:
    """Return the command that runs `command` where the folder `buckets` is /gcs; all else is as it is here."""
    root = buckets.with_name(f"{buckets.name}-root")
    root.mkdir(exist_ok=True)
    script = f"root={shlex.quote(str(root))} buckets={shlex.quote(str(buckets))}\n{SCRIPT}"
    return [*IN_NAMESPACE, script, "launcher", *command]


class Bucket:
    """A bucket that is a folder for the launcher, and that workers read and write over HTTP."""

    def __init__(self, google: FakeGoogle, folder: Path) -> None:
        self._mount = folder / "bucket mount"
        self._mount.mkdir()
        google.storage.mount = Mount(google.storage, self._mount)
        google.storage.add_bucket(BUCKET, google.world.projects[PROJECT], REGION)
        self.folder = self._mount / BUCKET
        self.folder.mkdir()
        address = f"https://{google.endpoints['storage']}"
        # In the namespace, the user is root, whose folder below /tmp may be another user's.
        self._scratch = folder / "scratch"
        self._scratch.mkdir()
        self.environment = {**google.environment, "API_ENDPOINT_OVERRIDE": address}

    def prepare(self, settings: DataSettings, task: TaskName = "classification") -> Path:
        """Prepare a data set in a process that sees the bucket at /gcs; return its folder."""
        process = self.start(settings, task)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        return self.seen_here(output.splitlines()[-1])

    def seen_here(self, path: str) -> Path:
        """Return the folder that such a process sees at `path`."""
        return self._mount / Path(path).relative_to("/gcs")

    def start(self, settings: DataSettings, task: TaskName = "classification") -> subprocess.Popen[str]:
        """Start such a process."""
        command = with_buckets(self._mount, [sys.executable, "-c", PROGRAM, settings.model_dump_json(), task])
        own = {"PYTHONPATH": str(ROOT), "TMPDIR": str(self._scratch)}
        environment = {**os.environ, **self.environment, **own}
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, process_group=0
        )


class Service(NamedTuple):
    """Beam's job service with its pool of workers.

    Attributes:
        options: The options with which a PortableRunner uses them.
        pool: The process that starts workers; None if it is not one of this test.
    """

    options: dict[str, str]
    pool: int | None

    def workers(self) -> dict[int, int]:
        """Return the signal that ended each worker, 0 if none did.

        The pool does not wait for its processes, so that those that have ended are still found.
        """
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                values = (process / "stat").read_text().rpartition(") ")[2].split()
                if int(values[1]) == self.pool:
                    found[int(process.name)] = int(values[-1]) & 0x7F
        return found

    def with_open(self, name: str) -> list[int]:
        """Return the workers that have a file open whose path contains `name`."""
        found = []
        for worker in self.workers():
            with contextlib.suppress(OSError):  # it has ended
                files = Path(f"/proc/{worker}/fd").iterdir()
                found += [worker] * any(name in str(file.readlink()) for file in files)
        return found


@contextlib.contextmanager
def job_service(
    folder: Path, environment: Mapping[str, str], *, hidden: Path | None = None, pool: int | None = None
) -> Iterator[Service]:
    """Start the service and the pool.

    Source (run): `local_job_service_main --help` and `worker_pool_main --help` of Beam 2.77.

    Args:
        folder: Receives the logs.
        environment: Additional variables of the workers.
        hidden: A folder whose content the workers do not see.
        pool: The port of a pool that is already running.
    """
    programs = {"apache_beam.runners.portability.local_job_service_main": ["--port_file", str(folder / PORT_FILE)]}
    if pool is None:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            pool = int(free.getsockname()[1])
        programs["apache_beam.runners.worker.worker_pool_main"] = [f"--service_port={pool}"]
    port_file = folder / PORT_FILE
    # The pool starts the `python` of the PATH.
    variables = {
        **os.environ,
        **environment,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": str(ROOT),
    }
    processes = []
    try:
        for module, arguments in programs.items():
            with (folder / f"{module.rpartition('.')[2]}.log").open("wb") as log:
                command = [sys.executable, "-m", module, *arguments]
                if hidden:
                    script = f"mount -t tmpfs none {shlex.quote(str(hidden))}; exec " + '"$@"'
                    command = [*IN_NAMESPACE, script, "pool", *command]
                processes.append(
                    subprocess.Popen(command, cwd=folder, env=variables, stdout=log, stderr=log, start_new_session=True)
                )
        _wait(port_file, pool, processes)
        address = f"localhost:{port_file.read_text()}"
        external = {"environment_type": "EXTERNAL", "environment_config": f"localhost:{pool}"}
        yield Service({"job_endpoint": address, **external}, processes[-1].pid if len(processes) > 1 else None)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its workers
            process.wait()


def dataflow_script(google: FakeGoogle, beam: Service) -> Script:
    """Return what jobs of the fake Dataflow do: run their pipeline by Beam's job service.

    The pipeline is where the job says it is, pipeline.pb in the bucket. Its workers are those of the pool, in place of
    containers of the image that it names. The work of one that is killed is done again by another, up to `ATTEMPTS`
    times. Dataflow does so for work items; here, the whole pipeline is one.
    """

    def script(fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
        import grpc
        from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

        url = str(job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"])
        bucket, _, name = url.removeprefix("gs://").partition("/")
        pipeline = _with_pool(google.storage.read(bucket, name)[0], beam.options["environment_config"])
        states = beam_job_api_pb2.JobState
        with grpc.insecure_channel(beam.options["job_endpoint"]) as channel:
            service = beam_job_api_pb2_grpc.JobServiceStub(channel)
            fake.scale(job, 1)
            for _ in range(ATTEMPTS):
                killed = _killed(beam)
                prepared = service.Prepare(beam_job_api_pb2.PrepareJobRequest(job_name=job["name"], pipeline=pipeline))
                run = service.Run(beam_job_api_pb2.RunJobRequest(preparation_id=prepared.preparation_id)).job_id
                while _killed(beam) == killed:  # otherwise, Beam's job service waits for the worker forever
                    state = service.GetState(beam_job_api_pb2.GetJobStateRequest(job_id=run)).state
                    if state == states.DONE:
                        return
                    if state in (states.FAILED, states.CANCELLED):
                        raise JobFailed(f"Workflow failed: {states.Enum.Name(state)}")
                    yield
        raise JobFailed(LOST)

    return script


def _killed(beam: Service) -> int:
    """Return how many workers were killed."""
    return [*beam.workers().values()].count(signal.SIGKILL)


def _with_pool(content: bytes, pool: str) -> Any:
    """Return a pipeline whose workers are processes of a pool."""
    from apache_beam.portability import common_urns
    from apache_beam.portability.api import beam_runner_api_pb2, endpoints_pb2

    pipeline = beam_runner_api_pb2.Pipeline.FromString(content)
    payload = beam_runner_api_pb2.ExternalPayload(endpoint=endpoints_pb2.ApiServiceDescriptor(url=pool))
    for environment in pipeline.components.environments.values():
        environment.urn = common_urns.environments.EXTERNAL.urn
        environment.payload = payload.SerializeToString()
        del environment.dependencies[:]
    return pipeline


def _wait(port_file: Path, pool: int, processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until both answer."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(process.poll() for process in processes):
        with contextlib.suppress(OSError), socket.create_connection(("localhost", pool), timeout=1):
            if port_file.exists():
                return
        time.sleep(0.1)
    raise RuntimeError("Beam's job service did not start: see its logs")
