"""The image of Beam's workers: the steps' image, started by boot, whose workers write a data set to a bucket.

Apache's image is replaced by one that has only a stand-in for its boot; see boot.py.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import docker
import pytest
import yaml

from slipway.components.build_image.build import build_locally, find, registry_of
from slipway.components.build_image.images import BEAM_BOOT, BEAM_SDK, beam_version
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core import manifest
from slipway.pipelines.config.config import validate
from slipway.pipelines.images.images import Wanted
from slipway.pipelines.platforms.vertex.images import wanted_images
from tests.components.prepare_data.conftest import encoded_image
from tests.containers.conftest import PROJECT
from tests.containers.engine import Engine
from tests.fakes.beam import BUCKET, Bucket, job_service
from tests.fakes.google import REGION, FakeGoogle

# The port on which boot starts its pool.
POOL = 50000


@pytest.fixture(scope="module")
def image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the image of a run with Dataflow as `slipway run` does; return it by digest."""
    folder = tmp_path_factory.mktemp("sdk")
    shutil.copy(PROJECT / "tests/containers/boot.py", folder / "boot")
    (folder / "boot").chmod(0o755)
    (folder / "Dockerfile").write_text(f"FROM scratch\nCOPY boot {BEAM_BOOT}\n")
    engine.build(folder, f"{BEAM_SDK.rpartition('/')[2]}:{beam_version(PROJECT)}")
    values = yaml.safe_load((PROJECT / "configs/digits.yaml").read_text())
    place = {"base": engine.base, "repository": f"{engine.registry}/vertex", "builder": "buildah"}
    place["run_as"] = "65534:65534"  # not the user of the workers
    values["vertex"] = {"project": "p", "region": REGION, "bucket": "gs://p-b", "build": place}
    values["data"] = {"source": "images:gs://p-b/images", "beam": {"from_gigabytes": 0}}
    wanted = wanted_images(validate(values, "the test"), print)
    steps = built(engine, wanted["steps"])
    return built(engine, wanted["beam"].built_on(steps))


def built(engine: Engine, image: Wanted) -> str:
    """Build and push an image; return it by digest."""
    with mock.patch.dict(os.environ, engine.environment):
        build_locally(image.request, "buildah", image.context.archive(), io.StringIO())
    found = find(image.request, registry_of(image.request.repository, None))
    assert found is not None
    return found


def test_the_image_is_started_by_boot_and_the_steps_image_is_as_it_was(engine: Engine, image: str) -> None:
    def configuration(name: str, digest: str) -> dict[str, Any]:
        found: dict[str, Any] = engine.manifest(name, digest)
        return dict(json.loads(engine.blob(name, found["config"]["digest"]))["config"])

    beam = configuration("vertex/beam-cpu", image.partition("@")[2])
    assert beam["Entrypoint"] == [BEAM_BOOT]
    assert "RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1" in beam["Env"]
    assert beam["Labels"]["org.apache.beam.version"] == beam_version(PROJECT)
    (tag,) = engine.tags("vertex/steps-cpu")
    steps = configuration("vertex/steps-cpu", tag)
    assert not steps.get("Entrypoint")
    assert (beam["User"], steps["User"]) == ("0:0", "65534:65534")


@contextlib.contextmanager
def pool(engine: Engine, image: str, environment: dict[str, str]) -> Iterator[None]:
    """A container of the image that starts workers."""
    folders = {str(Path(value).parent) for value in environment.values() if value.startswith("/")}
    client = docker.DockerClient(base_url=engine.environment["DOCKER_HOST"])
    container = client.containers.run(
        image,
        ["--worker_pool"],
        environment=environment,
        volumes={folder: {"bind": folder, "mode": "ro"} for folder in folders},
        network_mode="host",
        detach=True,
    )
    try:
        yield
    finally:
        print(container.logs().decode())
        container.remove(force=True)
        client.close()


def test_workers_in_containers_write_the_same_shards(
    engine: Engine,
    image: str,
    google: FakeGoogle,
    tmp_path: Path,
) -> None:
    def settings(source: str, store: str, **more: object) -> DataSettings:
        return DataSettings.model_validate({"source": source, "store": store, "workers": 2, **more})

    bucket = Bucket(google, tmp_path)
    images = bucket.folder / "images"
    for label in "ab":
        (images / label).mkdir(parents=True)
        for number in range(40):
            (images / label / f"{number}.png").write_bytes(encoded_image(ord(label) * 100 + number))
    expected = prepare(settings(f"images:{images}", str(tmp_path / "store")), 3).folder
    with pool(engine, image, bucket.environment), job_service(tmp_path, {}, pool=POOL) as service:
        beam = {"runner": "PortableRunner", "from_gigabytes": 0, "options": service.options}
        found = bucket.prepare(settings(f"images:gs://{BUCKET}/images", f"gs://{BUCKET}/sets", beam=beam))
    shards = {path.name: path.read_bytes() for path in expected.glob("*.tfrecord*")}
    assert {path.name: path.read_bytes() for path in found.glob("*.tfrecord*")} == shards
    assert manifest.read(found).splits == manifest.read(expected).splits
    assert manifest.read(found).written_by.endswith("PortableRunner")
