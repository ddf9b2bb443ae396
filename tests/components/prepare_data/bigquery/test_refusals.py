"""The source `bigquery:`: what is refused, and what it would be billed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipway.components.prepare_data.bigquery import spool
from slipway.components.prepare_data.settings import DataSettings, bytes_of
from slipway.core.errors import UserError
from tests.components.prepare_data.bigquery.conftest import (
    COLUMNS,
    REFERENCE,
    TABLE,
    Prepare,
    reads,
    refusal,
    rows_of,
)
from tests.fakes.errors import ServiceError
from tests.fakes.google import PROJECT, SUBMITTER, FakeGoogle
from tests.fakes.ready import grant
from tests.ports import free_port

pytestmark = pytest.mark.extension("bigquery")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT arae FROM `{table}`", "Unrecognized name: arae"),
        ("SELECT FROM", "Syntax error"),
        ("SELECT area FROM `{table}s`", "Not found: Table"),
        ("DELETE FROM `{table}` WHERE TRUE", "is a DELETE, not a query that reads"),
    ],
)
def test_queries_that_are_refused(prepared: Prepare, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "q.sql").write_text(text.format(table=TABLE))
    error = refusal(prepared, source=f"bigquery:{tmp_path / 'q.sql'}")
    assert message in error.message
    assert error.fix


def test_a_snapshot_needs_the_parameter(prepared: Prepare, tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text(f"SELECT area, label FROM `{TABLE}` -- @snapshot\n")
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    error = refusal(prepared, source=f"bigquery:{tmp_path / 'q.sql'}", bigquery={"snapshot": past})
    assert "does not use the parameter @snapshot" in error.message
    assert "FOR SYSTEM_TIME AS OF @snapshot" in str(error.fix)


@pytest.mark.parametrize(
    ("source", "message", "fix"),
    [
        (f"bigquery:`{TABLE}`", "backticks", f"--set data.source={REFERENCE}"),
        (f"bigquery:{PROJECT}:sales.houses", "legacy SQL", f"--set data.source={REFERENCE}"),
        (f"bigquery:[{PROJECT}:sales.houses]", "legacy SQL", f"--set data.source={REFERENCE}"),
        ("bigquery:sales.houses", "which project", "--set data.source=bigquery:PROJECT.sales.houses"),
        (f"{REFERENCE}$20260101", "part of a table", f"SELECT * FROM `{TABLE}` WHERE"),
        (f"bigquery:{PROJECT}.sales.h*", "part of a table", f"SELECT * FROM `{PROJECT}.sales.h*` WHERE"),
        ("bigquery:SELECT * FROM t", "stands in a file", "query.sql"),
        ("bigquery:nothing.sql", "No such file", "correct the path;"),
        (f"{REFERENCE}s", "has no table", f"--set data.source={REFERENCE}"),
        (f"bigquery:{PROJECT}.sale.houses", "Not found: Dataset", f"bq ls {PROJECT}:sale"),
    ],
)
def test_sources_that_are_refused(prepared: Prepare, source: str, message: str, fix: str) -> None:
    error = refusal(prepared, source=source)
    assert message in error.message
    assert fix in str(error.fix)


@pytest.mark.parametrize("kind", ["VIEW", "MATERIALIZED_VIEW", "EXTERNAL"])
def test_what_only_a_query_reads(houses: FakeGoogle, prepared: Prepare, kind: str) -> None:
    houses.bigquery.tables[TABLE].kind = kind
    error = refusal(prepared)
    assert f"is a {kind.replace('_', ' ').lower()}" in error.message
    assert f"SELECT * FROM `{TABLE}`" in str(error.fix)


@pytest.mark.parametrize(
    ("more", "setting"),
    [
        ({"label": "lable"}, "data.label"),
        ({"inputs": ["arae"]}, "data.inputs"),
        ({"group_by": "column:x"}, "data.group_by"),
    ],
)
def test_missing_columns_are_refused_before_rows_are_read(
    houses: FakeGoogle, prepared: Prepare, more: dict[str, Any], setting: str
) -> None:
    assert refusal(prepared, **more).setting == setting
    assert not houses.faults.calls["BigQueryRead.CreateReadSession"]


def test_the_cost_of_a_table_is_limited(houses: FakeGoogle, prepared: Prepare) -> None:
    houses.bigquery.tables[TABLE].size = 3 << 40
    error = refusal(prepared)
    assert "would bill 3.0 TiB" in error.message
    assert "about $3.30 at $1.10 per TiB, of which 300 TiB per month are free" in error.message
    assert (error.setting, error.value) == ("data.bigquery.max_bytes", "100 GiB")
    assert str(error.fix).startswith("--set 'data.bigquery.max_bytes=3072 GiB'")
    assert reads(houses) == 0


def test_the_cost_of_a_query_is_limited_twice(houses: FakeGoogle, prepared: Prepare, tmp_path: Path) -> None:
    file = tmp_path / "q.sql"
    file.write_text(f"SELECT area, label FROM `{TABLE}`")
    error = refusal(prepared, source=f"bigquery:{file}", bigquery={"max_bytes": "5 MiB"})  # a query bills at least 10
    assert "would bill 10.0 MiB" in error.message
    assert "$6.25 per TiB" in error.message
    houses.bigquery.tables[TABLE].size = 1 << 41
    with pytest.raises(UserError, match=r"would bill 2\.0 TiB"):
        prepared(source=f"bigquery:{file}")
    assert len(houses.bigquery.jobs) == 1


@pytest.mark.parametrize(
    ("size", "count"), [("100 GiB", 100 << 30), ("1.5 tb", 1_500_000_000_000), (7, 7), ("2MiB", 1 << 21)]
)
def test_sizes(size: str | int, count: int) -> None:
    assert bytes_of(size) == count


@pytest.mark.parametrize("size", ["much", "0", "-1 GiB", "GiB"])
def test_what_is_no_size(size: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        bytes_of(size)


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (timedelta(days=-8), "more than seven days ago"),
        (timedelta(days=1), "in the future"),
        (timedelta(days=-5), "Cannot read before"),
    ],
)
def test_times_that_are_refused(houses: FakeGoogle, prepared: Prepare, time: timedelta, message: str) -> None:
    name = f"{PROJECT}.sales.new"
    houses.bigquery.add_table(name, COLUMNS, rows_of(100), datetime.now(UTC) - timedelta(days=2))
    snapshot = (datetime.now(UTC) + time).isoformat()
    error = refusal(prepared, source=f"bigquery:{name}", bigquery={"snapshot": snapshot})
    assert message in error.message
    assert error.setting == "data.bigquery.snapshot"


@pytest.mark.parametrize(
    ("roles", "missing", "fix"),
    [
        ((), "bigquery.tables.get", "roles/bigquery.dataViewer"),
        (("dataViewer",), "bigquery.readsessions.create", "roles/bigquery.readSessionUser"),
    ],
)
def test_missing_permissions(
    houses: FakeGoogle, prepared: Prepare, roles: tuple[str, ...], missing: str, fix: str
) -> None:
    houses.world.owners.clear()
    for role in roles:
        grant(houses, f"projects/{PROJECT}", f"roles/bigquery.{role}", SUBMITTER)
    error = refusal(prepared)
    assert missing in error.message
    assert fix in str(error.fix)


def test_the_roles_that_suffice(houses: FakeGoogle, prepared: Prepare, tmp_path: Path) -> None:
    houses.world.owners.clear()
    for role in ("dataViewer", "readSessionUser"):
        grant(houses, f"projects/{PROJECT}", f"roles/bigquery.{role}", SUBMITTER)
    prepared()
    (tmp_path / "q.sql").write_text(f"SELECT area, label FROM `{TABLE}`")
    assert "roles/bigquery.jobUser" in str(refusal(prepared, source=f"bigquery:{tmp_path / 'q.sql'}").fix)
    grant(houses, f"projects/{PROJECT}", "roles/bigquery.jobUser", SUBMITTER)
    prepared(source=f"bigquery:{tmp_path / 'q.sql'}")


def test_an_empty_table(houses: FakeGoogle, prepared: Prepare) -> None:
    houses.bigquery.add_table(f"{PROJECT}.sales.empty", COLUMNS, [])
    error = refusal(prepared, source=f"bigquery:{PROJECT}.sales.empty")
    assert f"{PROJECT}.sales.empty lists no rows" in error.message
    assert error.value == f"bigquery:{PROJECT}.sales.empty"


def test_errors_name_the_table(houses: FakeGoogle, prepared: Prepare) -> None:
    name = f"{PROJECT}.sales.keys"
    houses.bigquery.add_table(name, {"id": "STRING", "label": "FLOAT"}, [[f"k{n}", n / 3] for n in range(100)])
    error = refusal(prepared, source=f"bigquery:{name}")
    assert error.message.startswith(f"No column of {name} is an input: id is probably an identifier")
    assert error.value == f"bigquery:{name}"
    assert ".parquet" not in str(error)


def test_an_error_of_one_stream_ends_the_others(houses: FakeGoogle, prepared: Prepare) -> None:
    houses.faults.plan("ReadRows", ServiceError(403, "The caller does not have permission"))
    error = refusal(prepared)
    assert "bigquery.readsessions.getData is missing" in error.message
    assert "roles/bigquery.readSessionUser" in str(error.fix)


def test_an_api_that_is_not_enabled(houses: FakeGoogle, prepared: Prepare) -> None:
    for api in ("bigquerystorage", "bigquery"):
        houses.world.projects[PROJECT].services.discard(f"{api}.googleapis.com")
        assert f"gcloud services enable {api}.googleapis.com" in str(refusal(prepared).fix)


def test_a_service_that_cannot_be_reached(
    settings: Callable[..., DataSettings], prepared: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints = {**settings().bigquery.endpoints, "bigquerystorage": f"localhost:{free_port()}"}
    error = refusal(prepared, bigquery={"endpoints": endpoints})
    assert endpoints["bigquerystorage"] in error.message


def test_a_full_disk_is_noticed_before_rows_are_read(
    houses: FakeGoogle, prepared: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    error = refusal(prepared)
    assert "has room for 10 bytes" in error.message
    assert reads(houses) == 0
