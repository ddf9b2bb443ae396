"""The checks of a custom program, its data and its evaluation, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError
from slipway.pipelines.config.config import validate
from slipway.pipelines.doctor import configuration, model_builder
from slipway.pipelines.platforms.base import CheckWarning, Context, NotApplicableError
from slipway.pipelines.platforms.table import platform_of

IMAGE = f"registry/own@sha256:{'0' * 64}"


def subject(folder: Path, target: Any = "local", runner: Any = "process", **sections: Any) -> Context:
    config = validate({"name": "own", "train": {"command": ["sh"]}, **sections}, "the test")
    return Context(config, platform_of(target), False, folder, runner)


def test_a_program_needs_neither_an_engine_nor_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration.installed, "verify", lambda engine: pytest.fail(f"{engine} is not needed"))
    own = subject(tmp_path, hardware="cpu*3")
    assert configuration.training_engine(own) == "the program's own"
    for check in (configuration.batch, configuration.data_source, configuration.model_memory):
        with pytest.raises(NotApplicableError):
            check(own)


@pytest.mark.parametrize(
    ("target", "uri", "problem"),
    [
        ("local", "rows", None),
        ("local", "gs://bucket/rows", None),
        ("local", "row", "There is no file or folder row"),
        ("vertex", "rows", "The machines of Vertex AI do not have rows"),
        ("vertex", "/gcs/bucket/rows", None),
        ("kubeflow", "/mnt/rows", None),
    ],
)
@pytest.mark.extension("vertex", "kubeflow")
def test_data_that_are_passed_on_exist_where_the_program_runs(
    tmp_path: Path, target: str, uri: str, problem: str | None
) -> None:
    (tmp_path / "rows").mkdir()
    own = subject(tmp_path, target, data={"uri": uri})
    if problem is None:
        assert configuration.data_source(own) == f"{uri}, as it is"
        return
    with pytest.raises(UserError, match=problem) as error:
        configuration.data_source(own)
    assert error.value.setting == "data.uri"


def test_data_for_a_container_of_another_image_have_an_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    own = {"train": {"image": IMAGE}, "data": {"uri": "rows"}}
    with pytest.raises(UserError, match="relative path rows") as error:
        configuration.data_source(subject(tmp_path, "local", "docker", **own))
    assert error.value.fix == f"--set data.uri={tmp_path / 'rows'}"


@pytest.mark.parametrize(
    ("train", "target", "runner", "found"),
    [
        ({"command": ["sh"]}, "local", "process", "/sh"),
        ({"command": ["train-it"]}, "vertex", "process", "train-it"),
        ({"command": ["train-it"], "image": IMAGE}, "vertex", "process", f"train-it in {IMAGE}"),
        ({"image": IMAGE}, "local", "docker", f"entry point of {IMAGE}"),
    ],
)
@pytest.mark.extension("vertex")
def test_where_a_program_is(tmp_path: Path, train: dict[str, Any], target: str, runner: str, found: str) -> None:
    assert model_builder.model_builder(subject(tmp_path, target, runner, train=train)).endswith(found)


@pytest.mark.extension("vertex")
def test_an_entry_point_whose_accelerators_nothing_verifies_is_a_warning(tmp_path: Path) -> None:
    train, command = {"image": IMAGE}, {"image": IMAGE, "command": ["train-it"]}
    with pytest.raises(CheckWarning, match="the accelerators are not verified: the entry point of") as caught:
        model_builder.model_builder(subject(tmp_path, "vertex", train=train, hardware="l4x4"))
    assert "train.command" in caught.value.fix
    for own, hardware in ((train, "cpu*2"), (command, "l4x4")):
        assert model_builder.model_builder(subject(tmp_path, "vertex", train=own, hardware=hardware)).endswith(IMAGE)


@pytest.mark.parametrize(
    ("train", "target", "problem", "fix"),
    [
        ({"command": ["train-it"]}, "local", "There is no command train-it", "correct train.command"),
        ({"image": IMAGE}, "local", "train.image is only an image", "--runner docker"),
        ({"module": "trainer.tsak"}, "local", "There is no Python module trainer.tsak", "train.module=trainer.task"),
    ],
)
def test_what_cannot_run_is_told(tmp_path: Path, train: dict[str, Any], target: str, problem: str, fix: str) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/__init__.py").touch()
    (tmp_path / "trainer/task.py").touch()
    with pytest.raises(UserError, match=problem) as error:
        model_builder.model_builder(subject(tmp_path, target, train=train))
    assert fix in str(error.value.fix)


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("score:evaluate", None),
        ("scoer:evaluate", "There is no Python module scoer"),
        ("score:evalute", "The module score has no evalute"),
        ("score:wrong", r"The function score:wrong cannot be called with \(model, data\)"),
    ],
)
def test_the_function_that_evaluates_is_found_without_training(
    tmp_path: Path, reference: str, problem: str | None
) -> None:
    (tmp_path / "score.py").write_text(
        "def evaluate(model, data, quick=True): ...\ndef wrong(model, data, rows): ...\n"
    )
    own = subject(tmp_path, evaluate={"module": reference})
    if problem is None:
        assert model_builder.evaluation(own) == f"score:evaluate in {tmp_path / 'score.py'}"
        return
    with pytest.raises(UserError, match=problem) as error:
        model_builder.evaluation(own)
    assert error.value.setting == "evaluate.module"


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("parts:camera", None),
        ("parts:camra", "The module parts has no camra"),
        ("parts:wrong", r"The function parts:wrong cannot be called with \(inputs\)"),
    ],
)
def test_the_function_that_names_slices_is_found_without_training(
    tmp_path: Path, reference: str, problem: str | None
) -> None:
    (tmp_path / "parts.py").write_text("def camera(inputs): ...\ndef wrong(inputs, label): ...\n")
    own = subject(tmp_path, evaluate={"slices": ["city", reference]})
    if problem is None:
        found = f"city: checked once the data are prepared, parts:camera in {tmp_path / 'parts.py'}"
        assert model_builder.evaluation(own) == found
        return
    with pytest.raises(UserError, match=problem) as error:
        model_builder.evaluation(own)
    assert error.value.setting == "evaluate.slices"


def test_the_columns_of_slices_are_checked_once_the_data_are_prepared(tmp_path: Path) -> None:
    data = {"source": "digits", "store": str(tmp_path)}
    prepare(DataSettings.model_validate(data), 1)
    assert model_builder.evaluation(subject(tmp_path, data=data, evaluate={"slices": ["width>4"]})) == "width>4"
    with pytest.raises(UserError, match=r"The data set digits has no column widht of one value per example\.") as error:
        model_builder.evaluation(subject(tmp_path, data=data, evaluate={"slices": ["widht"]}))
    assert (error.value.setting, error.value.nearest) == ("evaluate.slices", "width")
