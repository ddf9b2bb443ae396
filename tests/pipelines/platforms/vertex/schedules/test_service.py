"""Never two schedules with one name: lost responses, failing calls, concurrent apply."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipway.components.cloud.connection import Connection
from slipway.core.errors import UserError
from slipway.pipelines.platforms.vertex.schedules.difference import NAME_PREFIX, Desired, differences
from slipway.pipelines.platforms.vertex.schedules.files import FILES
from slipway.pipelines.platforms.vertex.schedules.result import ScheduleResult
from slipway.pipelines.platforms.vertex.schedules.service import Schedules
from tests.fakes.errors import ConnectionReset, ServiceError
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.ready import BUCKET, RUNNER
from tests.fakes.vertex.schedules import ScheduleService

SPECIFICATION: dict[str, Any] = {
    "schemaVersion": "2.1.0",
    "pipelineInfo": {"name": "digits"},
    "components": {"comp-one": {"executorLabel": "exec-one"}},
    "deploymentSpec": {"executors": {"exec-one": {"container": {"image": "r.example.com/i:1", "command": ["run"]}}}},
    "root": {"dag": {"tasks": {"one": {"taskInfo": {"name": "one"}, "componentRef": {"name": "comp-one"}}}}},
}


@pytest.fixture
def service(ready_google: FakeGoogle) -> ScheduleService:
    return ready_google.region.schedules


@pytest.fixture
def noon(service: ScheduleService) -> None:
    """Let the service's clock show noon: no time of a schedule passes by itself during a test."""
    now = datetime.now(UTC)
    service.ahead = now.replace(hour=12, minute=0) + timedelta(days=1) - now


@pytest.fixture
def most(service: ScheduleService) -> list[int]:
    """The maximum number of schedules with one name at the same time, updated at every write."""
    seen: list[int] = []

    class Watched(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            super().__setitem__(key, value)
            names = [one.display_name for one in self.values()]
            seen.append(max(map(names.count, names)))

    service.schedules = Watched()
    return seen


@pytest.fixture
def wanted(write: Callable[..., Path], google: FakeGoogle) -> Callable[..., Any]:
    """Return the Schedule of a file with these settings, with a small job."""
    from google.cloud.aiplatform_v1 import types

    from slipway.pipelines.platforms.vertex.schedules.difference import desired as make

    def made(labels: dict[str, str] | None = None, **settings: Any) -> Any:
        job = types.PipelineJob(
            display_name="digits",
            pipeline_spec=SPECIFICATION,
            service_account=RUNNER,
            runtime_config={"gcs_output_directory": f"gs://{BUCKET}/pipelines"},
            labels=labels or {},
        )
        return make(FILES.read(write(**settings)), job, f"projects/{PROJECT}/locations/{REGION}").schedule

    return made


def reconciled(schedules: Schedules, want: Any, paused: bool | None) -> ScheduleResult:
    """Apply a desired schedule in place of that of the file nightly.yaml."""
    file = FILES.read_one("nightly")
    result = ScheduleResult(file.name, file.config, file)
    schedules.reconcile(result, Desired(want, paused))
    return result


def schedules(google: FakeGoogle) -> Schedules:
    return Schedules(Connection(PROJECT, REGION, google.endpoints))


def only(service: ScheduleService) -> Any:
    [schedule] = service.schedules.values()
    return schedule


def test_a_second_apply_changes_nothing(google: FakeGoogle, service: ScheduleService, wanted: Any) -> None:
    want = wanted(max_active_runs=2, max_runs=9, end="2999-01-01", allow_queueing=True, start="2998-01-01")
    first = reconciled(schedules(google), want, None)
    writes = google.world.writes.total()
    again = reconciled(schedules(google), want, None)
    assert (len(first.done), again.done) == (1, [])
    assert google.world.writes.total() == writes
    made = only(service)
    assert (made.cron, made.display_name) == ("TZ=Europe/Berlin 0 3 * * *", f"{NAME_PREFIX}nightly")
    assert (made.max_concurrent_run_count, made.max_concurrent_active_run_count, made.max_run_count) == (1, 2, 9)
    assert (made.allow_queueing, made.end_time.year, made.start_time.year) == (True, 2998, 2997)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"cron": "0 4 * * *"}, ["cron"]),
        ({"time_zone": "UTC"}, ["cron"]),
        ({"max_concurrent_runs": 3, "allow_queueing": True}, ["max_concurrent_runs", "allow_queueing"]),
        ({"end": "2999-01-01", "max_runs": 5}, ["end", "max_runs"]),
        ({"start": "2998-01-01"}, ["start"]),
        ({"labels": {"slipway-commit": "abc"}}, ["job.labels.slipway-commit"]),
    ],
)
def test_a_change_is_shown_by_field_and_updates_the_schedule(
    google: FakeGoogle, service: ScheduleService, wanted: Any, change: dict[str, Any], fields: list[str]
) -> None:
    reconciled(schedules(google), wanted(), None)
    before = only(service)
    want = wanted(**change)
    assert [one.field for one in differences(Desired(want, None), before, datetime.now(UTC))] == fields
    reconciled(schedules(google), want, None)
    assert only(service).name == before.name
    assert differences(Desired(want, None), only(service), datetime.now(UTC)) == []


@pytest.mark.parametrize("limit", [{"max_runs": 5}, {"end": "2999-01-01"}, {"max_active_runs": 2}])
def test_removing_a_limit_replaces_the_schedule_without_duplicates(
    google: FakeGoogle, service: ScheduleService, wanted: Any, most: list[int], limit: dict[str, Any]
) -> None:
    reconciled(schedules(google), wanted(**limit), None)
    before = only(service).name
    applied = reconciled(schedules(google), wanted(), None)
    assert only(service).name != before
    assert "cannot unset" in applied.done[0]
    assert max(most) == 1


@pytest.mark.usefixtures("noon")
def test_an_ended_schedule_is_recreated_only_when_its_file_changes(
    google: FakeGoogle, service: ScheduleService, wanted: Any
) -> None:
    reconciled(schedules(google), wanted(max_runs=2), None)
    assert len(service.move(timedelta(days=5))) == 2
    ended = only(service)
    assert ended.state.name == "COMPLETED"
    assert reconciled(schedules(google), wanted(max_runs=2), None).done == []
    reconciled(schedules(google), wanted(max_runs=4), None)
    assert only(service).name != ended.name
    assert len(service.move(timedelta(days=9))) == 4


def test_a_created_schedule_is_found_if_the_response_is_lost(
    google: FakeGoogle, service: ScheduleService, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    def after(method: str) -> None:
        if method == "ScheduleService.CreateSchedule" and not lost:
            lost.append(method)
            raise ConnectionReset

    monkeypatch.setattr(google.faults, "after", after)
    reconciled(schedules(google), wanted(), None)
    assert lost
    assert only(service).display_name == f"{NAME_PREFIX}nightly"


@pytest.mark.parametrize("order", ["the other first", "the other in between"])
def test_two_concurrent_applies_keep_the_same_schedule(
    google: FakeGoogle, service: ScheduleService, wanted: Any, order: str
) -> None:
    want, mine = wanted(), schedules(google)
    client = mine.connection.schedules
    create = client.create_schedule

    def interleaved(**arguments: Any) -> Any:
        client.create_schedule = create
        if order == "the other first":
            reconciled(schedules(google), want, None)
            return create(**arguments)
        made = create(**arguments)
        # The other has looked before there was one, and makes a second.
        Schedules(Connection(PROJECT, REGION, google.endpoints)).connection.schedules.create_schedule(**arguments)
        return made

    client.create_schedule = interleaved
    applied = reconciled(mine, want, None)
    assert any("duplicate" in text for text in applied.done)
    kept = only(service)
    assert applied.resource.name == kept.name
    assert reconciled(schedules(google), want, None).done == []
    # Neither of the two was due before the second one was deleted.
    assert kept.start_time > kept.create_time + timedelta(minutes=1)


@pytest.mark.parametrize("seed", range(3))
def test_many_concurrent_applies_leave_one_schedule(
    google: FakeGoogle, service: ScheduleService, wanted: Any, seed: int
) -> None:
    print(f"seed {seed}")
    google.faults._random.seed(seed)
    google.faults.share = 0.1
    want = wanted()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            reconciled(schedules(google), want, None)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert only(service).state.name == "ACTIVE"


@pytest.mark.parametrize("seed", range(1, 5))
def test_apply_works_if_a_quarter_of_all_calls_fail(
    google: FakeGoogle, service: ScheduleService, wanted: Any, most: list[int], seed: int
) -> None:
    print(f"seed {seed}")
    google.faults._random.seed(seed)
    google.faults.share = 0.25
    ours = schedules(google)
    reconciled(ours, wanted(max_runs=5), None)
    reconciled(ours, wanted(cron="0 4 * * *"), None)
    made = only(service)
    ours.pause(made.name)
    assert only(service).state.name == "PAUSED"
    ours.resume(made.name, catch_up=True)
    assert (only(service).state.name, only(service).catch_up) == ("ACTIVE", True)
    ours.delete(made, None)
    assert not service.schedules
    assert google.faults.struck.total() > 0
    assert max(most) == 1


@pytest.mark.usefixtures("noon")
@pytest.mark.parametrize(("catch_up", "jobs"), [(True, 3), (False, 0)])
def test_catch_up_starts_the_missed_runs(
    google: FakeGoogle, service: ScheduleService, wanted: Any, catch_up: bool, jobs: int
) -> None:
    ours = schedules(google)
    reconciled(ours, wanted(), None)
    service.move(timedelta(days=1))
    ours.pause(only(service).name)
    assert service.move(timedelta(days=3)) == []
    ours.resume(only(service).name, catch_up=catch_up)
    assert len(service.move(timedelta())) == jobs
    assert len(service.move(timedelta(days=1))) == 1


@pytest.mark.usefixtures("noon")
@pytest.mark.parametrize(("queueing", "later"), [(True, 2), (False, 1)])
def test_a_run_above_the_limit_is_queued_or_skipped(
    google: FakeGoogle, service: ScheduleService, wanted: Any, queueing: bool, later: int
) -> None:
    reconciled(schedules(google), wanted(max_active_runs=1, allow_queueing=queueing), None)
    [running] = service.move(timedelta(days=2))
    google.region.pipelines.run_to_end(running.name)
    jobs = service.move(timedelta(days=1))
    for job in jobs:
        google.region.pipelines.run_to_end(job.name)
    jobs += service.move(timedelta())
    assert len(jobs) == later


@pytest.mark.usefixtures("noon")
def test_a_schedule_paused_in_its_file_is_created_paused_and_stays_paused(
    google: FakeGoogle, service: ScheduleService, wanted: Any
) -> None:
    ours = schedules(google)
    reconciled(ours, wanted(), True)
    assert service.move(timedelta(days=2)) == []
    ours.resume(only(service).name, catch_up=False)
    assert reconciled(ours, wanted(), True).done[-1].startswith("paused")
    assert reconciled(ours, wanted(), False).done[-1].startswith("resumed")
    ours.pause(only(service).name)
    assert reconciled(ours, wanted(), None).done == []
    assert only(service).state.name == "PAUSED"


def test_other_schedules_are_not_changed(google: FakeGoogle, service: ScheduleService, wanted: Any) -> None:
    theirs = wanted()
    theirs.display_name = "nightly"
    Connection(PROJECT, REGION, google.endpoints).schedules.create_schedule(
        parent=f"projects/{PROJECT}/locations/{REGION}", schedule=theirs
    )
    reconciled(schedules(google), wanted(), None)
    assert {one.display_name for one in service.schedules.values()} == {"nightly", f"{NAME_PREFIX}nightly"}
    assert len(schedules(google).all()) == 1


def test_apply_gives_up_against_another_process_that_keeps_changing_the_schedule(
    google: FakeGoogle, service: ScheduleService, wanted: Any
) -> None:
    want, ours = wanted(), schedules(google)
    reconciled(ours, want, None)
    client = ours.connection.schedules
    update = client.update_schedule

    def undone(**arguments: Any) -> Any:
        answer = update(**arguments)
        only(service).cron = "TZ=UTC 1 1 * * *"
        return answer

    client.update_schedule = undone
    with pytest.raises(UserError, match="another process"):
        reconciled(ours, wanted(cron="0 5 * * *"), None)


@pytest.mark.parametrize(
    "broken",
    [
        lambda schedule: setattr(schedule, "cron", "0 3 * *"),
        lambda schedule: setattr(schedule, "cron", "TZ=Europe/Berln 0 3 * * *"),
        lambda schedule: setattr(schedule, "max_concurrent_run_count", 0),
        lambda schedule: setattr(schedule, "end_time", datetime(2020, 1, 1, tzinfo=UTC)),
        lambda schedule: setattr(schedule.create_pipeline_job_request, "pipeline_job_id", "always-the-same"),
    ],
)
def test_the_fake_rejects_what_the_service_rejects(google: FakeGoogle, wanted: Any, broken: Any) -> None:
    schedule = wanted()
    broken(schedule)
    with pytest.raises(Exception, match="400"):
        Connection(PROJECT, REGION, google.endpoints).schedules.create_schedule(
            parent=f"projects/{PROJECT}/locations/{REGION}", schedule=schedule
        )


def test_a_rejected_call_is_not_retried(google: FakeGoogle, service: ScheduleService, wanted: Any) -> None:
    google.faults.plan("CreateSchedule", ServiceError(403, "No."), times=9)
    with pytest.raises(Exception, match="No"):
        reconciled(schedules(google), wanted(), None)
    assert google.faults.struck["ScheduleService.CreateSchedule"] == 1
    assert not service.schedules


def test_a_bug_is_not_taken_for_a_lost_response() -> None:
    """The schedule is in the state already, as after a call whose response was lost."""
    client = SimpleNamespace(get_schedule=lambda name: name)
    schedules = Schedules(SimpleNamespace(schedules=client))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        schedules._until("s", lambda: len(5), lambda _: True)  # type: ignore[arg-type]
