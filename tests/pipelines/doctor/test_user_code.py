"""The user's modules and program are checked before anything is prepared."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipway.core.errors import UserError
from slipway.pipelines.config.config import validate
from slipway.pipelines.doctor import imported, user_code
from slipway.pipelines.platforms.base import CheckWarning, Context, NotApplicableError
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.tuning.search import settings_of

WRITES = "from slipway import training\ntraining.model_dir()\n"


def context(folder: Path, target: Any = "local", **sections: Any) -> Context:
    config = validate({"name": "own", "train": {"module": "program"}, **sections}, "the test")
    return Context(config, platform_of(target), False, folder)


def network(folder: Path, source: str, target: Any = "local") -> Context:
    (folder / "nets.py").write_text(source)
    sections = {"data": {"source": "digits"}, "model": {"builder": "nets:build"}, "train": {"epochs": 1}}
    return context(folder, target, **sections)


@pytest.mark.parametrize(
    ("source", "target", "problem"),
    [
        ("def build(:\n", "local", r"nets is not valid Python: .* \(nets.py:1: def build\(:\)"),
        ("def build(:\n", "vertex", "nets is not valid Python"),
        ("x = 1\nbuild = kers.Input\n", "local", r"NameError.*\(nets.py:2: build = kers.Input\)"),
        ("import json\ndef f(): json.loads('')\nf()\n", "local", r"JSONDecodeError.*\(nets.py:2: "),
        ("globals()['biuld'] = print\n", "local", "nets has no function 'build'"),
        ("import os\nprint('bye')\nos.abort()\n", "local", "ended its process with status 134"),
    ],
)
def test_a_module_that_does_not_import_is_refused_with_its_own_line(
    tmp_path: Path, source: str, target: str, problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        user_code.imports(network(tmp_path, source, target))


def test_modules_that_import_pass_and_their_output_does_not_matter(tmp_path: Path) -> None:
    source = "import os\nassert os.environ['KERAS_BACKEND']\nprint('{}')\ndef build(a, b): ...\n"
    assert user_code.imports(network(tmp_path, source)) == "nets:build"
    missing = network(tmp_path, "import nowhere_installed\ndef build(a, b): ...\n", "vertex")
    assert user_code.imports(missing) == "nets:build"  # the image may have what this machine has not


def test_what_imported_is_imported_again_when_something_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    start = imported.Child

    def child(name: str, *arguments: Any, **options: Any) -> Any:
        started.append(name)
        return start(name, *arguments, **options)

    monkeypatch.setattr(imported, "Child", child)
    (tmp_path / "layers.py").write_text("size = 1\n")
    subject = network(tmp_path, "import json\nimport layers\ndef build(a, b): ...\n")

    def starts() -> int:
        started.clear()
        assert user_code.imports(subject) == "nets:build"
        return len(started)

    assert [starts(), starts()] == [1, 0]
    (tmp_path / "other.txt").write_text("not a module\n")
    assert starts() == 0
    (tmp_path / "layers.py").write_text("size = 2\n")
    assert [starts(), starts()] == [1, 0]
    (tmp_path / "json.py").write_text("")  # in place of the module that was imported
    assert [starts(), starts()] == [1, 0]
    for _ in range(2):  # a mistake is not remembered
        (tmp_path / "layers.py").write_text("size = unknown\n")
        with pytest.raises(UserError, match=r"NameError.*\(layers.py:1: size = unknown\)"):
            starts()
        assert started
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    (tmp_path / "layers.py").write_text("size = 2\n")
    assert [starts(), starts()] == [1, 1]


def test_without_a_module_of_the_project_nothing_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imported, "Child", lambda *_, **__: pytest.fail("a process was started"))
    sections = {"data": {"source": "digits"}, "train": {"epochs": 1}}
    builder = "slipway.trainer.models.digits:build"
    with pytest.raises(NotApplicableError):
        user_code.imports(context(tmp_path, model={"builder": builder}, **sections))


def test_a_program_is_not_run_and_its_missing_imports_are_named(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import nowhere_installed.x\nopen('ran', 'w')\n")
    with pytest.raises(UserError, match=r"imports nowhere_installed, .*program.py:1: import nowhere_installed.x"):
        user_code.imports(context(tmp_path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("source", "sections", "problem"),
    [
        ("import tensorflow, keras.layers\n", {}, "saves no model to AIP_MODEL_DIR"),
        ("from slipway import training\ntraining.finish({'accuracy': 1})\n", {}, "saves no model"),
        ("import os\nopen(os.environ['AIP_MODEL_DIR'])\n", {}, "writes no metrics.json"),
        ("import os\nopen(os.environ['AIP_MODEL_DIR'])\n", {"data": {"source": "digits"}}, None),
        ("import json\n", {"train": {"module": "program", "arguments": ["--job-dir", "$(AIP_MODEL_DIR)"]}}, None),
        (f"{WRITES}training.finish({{'acuracy': 1}})\n", {}, "judges accuracy, and program returns acuracy"),
        (f"{WRITES}training.finish(measured)\n", {}, None),
        (f"{WRITES}training.finish({{'accuracy': 1, 'x': 2}})\n", {}, None),
    ],
)
def test_what_a_program_writes_is_known_before_it_runs(
    tmp_path: Path, source: str, sections: Any, problem: str | None
) -> None:
    (tmp_path / "program.py").write_text(source)
    if problem is None:
        assert user_code.outputs(context(tmp_path, **sections)) == "program writes its results"
        return
    with pytest.raises(UserError, match=problem):
        user_code.outputs(context(tmp_path, **sections))


def test_a_script_with_an_option_for_its_output_is_adopted_without_a_change(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import argparse\nargparse.ArgumentParser().add_argument('--output_dir')\n")
    subject = context(tmp_path, train={"module": "program", "arguments": ["--epochs", 10]})
    with pytest.raises(UserError, match="saves no model") as refused:
        user_code.outputs(subject)
    option, value = shlex.split(str(refused.value.fix))
    assert (option, value) == ("--set", 'train.arguments=["--epochs", "10", "--output_dir", "$(AIP_MODEL_DIR)"]')
    fixed = subject.config.model_dump(by_alias=True)
    fixed["train"]["arguments"] = json.loads(value.partition("=")[2])
    user_code.outputs(replace(subject, config=validate(fixed, "the test")))


@pytest.mark.parametrize(
    "source",
    [
        "import keras\nkeras.callbacks.TensorBoard('logs')\n",
        "import tensorflow as tf\ntf.summary.scalar('loss', 1)\n",
        "from torch.utils.tensorboard import SummaryWriter\n",
    ],
)
def test_tensorboard_is_missed_before_the_run(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text(source)
    known = user_code.module_spec
    monkeypatch.setattr(
        user_code,
        "module_spec",
        lambda name, folder: None if name == "tensorboard" else name == "torch" or known(name, folder),
    )
    with pytest.raises(UserError, match=r"tensorboard is not installed \(program\.py:[12]: "):
        user_code.imports(context(tmp_path))
    with pytest.raises(CheckWarning, match="images do not have that package"):
        user_code.imports(context(tmp_path, "vertex"))
    (tmp_path / "requirements.txt").write_text("tensorboard==2.20\n")
    assert user_code.imports(context(tmp_path, "vertex")) == "program"


@pytest.mark.parametrize(
    ("report", "target", "problem"),
    [
        ("training.report(1, kind='validation', score=1)", "local", None),
        ("training.report(1, epoch=1, kind='validation', **logs)", "local", None),
        ("training.report(1, kind=split, score=1)", "local", None),
        ("fit(callback=training.report)", "local", None),
        ("open('metrics.jsonl', 'a')", "local", None),
        ("import hypertune", "vertex", None),
        ("import hypertune", "local", "reports no metric of the validation split, not score"),
        ("pass", "local", "reports no metric of the validation split, not score"),
        ("training.report(1, score=1)", "local", "reports no metric of the validation split, not score"),
        ("training.report(1, epoch=1, kind='validation', scores=1)", "local", "reports scores of the validation split"),
    ],
)
def test_a_search_needs_a_program_that_reports_its_metric(
    tmp_path: Path, report: str, target: str, problem: str | None
) -> None:
    (tmp_path / "program.py").write_text(f"{WRITES}training.finish({{'score': 1}})\ndef validate():\n    {report}\n")
    tune = {"parameters": {"--rate": {"low": 0.1, "high": 0.5}}, "metric": "score", "direction": "maximize"}
    gate = {"gate": {"metric": "score", "direction": "maximize"}}
    own = context(tmp_path, target, tune=tune, evaluate=gate)
    user_code.outputs(own)  # a run does not need it
    searching = replace(own, search=settings_of(own.config))
    if problem is None:
        user_code.outputs(searching)
        return
    with pytest.raises(UserError, match=problem) as refused:
        user_code.outputs(searching)
    assert refused.value.nearest == ("scores" if "scores" in report else None)
    assert "scores" in report or 'slipway.training.report(step, kind="validation", score=…)' in str(refused.value.fix)


def test_a_program_whose_library_may_write_the_model_is_doubtful(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import trainer_of_others\n")
    with pytest.raises(CheckWarning, match="unless trainer_of_others does"):
        user_code.outputs(context(tmp_path))


@pytest.mark.parametrize(("returned", "problem"), [("{'acc': 1}", "judges accuracy"), ("dict(acc=1)", None)])
def test_the_gates_metric_is_one_that_the_evaluation_returns(
    tmp_path: Path, returned: str, problem: str | None
) -> None:
    (tmp_path / "program.py").write_text(WRITES)
    (tmp_path / "score.py").write_text(f"def evaluate(model, data):\n    return {returned}\n")
    own = context(tmp_path, evaluate={"module": "score:evaluate"})
    if problem is None:
        user_code.outputs(own)
        return
    with pytest.raises(UserError, match=problem) as error:
        user_code.outputs(own)
    assert error.value.setting == "evaluate.gate.metric"
