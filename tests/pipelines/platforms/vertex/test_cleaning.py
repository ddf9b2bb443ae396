"""`slipway runs clean --target vertex`: runs, data sets, images and schedules that nothing refers to."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.cloud import aiplatform_v1 as vertex
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipway.components.cloud.connection import Connection
from slipway.pipelines.cleaning.cleaner import Age
from slipway.pipelines.platforms.vertex.bucket import BucketCleaner, References
from slipway.pipelines.platforms.vertex.cleaning import DATA
from tests.fakes.google import NUMBER, PROJECT, REGION, FakeGoogle
from tests.fakes.ready import BUCKET, REPOSITORY, make_region_ready
from tests.pipelines.platforms.vertex.conftest import Slipway

NOW = datetime.now(UTC)
AGE = Age(timedelta(days=30))
PARENT = f"projects/{NUMBER}/locations/{REGION}"
CLEAN = ("runs", "clean", "--target", "vertex", "-c", "run.yaml")


class Bucket:
    """A bucket with runs and data sets of any age."""

    def __init__(self, google: FakeGoogle, name: str = BUCKET) -> None:
        self.google, self.name = google, name

    def put(self, name: str, content: bytes = b"x", days: float = 90) -> None:
        self.google.storage.write(self.name, name, content, NOW - timedelta(days=days))

    def run(self, run_id: str, days: float = 90, data: str | None = None, job: str = "") -> None:
        """Write a run that ended so many days ago, and the artifacts of its job."""
        self.put(f"runs/{run_id}/checkpoints/8/weights", bytes(1000), days + 1)
        if data:
            self.put(f"runs/{run_id}/dataset.json", json.dumps({"uri": self.data_uri(data)}).encode(), days)
        self.put(f"pipelines/{NUMBER}/{job or run_id}/evaluate_1/metrics", bytes(10), days)

    def data_uri(self, name: str) -> str:
        return f"gs://{self.name}/datasets/digits/{name}"

    def data(self, name: str, days: float = 90) -> None:
        self.put(f"datasets/digits/{name}/train-0.tfrecord", bytes(500), days)
        self.put(f"datasets/digits/{name}/manifest.json", b"{}", days)

    def register(self, run_id: str, **more: Any) -> None:
        """Register the run's model in the region."""
        models = self.google.region.models.models
        version = vertex.Model(
            artifact_uri=f"gs://{self.name}/runs/{run_id}/model", version_id="1", version_aliases=["default"], **more
        )
        version.name = f"{PARENT}/models/m{len(models)}"
        models[version.name] = [version]

    def left(self) -> set[str]:
        """Return the runs and data sets that are there."""
        names = self.google.storage.names(self.name)
        return {name.split("/")[depth] for name in names for root, depth in FOLDERS if name.startswith(root)}


FOLDERS = (("runs/", 1), ("datasets/digits/", 2), (f"pipelines/{NUMBER}/", 2))


@pytest.fixture
def bucket(ready_google: FakeGoogle, workspace: Path) -> Bucket:
    return Bucket(ready_google)


def deleted(slipway: Slipway, *options: str) -> set[str]:
    """Clean, and return the names of what was deleted; the list without --apply is the same."""
    planned, done = (slipway(*CLEAN, *options, *more, "--json") for more in ((), ("--apply",)))
    assert (planned.exit_code, done.exit_code) == (0, 0), done.output
    assert json.loads(planned.stdout) == json.loads(done.stdout)
    return {each["path"].rpartition("/")[2] for each in json.loads(done.stdout)}


def test_old_runs_and_data_sets_that_nothing_refers_to_are_deleted(bucket: Bucket, slipway: Slipway):
    for name in ("used", "unused", "of-a-model"):
        bucket.data(name)
    bucket.data("new", days=2)
    bucket.put("datasets/digits/.listings/x.json")
    bucket.put("builds/sources/x.tar.gz")
    bucket.run("old", data="unused")
    bucket.run("old-resumed", job="old-resumed-2")
    bucket.run("recent", days=29, data="used")
    bucket.run("registered", data="of-a-model")
    bucket.register("registered")
    before = bucket.google.storage.names(BUCKET)
    assert deleted(slipway) == {"old", "old-resumed", "unused"}
    gone = before - bucket.google.storage.names(BUCKET)
    assert {name.split("/", 1)[0] for name in gone} == {"runs", "datasets", "pipelines"}
    assert f"pipelines/{NUMBER}/old-resumed-2/evaluate_1/metrics" in gone
    assert len(gone) == 3 + 2 + 2
    assert deleted(slipway) == set()


def test_folders_of_the_same_names_that_are_someone_elses_are_kept(bucket: Bucket, slipway: Slipway):
    bucket.put("runs/2019/notes.txt")
    bucket.put("datasets/photographs/summer/1.jpg")
    bucket.put(f"pipelines/{NUMBER}/another-pipeline/task_1/output")
    bucket.put("datasets/digits/cut/digits-train.tfrecord-00000-of-00002")
    assert deleted(slipway) == {"cut"}, "what a killed step or command has left"


def test_what_is_said_has_sizes_and_addresses(bucket: Bucket, slipway: Slipway):
    bucket.run("old")
    listed = slipway(*CLEAN)
    assert f"run       gs://{BUCKET}/runs/old" in listed.stdout
    assert "1 can be deleted, 1.0 kB: add --apply" in listed.output
    assert "old" in bucket.left()
    done = slipway(*CLEAN, "--apply")
    assert "1 deleted, 1.0 kB" in done.output
    assert bucket.left() == set()
    assert "nothing is older than 30d and not needed" in slipway(*CLEAN).output
    too_short = slipway(*CLEAN, "--older-than", "0d")
    assert (too_short.exit_code, "--older-than 1d" in too_short.output) == (2, True)
    assert "--older-than = '0d'" in too_short.output
    for option in ("--why", "--restore"):
        refused = slipway(*CLEAN, option, "runs/x")
        assert (refused.exit_code, f"fix:      slipway runs clean {option} runs/x, without" in refused.output) == (
            2,
            True,
        )


def test_a_model_that_is_only_known_by_the_label_of_its_run_keeps_it(bucket: Bucket, slipway: Slipway):
    """Its files may be a copy elsewhere."""
    bucket.run("Trained.Here")
    bucket.register("elsewhere", labels={"slipway-run": "trained-here"})
    assert deleted(slipway) == set()


def test_a_run_in_progress_is_kept_and_so_are_all_data_sets(bucket: Bucket, slipway: Slipway):
    submitted = slipway("run", "-c", "run.yaml", "--target", "vertex", "--no-check", "--no-wait")
    assert submitted.exit_code == 0, submitted.output
    job = next(iter(bucket.google.region.pipelines.jobs)).rpartition("/")[2]
    bucket.run(job)
    bucket.run("old")
    bucket.data("unrelated")
    assert deleted(slipway) == {"old"}
    assert f"while a run is in progress: {job}" in slipway(*CLEAN).output
    bucket.google.region.pipelines.run_to_end(f"{PARENT}/pipelineJobs/{job}")
    slipway("status")
    assert deleted(slipway) == {"unrelated"}, "the newest run of this machine is kept"


def test_a_job_that_another_machine_submitted_again_is_seen(bucket: Bucket, slipway: Slipway, workspace: Path):
    slipway("run", "-c", "run.yaml", "--target", "vertex", "--no-check", "--no-wait")
    jobs = bucket.google.region.pipelines.jobs
    name, job = jobs.popitem()
    jobs[f"{name}-2"] = job
    job.name = f"{name}-2"
    run_id = name.rpartition("/")[2]
    (workspace / "runs" / run_id).rename(workspace / "elsewhere")
    (workspace / "runs" / "latest").unlink()
    bucket.run(run_id)
    bucket.data("its")
    assert deleted(slipway) == set()


def test_models_and_jobs_of_the_other_regions_count(ready_google: FakeGoogle, bucket: Bucket, slipway: Slipway):
    other = make_region_ready(ready_google, "us-central1")
    values = yaml.safe_load(Path("run.yaml").read_text())
    values["vertex"]["regions"] = {"us-central1": other}
    Path("run.yaml").write_text(yaml.safe_dump(values))
    there = Bucket(ready_google, other["bucket"].removeprefix("gs://"))
    for each in (bucket, there):
        each.run("old")
        each.run("trained", data="a")
        each.data("a")
    there.register("trained")
    assert deleted(slipway) == {"old", "trained", "a"}
    assert there.left() == {"trained", "a"}
    assert bucket.left() == set()


def test_a_refusal_deletes_nothing_unseen(bucket: Bucket, slipway: Slipway, monkeypatch: pytest.MonkeyPatch):
    bucket.run("old")
    _deny(bucket.google, "aiplatform.models.list", monkeypatch)
    refused = slipway(*CLEAN, "--apply")
    assert refused.exit_code == 2, refused.output
    assert "aiplatform.models.list" in refused.output
    assert "old" in bucket.left()


def _deny(google: FakeGoogle, permission: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take one permission from everyone."""
    require = google.world.require

    def denied(caller: str, asked: str, *rest: Any, **more: Any) -> None:
        return require("nobody@example.com" if asked == permission else caller, asked, *rest, **more)

    monkeypatch.setattr(google.world, "require", denied)


def test_a_file_that_does_not_name_a_data_set_stops_it(bucket: Bucket, slipway: Slipway):
    bucket.run("recent", days=1)
    bucket.put("runs/recent/dataset.json", b"{", days=1)
    bucket.data("old")
    refused = slipway(*CLEAN, "--apply")
    assert refused.exit_code == 2, refused.output
    assert f"gs://{BUCKET}/runs/recent/dataset.json does not name a data set" in " ".join(refused.output.split())


class Changing:
    """A cleaner of one bucket whose references a test changes while it deletes."""

    def __init__(self, bucket: Bucket, data: Bucket | None = None) -> None:
        self.now = References()
        google = (data or bucket).google
        connection = Connection(PROJECT, REGION, google.endpoints)
        self.cleaner = BucketCleaner(connection, bucket.name, DATA, lambda: self.now, AGE, leased=False)


def test_what_is_registered_written_or_deleted_meanwhile_is_not_deleted(bucket: Bucket):
    changing = Changing(bucket)
    for name in ("registered", "written", "deleted", "old"):
        bucket.run(name)
    found = changing.cleaner.unneeded()
    assert len(found) == 4
    changing.now = References(uris=frozenset({f"gs://{BUCKET}/runs/registered/model"}))
    bucket.put("runs/written/checkpoints/16/weights", days=0)
    for name in list(bucket.google.storage.names(BUCKET)):
        if "/deleted/" in name:
            bucket.google.storage.remove(BUCKET, name)
    assert [each.path for each in changing.cleaner.delete(found)] == [f"gs://{BUCKET}/runs/old"]
    assert bucket.left() == {"registered", "written"}


def test_a_data_set_that_a_run_finds_just_then_is_whole_again(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    """The run has seen its manifest, and begins to train on it; it has not recorded it yet."""
    changing = Changing(bucket)
    bucket.data("old")
    found = changing.cleaner.unneeded()
    before = bucket.google.storage.names(BUCKET)
    delete = changing.cleaner._delete

    def begun(blobs: Any) -> None:
        delete(blobs)
        changing.now = References(in_progress=("begun",))

    monkeypatch.setattr(changing.cleaner, "_delete", begun)
    assert list(changing.cleaner.delete(found)) == []
    assert bucket.google.storage.names(BUCKET) == before
    assert bucket.google.storage.read(BUCKET, "datasets/digits/old/manifest.json")[0] == b"{}"


def test_a_data_set_that_is_prepared_again_meanwhile_is_kept(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    """A run that no longer finds the manifest writes all files again."""
    changing = Changing(bucket)
    bucket.data("old")
    found = changing.cleaner.unneeded()
    delete = changing.cleaner._delete
    marks: list[int] = []

    def prepared(blobs: Any) -> None:
        delete(blobs)
        if not marks:
            marks.append(1)
            bucket.data("old", days=0)

    monkeypatch.setattr(changing.cleaner, "_delete", prepared)
    list(changing.cleaner.delete(found))
    assert {name.rpartition("/")[2] for name in bucket.google.storage.names(BUCKET)} == {
        "train-0.tfrecord",
        "manifest.json",
    }


RUNS = [f"run-{letter}" for letter in "abc"]
SETS = [f"set-{letter}" for letter in "ab"]
TIMES = st.integers(0, 60)


@settings(
    max_examples=settings.default.max_examples // 2,  # each has some fifty requests
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    made=st.fixed_dictionaries({name: st.tuples(TIMES, st.sampled_from([None, *SETS])) for name in RUNS}),
    sets=st.fixed_dictionaries(dict.fromkeys(SETS, TIMES)),
    models=st.sets(st.sampled_from(RUNS), max_size=2),
    later=st.sets(st.sampled_from(RUNS), max_size=2),
)
def test_nothing_is_deleted_that_is_referred_to(
    bucket: Bucket, made: dict[str, tuple[int, str | None]], sets: dict[str, int], models: set[str], later: set[str]
):
    """Two cleaners at once, of which the second has made its list before `later` were registered."""
    for name in bucket.google.storage.names(BUCKET):
        bucket.google.storage.remove(BUCKET, name)
    for name, days in sets.items():
        bucket.data(name, days)
    for name, (days, data) in made.items():
        bucket.run(name, days, data)
    first, second = Changing(bucket), Changing(bucket)
    first.now = second.now = References(uris=frozenset(f"gs://{BUCKET}/runs/{name}/model" for name in models))
    written = bucket.google.storage.names(BUCKET)
    planned = first.cleaner.unneeded(), second.cleaner.unneeded()
    assert planned[0] == planned[1]
    every = frozenset(f"gs://{BUCKET}/runs/{name}/model" for name in models | later)
    first.now = second.now = References(uris=every)
    done = [first.cleaner.delete(planned[0]), second.cleaner.delete(planned[1])]
    for steps in zip(*done, strict=False):
        assert len({each.path for each in steps}) == 2
    for rest in done:
        list(rest)
    kept = {name for name, (days, _) in made.items() if days < AGE.least.days or name in models | later}
    data = {made[name][1] for name in kept} | {name for name, days in sets.items() if days < AGE.least.days}
    spared = {made[name][1] for name in later}
    assert kept | (data - {None}) == bucket.left() - ({*SETS} & spared - data)
    assert bucket.google.storage.names(BUCKET) == {name for name in written if bucket.left() & {*name.split("/")}}


def image(google: FakeGoogle, name: str, number: int, days: float) -> str:
    """Put an image into the repository; return its URI."""
    digest = f"sha256:{number:064x}"
    google.images.tags[REPOSITORY, name, f"tag-{number}"] = digest
    google.images.uploads[digest] = NOW - timedelta(days=days)
    return f"{REGION}-docker.pkg.dev/{PROJECT}/slipway/{name}@{digest}"


def builds(workspace: Path) -> None:
    """Let the configuration build its images."""
    values = yaml.safe_load((workspace / "run.yaml").read_text())
    for name in ("image", "serving_image"):
        del values["vertex"][name]
    (workspace / "run.yaml").write_text(yaml.safe_dump(values))


def test_images_that_nothing_names_are_deleted(bucket: Bucket, slipway: Slipway, workspace: Path):
    builds(workspace)
    google = bucket.google
    for number, days in enumerate((200, 150, 100, 50, 10), 1):
        image(google, "trainer-gpu", number, days)
    image(google, "users-own", 11, 200)
    image(google, "users-own", 12, 100)
    served = image(google, "serving-cpu", 21, 200)
    image(google, "serving-cpu", 22, 100)
    bucket.register("x", container_spec={"image_uri": served})
    recorded = workspace / "runs" / "kept"
    recorded.mkdir(parents=True)
    record = {"run_id": "kept", "name": "digits", "platform": "vertex", "hardware": "cpu", "created": NOW.isoformat()}
    (recorded / "run.json").write_text(json.dumps({**record, "status": "succeeded"}))
    (recorded / "spec.yaml").write_text(f"image: trainer-gpu@sha256:{2:064x}")
    assert deleted(slipway) == {f"sha256:{number:064x}" for number in (1, 3, 4)}
    names = {digest: name for (_, name, _), digest in google.images.tags.items()}
    assert len(names) == 6
    assert google.world.writes["imageDeletion"] == 3


def test_an_image_that_a_recent_job_or_a_schedule_names_is_kept(bucket: Bucket, slipway: Slipway, workspace: Path):
    builds(workspace)
    google = bucket.google
    used = image(google, "steps-cpu", 1, 200)
    image(google, "steps-cpu", 2, 150)
    image(google, "steps-cpu", 3, 100)
    image(google, "steps-cpu", 4, 1)
    jobs = google.region.pipelines.jobs
    ended = vertex.PipelineJob(
        name=f"{PARENT}/pipelineJobs/x", state=vertex.PipelineState.PIPELINE_STATE_SUCCEEDED, pipeline_spec=named(used)
    )
    ended.create_time = ended.update_time = NOW - timedelta(days=29)
    jobs[ended.name] = ended
    schedule = vertex.Schedule(name=f"{PARENT}/schedules/1", display_name="slipway/nightly", state="PAUSED")
    schedule.create_time = schedule.update_time = NOW - timedelta(days=200)
    schedule.create_pipeline_job_request.pipeline_job.pipeline_spec = named("steps-cpu:tag-2")
    google.region.schedules.schedules[schedule.name] = schedule
    assert deleted(slipway) == {f"sha256:{3:064x}"}


def named(uri: str) -> dict[str, Any]:
    return {"pipelineInfo": {"name": "digits"}, "deploymentSpec": {"executors": {"x": {"container": {"image": uri}}}}}


def test_without_the_right_to_see_images_nothing_is_deleted(
    bucket: Bucket, slipway: Slipway, workspace: Path, monkeypatch: pytest.MonkeyPatch
):
    builds(workspace)
    bucket.run("old")
    _deny(bucket.google, "artifactregistry.dockerimages.list", monkeypatch)
    refused = slipway(*CLEAN, "--apply")
    assert refused.exit_code == 2
    assert "artifactregistry.dockerimages.list" in refused.output
    assert "old" in bucket.left(), "what cannot be seen is said before anything is deleted"


def test_completed_schedules_are_deleted(bucket: Bucket, slipway: Slipway):
    for number, (name, state, days) in enumerate(
        [("slipway/old", "COMPLETED", 40), ("slipway/new", "COMPLETED", 20), ("slipway/paused", "PAUSED", 40),
         ("another's", "COMPLETED", 40)], 1
    ):  # fmt: skip
        schedule = vertex.Schedule(name=f"{PARENT}/schedules/{number}", display_name=name, state=state)
        schedule.create_time = schedule.update_time = NOW - timedelta(days=200)
        schedule.end_time = NOW - timedelta(days=days)
        bucket.google.region.schedules.schedules[schedule.name] = schedule
    assert deleted(slipway) == {"1"}
    assert {name.rpartition("/")[2] for name in bucket.google.region.schedules.schedules} == {"2", "3", "4"}
