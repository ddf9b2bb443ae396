"""The table of engines: a row is all that configuration, checks and refusals need to know an engine."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
from pydantic import ValidationError

from slipway.core.errors import UserError
from slipway.trainer import config
from slipway.trainer.checks import refuse
from slipway.trainer.engines import installed
from slipway.trainer.engines.table import ENGINES, EngineRow, Unsupported, model_files, readers
from slipway.trainer.optimizers import OPTIMIZERS, Optimizer, slots


@pytest.mark.parametrize(
    ("engine", "replicas", "devices", "expected"),
    [("pytorch", 2, 4, 8), ("pytorch", 2, 0, 2), ("pytorch", 1, 1, 1), ("jax", 2, 4, 2), ("tensorflow", 2, 4, 2)],
)
def test_an_engine_of_one_device_a_process_has_a_reader_for_each(
    engine: str, replicas: int, devices: int, expected: int
) -> None:
    assert readers(engine, replicas, devices) == expected


@pytest.fixture
def abacus(monkeypatch: pytest.MonkeyPatch) -> EngineRow:
    """The row of an engine that does not exist, in the table."""
    row = EngineRow(
        libraries="Abacus and TensorFlow",
        modules=("abacus_library",),
        extra="abacus",
        keras_backend="numpy",
        model_file="model.beads",
        one_device_per_process=True,
        unsupported=(Unsupported("augment.flip", bool, "does not flip images", "false", "false"),),
    )
    monkeypatch.setitem(ENGINES, "abacus", row)
    return row


def fresh_config(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return slipway.trainer.config as a new process would import it."""
    specification = importlib.util.spec_from_file_location("fresh_config", str(config.__file__))
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "fresh_config", module)  # pydantic resolves annotations there
    specification.loader.exec_module(module)
    return module


def test_a_row_is_an_engine_that_settings_accept(abacus: EngineRow, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = fresh_config(monkeypatch).TrainSettings
    refuse(settings(engine="abacus", epochs=1))
    with pytest.raises(UserError, match="The engine abacus does not flip images") as caught:
        refuse(settings(engine="abacus", epochs=1, augment={"flip": True}))
    assert caught.value.fix == "--set train.augment.flip=false"
    with pytest.raises(ValidationError, match="'tensorflow', 'jax', 'pytorch' or 'abacus'"):
        settings(engine="abakus", epochs=1)
    assert "abacus" in settings.model_json_schema()["properties"]["engine"]["enum"]


def test_a_row_is_an_engine_whose_installation_and_model_are_checked(abacus: EngineRow) -> None:
    with pytest.raises(UserError, match="abacus needs abacus_library, which is not installed") as caught:
        installed.verify("abacus")
    assert caught.value.fix == "pip install 'slipway-ml[abacus]'"
    error = installed.missing_extra(ModuleNotFoundError("no abacus", name="abacus_library.rods"))
    assert error is not None and error.fix == "pip install 'slipway-ml[abacus]'"
    assert readers("abacus", 2, 4) == 8
    assert model_files() == ["saved_model.pb", "model.pt2", "model.beads"]


@pytest.mark.usefixtures("tensorflow")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_row_is_an_optimizer_that_each_engine_has_or_that_its_configuration_refuses(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras

    from slipway.trainer.engines.keras import optimizer as keras_optimizer
    from slipway.trainer.engines.tensorflow import optimizer as tensorflow_optimizer

    monkeypatch.setitem(OPTIMIZERS, "lion", Optimizer(keras="Lion", slots=1, weight_decay=0.0))
    settings = fresh_config(monkeypatch).TrainSettings
    values = {"epochs": 1, "optimizer": "lion", "weight_decay": 0.1, "engine": engine}
    assert slots("lion") == 1
    if engine == "pytorch":
        with pytest.raises(UserError, match="The engine pytorch does not have this optimizer") as caught:
            refuse(settings(**values))
        assert (caught.value.setting, caught.value.nearest) == ("train.optimizer", "adam")
        return
    refuse(settings(**values))
    make = tensorflow_optimizer.make if engine == "tensorflow" else keras_optimizer.make
    made = make(settings(**values), [keras.Variable([1.0])])
    assert isinstance(made, keras.optimizers.Lion) and made.weight_decay == 0.1
    with pytest.raises(UserError, match="lion does not accept momentum"):
        settings(**values, momentum=0.9)


def test_every_engine_has_its_modules() -> None:
    for name, row in ENGINES.items():
        assert importlib.util.find_spec(f"slipway.trainer.engines.{name}.engine"), name
        assert importlib.util.find_spec(row.networks), name
        assert importlib.util.find_spec(f"slipway.trainer.engines.{name}.export"), name
