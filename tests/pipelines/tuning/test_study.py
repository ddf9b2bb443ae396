"""What is tuned: ranges and choices, the metric and its direction, and which study a configuration has."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.samplers import BaseSampler

from slipway.components.train.study import drawn, suggest
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, validate
from slipway.pipelines.tuning import search
from slipway.pipelines.tuning import study as studies


def configuration(parameters: dict[str, Any], **fields: Any) -> RunConfig:
    values = {
        "name": "digits",
        "data": {"source": "digits"},
        "model": {"builder": "slipway.trainer.models.digits:build"},
        "train": {"epochs": fields.pop("epochs", 3)},
        "tune": {"parameters": parameters, **fields},
    }
    return validate(values, "test.yaml")


UNIT = {"low": 0.1, "high": 0.9}
RATE = {"train.learning_rate": {"low": 0.001, "high": 0.1, "scale": "log"}}


def study_of(config: RunConfig, sampler: BaseSampler | None = None) -> optuna.Study:
    """Return a study in memory with the sampler of the configuration's: its trials need no time."""
    sampler = sampler or studies.open_study(config, search.settings_of(config)).sampler
    return optuna.create_study(sampler=sampler, direction=search.settings_of(config).direction)


def test_the_metric_is_the_tasks_own_and_its_direction_is_known() -> None:
    found = search.settings_of(configuration(RATE))
    assert (found.metric, found.direction) == ("accuracy", "maximize")
    assert search.settings_of(configuration(RATE, metric="loss")).direction == "minimize"
    with pytest.raises(UserError, match="score are better"):
        search.settings_of(configuration(RATE, metric="score"))


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"train.epochs": {"low": 1}}, "needs low and high, or choices"),
        ({"train.epochs": {"low": 4, "high": 2}}, "low must be below high; got 4 and 2"),
        ({"train.epochs": {"low": 0, "high": 2, "scale": "log"}}, "with scale log needs a low above 0"),
        ({"train.epochs": {"low": 0, "high": 2, "scale": "reverse_log"}}, "with scale reverse_log needs a low above 0"),
        ({"train.epochs": {"choices": [1], "low": 1}}, "has choices"),
        ({"data.seed": {"low": 1, "high": 2}}, "data.seed cannot be tuned"),
        (
            {
                "train.optimizer": {"choices": ["sgd"]},
                "train.momentum": {**UNIT, "when": {"train.optimizer": ["adam"]}},
            },
            "train.momentum is tuned when train.optimizer is adam, which it never is",
        ),
        (
            {"train.momentum": {**UNIT, "when": {"train.optimizer": ["sgd"]}}, "train.optimizer": {"choices": ["sgd"]}},
            "choices of a parameter before it: none",
        ),
        ({"train.momentum": {**UNIT, "when": {"train.optimizer": []}}}, "at least 1 item"),
        ({}, "at least 1 item"),
    ],
)
def test_ranges_that_make_no_sense(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        configuration(parameters)
    assert said in str(refused.value)


def test_a_parameter_is_tuned_only_with_the_choices_on_which_it_depends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = configuration(
        {
            "train.optimizer": {"choices": ["adam", "sgd", "lion"]},
            "train.momentum": {"low": 0.1, "high": 0.9, "when": {"train.optimizer": ["sgd"]}},
            "train.nesterov": {"choices": [True, False], "when": {"train.optimizer": ["sgd"]}},
        }
    )
    tune = search.settings_of(config)
    study = study_of(config)
    seen = set()
    for _ in range(30):
        trial = study.ask()
        values = suggest(trial, tune.parameters)
        seen.add((values["train.optimizer"], *sorted(values)[:2]))
        assert ("train.momentum" in values) == ("train.nesterov" in values) == (values["train.optimizer"] == "sgd")
        study.tell(trial, len(values))
    assert json.loads(study.best_params["train.optimizer"]) == "sgd"
    assert {optimizer for optimizer, *_ in seen} == {"adam", "sgd", "lion"}
    ends = list(search.extremes(tune.parameters))
    assert {"train.optimizer": "sgd", "train.momentum": 0.9, "train.nesterov": False} in ends
    assert {"train.optimizer": "lion"} in ends


def test_the_ends_of_a_parameter_that_depends_on_a_dependent_one_are_known() -> None:
    tune = search.settings_of(
        configuration(
            {
                "train.optimizer": {"choices": ["adam", "sgd", "lion"]},
                "train.nesterov": {"choices": [False, True, False], "when": {"train.optimizer": ["sgd"]}},
                "train.momentum": {"low": 0.1, "high": 0.9, "when": {"train.nesterov": [True]}},
            }
        )
    )
    ends = list(search.extremes(tune.parameters))
    for momentum in (0.1, 0.9):
        assert {"train.optimizer": "sgd", "train.nesterov": True, "train.momentum": momentum} in ends


def test_values_are_in_their_ranges_and_become_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parameters = {
        **RATE,
        "train.batch_size": {"choices": [32, 64]},
        "train.epochs": {"low": 2, "high": 8, "step": 2},
        "model.arguments": {"choices": [{"width": 8}, {"width": 16}]},
        "--depth": {"low": 1, "high": 3},
    }
    config = configuration(parameters)
    tune = search.settings_of(config)
    study = studies.open_study(config, tune)
    for _ in range(8):
        trial = study.ask()
        values = suggest(trial, tune.parameters)
        assert 0.001 <= values["train.learning_rate"] <= 0.1
        assert values["train.epochs"] in (2, 4, 6, 8)
        assert values["model.arguments"] in ({"width": 8}, {"width": 16})
        assert isinstance(values["--depth"], int)
        study.tell(trial, values["train.learning_rate"])
    fixed = {"train.learning_rate": 0.01, "model.arguments": {"width": 8}, "--depth": 2}
    assert search.overrides(fixed, ["--fast"]) == [
        "train.learning_rate=0.01",
        'model.arguments={"width": 8}',
        'train.arguments=["--fast", "--depth=2"]',
    ]


def test_a_reversed_logarithmic_scale_is_finer_near_its_high_end() -> None:
    config = configuration({"train.momentum": {"low": 0.001, "high": 0.999, "scale": "reverse_log"}})
    tune = search.settings_of(config)
    study = study_of(config, optuna.samplers.RandomSampler(seed=1))
    found = []
    for _ in range(100):
        trial = study.ask()
        found.append(suggest(trial, tune.parameters)["train.momentum"])
        assert drawn(trial.params, tune.parameters) == {"train.momentum": found[-1]}
    assert all(0.001 <= value <= 0.999 for value in found)
    assert sum(value > 0.9 for value in found) > 60  # log10(0.1 / 0.001) of log10(0.999 / 0.001): two thirds


def test_a_study_is_continued_unless_its_settings_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def name(**fields: Any) -> str:
        config = configuration(RATE, **fields)
        return studies.open_study(config, search.settings_of(config)).study_name

    first = name()
    assert name(trials=99, parallel=4, failures=9) == first
    assert len({first, name(metric="loss"), name(epochs=4), name(pruning="median")}) == 4


def test_two_commands_do_not_tune_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / studies.FOLDER).mkdir()
    config = configuration(RATE)
    with studies.locked(config), pytest.raises(UserError, match="Another command tunes digits"), studies.locked(config):
        pass
    with studies.locked(config):
        pass


def test_a_damaged_database_is_one_sentence_with_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tuning").mkdir()
    Path("tuning/digits.db").write_text("no database")
    config = configuration(RATE)
    with pytest.raises(UserError, match=r"tuning/digits\.db, cannot be used: .*not a database") as caught:
        studies.studies_of(config, search.settings_of(config))
    subprocess.run(str(caught.value.fix).partition(", after")[0], shell=True, check=True)
    assert studies.studies_of(config, search.settings_of(config)) == []
