"""A run whose region has no quota or capacity continues in the next one, and on the next hardware."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.api_core.exceptions import AlreadyExists

from slipway.components.step import WorkFailed
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, validate
from slipway.pipelines.platforms.vertex import candidates as candidates_module
from slipway.pipelines.platforms.vertex import moves, run, submission
from slipway.pipelines.platforms.vertex.candidates import candidates, title_of
from slipway.pipelines.runs.record import RunFolder
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.ready import BUCKET, IMAGE, make_region_ready
from tests.fakes.vertex.region import Region
from tests.fakes.vertex.script import Failure
from tests.pipelines.platforms.vertex.conftest import CONFIGURATION, Slipway
from tests.pipelines.platforms.vertex.test_runs import CHECKED, RUN, TRAIN, record

SECOND, THIRD = "us-central1", "asia-east1"
# Reported: https://github.com/openreview/openreview-expertise/issues/401
CAPACITY = (
    "Resources are insufficient in region: us-central1. Please try a different region or use a different accelerator."
)
CPUS = "aiplatform.googleapis.com/custom_model_training_cpus"
# Four machines of four CPUs beside those of the step: more than the first region's quota.
HARDWARE = ("--hardware", "cpu*4")

Regions = dict[str, Region]


@pytest.fixture
def regions(ready_google: FakeGoogle, workspace: Path) -> Regions:
    """Three regions, which run.yaml lists: the first refuses a training for quota, the second for capacity."""
    others = {name: make_region_ready(ready_google, name) for name in (SECOND, THIRD)}
    change(workspace, regions=others)
    found = {REGION: ready_google.region} | {region.name: region for _, region in ready_google._others}
    for name, limit in ((REGION, 16), (SECOND, 100), (THIRD, 100)):
        ready_google.world.quotas[PROJECT, name, CPUS] = limit
    found[SECOND].pipelines.script[TRAIN].failure = Failure(CAPACITY, code=8)
    return found


def change(workspace: Path, **vertex: Any) -> None:
    values = yaml.safe_load((workspace / "run.yaml").read_text())
    values["vertex"] |= vertex
    (workspace / "run.yaml").write_text(yaml.safe_dump(values, sort_keys=False))


def only_two(workspace: Path) -> None:
    """Leave the third region out: it has no L4."""
    listed = yaml.safe_load((workspace / "run.yaml").read_text())["vertex"]["regions"]
    change(workspace, regions={SECOND: listed[SECOND]})


def jobs(regions: Regions) -> list[list[str]]:
    """The pipeline jobs of each region, each as what follows the run's id."""
    run_id = RunFolder(Path("runs/latest").resolve()).run_id
    return [
        [name.rpartition("/")[2].replace(run_id, "run") for name in region.pipelines.jobs]
        for region in regions.values()
    ]


def bills(workspace: Path) -> list[Any]:
    """The bill of each candidate of the newest run."""
    configs = run.VertexRun(RunFolder((workspace / "runs/latest").resolve())).candidates
    return [run.vertex_bill(config.training_hardware, config.vertex.region) for config in configs if config.vertex]


def training_of(region: Region) -> Any:
    (job,) = [job for job in region.jobs.jobs.values() if job.display_name == "digits"]
    return job


def test_a_run_continues_in_the_next_region_without_quota_or_capacity(
    regions: Regions, workspace: Path, slipway: Slipway
):
    result = slipway(*CHECKED, *HARDWARE)
    assert result.exit_code == 0, result.output
    assert "warning: quota: The quota in europe-west4 is too small" in result.output
    assert (
        "moving from cpu*4 in europe-west4 to cpu*4 in us-central1: The project has too little quota" in result.output
    )
    kept = record(workspace)
    assert (kept["status"], kept["hardware"], kept["region"], kept["tries"]) == ("succeeded", "cpu*4", THIRD, 3)
    assert jobs(regions) == [["run"], ["run-2"], ["run-3"]]
    assert [(each["region"], each["job"].rpartition("/")[2]) for each in kept["refused"]] == [
        (REGION, kept["run_id"]),
        (SECOND, f"{kept['run_id']}-2"),
    ]
    assert CPUS in kept["refused"][0]["message"]
    assert kept["refused"][1]["message"] == "There are no free machines of this kind in us-central1 at the moment."
    trained = training_of(regions[THIRD])
    folder = f"gs://{BUCKET}-{THIRD}/runs/{kept['run_id']}"
    assert trained.job_spec.base_output_directory.output_uri_prefix == folder
    for told in (slipway("explain").output, slipway("explain", kept["run_id"]).output):
        assert "its status is succeeded on cpu*4 in asia-east1" in told
        assert "no quota or capacity on cpu*4 in europe-west4, 20" in told
        assert "no quota or capacity on cpu*4 in us-central1, 20" in told
    assert "tried    cpu*4 in europe-west4; cpu*4 in us-central1" in slipway("status").output


def test_data_set_and_checkpoints_are_copied_to_the_next_bucket(
    ready_google: FakeGoogle, regions: Regions, workspace: Path, slipway: Slipway
):
    storage = ready_google.storage

    def prepare(inputs: Mapping[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
        """Prepare a data set as the step does: the recorded one of the run, if it has one."""
        bucket, _, folder = inputs["output"].removeprefix("gs://").partition("/")
        if f"{folder}/dataset.json" not in storage.names(bucket):
            for name in ("manifest.json", "train-00000", "statistics.html"):
                storage.write(bucket, f"datasets/digits/0123/{name}", f"{name} of {bucket}".encode())
            storage.write(bucket, f"{folder}/dataset.json", f'{{"uri": "gs://{bucket}/datasets/digits/0123"}}'.encode())
        uri = json.loads(storage.read(bucket, f"{folder}/dataset.json")[0])["uri"]
        return {"dataset": (uri, {"examples": {"train": 60_000, "test": 10_000}})}

    def trained(_: Mapping[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
        return {}

    for region in regions.values():
        region.pipelines.script["prepare-data"].work = prepare
    ready_google.world.quotas[PROJECT, REGION, CPUS] = 100
    regions[REGION].pipelines.script[TRAIN].failure = Failure(CAPACITY.replace(SECOND, REGION), code=8)
    second = f"{BUCKET}-{SECOND}"
    storage.write(second, "datasets/digits/0123/manifest.json", b"of an earlier run")  # complete: not copied again
    assert slipway(*RUN, *HARDWARE, "--no-wait").exit_code == 0
    run_id = record(workspace)["run_id"]
    for name in ("latest", "step-00000040/state.npz"):
        storage.write(BUCKET, f"runs/{run_id}/checkpoints/{name}", name.encode())
    result = slipway("status", "--follow")
    assert result.exit_code == 0, result.output

    assert "datasets/digits/0123/train-00000" not in storage.names(second)
    third = f"{BUCKET}-{THIRD}"
    assert storage.read(third, "datasets/digits/0123/manifest.json")[0] == b"of an earlier run"
    for bucket in (second, third):
        assert (
            storage.read(bucket, f"runs/{run_id}/checkpoints/step-00000040/state.npz")[0] == b"step-00000040/state.npz"
        )
        assert storage.read(bucket, f"runs/{run_id}/checkpoints/latest")[0] == b"latest"
        uri = f"gs://{bucket}/datasets/digits/0123"
        assert json.loads(storage.read(bucket, f"runs/{run_id}/dataset.json")[0]) == {"uri": uri}
    assert record(workspace)["steps"][1]["outputs"]["dataset"] == f"gs://{third}/datasets/digits/0123"


class Killed(BaseException):
    """The command is killed."""


@pytest.mark.parametrize("moment", ["before the images", "after the copy", "before the request"])
def test_a_run_that_was_killed_between_two_regions_is_resumed_in_the_next_one(
    moment: str, regions: Regions, workspace: Path, slipway: Slipway, monkeypatch: pytest.MonkeyPatch
):
    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if moment == "before the request":
            sent = submission.submit
            patch.setattr(
                submission,
                "submit",
                lambda *given, **how: killed() if regions[REGION].pipelines.jobs else sent(*given, **how),
            )
        elif moment == "after the copy":
            patch.setattr(candidates_module, "carry", killed)
        else:
            ensured = run.ensure_images
            patch.setattr(
                run, "ensure_images", lambda *given: killed() if regions[REGION].pipelines.jobs else ensured(*given)
            )
        with pytest.raises(Killed):
            slipway(*RUN, *HARDWARE)
    told = slipway("status").output
    assert "failed" in told
    assert [len(each) for each in jobs(regions)] == [1, 0, 0]
    result = slipway("run", "--resume", "latest")
    assert result.exit_code == 0, result.output
    kept = record(workspace)
    assert [each["region"] for each in kept["refused"]] == [REGION, SECOND]
    assert (kept["status"], kept["region"], kept["tries"]) == ("succeeded", THIRD, 3)
    assert jobs(regions) == [["run"], ["run-2"], ["run-3"]]


def test_a_command_that_is_killed_after_the_request_does_not_submit_twice(
    regions: Regions, workspace: Path, slipway: Slipway, monkeypatch: pytest.MonkeyPatch
):
    sent = submission.submit

    def killed(*given: Any, **how: Any) -> Any:
        job = sent(*given, **how)
        if regions[SECOND].pipelines.jobs:
            raise Killed
        return job

    with monkeypatch.context() as patch:
        patch.setattr(submission, "submit", killed)
        with pytest.raises(Killed):
            slipway(*RUN, *HARDWARE)
    resumed = slipway("run", "--resume", "latest")
    assert (resumed.exit_code, "is still running" in resumed.output) == (2, True), resumed.output
    assert slipway("status", "--follow").exit_code == 0
    assert jobs(regions) == [["run"], ["run-2"], ["run-3"]]


def test_a_request_that_arrives_after_its_command_was_killed_is_not_sent_twice(
    regions: Regions, slipway: Slipway, monkeypatch: pytest.MonkeyPatch
):
    late: list[tuple[Any, ...]] = []

    def killed(*given: Any, requesting: Callable[[], None], **_: Any) -> None:
        requesting()
        late.append(given)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(submission, "submit", killed)
        with pytest.raises(Killed):
            slipway(*RUN, *HARDWARE)
    assert "is being submitted: Vertex AI does not have it" in slipway("status").output
    resumed = slipway("run", "--resume", "latest")  # sends the same request
    assert resumed.exit_code == 0, resumed.output
    with pytest.raises(AlreadyExists):
        submission.submit(*late[0])
    assert jobs(regions) == [["run"], ["run-2"], ["run-3"]]


def test_a_run_that_is_not_watched_waits_for_a_command_that_does(regions: Regions, workspace: Path, slipway: Slipway):
    submitted = slipway(*RUN, *HARDWARE, "--no-wait")
    assert (
        "without quota or capacity, a command that watches it moves it to cpu*4 in us-central1, then"
        in submitted.output
    )
    while record(workspace)["status"] == "running":
        slipway("status")
    assert jobs(regions) == [["run"], [], []]
    told = slipway("explain")
    assert (
        told.exit_code,
        f"--resume {record(workspace)['run_id']}, to continue on cpu*4 in us-central1" in told.output,
    ) == (
        1,
        True,
    ), told.output
    assert slipway("run", "--resume", "latest").exit_code == 0
    assert jobs(regions) == [["run"], ["run-2"], ["run-3"]]


def test_only_one_of_two_commands_that_watch_a_run_moves_it(
    regions: Regions, workspace: Path, slipway: Slipway, monkeypatch: pytest.MonkeyPatch
):
    """The other command holds the run's lock, and moves the run between two looks of this one."""
    assert slipway(*RUN, *HARDWARE, "--no-wait").exit_code == 0
    folder = RunFolder((workspace / "runs/latest").resolve())
    other = RunFolder(folder.path)
    looks: list[int] = []

    def moved() -> None:
        looks.append(1)
        if record(workspace)["status"] == "failed" and len(looks) > 20 and other.lock is not None:
            run.resume(other, lambda _: None)
            held.__exit__(None, None, None)

    held = other.held()
    held.__enter__()
    for module in (run, moves):
        monkeypatch.setattr(module, "pause", moved)
    assert slipway("status", "--follow").exit_code == 0
    assert jobs(regions) == [["run"], ["run-2"], ["run-3"]]


def test_a_command_that_missed_the_move_of_another_one_follows_the_new_try(
    regions: Regions, workspace: Path, slipway: Slipway, monkeypatch: pytest.MonkeyPatch
):
    assert slipway(*RUN, *HARDWARE, "--no-wait").exit_code == 0
    looks: list[int] = []

    def moved() -> None:
        """Between two looks, another command sees the failure and moves the run."""
        looks.append(1)
        if len(looks) == 1:
            while record(workspace)["status"] == "running":
                slipway("status")
            run.resume(RunFolder((workspace / "runs/latest").resolve()), lambda _: None)

    monkeypatch.setattr(run, "pause", moved)
    result = slipway("status", "--follow")
    assert result.exit_code == 0, result.output
    assert jobs(regions) == [["run"], ["run-2"], ["run-3"]]
    assert [each["region"] for each in record(workspace)["refused"]] == [REGION, SECOND]


def test_a_run_without_any_candidate_left_fails_and_is_resumed_with_the_first(
    ready_google: FakeGoogle, regions: Regions, workspace: Path, slipway: Slipway
):
    regions[THIRD].pipelines.script[TRAIN].failure = Failure(CAPACITY.replace(SECOND, THIRD), code=8)
    result = slipway(*RUN, *HARDWARE)
    assert result.exit_code == 1
    run_id = record(workspace)["run_id"]
    assert f"fix:      slipway run --resume {run_id}, later, from cpu*4 in europe-west4 on" in result.output
    assert [each["region"] for each in record(workspace)["refused"]] == [REGION, SECOND, THIRD]
    ready_google.world.quotas[PROJECT, REGION, CPUS] = 100
    assert slipway("run", "--resume", "latest").exit_code == 0
    assert jobs(regions) == [["run", "run-4"], ["run-2"], ["run-3"]]
    assert record(workspace)["region"] == REGION


def test_a_run_without_capacity_is_given_another_region(regions: Regions, workspace: Path, slipway: Slipway):
    listed = yaml.safe_load((workspace / "run.yaml").read_text())["vertex"]["regions"]
    change(workspace, regions={})
    regions[REGION].pipelines.script[TRAIN].failure = Failure(CAPACITY.replace(SECOND, REGION), code=8)
    result = slipway(*RUN)
    assert result.exit_code == 1
    then = "slipway run --resume latest --set vertex.regions.REGION.bucket=gs://BUCKET"
    assert f"fix:      continue in another region: {then};" in result.output
    third = yaml.safe_dump({THIRD: listed[THIRD]}, default_flow_style=True).strip()
    assert slipway("run", "--resume", "latest", "--set", f"vertex.regions={third}").exit_code == 0
    assert jobs(regions) == [["run"], [], ["run-2"]]
    assert [each["region"] for each in record(workspace)["refused"]] == [REGION]


def test_an_image_that_cannot_be_built_for_the_next_region_is_built_by_a_resumed_run(
    regions: Regions, workspace: Path, slipway: Slipway, monkeypatch: pytest.MonkeyPatch
):
    ensured = run.ensure_images

    def failing(config: RunConfig, *given: Any) -> Any:
        if config.vertex and config.vertex.region == SECOND:
            raise WorkFailed("The build failed.")
        return ensured(config, *given)

    with monkeypatch.context() as patch:
        patch.setattr(run, "ensure_images", failing)
        result = slipway(*RUN, *HARDWARE)
    assert (result.exit_code, "The build failed." in result.output) == (1, True), result.output
    kept = record(workspace)
    assert (kept["region"], kept["job"], kept["error"]["moves"]) == (SECOND, None, False)
    assert slipway("run", "--resume", "latest").exit_code == 0
    assert jobs(regions) == [["run"], ["run-2"], ["run-3"]]


def test_a_failure_of_the_program_does_not_move_the_run(regions: Regions, workspace: Path, slipway: Slipway):
    regions[SECOND].pipelines.script[TRAIN].failure = Failure()
    assert slipway(*RUN, *HARDWARE).exit_code == 1
    assert [len(each) for each in jobs(regions)] == [1, 1, 0]
    assert slipway("run", "--resume", "latest").exit_code == 1  # where it failed
    assert [len(each) for each in jobs(regions)] == [1, 2, 0]


def test_what_earlier_candidates_cost_is_part_of_the_bill_and_of_the_budget(
    regions: Regions, workspace: Path, slipway: Slipway, monkeypatch: pytest.MonkeyPatch
):
    for region in regions.values():
        end = region.jobs._end

        def ended(job: Any, *arguments: Any, end: Any = end) -> None:
            end(job, *arguments)
            job.start_time = job.end_time - timedelta(hours=3)

        monkeypatch.setattr(region.jobs, "_end", ended)
    hardware = ("--hardware", "cpu*4+timeout=4h")
    assert slipway(*RUN, *hardware, "--set", "budget=17").exit_code == 0
    _, second, third = (bill.per_hour for bill in bills(workspace))
    cost = record(workspace)["cost"]
    assert (cost["dollars"], cost["seconds"]) == (pytest.approx(3 * (second + third), rel=1e-3), 6 * 3600)
    tight = 16 * third + 1  # enough for the third region alone
    result = slipway(*RUN, *hardware, "--set", f"budget={tight}")
    assert result.exit_code == 1, result.output
    assert f"after ${3 * second:.2f} in earlier tries of this run" in result.output
    assert [len(each) for each in jobs(regions)] == [2, 2, 1]


def test_every_candidate_is_checked_before_anything_is_submitted(
    ready_google: FakeGoogle, regions: Regions, workspace: Path, slipway: Slipway
):
    ready_google.world.buckets[f"{BUCKET}-{THIRD}"]["location"] = "US-EAST1"
    refused = slipway(*CHECKED, *HARDWARE)
    assert (refused.exit_code, f"gs://{BUCKET}-{THIRD}" in refused.output) == (2, True), refused.output
    change(workspace, regions={"europe-north1": {"bucket": "gs://there"}})
    refused = slipway(*RUN, "--hardware", "a100x1")
    assert (refused.exit_code, "europe-north1" in refused.output) == (2, True), refused.output
    compiled = slipway("config", "compile", *CHECKED[1:], "--hardware", "a100x1", "-o", "spec.yaml")
    assert (compiled.exit_code, "europe-north1" in compiled.output) == (2, True), compiled.output
    assert ready_google.world.writes["pipelineJob"] == 0


def test_hardware_that_is_not_free_is_followed_by_the_next_with_the_same_batch(
    ready_google: FakeGoogle, regions: Regions, workspace: Path, slipway: Slipway
):
    change(workspace, regions={})
    values = yaml.safe_load((workspace / "run.yaml").read_text())
    (workspace / "run.yaml").write_text(yaml.safe_dump({**values, "hardware": ["cpu*4", "cpu*2"]}))
    result = slipway(*RUN)
    assert result.exit_code == 0, result.output
    assert "the batch is 64 examples as before: 32 per device on 2, not 16 on 4" in result.output
    kept = record(workspace)
    assert (kept["hardware"], kept["region"], kept["refused"][0]["hardware"]) == ("cpu*2", REGION, "cpu*4")
    assert kept["run_id"] in slipway("list", "--where", "hardware=cpu*2").output
    first, second = regions[REGION].pipelines.jobs.values()
    assert training_of(regions[REGION]).job_spec.worker_pool_specs[1].replica_count == 1
    replicas = [
        job.pipeline_spec["root"]["dag"]["tasks"]["prepare-data"]["inputs"]["parameters"]["replicas"]["runtimeValue"]
        for job in (first, second)
    ]
    assert replicas == [{"constant": 4.0}] * 2, "one data set is for all of the hardware"
    local = json.loads(slipway("doctor", "-c", "run.yaml", "--json").stdout)
    assert [
        (each["status"], "the first of 2 in the list" in each["found"]) for each in local if each["check"] == "hardware"
    ] == [("warning", True)]


def test_a_list_of_hardware_is_refused_on_kubeflow(workspace: Path, slipway: Slipway):
    values = yaml.safe_load((workspace / "run.yaml").read_text())
    settings = {"host": "http://localhost:1", "image": IMAGE, "pipeline_root": "gs://there"}
    (workspace / "run.yaml").write_text(yaml.safe_dump({**values, "hardware": ["cpu", "cpu*4"], "kubeflow": settings}))
    result = slipway("run", "-c", "run.yaml", "--target", "kubeflow")
    assert (result.exit_code, "Kueue chooses among flavors" in result.output) == (2, True), result.output


def test_a_job_of_flex_start_that_waited_in_vain_moves_the_run(
    regions: Regions, workspace: Path, slipway: Slipway, monkeypatch: pytest.MonkeyPatch
):
    """The error's words are not known: what counts is that the job never started, for as long as it might wait."""
    only_two(workspace)
    flex = (*RUN, "--hardware", "l4x1+flex+wait=2h")
    first = regions[REGION]
    end, waited = first.jobs._end, timedelta(hours=1)
    first.pipelines.script[TRAIN].failure = Failure("The job was not started.", code=4)

    def ended(job: Any, *arguments: Any) -> None:
        end(job, *arguments)
        job.start_time, job.create_time = None, job.end_time - waited

    monkeypatch.setattr(first.jobs, "_end", ended)
    assert slipway(*flex).exit_code == 1
    assert record(workspace)["refused"] == []
    waited = timedelta(hours=2)
    regions[SECOND].pipelines.script[TRAIN].failure = None
    assert slipway(*flex).exit_code == 0
    kept = record(workspace)
    assert (
        kept["refused"][0]["message"] == "No machines of this kind were free within 2.0 hours: The job was not started."
    )
    assert kept["region"] == SECOND


@pytest.mark.parametrize(("hardware", "moves"), [("l4x1", False), ("l4x1+spot", True)])
def test_replicas_that_were_stopped_too_often_move_only_a_run_on_spot_machines(
    hardware: str, moves: bool, regions: Regions, workspace: Path, slipway: Slipway
):
    only_two(workspace)
    regions[REGION].pipelines.script[TRAIN].failure = Failure(status=134)
    regions[SECOND].pipelines.script[TRAIN].failure = None
    assert slipway(*RUN, "--hardware", hardware).exit_code == (0 if moves else 1)
    assert record(workspace)["region"] == (SECOND if moves else REGION)


def test_setup_prepares_all_regions(ready_google: FakeGoogle, regions: Regions, workspace: Path, slipway: Slipway):
    change(workspace, regions={SECOND: {"bucket": "gs://slipway-test-new", "endpoints": {}}})
    result = slipway("setup", "-c", "run.yaml", "--apply")
    assert ready_google.world.buckets["slipway-test-new"]["location"] == SECOND.upper(), result.output
    assert [line for line in result.output.splitlines() if line in (REGION, SECOND)] == [REGION, SECOND]
    rows = json.loads(slipway("setup", "-c", "run.yaml", "--json").stdout)
    assert sum("slipway-test-new" in json.dumps(row) for row in rows) > 1


def configuration(hardware: Any = "cpu", **vertex: Any) -> RunConfig:
    section = {"project": "p", "region": REGION, "bucket": "gs://here", **vertex}
    return validate({**CONFIGURATION, "hardware": hardware, "vertex": section}, "run.yaml")


def test_an_empty_list_of_hardware_is_refused():
    with pytest.raises(UserError) as refused:
        configuration([])
    assert (refused.value.setting, refused.value.value) == ("hardware", [])


def test_candidates_are_tried_in_order_or_the_cheapest_first():
    listed = {"regions": {SECOND: {"bucket": "gs://there"}}}
    config = configuration(["l4x4*2", "a100x2*2+spot"], **listed)
    assert tuple(map(str, config.hardware)) == ("l4x4*2", "a100x2*2+spot")
    assert str(config.training_hardware) == "l4x4*2"
    found = candidates(config)
    assert [title_of(each) for each in found] == [
        "l4x4*2 in europe-west4",
        "l4x4*2 in us-central1",
        "a100x2*2+spot in europe-west4",
        "a100x2*2+spot in us-central1",
    ]
    assert [each.vertex.bucket for each in found if each.vertex] == ["gs://here", "gs://there"] * 2
    cheapest = candidates(configuration(["l4x4*2", "l4x4"], order="cheapest", **listed))
    bills = [run.vertex_bill(config.training_hardware, config.vertex.region) for config in cheapest if config.vertex]
    prices = [bill.per_hour for bill in bills]
    assert prices == sorted(prices)
    assert [title_of(each) for each in cheapest][:2] == ["l4x4 in us-central1", "l4x4 in europe-west4"]
    assert configuration(tuple(map(str, config.hardware)), **listed) == config, "a stored configuration is read back"


@pytest.mark.parametrize(
    ("vertex", "says"),
    [
        ({"regions": {REGION: {"bucket": "gs://there"}}}, "without region, which is europe-west4"),
        ({"regions": {"europe": {"bucket": "gs://there"}}}, "regions has 'europe'"),
        (
            {
                "regions": {SECOND: {"bucket": "gs://there"}},
                "encryption_key": "projects/p/locations/europe-west4/keyRings/r/cryptoKeys/k",
            },
            "us-central1 needs an encryption_key",
        ),
        ({"regions": {SECOND: {}}}, "vertex.regions.us-central1.bucket"),
    ],
)
def test_regions_that_cannot_be_used_are_refused(vertex: dict[str, Any], says: str):
    with pytest.raises(UserError) as refused:
        configuration(**vertex)
    assert says in str(refused.value)
