"""Vertex AI on loopback: the fakes of Google's services, with real containers for every task and every replica."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import io
import os
import tarfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

from slipway.components.build_image import local
from slipway.components.build_image.registry import HttpRegistry
from slipway.components.step import WorkFailed
from tests.containers.engine import Engine
from tests.end_to_end.workspace import wait_for
from tests.fakes.cloud_build import BuildFailed
from tests.fakes.containers import Container
from tests.fakes.google import NUMBER, PROJECT, REGION, FakeGoogle
from tests.fakes.metadata_server import MetadataServer
from tests.fakes.mount import Mount
from tests.fakes.ready import BUCKET, RUNNER, make_ready
from tests.fakes.vertex.containers import Containers

# Google's launcher asks for this name at its usual port, whatever endpoint anyone has set.
VERTEX_HOST = f"{REGION}-aiplatform.googleapis.com"
LAUNCHER_IMAGE = "ml-pipeline/google-cloud-pipeline-components"
TICK_SECONDS = 0.2
LAUNCHER = """
ARG BASE
FROM ${BASE}
ARG REQUIREMENT
ENV PATH=/opt/launcher/bin:$PATH
RUN --mount=type=secret,id=pip,target=/run/secrets/pip.conf \\
    --mount=type=secret,id=certificates,target=/run/secrets/certificates.pem \\
    export PIP_CONFIG_FILE=/run/secrets/pip.conf PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 \\
    && python3 -m venv /opt/launcher && pip install --quiet ${REQUIREMENT}
ENTRYPOINT []
"""


@contextlib.contextmanager
def vertex_on_loopback(engine: Engine, folder: Path) -> Iterator[FakeGoogle]:
    """A project that is ready for runs, whose tasks and replicas run in containers of `engine`."""
    address = f"127.{os.getpid() >> 16 & 255}.{os.getpid() >> 8 & 255}.{os.getpid() & 255 or 1}"
    buckets = folder / "buckets"
    buckets.mkdir()
    with (
        FakeGoogle(folder, vertex_address=f"{address}:443") as google,
        MetadataServer(PROJECT, NUMBER, RUNNER) as metadata,
    ):
        make_ready(google)
        google.builds.builder = functools.partial(_build, engine)
        google.storage.mount = mount = Mount(google.storage, buckets)
        mount.give_out(BUCKET)
        containers = Containers(
            docker_host=engine.environment["DOCKER_HOST"],
            mount=mount,
            authority=google.certificates.authority_file,
            hosts={VERTEX_HOST: address},
            environment={**metadata.environment, "GOOGLE_CLOUD_PROJECT": PROJECT},
            log=google.log,
        )
        google.region.jobs.containers = google.region.pipelines.containers = containers
        with _going_on(google):
            yield google
        # One that was told to stop takes its time, and the engine must not have ended before.
        wait_for(lambda: not Container.live, seconds=60)


@contextlib.contextmanager
def _going_on(google: FakeGoogle) -> Iterator[None]:
    """Advance the service's time, whether or not a job is polled."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(TICK_SECONDS):
            google.region.pipelines.go_on()
            google.region.jobs.go_on()

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def build_launcher(engine: Engine) -> None:
    """Build Google's launcher from its package; specs name it at gcr.io."""
    version = importlib.metadata.version("google-cloud-pipeline-components")
    arguments = {"BASE": engine.base, "REQUIREMENT": f"google-cloud-pipeline-components=={version}"}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as opened:
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(LAUNCHER.encode())
        opened.addfile(entry, io.BytesIO(LAUNCHER.encode()))
    _push(engine, archive.getvalue(), f"{LAUNCHER_IMAGE}:{version}", arguments, {})


def _build(engine: Engine, context: bytes, command: list[str]) -> str:
    """Build and push, as Cloud Build's docker step does; return the digest."""
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--build-arg", action="append", default=[])
    parser.add_argument("--label", action="append", default=[])
    parser.add_argument("--tag", required=True)
    parser.add_argument("context")
    asked = parser.parse_args(command)
    arguments, labels = (dict(one.split("=", 1) for one in given) for given in (asked.build_arg, asked.label))
    path = asked.tag.partition("/")[2]
    try:
        _push(engine, context, path, arguments, labels)
    except WorkFailed as error:
        raise BuildFailed(str(error)) from None
    digest = HttpRegistry("").digest(engine.registry, *path.split(":"))
    assert digest
    return digest


def _push(engine: Engine, context: bytes, path: str, arguments: Mapping[str, str], labels: Mapping[str, str]) -> None:
    """Build an image and push it to the registry on loopback, which replaces Google's."""
    log, uri = io.StringIO(), f"{engine.registry}/{path}"
    with mock.patch.dict(os.environ, engine.environment):
        local.build("buildah", context, uri, arguments, labels, log)
        local.push("buildah", uri, log)
