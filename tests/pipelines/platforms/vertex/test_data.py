"""New data is seen: the step prepare_data does its real work, on a folder of images, in runs on the fake Vertex AI."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway.components.inputs import EXECUTOR_INPUT
from slipway.core import manifest
from tests.components.prepare_data.conftest import encoded_image
from tests.fakes.google import FakeGoogle
from tests.fakes.ready import BUCKET
from tests.fakes.vertex.script import Failure
from tests.pipelines.platforms.vertex.conftest import Slipway

RUN = ("run", "-c", "run.yaml", "--target", "vertex", "--no-check")


@pytest.fixture
def images(ready_google: FakeGoogle, workspace: Path) -> Path:
    """The source of run.yaml: 40 images of two classes; gs://BUCKET/OBJECT is BUCKET/OBJECT in the folder `buckets`."""
    folder = workspace / "buckets" / BUCKET / "images"
    for number in range(40):
        add(folder, number)

    def here(uri: str) -> str:
        return uri.replace("gs://", f"{workspace}/buckets/")

    def work(inputs: Mapping[str, Any]) -> Mapping[str, tuple[str, dict[str, Any]]]:
        given = here(json.dumps({"inputs": {"parameterValues": dict(inputs)}}))
        told = {name: here(inputs[name]) for name in ("settings", "output")} | {"replicas": int(inputs["replicas"])}
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.programs.prepare_data",
                json.dumps(told),
                str(workspace),
                EXECUTOR_INPUT,
                given,
            ],
            check=True,
            stdout=subprocess.PIPE,
            stderr=(workspace / "step.log").open("a"),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        dataset, metadata, page, about_page = json.loads(done.stdout)
        assert Path(page).read_text() == (Path(dataset) / "statistics.html").read_text()
        return {"dataset": (dataset, metadata), "statistics": (page, about_page)}

    ready_google.region.pipelines.script["prepare-data"].work = work
    values = yaml.safe_load((workspace / "run.yaml").read_text())
    values["data"]["source"] = f"images:gs://{BUCKET}/images"
    values["train"]["batch_size"] = 8
    (workspace / "run.yaml").write_text(yaml.safe_dump(values))
    return folder


def add(folder: Path, number: int) -> None:
    path = folder / str(number % 2) / f"{number}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded_image(number))


def trained_on(google: FakeGoogle) -> list[Path]:
    """The data set of each training job, in order."""
    jobs = [job for job in google.region.jobs.jobs.values() if job.display_name == "digits"]
    arguments = [list(job.job_spec.worker_pool_specs[0].container_spec.args) for job in jobs]
    return [Path(json.loads(one[one.index("--config") + 1])["data"]) for one in arguments]


def examples(folder: Path) -> int:
    return sum(split.examples for split in manifest.read(folder).splits.values())


def test_a_second_run_trains_on_a_file_that_was_added(
    ready_google: FakeGoogle, workspace: Path, images: Path, slipway: Slipway
) -> None:
    for number, reused in ((None, False), (None, True), (40, False)):
        if number is not None:
            add(images, number)
        shown = slipway(*RUN)
        [line] = [line for line in shown.output.splitlines() if line.startswith("✓ prepare_data")]
        assert (shown.exit_code, line.endswith("(reused)")) == (0, reused)
    first, unchanged, second = trained_on(ready_google)
    assert (first == unchanged, examples(first), examples(second)) == (True, 40, 41)
    assert (workspace / "step.log").read_text().count(f"Reusing {first}: ") == 1


def test_a_nightly_run_trains_on_the_files_of_the_day(ready_google: FakeGoogle, images: Path, slipway: Slipway) -> None:
    schedule = Path("configs/schedules/nightly.yaml")
    schedule.parent.mkdir(parents=True)
    schedule.write_text(yaml.safe_dump({"configuration": "run.yaml", "cron": "0 3 * * *"}))
    assert slipway("schedule", "apply").exit_code == 0
    for night in range(3):
        add(images, 40 + night)
        [job] = ready_google.region.schedules.move(timedelta(days=1))
        assert ready_google.region.pipelines.run_to_end(job.name).state.name == "PIPELINE_STATE_SUCCEEDED"
    assert [examples(data) for data in trained_on(ready_google)] == [41, 42, 43]


def test_a_deleted_data_set_is_prepared_again(ready_google: FakeGoogle, images: Path, slipway: Slipway) -> None:
    assert slipway(*RUN).exit_code == 0
    [first] = trained_on(ready_google)
    shutil.rmtree(first)
    assert slipway(*RUN).exit_code == 0
    assert trained_on(ready_google) == [first, first]
    assert examples(first) == 40


@pytest.mark.parametrize(("failing", "jobs"), [("custom-training-job", 2), ("evaluate", 1)])
def test_a_resumed_run_keeps_its_data_and_trains_only_if_training_failed(
    ready_google: FakeGoogle, workspace: Path, images: Path, slipway: Slipway, failing: str, jobs: int
) -> None:
    step = ready_google.region.pipelines.script[failing]
    step.failure = Failure()
    assert slipway(*RUN).exit_code == 1
    add(images, 40)
    # The second attempt fails again, before it has any result.
    step.failure, ready_google.region.pipelines.script["setup-access"].failure = None, Failure()
    ready_google.region.pipelines.script["prepare-data"].failure = Failure()
    assert slipway("run", "--resume", "latest").exit_code == 1
    ready_google.region.pipelines.script["setup-access"].failure = None
    ready_google.region.pipelines.script["prepare-data"].failure = None
    resumed = slipway("run", "--resume", "latest")
    assert resumed.exit_code == 0, resumed.output
    record = json.loads((workspace / "runs" / "latest" / "run.json").read_text())
    assert (record["status"], record["tries"], record["trained"]) == ("succeeded", 3, jobs == 1)
    assert {step["name"] for step in record["steps"] if step["reused"]} == {
        "prepare_data",
        *(["train"] if jobs == 1 else []),
    }
    data = trained_on(ready_google)
    assert (len(data), len(set(data)), examples(data[0])) == (jobs, 1, 40)
