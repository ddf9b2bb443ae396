"""Beam's workers as processes of its job service, which see a bucket or this machine's files: the same data sets."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources import open_source
from slipway.core import manifest
from slipway.core.errors import UserError
from slipway.core.manifest import TaskName
from tests.components.prepare_data.beam.test_by_beam import write_images
from tests.fakes.beam import ATTEMPTS, BUCKET, Bucket, Service, can_mount, dataflow_script, job_service
from tests.fakes.dataflow import FakeDataflow, JobFailed, Script
from tests.fakes.errors import ConnectionReset
from tests.fakes.google import COMPUTE_ACCOUNT, PROJECT, REGION, FakeGoogle
from tests.fakes.http_service import Request
from tests.fakes.ready import grant

MakeFolder = Callable[..., Path]
MakeSettings = Callable[..., DataSettings]


def content(folder: Path) -> tuple[object, dict[str, bytes]]:
    """Return the splits of a data set, and its shards and hashes."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix not in (".json", ".html")}
    return manifest.read(folder).splits, files


@pytest.fixture
def bucket(google: FakeGoogle, tmp_path: Path) -> Bucket:
    if not can_mount():
        pytest.skip("this machine lets no user mount a folder in a namespace, or has a folder /gcs")
    return Bucket(google, tmp_path)


@pytest.fixture
def beam_of_bucket(bucket: Bucket, tmp_path: Path) -> Iterator[dict[str, Any]]:
    with job_service(tmp_path, bucket.environment) as service:
        yield portable(service)


def portable(service: Service, access: str = "bucket") -> dict[str, Any]:
    return {"runner": "PortableRunner", "access": access, "from_gigabytes": 0, "options": service.options}


@pytest.fixture
def images(make_folder: MakeFolder) -> Path:
    """Images, of which one is unusable."""
    root = make_folder({"train/a": 50, "train/b": 40, "test/a": 9, "test/b": 9})
    (root / "train" / "a" / "image 3.png").write_bytes(b"no image")
    return root


def list_images(root: Path) -> Path:
    """Write a CSV file that lists the usable images, without additional columns."""
    files = [path.relative_to(root) for path in sorted(root.rglob("*.png")) if path.stat().st_size > 10]
    lines = ["image,label", *(f"{path},{path.parent.name}" for path in files)]
    (root / "list.csv").write_text("\n".join(lines))
    return root / "list.csv"


@pytest.mark.long
def test_shards_from_and_to_a_bucket(
    bucket: Bucket, beam_of_bucket: dict[str, Any], images: Path, make_settings: MakeSettings, tmp_path: Path
) -> None:
    about: dict[str, dict[str, Any]] = {"images:{}": {"skip_corrupt": 0.05}, "csv:{}/list.csv": {}}
    list_images(images)
    expected = [content(prepare(make_settings(of.format(images), **more), 3).folder) for of, more in about.items()]
    records = prepare(make_settings(images, skip_corrupt=0.05, name="records"), 5).folder
    expected.append(content(prepare(make_settings(f"tfrecord:{records}", name="again"), 3).folder))
    images.rename(bucket.folder / images.name)
    shutil.copytree(records, bucket.folder / "records")
    about["tfrecord:gs://slipway-test-data/records"] = {"name": "again"}
    for (source, more), of_processes in zip(about.items(), expected, strict=True):
        source = source.format(f"gs://{BUCKET}/{images.name}")
        found = bucket.prepare(make_settings(source, **more, beam=beam_of_bucket, store=f"gs://{BUCKET}/sets"))
        assert content(found) == of_processes
        assert manifest.read(found).written_by.endswith("PortableRunner")
        assert {path.name for path in found.parent.iterdir()} == {".listings", found.name}


def write_lists(images: Path) -> tuple[Path, Path]:
    """Write a list of the images with columns, of which one has other images, and a table."""
    listed = list_images(images)
    lines = listed.read_text().splitlines()
    others = [line.partition(",")[0] for line in reversed(lines[1:])]
    rows = [f"{line},{n % 3},{other}" for n, (line, other) in enumerate(zip(lines[1:], others, strict=True))]
    listed.write_text("\n".join([f"{lines[0]},place,before", *rows]))
    table = images / "table.csv"
    rows = [f"{n / 7},{'xyz'[n % 3]},{n / 3}" for n in range(200)]
    table.write_text("\n".join(["size,kind,label", *rows]))
    return listed, table


@pytest.mark.long
def test_columns_of_files_in_a_bucket(
    bucket: Bucket, beam_of_bucket: dict[str, Any], images: Path, make_settings: MakeSettings
) -> None:
    listed, table = write_lists(images)
    cases: list[tuple[Path, TaskName, dict[str, Any]]] = [
        (listed, "classification", {"features": {"before": "image"}}),
        (table, "regression", {}),
    ]
    expected = [content(prepare(make_settings(f"csv:{of}", **more), 3, task=task).folder) for of, task, more in cases]
    images.rename(bucket.folder / images.name)
    for (path, task, more), of_processes in zip(cases, expected, strict=True):
        source = f"csv:gs://{BUCKET}/{images.name}/{path.name}"
        settings = make_settings(source, **more, beam=beam_of_bucket, store=f"gs://{BUCKET}/sets")
        assert content(bucket.prepare(settings, task)) == of_processes


@pytest.mark.long
def test_parts_of_a_table_in_a_bucket(
    google: FakeGoogle, bucket: Bucket, beam_of_bucket: dict[str, Any], make_settings: MakeSettings, tmp_path: Path
) -> None:
    """Long notes make two parts of few rows."""
    notes = [f"note {number} " + "long " * 3000 for number in range(2400)]
    table = pyarrow.table({"size": [*range(2400)], "note": notes, "label": [number % 3 for number in range(2400)]})
    pyarrow.csv.write_csv(table, tmp_path / "table.csv")
    pyarrow.parquet.write_table(table, tmp_path / "table.parquet")
    for ending in ("csv", "parquet"):
        path = tmp_path / f"table.{ending}"
        here = make_settings(f"{ending}:{path}", inputs=["size"], name=ending)
        assert len(open_source(here).parts()) == 2
        expected = content(prepare(here, 3).folder)
        path.rename(bucket.folder / path.name)
        about = {"source": f"{ending}:gs://{BUCKET}/{path.name}", "store": f"gs://{BUCKET}/sets"}
        there = make_settings(**about, inputs=["size"], name=ending, beam=beam_of_bucket)
        found = bucket.prepare(there)
        assert content(found) == expected
        assert google.faults.calls[f"storage GET /download/storage/v1/b/{BUCKET}/o/{path.name}"]  # by the workers
        assert {path.name for path in found.parent.iterdir()} == {".listings", found.name}


@pytest.mark.long
def test_shards_from_and_to_a_shared_volume(images: Path, make_settings: MakeSettings, tmp_path: Path) -> None:
    listed, table = write_lists(images)
    records = tmp_path / "records"
    records.mkdir()
    cases: list[tuple[str, TaskName, dict[str, Any]]] = [
        (f"images:{images}", "classification", {"skip_corrupt": 0.05}),
        (f"csv:{listed}", "classification", {}),
        (f"csv:{table}", "regression", {}),
        (write_images(records), "classification", {"features": {"image": "image", "label": {"classes": 2}}}),
    ]
    with job_service(tmp_path, {}) as service:
        for source, task, more in cases:
            expected = prepare(make_settings(source, **more), 3, task=task).folder
            beam = portable(service, "paths")
            settings = make_settings(source, **more, beam=beam, store=str(tmp_path / "shared volume"))
            found = prepare(settings, 3, task=task).folder
            assert content(found) == content(expected)
            assert manifest.read(found).written_by.endswith("PortableRunner")
            assert {path.name for path in found.parent.iterdir()} == {".listings", found.name}


@pytest.mark.long
def test_a_worker_without_the_volume_is_named(images: Path, make_settings: MakeSettings, tmp_path: Path) -> None:
    if not can_mount():
        pytest.skip("this machine lets no user mount a folder in a namespace")
    store = tmp_path / "shared volume"
    store.mkdir()
    with job_service(tmp_path, {}, hidden=store) as service:
        settings = make_settings(images, skip_corrupt=0.05, beam=portable(service, "paths"), store=str(store))
        with pytest.raises(UserError, match=f"{socket.gethostname()} does not see the folder {store}/") as error:
            prepare(settings, 3)
    assert "\n" not in error.value.message
    assert not list(store.iterdir())


@pytest.fixture
def on_dataflow(google: FakeGoogle, bucket: Bucket, images: Path, make_settings: MakeSettings) -> DataSettings:
    """The settings of images in a bucket from which Dataflow writes a data set."""
    pytest.importorskip("google.cloud.dataflow_v1beta3")
    project = google.world.projects[PROJECT]
    project.services.add("dataflow.googleapis.com")
    agent = google.service_usage.make_agent(project, "dataflow.googleapis.com")
    grant(google, f"projects/{PROJECT}", "roles/dataflow.serviceAgent", agent)
    grant(google, f"projects/{PROJECT}", "roles/dataflow.worker", COMPUTE_ACCOUNT)
    shutil.copytree(images, bucket.folder / images.name)
    options = {
        "project": PROJECT,
        "region": REGION,
        "temp_location": f"gs://{BUCKET}/temp",
        "sdk_container_image": "e.g/beam:1",
        "dataflow_endpoint": f"https://{google.endpoints['dataflow']}",
    }
    beam = {"runner": "DataflowRunner", "from_gigabytes": 0, "options": options}
    return make_settings(
        f"images:gs://{BUCKET}/{images.name}", skip_corrupt=0.05, beam=beam, store=f"gs://{BUCKET}/sets"
    )


def states(google: FakeGoogle) -> list[str]:
    return [job["currentState"].removeprefix("JOB_STATE_") for job in google.dataflow.jobs.values()]


def kill_launcher(
    google: FakeGoogle, bucket: Bucket, service: Service, settings: DataSettings, job_number: int
) -> None:
    """Start to prepare a data set, and kill the process when its job of this number, from 1, runs."""
    working = dataflow_script(google, service)

    def script(fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
        if len(fake.jobs) == job_number:
            launcher.kill()
        yield from working(fake, job)

    google.dataflow.script = script
    launcher = bucket.start(settings)
    launcher.communicate(timeout=120)
    assert launcher.returncode == -signal.SIGKILL


@pytest.mark.long
def test_a_job_on_dataflow_is_adopted_after_the_launcher_was_killed(
    google: FakeGoogle, bucket: Bucket, on_dataflow: DataSettings, images: Path, make_settings: MakeSettings,
    tmp_path: Path,
) -> None:  # fmt: skip
    expected = prepare(make_settings(images, skip_corrupt=0.05), 3).folder
    with job_service(tmp_path, bucket.environment) as service:
        kill_launcher(google, bucket, service, on_dataflow, job_number=1)
        assert states(google) == ["RUNNING"]
        found = bucket.prepare(on_dataflow)
    assert content(found) == content(expected)
    # One validates the images, one writes them.
    assert states(google) == ["DONE", "DONE"]
    jobs = google.dataflow.jobs.values()
    assert {job["labels"]["slipway-run"] for job in jobs} == {"of-the-test"}
    images_of = [pool["sdkHarnessContainerImages"] for job in jobs for pool in job["environment"]["workerPools"]]
    assert {one["containerImage"] for found in images_of for one in found} == {"e.g/beam:1"}


def killing(google: FakeGoogle, service: Service, times: int, read: str, written: str) -> Script:
    """Return what a job does whose worker is killed this many times while it writes a file.

    A read of one object gets no response before its worker is killed, so that the file is not finished.

    Args:
        google: The services.
        service: Beam's job service.
        times: How many times.
        read: The end of the object's name.
        written: A part of the file's name.
    """
    asked, killed = threading.Event(), threading.Semaphore(0)
    left = iter(range(times))

    def gate(request: Request) -> None:
        is_held = request.path.startswith("/download") and request.path.endswith(read)
        if is_held and next(left, None) is not None:
            asked.set()
            assert killed.acquire(timeout=180)
            raise ConnectionReset

    def script(fake: FakeDataflow, job: dict[str, Any]) -> Iterator[None]:
        for _ in dataflow_script(google, service)(fake, job):
            if asked.is_set():
                asked.clear()
                (worker,) = service.with_open(written)
                os.kill(worker, signal.SIGKILL)
                killed.release()
            yield

    google.service("storage").gate = gate
    return script


@pytest.mark.long
@pytest.mark.parametrize("kills", [1, ATTEMPTS])
def test_the_shard_of_a_killed_worker_is_written_again(
    google: FakeGoogle, bucket: Bucket, on_dataflow: DataSettings, images: Path, make_settings: MakeSettings,
    tmp_path: Path, kills: int,
) -> None:  # fmt: skip
    expected = prepare(make_settings(f"csv:{list_images(images)}"), 3).folder
    listed = list_images(bucket.folder / images.name).relative_to(bucket.folder)
    with job_service(tmp_path, bucket.environment) as service:
        google.dataflow.script = killing(google, service, kills, "train/b/image 7.png", ".tfrecord-")
        settings = on_dataflow.model_copy(update={"source": f"csv:gs://{BUCKET}/{listed}", "skip_corrupt": 0.0})
        launcher = bucket.start(settings)
        output, errors = launcher.communicate(timeout=120)
        ended = [*service.workers().values()]
    assert ended.count(signal.SIGKILL) == kills
    if kills < ATTEMPTS:
        assert launcher.returncode == 0, errors
        found = bucket.seen_here(output.splitlines()[-1])
        assert content(found) == content(expected)
        assert {path.name for path in found.parent.iterdir()} == {".listings", found.name}
        assert states(google) == ["DONE"]
    else:
        assert launcher.returncode == 1
        assert "a work item has failed 4 times" in errors
        assert states(google) == ["FAILED"]
        assert not [*(bucket.folder / "sets").rglob("*.tfrecord*")]


@pytest.fixture
def records(
    on_dataflow: DataSettings, bucket: Bucket, make_settings: MakeSettings, tmp_path: Path
) -> tuple[DataSettings, DataSettings]:
    """The settings of three files of records, here and in the bucket, from which Dataflow writes a data set."""
    folder = tmp_path / "records"
    folder.mkdir()
    about = {"source": write_images(folder), "features": {"image": "image", "label": {"classes": 2}}, "name": "records"}
    shutil.copytree(folder, bucket.folder / folder.name)
    there = {"source": f"tfrecord:gs://{BUCKET}/records", "store": on_dataflow.store, "beam": on_dataflow.beam}
    return make_settings(**about), make_settings(**about | there)


@pytest.mark.long
def test_the_part_of_a_killed_worker_is_listed_again(
    google: FakeGoogle, bucket: Bucket, records: tuple[DataSettings, DataSettings], tmp_path: Path
) -> None:
    here, there = records
    with job_service(tmp_path, bucket.environment) as service:
        google.dataflow.script = killing(google, service, 1, "/b.tfrecord", "/part-")
        found = bucket.prepare(there)
        ended = [*service.workers().values()]
    assert ended.count(signal.SIGKILL) == 1
    assert content(found) == content(prepare(here, 3).folder)
    assert states(google) == ["DONE", "DONE"]  # one lists the files, one writes the shards
    assert {path.name for path in found.parent.iterdir()} == {".listings", found.name}


@pytest.mark.long
@pytest.mark.parametrize("during", ["listing", "writing"])
def test_no_part_is_listed_twice_after_the_launcher_was_killed(
    google: FakeGoogle, bucket: Bucket, records: tuple[DataSettings, DataSettings], tmp_path: Path, during: str
) -> None:
    here, there = records
    with job_service(tmp_path, bucket.environment) as service:
        kill_launcher(google, bucket, service, there, job_number=1 + (during == "writing"))
        assert states(google)[-1] == "RUNNING"
        found = bucket.prepare(there)
    assert content(found) == content(prepare(here, 3).folder)
    assert states(google) == ["DONE", "DONE"]
    assert {path.name for path in found.parent.iterdir()} == {".listings", found.name}


@pytest.mark.long
@pytest.mark.parametrize("is_listing", [True, False])
def test_a_job_on_dataflow_is_cancelled_with_the_launcher(
    google: FakeGoogle, bucket: Bucket, on_dataflow: DataSettings, request: pytest.FixtureRequest, is_listing: bool
) -> None:
    settings = request.getfixturevalue("records")[1] if is_listing else on_dataflow

    def interrupted(_fake: FakeDataflow, _job: dict[str, Any]) -> Iterator[None]:
        launcher.send_signal(signal.SIGINT)
        while True:
            yield

    google.dataflow.script = interrupted
    launcher = bucket.start(settings)
    _, errors = launcher.communicate(timeout=120)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert states(google) == ["CANCELLING"]


def failing(_fake: FakeDataflow, _job: dict[str, Any]) -> Iterator[None]:
    yield
    raise JobFailed("Workflow failed. Causes: Exceeded limit 'QUOTA_FOR_INSTANCES' on resource 'slipway-harness'.")


def at_work(google: FakeGoogle) -> None:
    google.dataflow.script = failing


def without_quota(google: FakeGoogle) -> None:
    google.dataflow.concurrent = 0


def without_permission(google: FakeGoogle) -> None:
    google.world.owners.clear()


@pytest.mark.long
@pytest.mark.parametrize(
    ("prevent", "words", "left"),
    [
        (at_work, "too little Compute Engine quota for Dataflow's workers: QUOTA_FOR_INSTANCES", ["FAILED"]),
        (without_quota, "already runs as many Dataflow jobs as its quota allows", []),
        (without_permission, "may not list the Dataflow jobs: dataflow.jobs.list is missing", []),
    ],
)
def test_a_job_on_dataflow_that_fails_leaves_none(
    google: FakeGoogle,
    bucket: Bucket,
    on_dataflow: DataSettings,
    prevent: Callable[[FakeGoogle], None],
    words: str,
    left: list[str],
) -> None:
    prevent(google)
    launcher = bucket.start(on_dataflow)
    _, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 1
    assert words in errors
    assert states(google) == left
