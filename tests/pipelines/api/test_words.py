"""What Python's callers read and write: fixes as calls, settings as values, tables and curves."""

from __future__ import annotations

import ast
import importlib.util
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slipway
from slipway.core.errors import UserError
from slipway.core.yaml_loader import load_yaml
from slipway.pipelines.api.errors import in_python
from slipway.pipelines.api.notebook import runs_table, sparkline, summary_html
from slipway.pipelines.api.starting import overrides
from slipway.pipelines.runs.record import ErrorRecord, RunRecord, StepRecord
from tests.pipelines.comparison.test_comparison import run


@pytest.mark.parametrize(
    ("fix", "call"),
    [
        ("slipway run -c my.yaml --set train.epochs=5", "slipway.run('my.yaml', settings={'train.epochs': 5})"),
        ("--set model.builder=m:f, or --hardware 'l4x4*2'", "settings={'model.builder': 'm:f'}, or hardware='l4x4*2'"),
        ("slipway run --resume digits-1", 'slipway.runs()["digits-1"].resume()'),
        ("slipway run --only evaluate --from a-1", 'slipway.runs()["a-1"].rerun(only="evaluate")'),
        (
            "slipway run --from-step train --from a-1 --set train.epochs=5",
            'slipway.runs()["a-1"].rerun(settings={\'train.epochs\': 5}, from_step="train")',
        ),
        ("slipway status a-1, or slipway cancel a-1", 'slipway.runs()["a-1"], or slipway.runs()["a-1"].cancel()'),
        ("slipway rehearse --steps 5", "slipway.rehearse(steps=5)"),
        ("slipway list, which shows the runs", "slipway.runs(), which shows the runs"),
        ("slipway list --sort accuracy", "slipway list --sort accuracy"),
        ("slipway doctor", "slipway.check()"),
        ("--set a.b=2 (same batch), or --set a.c=64", "settings={'a.b': 2} (same batch), or settings={'a.c': 64}"),
        ("free disk space, then repeat the command", "free disk space, then repeat the command"),
    ],
)
def test_a_fix_is_worded_as_a_call(fix: str, call: str) -> None:
    assert in_python(fix) == call


def test_a_call_in_a_fix_is_python() -> None:
    found = in_python("slipway run -c my.yaml --set 'model.weights.skip=[a, b]' --hardware cpu*2")
    call = ast.parse(str(found)).body[0]
    assert ast.unparse(call) == (
        "slipway.run('my.yaml', hardware='cpu*2', settings={'model.weights.skip': ['a', 'b']})"
    )


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text("abc", min_size=1), each, max_size=3),
    max_leaves=6,
)


@given(values)
def test_a_setting_keeps_its_value(value: object) -> None:
    (text,) = overrides({"train.x": value})
    name, _, content = text.partition("=")
    assert name == "train.x"
    assert load_yaml(content, "test") == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32(0.002), "0.002"),
        (np.int64(8), "8"),
        (np.bool_(True), "true"),
        (np.array([1, 2]), "[1, 2]"),
        ((1, 2), "[1, 2]"),
        (Path("a/b"), "a/b"),
        (1e-05, "1.0e-05"),
    ],
)
def test_a_setting_of_another_type_is_a_plain_value(value: Any, text: str) -> None:
    assert overrides({"x": value}) == [f"x={text}"]


def test_a_setting_without_a_form_in_yaml_is_refused() -> None:
    with pytest.raises(UserError, match=r"The setting train\.x is object"):
        overrides({"train.x": object()})


def record(**values: Any) -> RunRecord:
    steps = [StepRecord(name="train", status="succeeded", seconds=2.0)]
    fields = {"run_id": "r-1", "name": "r", "platform": "local", "hardware": "cpu", "created": datetime.now(UTC)}
    return RunRecord(**{**fields, "steps": steps, **values})


def test_tables_escape_what_users_wrote() -> None:
    failed = record(status="failed", error=ErrorRecord(step="train", message="<script>x</script>"))
    shown = summary_html(failed, [])
    assert "<script>" not in shown
    assert "&lt;script&gt;x&lt;/script&gt;" in shown
    assert "r-1" in runs_table([failed])
    judged = record()
    verdict = {"decision": "reject", "reasons": ["It is below 0.9.", "It is <worse>."]}
    judged.steps.append(StepRecord(name="evaluate", status="succeeded", outputs={"verdict": verdict}))
    assert "reject. It is below 0.9. It is &lt;worse&gt;." in summary_html(judged, [])


def test_the_curve_shows_the_validation_loss_and_else_the_training_loss() -> None:
    train = [{"kind": "train", "loss": 3.0}, {"kind": "train", "loss": 1.0}]
    validation = [{"kind": "validation", "loss": 2.0}, {"kind": "validation", "loss": 0.5}]
    assert "validation loss from 2.0000 to 0.5000" in sparkline([*train, *validation])
    assert "train loss from 3.0000 to 1.0000" in sparkline(train)
    assert sparkline(train[:1]) == ""
    assert "2.0,2.0 158.0,34.0" in sparkline(train), "the first value is the highest, the last one the lowest"


def test_the_package_offers_the_api_and_nothing_else() -> None:
    assert set(dir(slipway)) == {
        "CrossValidation", "Model", "Rejected", "Report", "Run", "RunFailed", "Runs",
        "check", "compare", "cross_validate", "hardware", "model", "rehearse", "run", "runs",
    }  # fmt: skip
    with pytest.raises(AttributeError, match="has no attribute 'launch'"):
        slipway.launch  # noqa: B018


def test_a_notebook_shows_an_error_with_the_users_lines_only() -> None:
    try:
        slipway.run("missing.yaml")
    except UserError as error:
        shown = error._render_traceback_()
    assert len(shown) == 2
    assert f"{__file__}:" in shown[0]
    assert 'slipway.run("missing.yaml")' in shown[0]
    assert shown[1].startswith("error: the configuration missing.yaml does not exist.")


def test_an_interrupt_is_shown_in_two_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run(tmp_path, 3, 0.1, "adam", None)
    found = slipway.Run(ended.folder)
    monkeypatch.setattr(slipway.Run, "_follow", interrupt)
    with pytest.raises(KeyboardInterrupt) as stopped:
        found._waited()
    assert stopped.value._render_traceback_() == [
        "run run-3 is failed",
        'to continue: slipway.runs()["run-3"].resume()',
    ]
    ended.folder.write(replace(ended.record, status="running", platform="vertex"))
    with pytest.raises(KeyboardInterrupt) as waiting:
        found.wait()
    assert waiting.value._render_traceback_() == ["run run-3 continues", 'to follow it: slipway.runs()["run-3"].wait()']


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_data_frame_as_a_setting_says_how_to_store_it() -> None:
    with pytest.raises(UserError, match=r"data\.source is a DataFrame") as caught:
        overrides({"data.source": pandas.DataFrame({"x": [1]})})
    assert caught.value.fix == 'df.to_parquet("data.parquet"), and {"data.source": "parquet:data.parquet"}'


def test_learning_curves_are_a_figure(tmp_path: Path) -> None:
    figure = slipway.Run(run(tmp_path, 1, 0.1, "adam", 0.9).folder).plot()
    (axes,) = figure.axes
    (line,) = axes.lines
    assert (axes.get_ylabel(), line.get_label()) == ("accuracy", "validation")
    assert line.get_xydata().tolist() == [[1, 0.1], [2, 0.2]]
    with pytest.raises(UserError, match="'accurracy'"):
        slipway.Run(run(tmp_path, 2, 0.1, "adam", 0.9).folder).plot("accurracy")


def test_runs_are_compared_on_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    with pytest.raises(UserError, match="There are no runs yet"):
        slipway.compare()
    first, second, _ = (run(Path("runs"), number, 0.1**number, "adam", 0.9) for number in (1, 2, 3))
    page = slipway.compare(slipway.Run(first.folder), second.record.run_id)
    assert "run-1" in page.html
    assert "run-2" in page.html
    assert "run-3" not in page.html
    assert "run-3" in slipway.compare().html
    assert 'title="3 runs compared"' in slipway.compare()._repr_html_()


def test_runs_of_a_function_show_its_constants_and_changed_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    for number, (width, units) in enumerate([(12, 10), (32, 10), (32, 20)]):
        source = f"def net(shape):\n    return WIDTH, {units}\n"
        Path(f"net_{number:08x}.py").write_text(f'"""Captured."""\n\nWIDTH = {width}\n\n\n{source}')
        folder = run(Path("runs"), number, 0.1, "adam", 0.9).folder
        folder.configuration_file.write_text(f"model: {{builder: 'net_{number:08x}:net'}}\n")
    frame = slipway.runs().frame().sort_index()
    assert frame["net.WIDTH"].tolist() == ["12", "32", "32"]
    assert frame["model.builder"].tolist() == ["net", "net", "net with return WIDTH, 20"]
    assert "net with return WIDTH, 20" in slipway.compare().html
    Path("net_00000002.py").unlink()
    assert slipway.runs().frame().sort_index()["model.builder"].tolist()[2] == "net_00000002:net"


def test_a_model_of_rejected_runs_is_not_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    row = run(Path("runs"), 1, 0.1, "adam", 0.5)
    row.record.step("evaluate").outputs["verdict"] = {"decision": "reject", "reasons": ["accuracy 0.5 is below 0.9."]}
    row.folder.write(row.record)
    for name in ("digits", None):
        with pytest.raises(UserError, match=r"is registered: The run run-1 was rejected\. accuracy 0\.5 is below"):
            slipway.model(name)
    with pytest.raises(UserError, match="There is no model other"):
        slipway.model("other")


def test_a_table_without_pandas_names_its_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pandas" else find_spec(name))
    with pytest.raises(UserError, match="package pandas is not installed") as missing:
        slipway.runs().frame()
    assert missing.value.fix == "pip install 'slipway-ml[notebook]'"
