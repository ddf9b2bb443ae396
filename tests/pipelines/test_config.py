"""RunConfig: what is read, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.config import RunConfig, load
from trainer.errors import UserError

MINIMAL: dict[str, Any] = {
    "name": "digits",
    "data": {"source": "digits"},
    "model": {"builder": "trainer.models.digits:build"},
    "train": {"epochs": 2},
}


@pytest.fixture
def write(tmp_path: Path):
    def write(values: Any) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
        return path

    return write


def refusal(path: Path, *overrides: str, hardware: str | None = None) -> UserError:
    with pytest.raises(UserError) as caught:
        load(path, overrides, hardware)
    return caught.value


def test_overrides_are_typed_and_win(write):
    config = load(
        write(MINIMAL), ["train.batch_size=256", "data.image_size=[28, 28]", "model.arguments.width=8"], "cpu*2"
    )
    assert config.train.batch_size == 256
    assert config.data.image_size == (28, 28)
    assert config.model.arguments == {"width": 8}
    assert config.hardware == "cpu*2"
    assert config.parsed_hardware.replicas == 2


def test_resolved_configuration_reads_back_the_same(write):
    config = load(write(MINIMAL), ["register.model=numbers", "train.learning_rate=0.01"])
    again = load(write(config.as_yaml()))
    assert again == config
    assert again.fingerprint() == config.fingerprint()
    assert again.fingerprint() != load(write(MINIMAL)).fingerprint()


@pytest.mark.parametrize(
    ("override", "duration"), [("train.steps=7", (None, 7, None)), ("train.examples=99", (None, None, 99))]
)
def test_a_duration_on_the_command_line_replaces_the_files(write, override, duration):
    train = load(write(MINIMAL), [override]).train
    assert (train.epochs, train.steps, train.examples) == duration


def test_two_durations_are_refused(write):
    error = refusal(write(MINIMAL), "train.steps=7", "train.epochs=1")
    assert error.setting == "train"
    assert "exactly one of epochs, steps and examples" in str(error)


@pytest.mark.parametrize(
    ("override", "setting", "nearest"),
    [
        ("train.batchsize=3", "train.batchsize", "train.batch_size"),
        ("modle.builder=a:b", "modle", "model"),
        ("batch_size=3", "batch_size", "train.batch_size"),
        ("evaluate.gate.minimun=0.9", "evaluate.gate.minimun", "evaluate.gate.minimum"),
        ("train.optimizer=adma", "train.optimizer", "adam"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(write, override, setting, nearest):
    error = refusal(write(MINIMAL), override)
    assert error.setting == setting
    assert error.nearest == nearest
    assert nearest in error.mend


@pytest.mark.parametrize(
    ("override", "setting", "words"),
    [
        ("train.batch_size=many", "train.batch_size", "integer"),
        ("train.batch_size=0", "train.batch_size", "greater than 0"),
        ("train.learning_rate=-1", "train.learning_rate", "greater than 0"),
        ("data.split.test=0.5", "data.split", "make 1"),
        ("model.builder=not-a-builder", "model.builder", "pattern"),
        ("name=Digits 2", "name", "pattern"),
        ("data.skip_corrupt=1.5", "data.skip_corrupt", "less than 1"),
    ],
)
def test_wrong_values_are_refused_by_name(write, override, setting, words):
    error = refusal(write(MINIMAL), override)
    assert error.setting == setting
    assert words in error.message
    assert setting in error.mend


def test_missing_setting_is_named(write):
    error = refusal(write({key: value for key, value in MINIMAL.items() if key != "data"}))
    assert error.setting == "data"


def test_missing_file_names_the_nearest(write):
    path = write(MINIMAL)
    error = refusal(path.with_name("rum.yaml"))
    assert error.nearest == str(path)
    assert error.mend == f"slipway run -c {path}"


@pytest.mark.parametrize("text", ["a: [1", "\t- x", "just words", "- 1\n- 2\n", ""])
def test_what_is_not_a_mapping_in_yaml_is_refused(write, text):
    assert "run.yaml" in refusal(write(text)).message


@pytest.mark.parametrize("text", ["train.batch_size", "=3", "name.first=x"])
def test_malformed_override_is_refused(write, text):
    assert refusal(write(MINIMAL), text).setting == "--set"


def test_every_configuration_in_the_repository_is_valid():
    for path in Path("configs").glob("*.yaml"):
        assert isinstance(load(path), RunConfig)
