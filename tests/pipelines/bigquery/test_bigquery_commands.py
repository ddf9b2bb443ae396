"""BigQuery as input and output of predictions, and the check of a run elsewhere."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from slipway.components.cloud.settings import CloudSettings
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError
from slipway.pipelines.bigquery import inputs, predictions
from slipway.pipelines.bigquery.checks import CHECKS
from slipway.pipelines.checks import examine
from slipway.pipelines.cli import batch
from slipway.pipelines.config.config import load
from slipway.pipelines.platforms.base import Context
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.prediction.inputs import listed
from slipway.pipelines.prediction.output import destination
from tests.fakes.errors import ServiceError
from tests.fakes.google import PROJECT, SUBMITTER, FakeGoogle
from tests.fakes.ready import grant

pytestmark = pytest.mark.extension("bigquery", "vertex")

TABLE, SCORED = f"{PROJECT}.sales.houses", f"{PROJECT}.sales.scored"
COLUMNS = {"area": "INTEGER", "kind": "STRING", "photo": "BYTES"}
LOG = {"logging_time": "TIMESTAMP", "request_payload": "ARRAY<STRING>", "response_payload": "ARRAY<STRING>"}
TIME = "2026-11-01T00:00:00+00:00"


@pytest.fixture(autouse=True)
def project(google: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project on Google Cloud with a table of houses."""
    from tests.fakes.ready import vertex_settings

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    configuration = {
        "name": "houses", "task": "regression", "data": {"source": "csv:none.csv"}, "train": {"epochs": 1},
        "model": {"builder": "model:build"}, "vertex": vertex_settings(google),
    }  # fmt: skip
    (tmp_path / "slipway.yaml").write_text(yaml.safe_dump(configuration))
    google.bigquery.add_table(TABLE, COLUMNS, [[n, "flat", "x"] for n in range(250)])
    return tmp_path


def test_a_table_is_copied_once(google: FakeGoogle) -> None:
    lines: list[str] = []
    first = inputs.fetch(f"bigquery:{TABLE}", lines.append)
    content = first.read_bytes()
    assert inputs.fetch(f"bigquery:{TABLE}", lines.append) == first
    assert (first.read_bytes(), len(lines)) == (content, 1)
    (part,) = listed([f"bigquery:{TABLE}"], "test")
    assert sum(piece.examples or 0 for piece in part.divided(100)) == 250
    google.bigquery.add_table(TABLE, COLUMNS, [[1, "flat", "x"]] * 3)
    (part,) = listed([f"bigquery:{TABLE}"], "test")
    assert sum(piece.examples or 0 for piece in part.divided(100)) == 3
    assert sorted(path.name for path in first.parent.iterdir()) == [f"{TABLE}.json", f"{TABLE}.parquet"]


def test_an_unfinished_copy_is_not_used(google: FakeGoogle) -> None:
    google.faults.plan("ReadRows", ServiceError(403, "The caller does not have permission"), times=3)
    with pytest.raises(UserError, match="may not read the rows"):
        inputs.fetch(f"bigquery:{TABLE}", print)
    assert not list(Path(os.environ["XDG_CACHE_HOME"]).rglob("*.*"))


def test_the_limit_is_that_of_the_configuration(google: FakeGoogle, project: Path) -> None:
    google.bigquery.tables[TABLE].size = 1 << 41
    with pytest.raises(UserError, match=r"would bill 1\.3 TiB"):  # two of three columns
        inputs.fetch(f"bigquery:{TABLE}", print)
    file = project / "slipway.yaml"
    file.write_text(
        file.read_text().replace("source: csv:none.csv", "source: csv:none.csv\n  bigquery: {max_bytes: 2 TiB}")
    )
    google.bigquery.tables[TABLE].size = None
    inputs.fetch(f"bigquery:{TABLE}", print)


def test_a_log_of_an_endpoint_is_its_instances(google: FakeGoogle, project: Path) -> None:
    raw = json.dumps({"instances": [{"area": 3}, {"area": 4}]})
    payloads = [['{"area": 1}', '{"area": 2}'], [raw], [], ["no\nJSON"], ["[1, 2]"]]
    google.bigquery.add_table(f"{PROJECT}.logs.requests", LOG, [[TIME, texts, []] for texts in payloads])
    file = inputs.fetch(f"bigquery:{PROJECT}.logs.requests", print)
    assert file.suffix == ".jsonl"
    expected = ['{"area": 1}', '{"area": 2}', '{"area": 3}', '{"area": 4}', "[1, 2]", "no JSON"]
    assert sorted(file.read_text().splitlines()) == sorted(expected)
    query = f"SELECT request_payload FROM `{PROJECT}.logs.requests` WHERE logging_time < '2026-12'"
    (project / "last.sql").write_text(query)
    assert sorted(inputs.fetch("bigquery:last.sql", print).read_text().splitlines()) == sorted(expected)


@pytest.mark.parametrize(
    ("prediction", "row"),
    [
        ({"prediction": 2}, {"prediction": 2.0}),
        (
            {"label": "a", "classes": ["a", "b"], "probabilities": [0.75, 0.25]},
            {"label": "a", "probability": 0.75, "probabilities": [
                {"label": "a", "probability": 0.75}, {"label": "b", "probability": 0.25}]},
        ),
        ({"labels": ["a"], "probabilities": [0.75]}, {"probabilities": [{"label": "a", "probability": 0.75}]}),
        ({"label": "a", "more": 1}, {"prediction_json": '{"label": "a", "more": 1}'}),
        ([1, "é"], {"prediction_json": '[1, "é"]'}),
    ],
)  # fmt: skip
def test_predictions_become_a_table(google: FakeGoogle, tmp_path: Path, prediction: Any, row: dict[str, Any]) -> None:
    for number in range(2):  # the second one replaces the first
        table = destination(f"bigquery:{SCORED}")
        assert isinstance(table, predictions.PredictionTable)
        assert table.folder == Path(f"{SCORED}.predictions")
        folder = tmp_path / "made"
        folder.mkdir()
        lines = [{"input": f"row {n}", "prediction": prediction} for n in range(number + 2)]
        (folder / "part-00000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "errors.jsonl").write_text(json.dumps({"input": "row 9", "error": "no number"}) + "\n")
        assert table.write(folder) == f"loaded {number + 3} rows into {SCORED}"
        assert not folder.exists()
    loaded = google.bigquery.tables[SCORED]
    assert loaded.labels == {"slipway": "batch"}
    rows = loaded.newest.to_pylist()
    assert len(rows) == 4
    assert rows[0] == {"input": "row 0", "error": None, **row}
    assert rows[-1] == {"input": "row 9", "error": "no number", **dict.fromkeys(row)}


@pytest.mark.parametrize(
    ("output", "message", "fix"),
    [
        (f"bigquery:{TABLE}", "Slipway did not create it", f"--output bigquery:{TABLE}_predictions"),
        (f"bigquery:{PROJECT}.scores.houses", "no dataset", f"bq mk --dataset --location=LOCATION {PROJECT}:scores"),
        ("bigquery:scores.houses", "which project", "--output bigquery:PROJECT.scores.houses"),
        (f"bigquery:`{SCORED}`", "no backticks", f"--output bigquery:{SCORED}"),
        ("bigquery:query.sql", "not to a query", None),
    ],
)
def test_outputs_that_are_refused(output: str, message: str, fix: str | None) -> None:
    with pytest.raises(UserError, match=message) as raised:
        destination(output)
    assert (raised.value.setting, raised.value.fix) == ("--output", fix)


def test_a_table_that_appears_meanwhile_is_not_overwritten(google: FakeGoogle, tmp_path: Path) -> None:
    table = destination(f"bigquery:{SCORED}")
    assert table is not None
    google.bigquery.add_table(SCORED, {"a": "INTEGER"}, [[1]])
    (tmp_path / "part-00000.jsonl").write_text('{"input": "row 1", "prediction": {"prediction": 1.0}}\n')
    (tmp_path / "errors.jsonl").write_text("")
    with pytest.raises(UserError, match="Slipway did not create it"):
        table.write(tmp_path)
    assert google.bigquery.tables[SCORED].fields == {"a": "INTEGER"}


def test_writing_needs_a_role(google: FakeGoogle, tmp_path: Path) -> None:
    google.world.owners.clear()
    for role in ("dataViewer", "jobUser"):
        grant(google, f"projects/{PROJECT}", f"roles/bigquery.{role}", SUBMITTER)
    table = destination(f"bigquery:{SCORED}")
    assert table is not None
    (tmp_path / "part-00000.jsonl").write_text('{"input": "row 1", "prediction": {"prediction": 1.0}}\n')
    (tmp_path / "errors.jsonl").write_text("")
    with pytest.raises(UserError, match=r"bigquery\.tables\.create is missing") as raised:
        table.write(tmp_path)
    assert "roles/bigquery.dataEditor" in str(raised.value.fix)
    assert (tmp_path / "part-00000.jsonl").exists()


def test_the_run_of_a_section_is_billed() -> None:
    class Section(CloudSettings):
        section = "vertex"
        endpoints: dict[str, str] = {"bigquery": "host:1", "storage": "host:2"}  # noqa: RUF012

    data = Section(project="mine").reading(DataSettings(source=f"bigquery:{TABLE}"))
    assert (data.bigquery.project, data.bigquery.endpoints) == ("mine", {"bigquery": "host:1"})
    other = Section(project="mine").reading(DataSettings.model_validate(
        {"source": f"bigquery:{TABLE}", "bigquery": {"project": "other", "endpoints": {"bigquery": "host:3"}}}
    ))  # fmt: skip
    assert (other.bigquery.project, other.bigquery.endpoints) == ("other", {"bigquery": "host:3"})


def test_streams_of_a_log_are_read_each_time(google: FakeGoogle) -> None:
    google.bigquery.add_table(TABLE, COLUMNS, [[1, "flat", "x"]], datetime.now(UTC), is_streamed=True)
    lines: list[str] = []
    for _ in range(2):
        inputs.fetch(f"bigquery:{TABLE}", lines.append)
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("roles", "status", "text"),
    [(None, "pass", "BigQuery bills"), ((), "warning", "The account of the run may have this permission")],
)
def test_the_check_of_a_run_elsewhere(
    google: FakeGoogle, project: Path, roles: tuple[str, ...] | None, status: str, text: str
) -> None:
    google.bigquery.add_table(TABLE, {**COLUMNS, "label": "FLOAT"}, [[n, "flat", "x", n / 3] for n in range(9)])
    if roles is not None:
        google.world.owners.clear()
    overrides = [f"data.source=bigquery:{TABLE}", "data.inputs=[area, kind]"]
    context = Context(load(project / "slipway.yaml", overrides), platform_of("vertex"), False, project)
    (check,) = CHECKS
    result = examine(check, context)
    assert (result.status, text in result.found) == (status, True)
    elsewhere = Context(load(project / "slipway.yaml"), platform_of("vertex"), False, project)
    assert examine(check, elsewhere).status == "skipped"


def test_the_spec_of_a_run_on_vertex_has_the_billed_project(project: Path) -> None:
    config = load(project / "slipway.yaml", [f"data.source=bigquery:{TABLE}"])
    vertex = config.section(CloudSettings)
    assert vertex is not None
    assert config.prepared is not None
    assert vertex.reading(config.prepared).bigquery.project == PROJECT


def test_the_folder_of_another_batch_is_named(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    def refuse(*_: object) -> None:
        raise UserError("The inputs have changed.", setting="--input", value="x", fix="--output a-2")

    monkeypatch.setattr(batch, "_predict", refuse)
    table = destination(f"bigquery:{SCORED}")
    assert table is not None
    made = SimpleNamespace(folder=table.folder)
    with pytest.raises(UserError) as raised:
        batch._on_this_machine(made, 1, 1.0, table, strict=False, as_json=False)  # type: ignore[arg-type]
    assert raised.value.fix == "--output bigquery:PROJECT.DATASET.TABLE of another table"
