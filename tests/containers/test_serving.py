"""The serving image: its command, its user, models from folders and from Cloud Storage, and SIGTERM to PID 1."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import docker
import numpy as np
import pytest
import yaml
from docker.models.containers import Container

from slipway.components.build_image import local
from slipway.pipelines.config.config import validate
from slipway.pipelines.platforms.vertex.images import wanted_images
from slipway.serving.settings import COMMAND
from tests.components.evaluate.conftest import export_model, png
from tests.containers.conftest import PROJECT
from tests.containers.engine import Engine
from tests.fakes.google import PROJECT as CLOUD_PROJECT
from tests.fakes.google import REGION, FakeGoogle
from tests.ports import free_port
from tests.serving.client import Load, ask, health, predict, until
from tests.serving.conftest import HOUSE, HOUSE_PRICE, export_houses

IMAGE = png(np.random.default_rng(0).integers(0, 256, (8, 8)))
BUCKET = "slipway-test-models"
# A custom program's model: the module is in the project, one of its packages in build.requirements.
MODULE = """
import iniconfig

def load(folder):
    offset = float((folder / "offset.txt").read_text())
    return lambda instances: [{"price": offset + instance, "by": iniconfig.__name__} for instance in instances]
"""


def build(engine: Engine, **sections: Any) -> str:
    """Build the serving image of a run on Vertex AI as `slipway config build` does, and return its name."""
    values = yaml.safe_load((PROJECT / "configs/digits.yaml").read_text())
    place = {"base": engine.base, "repository": f"{engine.registry}/vertex", "builder": "buildah"}
    vertex = {"project": "p", "region": REGION, "bucket": "gs://p-b", "build": place}
    image = wanted_images(validate({**values, **sections, "vertex": vertex}, "the test"), print)["serving"]
    request, log = image.request, io.StringIO()
    with mock.patch.dict(os.environ, engine.environment):
        local.build("buildah", image.context.archive(), request.uri, request.arguments, request.labels, log)
    return request.uri


@pytest.fixture(scope="module")
def image(engine: Engine) -> str:
    return build(engine)


@contextlib.contextmanager
def serving(
    engine: Engine, image: str, uri: str, mounts: Mapping[Path, str], **environment: str
) -> Iterator[tuple[Container, int]]:
    """A container of the image with Vertex AI's variables, and its port."""
    port = free_port()
    client = docker.DockerClient(base_url=engine.environment["DOCKER_HOST"])
    container = client.containers.run(
        image,
        list(COMMAND),
        environment={"AIP_HTTP_PORT": str(port), "AIP_STORAGE_URI": uri, **environment},
        volumes={str(path): {"bind": place, "mode": "ro"} for path, place in mounts.items()},
        network_mode="host",
        detach=True,
    )
    try:
        yield container, port
    finally:
        container.remove(force=True)
        client.close()


def logged(container: Container) -> list[dict[str, Any]]:
    """Return what the server itself has logged; the lines of native libraries are not JSON."""
    lines = container.logs().decode().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def wait_until_healthy(container: Container, port: int) -> list[int | None]:
    """Return the health route's statuses before it was healthy."""
    seen: list[int | None] = []

    def healthy() -> bool:
        seen.append(health(port))
        container.reload()
        assert container.status in ("created", "running"), container.logs().decode()
        return seen[-1] == 200

    until(healthy, 60)
    return seen[:-1]


def test_a_savedmodel_in_a_folder_is_served_and_sigterm_to_pid_1_loses_no_request(
    engine: Engine, image: str, tmp_path: Path
) -> None:
    folder = export_model(tmp_path / "digits", np.zeros((64, 10)), np.zeros(10))
    with serving(engine, image, "/model", {folder: "/model"}) as (container, port):
        before = wait_until_healthy(container, port)
        assert 503 in before and set(before) <= {None, 503}
        status, found = ask(port, "/predict", IMAGE, "image/png")
        assert (status, found["predictions"][0]["probabilities"]) == (200, pytest.approx([0.1] * 10))
        command = container.exec_run(["sh", "-c", "tr '\\0' ' ' < /proc/1/cmdline; id -u; ls /proc | grep -c '^[0-9]'"])
        process, others = command.output.decode().splitlines()
        assert process == "python -m slipway.serving 65534"
        assert int(others) <= 4  # PID 1 and this command's three
        load = Load(port, IMAGE)
        load.start()
        container.kill("SIGTERM")
        assert container.wait(timeout=180)["StatusCode"] == 0
        load.join()
        assert logged(container)[-1]["message"] == "stopped"
    assert (load.lost, set(load.statuses)) == ([], {200})


def test_a_model_of_several_inputs_in_cloud_storage_is_downloaded_and_served(
    engine: Engine, image: str, tmp_path: Path
) -> None:
    folder = export_houses(tmp_path / "houses")
    with FakeGoogle(tmp_path) as google:
        google.storage.add_bucket(BUCKET, google.world.projects[CLOUD_PROJECT], REGION)
        for path in folder.rglob("*"):
            if path.is_file():
                google.storage.write(BUCKET, f"runs/1/model/{path.relative_to(folder)}", path.read_bytes())
        key = Path(google.environment["GOOGLE_APPLICATION_CREDENTIALS"])
        key.chmod(0o644)
        own = {
            "GOOGLE_APPLICATION_CREDENTIALS": "/key.json",
            "REQUESTS_CA_BUNDLE": "/authority.pem",
            "API_ENDPOINT_OVERRIDE": f"https://{google.endpoints['storage']}",
        }
        mounts = {key: "/key.json", Path(google.certificates.authority_file): "/authority.pem"}
        with serving(engine, image, f"gs://{BUCKET}/runs/1/model", mounts, **own) as (container, port):
            assert 503 in wait_until_healthy(container, port)
            status, found = predict(port, HOUSE)
            assert (status, found["predictions"][0]["prediction"]) == (200, pytest.approx(HOUSE_PRICE))
        with serving(engine, image, f"gs://{BUCKET}/runs/2/model", mounts, **own) as (container, _):
            assert container.wait(timeout=180)["StatusCode"] == 2
            assert logged(container)[-1]["message"].endswith("runs/2/model cannot be downloaded: no files are there.")


def test_a_custom_programs_model_is_served_by_its_projects_function(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import subprocess
    from importlib import metadata

    project, model = tmp_path / "project", tmp_path / "model"
    for path, text in (
        (project / "my_serving.py", MODULE),
        (project / "requirements.txt", f"iniconfig=={metadata.version('iniconfig')}\n"),
        (model / "offset.txt", "10"),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for arguments in (["init", "--quiet"], ["add", "my_serving.py"]):
        subprocess.run(["git", "-C", str(project), *arguments], check=True)
    monkeypatch.chdir(project)
    program = {"model": None, "train": {"module": "my_serving"}, "serve": {"module": "my_serving:load"}}
    image = build(engine, **program, build={"requirements": "requirements.txt"})
    own = {"SLIPWAY_SERVE_MODULE": "my_serving:load"}
    with serving(engine, image, "/model", {model: "/model"}, **own) as (container, port):
        wait_until_healthy(container, port)
        assert predict(port, 1.5) == (200, {"predictions": [{"price": 11.5, "by": "iniconfig"}]})
