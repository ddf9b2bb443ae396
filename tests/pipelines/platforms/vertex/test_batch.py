"""`slipway batch --target vertex`: checks, one job per batch, its errors, and every input counted."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from slipway.components.cloud.connection import Connection
from slipway.pipelines.platforms.vertex import batch as batches
from tests.fakes.errors import ConnectionReset, ServiceError
from tests.fakes.google import NUMBER, PROJECT, REGION, FakeGoogle
from tests.fakes.ready import BUCKET, SERVING_IMAGE, take_away
from tests.fakes.vertex.batch_predictions import Preemption
from tests.fakes.vertex.serving import STAND_IN
from tests.pipelines.platforms.vertex.conftest import Slipway
from tests.serving.conftest import HOUSE, HOUSE_PRICE, houses_folder

__all__ = ["houses_folder"]

INPUT = f"gs://{BUCKET}/inputs/*.jsonl"
BATCH = ("batch", "digits", "--target", "vertex", "-c", "run.yaml", "--input", INPUT)
BATCH += ("--output", f"gs://{BUCKET}/out", "--batch-size", "2")


@pytest.fixture
def batch(ready_google: FakeGoogle, slipway: Slipway, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run the command with the model digits, whose server is a stand-in, and five instances in two files."""
    monkeypatch.setattr(batches, "pause", lambda: time.sleep(0.02))
    register(ready_google)
    ready_google.region.servers.commands["digits"] = STAND_IN
    lines = [json.dumps({"n": n, "id": f"k{n}"}) for n in range(5)]
    write(ready_google, "inputs/a.jsonl", "\n".join(lines[:3]) + "\n\n")
    write(ready_google, "inputs/b.jsonl", "\n".join(lines[3:]))
    return lambda *more: slipway(*BATCH, *more)


def register(google: FakeGoogle, folder: Path | None = None) -> None:
    """Register the champion of the model digits."""
    for path in folder.rglob("*") if folder else ():
        if path.is_file():
            google.storage.write(BUCKET, f"models/digits/{path.relative_to(folder)}", path.read_bytes())
    model = {
        "display_name": "digits",
        "artifact_uri": f"gs://{BUCKET}/models/digits" if folder else "",
        "container_spec": {"image_uri": SERVING_IMAGE, "predict_route": "/predict", "health_route": "/health"},
        "version_aliases": ["champion"],
    }
    if not folder:
        write(google, "models/none", "x")
        model["artifact_uri"] = f"gs://{BUCKET}/models"
    connection = Connection(PROJECT, REGION, google.endpoints)
    started = connection.models.upload_model(
        request={"parent": connection.parent, "model": model, "model_id": "digits"}
    ).operation
    while not connection.models.get_operation({"name": started.name}).done:
        pass


def write(google: FakeGoogle, name: str, text: str) -> None:
    google.storage.write(BUCKET, name, text.encode())


def jobs(google: FakeGoogle) -> list[Any]:
    return list(google.region.batches.jobs.values())


def written(google: FakeGoogle, name: str) -> list[Any]:
    """Return the lines of a file in the output of the last job."""
    folder = jobs(google)[-1].output_info.gcs_output_directory.removeprefix(f"gs://{BUCKET}/")
    return [json.loads(line) for line in google.storage.read(BUCKET, f"{folder}/{name}")[0].splitlines()]


def test_a_batch_is_one_job_whose_inputs_are_counted(ready_google: FakeGoogle, batch):
    result = batch("--json", "--key", "id", "--hardware", "e2-standard-4*2", "--set", "vertex.labels={team: vision}")
    assert result.exit_code == 0, result.output
    (job,) = jobs(ready_google)
    assert job.model_version_id == "1" and job.instance_config.key_field == "id"
    resources = job.dedicated_resources
    assert resources.machine_spec.machine_type == "e2-standard-4"
    assert (resources.starting_replica_count, resources.max_replica_count) == (2, 2)
    assert job.manual_batch_tuning_parameters.batch_size == 2
    assert job.labels["team"] == "vision"
    summary = json.loads(result.stdout)
    assert (summary["examples"], summary["done"], summary["failed"], summary["listed"]) == (5, 5, 0, True)
    assert summary["model"] == f"projects/{NUMBER}/locations/{REGION}/models/digits@1"
    assert "5 inputs: 5 predicted in gs://" in result.stderr
    assert written(ready_google, "errors.jsonl") == []
    rows = [row for n in range(2) for row in written(ready_google, f"prediction.results-0000{n}-of-00002")]
    assert sorted(row["key"] for row in rows) == [f"k{n}" for n in range(5)]
    assert all("id" not in row["prediction"]["instance"] for row in rows)
    again = batch("--json", "--key", "id", "--hardware", "e2-standard-4*2", "--set", "vertex.labels={team: vision}")
    assert "was submitted before" in again.stderr and json.loads(again.stdout) == summary
    assert len(jobs(ready_google)) == 1
    write(ready_google, "inputs/b.jsonl", '{"n": 9, "id": "k9"}')
    assert batch("--key", "id", "--no-wait").exit_code == 0
    assert len(jobs(ready_google)) == 2
    write(ready_google, "inputs/b.jsonl", '{"n": 10, "id": "k9"}')
    assert batch("--key", "id", "--no-wait").exit_code == 0
    assert len(jobs(ready_google)) == 3


def test_a_lost_answer_does_not_start_two_jobs(ready_google: FakeGoogle, batch):
    create = ready_google.region.batches._add
    lost = []

    def add(*given: Any, **more: Any) -> Any:
        made = create(*given, **more)
        if not lost:
            lost.append(made)
            raise ConnectionReset
        return made

    ready_google.region.batches._add = add
    assert batch("--no-wait").exit_code == 0
    assert len(lost) == len(jobs(ready_google)) == 1


def test_the_models_own_server_predicts_and_bad_rows_are_listed(
    ready_google: FakeGoogle, batch, slipway: Slipway, houses_folder: Path
):
    """The instances go through slipway.serving in a process of its own; an instance that it refuses fails its batch."""
    ready_google.region.models.models.clear()
    register(ready_google, houses_folder)
    del ready_google.region.servers.commands["digits"]
    rows = [HOUSE, HOUSE, HOUSE | {"rooms": "many"}, HOUSE | {"street": "Elm"}, HOUSE | {"area": 50}]
    write(ready_google, "inputs/a.jsonl", "\n".join(map(json.dumps, rows)))
    write(ready_google, "inputs/b.jsonl", json.dumps(rows[0]))
    result = batch("--strict", "--json")
    assert result.exit_code == 1, result.output
    summary = json.loads(result.stdout)
    assert (summary["examples"], summary["done"], summary["failed"]) == (6, 4, 2)
    assert summary["statistics"] == {"successful": 4, "failed": 2, "incomplete": 0}
    found = written(ready_google, "errors.jsonl")
    assert [each["input"] for each in found] == [f"gs://{BUCKET}/inputs/a.jsonl line {n}" for n in (3, 4)]
    assert all("Non-OK result 400" in each["error"] and "not an integer" in each["error"] for each in found)
    predicted = [row for n in range(2) for row in written(ready_google, f"prediction.results-0000{n}-of-00002")]
    prices = [row["prediction"]["prediction"] for row in predicted]
    assert prices == pytest.approx([HOUSE_PRICE, HOUSE_PRICE, HOUSE_PRICE - 10, HOUSE_PRICE])
    single = batch("--batch-size", "1", "--json")
    assert [json.loads(single.stdout)[name] for name in ("done", "failed")] == [5, 1]


def test_spot_machines_that_are_lost_lose_no_input(ready_google: FakeGoogle, batch):
    ready_google.region.batches.preemption = Preemption(after=1)
    result = batch("--hardware", "n1-standard-4+spot", "--json")
    assert result.exit_code == 0, result.output
    assert len(ready_google.region.batches.on_spot) == ready_google.region.batches.preempted == 1
    assert json.loads(result.stdout)["done"] == 5


def test_failed_jobs_are_explained_and_the_next_command_starts_another(ready_google: FakeGoogle, batch):
    ready_google.region.batches.out_of_quota = True
    result = batch()
    assert result.exit_code == 1
    assert "used up in europe-west4" in result.stderr and "ai-platform-unified-feedback@google.com" in result.stderr
    ready_google.region.batches.out_of_quota = False
    ready_google.region.servers.commands["digits"] = (*STAND_IN, "--never-healthy")
    ready_google.region.batches.start_seconds = 0.5
    result = batch()
    assert result.exit_code == 1 and "did not become ready in time" in result.stderr
    assert len(jobs(ready_google)) == 2
    ready_google.faults.plan("CreateBatchPredictionJob", ServiceError(403, "The caller does not have permission"))
    result = batch()
    assert result.exit_code == 2
    assert "may not create the job: aiplatform.batchPredictionJobs.create is missing" in result.stderr


@pytest.mark.parametrize(
    ("method", "status", "sentence"),
    [
        ("GetBatchPredictionJob", 403, "which was submitted"),
        ("ListBatchPredictionJobs", 403, "may not list the batch predictions"),
        ("GET /download", 403, f"may not read gs://{BUCKET}/inputs/a.jsonl"),
    ],
)
def test_calls_that_keep_failing_are_explained(
    ready_google: FakeGoogle, batch, method: str, status: int, sentence: str
):
    ready_google.faults.plan(method, ServiceError(status, "No."), times=99)
    result = batch()
    assert result.exit_code == 2 and sentence in " ".join(result.stderr.split()), result.stderr


def test_a_running_batch_is_left_and_cancelled_by_the_same_command(
    ready_google: FakeGoogle, batch, monkeypatch: pytest.MonkeyPatch
):
    ready_google.region.servers.commands["digits"] = (*STAND_IN, "--never-healthy")

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(batches, "pause", interrupted)
    result = batch()
    assert result.exit_code == 130 and "the same command with --cancel" in result.stderr
    assert batch("--cancel").exit_code == 0
    monkeypatch.setattr(batches, "pause", lambda: time.sleep(0.02))
    (job,) = jobs(ready_google)
    while job.state.name not in batches.ENDED:
        time.sleep(0.02)
    assert job.state.name == "JOB_STATE_CANCELLED"
    assert "this batch is not running" in batch("--cancel").stderr


def test_a_dry_run_prints_the_job_and_creates_none(ready_google: FakeGoogle, batch):
    result = batch("--dry-run", "--hardware", "l4x1*3+spot")
    job = json.loads(result.stdout)
    assert job["dedicated_resources"] == {
        "machine_spec": {"machine_type": "g2-standard-4", "accelerator_type": "NVIDIA_L4", "accelerator_count": 1},
        "starting_replica_count": 3,
        "max_replica_count": 3,
        "spot": True,
    }
    assert not jobs(ready_google)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--hardware", "tpu-v5e-1x1"), "no support for TPUs"),
        (("--hardware", "e2-standard-5"), "e2-standard-5"),
        (("--hardware", "cpu*0"), "replicas must be between 1 and 1,000; got 0"),
        (("--input", f"gs://{BUCKET}/none.jsonl"), f"there is nothing at gs://{BUCKET}/none.jsonl"),
        (("--input", "mine.jsonl"), "gcloud storage cp mine.jsonl gs://BUCKET/FOLDER/"),
        (("--input", f"gs://{BUCKET}/table.xlsx"), f"the folder gs://{BUCKET}/table.xlsx has no files to predict on"),
        (("--input", f"gs://{BUCKET}/*.xlsx"), "cannot be predicted on Vertex AI"),
        (("--input", f"gs://{BUCKET}/list.txt"), "must have the same format"),
        (("--input", "gs://elsewhere/a.jsonl"), "is in us-central1, the model in europe-west4"),
        (("--output", "predictions"), "is not a folder in a bucket"),
        (("--key", "name"), "a.jsonl line 1 has no field name"),
        (("--key", "same"), "a.jsonl line 2 repeats the same of an earlier line: 1"),
        (("--batch-size", "20000000"), "do not fit into a request of 10 MiB"),
        (("--processes", "2"), "--processes does not apply to a batch on vertex"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_mistakes_are_found_before_a_job_is_created(ready_google: FakeGoogle, batch, more, sentence):
    ready_google.storage.add_bucket("elsewhere", ready_google.world.projects[PROJECT], "us-central1")
    write(ready_google, "inputs/a.jsonl", '{"same": 1}\n{"same": 1.0}')
    result = batch(*more)
    assert result.exit_code == 2, result.output
    assert sentence in " ".join(result.stderr.split())
    assert not jobs(ready_google)


def test_models_and_rights_are_checked(ready_google: FakeGoogle, batch, slipway: Slipway):
    others = BATCH[2:]
    assert "closest: digits" in " ".join(slipway("batch", "digit", *others).stderr.split())
    assert "there is no version 'digits/7'" in slipway("batch", "digits/7", *others).stderr
    assert slipway("batch", "digits@default", *others, "--dry-run").exit_code == 0
    write(ready_google, "inputs/a.jsonl", '{"n": 1}\n{')
    assert "a.jsonl line 2 is not JSON" in batch().stderr
    ready_google.world.owners.clear()
    take_away(ready_google, f"projects/{PROJECT}", "roles/aiplatform.user")
    result = batch()
    assert result.exit_code == 2 and not jobs(ready_google)


def test_options_of_vertex_do_not_apply_here(batch, slipway: Slipway):
    result = slipway("batch", "digits", "--input", "x", "--output", "y", "--cancel")
    assert result.exit_code == 2 and "--target vertex, or remove --cancel" in result.stderr
    result = slipway("batch", "digits", "--input", "x", "--output", "y", "--target", "kubeflow")
    assert "no batch predictions on Kubeflow" in result.stderr


def test_records_and_lists_of_files(ready_google: FakeGoogle, batch, slipway: Slipway):
    records = [b"one", b"", b"three" * 100]
    content = b"".join(len(one).to_bytes(8, "little") + b"cccc" + one + b"dddd" for one in records)
    ready_google.storage.write(BUCKET, "in.tfrecord", content)
    arguments = [f"gs://{BUCKET}/in.tfrecord" if word == INPUT else word for word in BATCH]
    result = slipway(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert (json.loads(result.stdout)["done"], json.loads(result.stdout)["listed"]) == (3, True)
    ready_google.storage.write(BUCKET, "cut.tfrecord", content[:-1])
    arguments = [f"gs://{BUCKET}/cut.tfrecord" if word == INPUT else word for word in BATCH]
    assert "is not a TFRecord file, or cut short" in slipway(*arguments).stderr
    write(ready_google, "list.txt", f"gs://{BUCKET}/cut.tfrecord\n")
    arguments = [f"gs://{BUCKET}/list.txt" if word == INPUT else word for word in BATCH]
    assert "have no fields" in slipway(*arguments, "--key", "id").stderr
    assert json.loads(slipway(*arguments, "--json").stdout)["done"] == 1


@pytest.fixture
def of_houses(ready_google: FakeGoogle, batch, slipway: Slipway, houses_folder: Path) -> Callable[..., Any]:
    """Run the command on an input with the model of houses, which its own server serves."""
    ready_google.region.models.models.clear()
    register(ready_google, houses_folder)
    del ready_google.region.servers.commands["digits"]

    def run(given: str, *more: str) -> Any:
        return slipway(*(f"gs://{BUCKET}/{given}" if word == INPUT else word for word in BATCH), *more)

    return run


HEADER = "street,area,sides,rooms,id"


def test_tables_become_instances_beside_the_predictions(ready_google: FakeGoogle, of_houses):
    write(ready_google, "tables/a.csv", f"{HEADER}\nOak,55,1 2,3,x\n\nOak,56,1;2,3.0,y\n")
    write(ready_google, "tables/inner/b.csv", f"{HEADER}\nElm,57,1 2,3,z\n")
    write(ready_google, "tables/notes.md", "not read")
    result = of_houses("tables", "--json")
    assert result.exit_code == 0, result.stderr
    (job,) = jobs(ready_google)
    (uri,) = job.input_config.gcs_source.uris
    assert job.input_config.instances_format == "jsonl" and uri.startswith(f"gs://{BUCKET}/out/instances-")
    sent = ready_google.storage.read(BUCKET, uri.removeprefix(f"gs://{BUCKET}/"))[0].splitlines()
    key = f"gs://{BUCKET}/tables/a.csv line 4"
    assert json.loads(sent[1]) == {**HOUSE, "area": 56.0, "slipway_row": key}
    rows = [row for n in range(2) for row in written(ready_google, f"prediction.results-0000{n}-of-00002")]
    found = {row["key"]: row["prediction"]["prediction"] for row in rows}
    assert list(found.values()) == pytest.approx([HOUSE_PRICE, HOUSE_PRICE + 2, HOUSE_PRICE + 4 - 10])
    assert list(found)[1:] == [key, f"gs://{BUCKET}/tables/inner/b.csv line 2"]
    summary = json.loads(result.stdout)
    assert (summary["examples"], summary["done"], summary["failed"], summary["listed"]) == (3, 3, 0, True)
    again = of_houses("tables/", "--json")
    assert "was submitted before" in again.stderr and json.loads(again.stdout) == summary
    write(ready_google, "tables/a.csv", f"{HEADER}\nOak,55,1 2,3,x\n")
    changed = of_houses("tables", "--no-wait")
    assert changed.exit_code == 0 and len(jobs(ready_google)) == 2, changed.stderr


def test_a_parquet_file_with_a_key(ready_google: FakeGoogle, of_houses):
    file = io.BytesIO()
    columns = {"street": ["Oak", "Elm"], "area": [55.0, 55.0], "sides": [[1.0, 2.0]] * 2, "rooms": [3, 3]}
    pyarrow.parquet.write_table(pyarrow.table({**columns, "id": [7, 8]}), file)
    ready_google.storage.write(BUCKET, "houses.parquet", file.getvalue())
    assert of_houses("houses.parquet", "--key", "id").exit_code == 0
    rows = [row for n in range(2) for row in written(ready_google, f"prediction.results-0000{n}-of-00002")]
    assert {row["key"]: row["prediction"]["prediction"] for row in rows} == pytest.approx({"7": 190.0, "8": 180.0})

    assert (
        "houses.parquet row 2 repeats the rooms of an earlier row: 3"
        in of_houses("houses.parquet", "--key", "rooms").stderr
    )
    assert "there is no column 'ID'" in of_houses("houses.parquet", "--key", "ID").stderr


def test_a_dry_run_of_a_table_writes_nothing(ready_google: FakeGoogle, of_houses):
    write(ready_google, "a.csv", f"{HEADER}\nOak,55,1 2,3,x\n")
    before = set(ready_google.storage.names(BUCKET))
    assert of_houses("a.csv", "--dry-run").exit_code == 0
    assert set(ready_google.storage.names(BUCKET)) == before


@pytest.mark.parametrize(
    ("files", "given", "sentence"),
    [
        (
            {"a.csv": f"{HEADER}\nOak,55,1 2,3,x\nOak,big,1 2,3,y"},
            "a.csv",
            "line 3 of gs://{}/a.csv: area: 'big' is not a",
        ),
        ({"a.csv": f"{HEADER}\nOak,55,1 2\n"}, "a.csv", "line 2 of gs://{}/a.csv has 3 columns; line 1 has 5"),
        ({"a.csv": "street,aera,sides,rooms\nOak,55,1 2,3"}, "a.csv", "fix: rename the column aera to area"),
        ({"a.csv": f"{HEADER}\n"}, "a.csv", "the inputs have no rows"),
        ({"a.parquet": "no"}, "a.parquet", "gs://{}/a.parquet is not a Parquet file, or damaged"),
        ({"t/a.csv": "x", "t/b.jsonl": "1"}, "t", "the folder gs://{}/t has files of several formats: 1 .csv, such as"),
        ({"t/a.md": "x"}, "t", "the folder gs://{}/t has no files to predict on (.csv, .parquet, .jsonl"),
    ],
    ids=["value", "columns", "column", "rows", "damaged", "mixed", "empty"],
)
def test_mistakes_in_tables_are_found_before_a_job_is_created(
    ready_google: FakeGoogle, of_houses, files: dict[str, str], given: str, sentence: str
):
    for name, text in files.items():
        write(ready_google, name, text)
    result = of_houses(given)
    assert result.exit_code == 2, result.output
    assert sentence.format(BUCKET) in " ".join(result.stderr.split())
    assert not jobs(ready_google)


def test_tables_of_models_of_images_are_refused(ready_google: FakeGoogle, of_houses, tmp_path: Path, slipway: Slipway):
    described = {"task": "classification", "classes": ["a", "b"], "inputs": {}, "image_size": [8, 8], "channels": 1}
    write(ready_google, "models/digits/model.json", json.dumps(described))
    write(ready_google, "a.csv", "image\n0.png\n")
    result = of_houses("a.csv")
    assert result.exit_code == 2 and "needs images (image_bytes)" in result.stderr


def test_predictions_that_belong_to_no_input_are_only_counted(ready_google: FakeGoogle, batch):
    """The service's form of an instance is documented for JSON lines only."""
    assert batch().exit_code == 0
    folder = jobs(ready_google)[0].output_info.gcs_output_directory.removeprefix(f"gs://{BUCKET}/")
    write(ready_google, f"{folder}/prediction.results-00000-of-00002", '{"instance": "other", "prediction": 1}\n' * 3)
    result = batch("--json")
    summary = json.loads(result.stdout)
    assert (summary["listed"], summary["done"], summary["failed"]) == (False, 5, 0)


def test_errors_with_their_instances_are_listed_with_them(ready_google: FakeGoogle, batch):
    """PredictionResult has `error` in place of `prediction`; other lines are messages with a number of instances."""
    assert batch("--key", "id").exit_code == 0
    folder = jobs(ready_google)[0].output_info.gcs_output_directory.removeprefix(f"gs://{BUCKET}/")
    write(ready_google, f"{folder}/prediction.results-00000-of-00002", "")
    lines = ['{"key": "k1", "error": {"code": 3, "message": "too large"}}', "('refused', 2)", "cut ("]
    write(ready_google, f"{folder}/prediction.errors_stats-00000-of-00001", "\n".join(lines))
    summary = json.loads(batch("--key", "id", "--json").stdout)
    assert summary["messages"] == {"too large": 1, "refused": 2, "cut (": 1}
    assert {row["input"]: row["error"] for row in written(ready_google, "errors.jsonl")} == {
        "k0": "there is no prediction",
        "k1": "too large",
        "k2": "there is no prediction",
    }
