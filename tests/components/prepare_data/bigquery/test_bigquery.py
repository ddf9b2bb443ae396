"""The source `bigquery:`: what is read, and the data set that it becomes."""

from __future__ import annotations

import filecmp
import pickle
import shutil
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from slipway.components.prepare_data.bigquery import service
from slipway.components.prepare_data.listing.plan import Plan, stored_settings
from slipway.components.prepare_data.settings import BigQuerySettings, DataSettings
from slipway.components.prepare_data.sources import check_source, open_source
from slipway.core.errors import UserError
from tests.components.prepare_data.bigquery.conftest import (
    COLUMNS,
    MONTH,
    REFERENCE,
    TABLE,
    Prepare,
    reads,
    refusal,
    rows_of,
)
from tests.fakes.errors import ConnectionReset, ServiceError, Stall
from tests.fakes.google import PROJECT, FakeGoogle

pytestmark = pytest.mark.extension("bigquery")


def test_a_table_becomes_a_data_set(houses: FakeGoogle, prepared: Prepare) -> None:
    result = prepared()
    about = result.manifest
    assert {name: split.examples for name, split in about.splits.items()} == {
        "train": 320,
        "validation": 40,
        "test": 40,
    }
    assert {name: entry.kind for name, entry in about.inputs.items()} == {
        "area": "number", "kind": "category", "zip": "category",
    }  # fmt: skip
    time = (MONTH + timedelta(milliseconds=1)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert about.notes == [
        f"The 400 rows are those of {TABLE} in BigQuery as of {time}.",
        "The column zip is a category: it is a STRING in BigQuery, although all its texts are numbers.",
    ]
    assert about.source == REFERENCE


def test_an_unchanged_table_is_not_read_again(houses: FakeGoogle, prepared: Prepare) -> None:
    first = prepared()
    calls = reads(houses)
    second = prepared()
    assert second.reused
    assert second.folder == first.folder
    assert second.manifest == first.manifest
    assert reads(houses) == calls == 3


def test_a_snapshot_has_the_same_bytes_however_its_rows_are_divided(prepared: Prepare, tmp_path: Path) -> None:
    first, second = prepared(), prepared(store=str(tmp_path / "other"))
    names = [path.name for path in first.folder.iterdir()]
    assert filecmp.cmpfiles(first.folder, second.folder, names, shallow=False) == (names, [], [])


def test_a_changed_table_is_another_data_set(houses: FakeGoogle, prepared: Prepare) -> None:
    first = prepared()
    houses.bigquery.add_table(TABLE, COLUMNS, rows_of(300, seed=1))
    second = prepared()
    assert first.manifest.fingerprint != second.manifest.fingerprint
    assert sum(split.examples for split in second.manifest.splits.values()) == 300


def test_the_time_is_part_of_the_fingerprint(houses: FakeGoogle, prepared: Prepare) -> None:
    first = prepared()
    houses.bigquery.add_table(TABLE, COLUMNS, rows_of(400))
    second = prepared()
    assert first.manifest.fingerprint != second.manifest.fingerprint
    assert first.manifest.splits["train"].shards == second.manifest.splits["train"].shards


def test_a_snapshot_is_fixed(houses: FakeGoogle, prepared: Prepare) -> None:
    houses.bigquery.add_table(TABLE, COLUMNS, rows_of(300), datetime.now(UTC) - timedelta(hours=2))
    houses.bigquery.add_table(TABLE, COLUMNS, rows_of(200))
    for hours, count in ((1, 300), (30, 400)):
        time = datetime.now(UTC) - timedelta(hours=hours)
        result = prepared(bigquery={"snapshot": time.isoformat()})
        assert sum(split.examples for split in result.manifest.splits.values()) == count


def test_a_table_snapshot_is_read_as_it_is(houses: FakeGoogle, prepared: Prepare) -> None:
    houses.bigquery.tables[TABLE].kind = "SNAPSHOT"
    prepared()
    assert prepared().reused


def test_rows_that_are_streamed_are_read_each_time(houses: FakeGoogle, prepared: Prepare) -> None:
    houses.bigquery.tables[TABLE].is_streamed = True
    prepared()
    prepared()
    assert reads(houses) == 6


def test_types_of_columns(houses: FakeGoogle, prepared: Prepare) -> None:
    columns = {
        "whole": "INTEGER", "real": "FLOAT", "exact": "NUMERIC", "long": "BIGNUMERIC", "yes": "BOOLEAN",
        "day": "DATE", "local": "DATETIME", "moment": "TIMESTAMP", "hour": "TIME", "label": "NUMERIC",
    }  # fmt: skip
    rows = [
        [
            n % 9, n / 3 if n % 5 else None, f"{n}.25", f"{n}.5", bool(n % 2), f"2026-03-{1 + n % 28:02d}",
            f"2026-03-01T{n % 24:02d}:00:00", f"2026-03-01T{n % 24:02d}:00:00+00:00", f"{n % 12:02d}:30:00", f"{n}.5",
        ]
        for n in range(100)
    ]  # fmt: skip
    houses.bigquery.add_table(f"{PROJECT}.sales.types", columns, rows)
    result = prepared(source=f"bigquery:{PROJECT}.sales.types")
    kinds = {name: entry.kind for name, entry in result.manifest.inputs.items()}
    assert kinds == {
        "whole": "number", "real": "number", "exact": "number", "long": "number", "yes": "category",
        "day": "date", "local": "date", "moment": "date", "hour": "category",
    }  # fmt: skip
    assert result.manifest.inputs["real"].nullable


def test_only_columns_with_a_use_are_read(
    houses: FakeGoogle, settings: Callable[..., DataSettings], prepared: Prepare
) -> None:
    columns = {
        **COLUMNS,
        "photo": "BYTES",
        "rooms": "ARRAY<STRING>",
        "at": "RECORD",
        "where": "GEOGRAPHY",
        "more": "JSON",
    }
    name = f"{PROJECT}.sales.wide"
    houses.bigquery.add_table(
        name, columns, [[*row, "x", ["a"], {"part": "b"}, "POINT(0 0)", "{}"] for row in rows_of(100)]
    )
    error = refusal(prepared, source=f"bigquery:{name}")
    assert (
        "photo is bytes; rooms is an ARRAY<STRING>; at is a STRUCT; where is a GEOGRAPHY; more is JSON" in error.message
    )
    assert error.fix is not None
    assert error.fix.startswith("""--set 'data.inputs=["area", "kind", "zip"]', or read its parts""")
    assert reads(houses) == 0
    assert "photo is bytes." in refusal(prepared, source=f"bigquery:{name}", inputs=["area", "photo"]).message
    result = prepared(source=f"bigquery:{name}", inputs=["area", "kind"])
    assert [*result.manifest.inputs] == ["area", "kind"]
    part = check_source(settings(source=f"bigquery:{name}", inputs=["area"]), "regression")
    whole = houses.bigquery.tables[name].bytes
    assert "BigQuery bills" in part
    assert f"{whole / 1024:.1f} KiB" not in part


def test_ids_and_groups(houses: FakeGoogle, prepared: Prepare) -> None:
    assert "zip" not in prepared(group_by="column:zip").manifest.inputs
    name = f"{PROJECT}.sales.named"
    houses.bigquery.add_table(
        name, {"id": "STRING", **COLUMNS}, [[f"k{n}", *row] for n, row in enumerate(rows_of(100))]
    )
    named = prepared(source=f"bigquery:{name}", id="id")
    assert [*named.manifest.inputs] == ["area", "kind", "zip"]
    assert prepared(source=f"bigquery:{name}", id="id").reused


def test_splits_in_time(houses: FakeGoogle, prepared: Prepare) -> None:
    name = f"{PROJECT}.sales.dated"
    rows = [[f"2026-{1 + n // 28:02d}-{1 + n % 28:02d}", *row] for n, row in enumerate(rows_of(200))]
    houses.bigquery.add_table(name, {"sold": "DATE", **COLUMNS}, rows)
    result = prepared(source=f"bigquery:{name}", order_by="column:sold")
    assert [*result.manifest.inputs] == ["area", "kind", "zip"]
    assert prepared(source=f"bigquery:{name}", order_by="column:sold").reused


def test_queries(houses: FakeGoogle, prepared: Prepare, tmp_path: Path) -> None:
    file = tmp_path / "flats.sql"
    file.write_text(f"SELECT area, zip, label FROM `{TABLE}` FOR SYSTEM_TIME AS OF @snapshot WHERE kind = 'flat'")
    first = prepared(source=f"bigquery:{file}")
    assert [*first.manifest.inputs] == ["area", "zip"]
    jobs = len(houses.bigquery.jobs)
    assert prepared(source=f"bigquery:{file}").reused
    assert len(houses.bigquery.jobs) == jobs == 1
    (job,) = houses.bigquery.jobs.values()
    assert job["configuration"]["query"]["maximumBytesBilled"] == str(100 << 30)
    houses.bigquery.add_table(TABLE, COLUMNS, rows_of(100))
    houses.bigquery.add_table(TABLE, COLUMNS, rows_of(50), datetime.now(UTC) - timedelta(hours=1))
    past = (datetime.now(UTC) - timedelta(minutes=30)).isoformat()
    again = prepared(source=f"bigquery:{file}", bigquery={"snapshot": past})
    assert sum(split.examples for split in again.manifest.splits.values()) < 50


def test_a_query_whose_rows_can_change_is_run_each_time(houses: FakeGoogle, prepared: Prepare, tmp_path: Path) -> None:
    file = tmp_path / "q.sql"
    for text, is_repeatable in ((" -- RAND()", True), (" WHERE CURRENT_DATE IS NOT NULL", False)):
        file.write_text(f"SELECT area, label FROM `{TABLE}`{text}\n")
        prepared(source=f"bigquery:{file}")
        jobs = len(houses.bigquery.jobs)
        prepared(source=f"bigquery:{file}")
        assert (len(houses.bigquery.jobs) == jobs) == is_repeatable


def test_a_stream_that_breaks_off_is_continued(houses: FakeGoogle, prepared: Prepare) -> None:
    whole = prepared()
    for error in (ConnectionReset(), ServiceError(503, "The service is currently unavailable.")):
        houses.faults.plan("ReadRows", error, lost=True)
        houses.faults.plan("ReadRows", error, at_call=2)
    again = prepared(seed=1)
    assert houses.faults.struck.total() == 4
    assert sum(split.examples for split in again.manifest.splits.values()) == sum(
        split.examples for split in whole.manifest.splits.values()
    )


def test_a_query_is_inserted_once_and_cancelled_with_the_step(
    houses: FakeGoogle, prepared: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "q.sql").write_text(f"SELECT area, label FROM `{TABLE}`")
    houses.faults.plan("POST /bigquery/v2/projects/slipway-test/jobs", ConnectionReset(), lost=True, at_call=2)
    prepared(source=f"bigquery:{tmp_path / 'q.sql'}")
    assert len(houses.bigquery.jobs) == 1
    houses.bigquery.polls = 1000

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(service.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepared(source=f"bigquery:{tmp_path / 'q.sql'}", seed=1)
    assert [job["cancelled"] for job in houses.bigquery.jobs.values()] == [False, True]


def test_a_source_is_sent_to_workers(settings: Callable[..., DataSettings]) -> None:
    source = open_source(settings(), "regression")
    copy = pickle.loads(pickle.dumps(source))
    assert (copy.inputs, copy.revision, len(copy.parts())) == (source.inputs, source.revision, 1)


def test_a_signal_does_not_wait_for_streams(houses: FakeGoogle, prepared: Prepare) -> None:
    houses.faults.plan("ReadRows", Stall(60), times=3)
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    started = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            prepared()
    finally:
        signal.signal(signal.SIGALRM, previous)
        houses.faults.clear()
    assert time.monotonic() - started < 10


def test_a_data_set_that_was_deleted_is_read_again(houses: FakeGoogle, prepared: Prepare) -> None:
    first = prepared()
    shutil.rmtree(first.folder)
    second = prepared()
    assert (second.reused, second.manifest) == (False, first.manifest)
    assert reads(houses) == 6


def test_columns_that_are_called_as_one_of_images(houses: FakeGoogle, prepared: Prepare) -> None:
    name = f"{PROJECT}.sales.files"
    houses.bigquery.add_table(name, {"file": "STRING", "path": "STRING", "label": "FLOAT"}, [
        ["ab"[n % 2], "cd"[n % 2], n / 3] for n in range(60)
    ])  # fmt: skip
    assert [*prepared(source=f"bigquery:{name}").manifest.inputs] == ["file", "path"]


def test_the_project_that_is_billed(monkeypatch: pytest.MonkeyPatch) -> None:
    def billed(project: str | None = None, owner: str = "") -> str:
        return service.Warehouse(BigQuerySettings(project=project), owner).project

    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "this-one")
    assert billed("mine", "theirs") == "mine"
    assert billed(owner="theirs") == "this-one"
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    monkeypatch.setattr(service, "_project_of_credentials", lambda: None)
    assert billed(owner="theirs") == "theirs"
    with pytest.raises(UserError, match="which project BigQuery bills"):
        billed()


def test_the_digits_do_not_know_of_it() -> None:
    about = stored_settings(DataSettings(source="digits"), "digits", Plan([], {}, {}, 0, 0))
    assert "bigquery" not in about
