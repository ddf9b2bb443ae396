"""A table whose columns have names of any kind, from `slipway init` to predictions, drift and slices."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
import yaml

from tests.end_to_end.workspace import record_in
from tests.ports import free_port
from tests.serving.client import ask, until

pytestmark = pytest.mark.slow
CATEGORIES = ("Marital status", "kind (x)", "kind/x", "性別", "class")
NUMBERS = ("a b", "a/b", "年齢", "[z] 100 %", "x" * 200)


def slipway(folder: Path, *arguments: str, code: int = 0) -> str:
    """Run a command; return what it printed."""
    command = [sys.executable, "-m", "slipway.pipelines", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def is_ready(port: int) -> bool:
    try:
        return ask(port, "/health")[0] == 200
    except OSError:
        return False


def table_of(seed: int, rows: int) -> pandas.DataFrame:
    """Return rows whose label is that of the last number's sign."""
    rng = np.random.default_rng(seed)
    table = pandas.DataFrame({name: rng.choice(["Bern", "Rome", "Wil"], rows) for name in CATEGORIES})
    for name in NUMBERS:
        table[name] = rng.normal(size=rows).round(4)
    table["label"] = np.where(table[NUMBERS[-1]] > 0, "up", "down")
    return table


def test_columns_of_any_name_from_init_to_drift(tmp_path: Path) -> None:
    table = table_of(0, 300)
    table.to_csv(tmp_path / "table.csv", index=False)
    slipway(tmp_path, "init", "work", "--table", "table.csv", "--label", "label")
    project = tmp_path / "work"
    configuration = yaml.safe_load((project / "slipway.yaml").read_text())
    configuration["evaluate"] = {**configuration.get("evaluate", {}), "slices": [*CATEGORIES, "a/b>0"]}
    configuration["evaluate"]["gate"] = {"baseline": False}
    configuration["train"] |= {"epochs": 2}
    (project / "slipway.yaml").write_text(yaml.safe_dump(configuration, allow_unicode=True))
    slipway(project, "run")
    record = record_in(project / "runs/latest")
    assert record["verdict"]["decision"] == "promote"
    report = html.unescape(Path(record["report"]).read_text().replace("<wbr>", ""))
    for name in CATEGORIES:
        assert f"{name}=Bern" in report

    new = table_of(1, 50).drop(columns="label")
    new.to_csv(project / "new.csv", index=False)
    lines = new.to_json(orient="records", lines=True, force_ascii=False)
    (project / "new.jsonl").write_text(lines)
    slipway(project, "predict", "work", "new.csv", "-o", "csv.jsonl")
    slipway(project, "predict", "work", "new.jsonl", "-o", "lines.jsonl")
    slipway(project, "batch", "work", "--input", "new.csv", "--output", "batch")
    expected = [json.loads(line)["prediction"] for line in (project / "csv.jsonl").read_text().splitlines()]
    for file in ("lines.jsonl", "batch/part-00000.jsonl"):
        found = [json.loads(line)["prediction"] for line in (project / file).read_text().splitlines()]
        assert [each["label"] for each in found] == [each["label"] for each in expected]

    port = free_port()
    command = [sys.executable, "-m", "slipway.pipelines", "serve", "work", "--port", str(port)]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: is_ready(port), 300)
            instances = json.dumps({"instances": new.to_dict("records")}).encode()
            for body, kind in ((instances, "application/json"), ((project / "new.csv").read_bytes(), "text/csv")):
                status, answer = ask(port, "/predict", body, kind)
                assert status == 200, answer
                assert [each["label"] for each in answer["predictions"]] == [each["label"] for each in expected]
        finally:
            server.terminate()

    drifted = slipway(project, "drift", "work", "new.csv", "--json")
    features = {each["feature"] for each in json.loads(drifted)["features"]}
    assert {*CATEGORIES, *NUMBERS} <= features
