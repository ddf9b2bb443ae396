"""Commands that read BigQuery, as they are installed, in an empty folder but for the configuration and a network."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.fakes.google import PROJECT
from tests.installed.case import Case, Project, Services

pytestmark = [pytest.mark.timeout(1800), pytest.mark.extension("bigquery", "vertex")]

TEMPLATE = Path(__file__).parents[2] / "pipelines/templates/tabular"
TABLE = f"{PROJECT}.sales.houses"
COLUMNS = {"area": "INTEGER", "age": "FLOAT", "kind": "STRING", "sold": "DATE", "taxes": "NUMERIC", "price": "FLOAT"}
FIRST = (Case("run", "run", text=(r"✓ prepare_data .* 240 train", r"300 rows", "✓ register_model")),)
SCORED, LOG = f"{PROJECT}.sales.predicted", f"{PROJECT}.logs.requests"
LOGGED = {"logging_time": "TIMESTAMP", "request_payload": "ARRAY<STRING>", "response_payload": "ARRAY<STRING>"}
OTHERS = (
    Case(
        "batch", f"batch houses --input bigquery:{TABLE} --output bigquery:{SCORED} --processes 1",
        text=("houses .*: 300 inputs: 300 predicted", rf"loaded 300 rows into {SCORED}"), forked=True,
    ),
    Case(
        "batch into another table", f"batch houses --input bigquery:{TABLE} --output bigquery:{TABLE}", 2,
        text=("exists, and Slipway did not create it", f"fix: --output bigquery:{TABLE}_predictions"),
    ),
    Case("drift", f"drift houses bigquery:{LOG}", text="no drift: 300 examples", forked=True),
    Case(
        "a broken stream", "data check", text=rf"bigquery:{TABLE}: 300 rows",
        fault={"method": "ReadRows", "fault": 503, "times": 2},
    ),
    Case(
        "no permission", "data check", 2, fault={"method": "CreateReadSession", "fault": "permission denied"},
        text=("may not read", "bigquery.readsessions.create", "roles/bigquery.readSessionUser"),
    ),
    Case(
        "too many bytes", "run --set 'data.bigquery.max_bytes=1 KiB'", 2,
        text=(r"BigQuery would bill 1\d\.\d KiB", r"\$1\.10 per TiB", "fix: --set 'data.bigquery.max_bytes=1 GiB'"),
    ),
    Case(
        "no credentials", "data check", 2, text="no credentials for Google Cloud",
        environment={"GOOGLE_APPLICATION_CREDENTIALS": ""},
    ),
)  # fmt: skip


def test_from_a_table_to_a_model(services: Services, tmp_path: Path) -> None:
    draws = random.Random(0)
    rows = [
        [draws.randrange(20, 300), draws.uniform(0, 90), draws.choice(["flat", "house", "hut"]), "2026-03-01", "12.50",
         draws.uniform(1e5, 1e6)]
        for _ in range(300)
    ]  # fmt: skip
    services.ask("PUT", f"/tables/{TABLE}", {"columns": COLUMNS, "rows": rows})
    sent = [[{"area": row[0], "age": row[1], "kind": row[2], "sold": row[3], "taxes": 12.5}] for row in rows]
    payloads = [["2026-11-01T00:00:00+00:00", [json.dumps(one) for one in instances], ["1.0"]] for instances in sent]
    services.ask("PUT", f"/tables/{LOG}", {"columns": LOGGED, "rows": payloads})
    endpoints = services.sections["vertex"]["endpoints"]
    settings = {name: endpoints[name] for name in ("bigquery", "bigquerystorage")}
    configuration = {
        "name": "houses",
        "task": "regression",
        "data": {"source": f"bigquery:{TABLE}", "label": "price", "bigquery": {"endpoints": settings}},
        "model": {"builder": "model:build"},
        "train": {"epochs": 2, "batch_size": 32},
        "evaluate": {"gate": {"metric": "rmse", "maximum": 1e9}},
    }
    (tmp_path / "slipway.yaml").write_text(yaml.safe_dump(configuration))
    shutil.copy(TEMPLATE / "model.py", tmp_path)
    # Which modules threads import is another test's: here, steps and libraries have threads of their own.
    cases = [replace(case, environment={**case.environment, "SLIPWAY_TEST_IMPORTS": ""}) for case in (*FIRST, *OTHERS)]
    Project(services, tmp_path).check(cases)
    table = services.ask("GET", f"/tables/{SCORED}")
    assert table["columns"] == {"input": "STRING", "prediction": "FLOAT", "error": "STRING"}
    assert {row["error"] for row in table["rows"]} == {None}
