"""Invalid builders: each raises an error that names the setting and the fix."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slipway.core.errors import UserError
from slipway.core.exit_codes import STOPPED
from slipway.trainer.config import ModelSettings
from slipway.trainer.engines import builder
from tests.trainer.conftest import manifest_of

pytestmark = pytest.mark.usefixtures("tensorflow", "networks")


def refusal(name: str, **arguments: Any) -> UserError:
    from slipway.trainer.engines.keras import model as keras_model

    with pytest.raises(UserError) as caught:
        keras_model.build_network(ModelSettings(builder=name, arguments=arguments), manifest_of())
    return caught.value


def test_a_good_one_is_called_with_its_arguments() -> None:
    from slipway.trainer.engines.keras import model as keras_model

    settings = ModelSettings(builder="sample_networks:dense", arguments={"units": 5})
    model = keras_model.build_network(settings, manifest_of())
    assert model.layers[1].units == 5
    assert model.output_shape == (None, 3)


@pytest.mark.parametrize(
    ("name", "message", "nearest"),
    [
        ("no_such_module_at_all:build", "There is no module 'no_such_module_at_all'", None),
        (
            "slipway.trainer.models.digit:build",
            "There is no module 'slipway.trainer.models.digit'",
            "slipway.trainer.models.digits:build",
        ),
        ("slipway.trainer.models.mnist:smal", "has no function 'smal'", "slipway.trainer.models.mnist:small"),
        ("broken_import:build", "No module named 'a_package_that_is_not_there'", None),
        ("sample_networks:raises", "raised KeyError: 'no such layer'", None),
        ("sample_networks:exits", "raised SystemExit: 3", None),
        ("sample_networks:interrupts", "raised KeyboardInterrupt", None),
        ("sample_networks:leaves", r"called os\._exit\(3\)", None),
        ("exits_on_import:build", r"cannot be imported: it raised SystemExit: usage", None),
        ("sample_networks:returns_nothing", "returned NoneType instead of a keras.Model", None),
        ("sample_networks:too_few_outputs", r"returns \[batch, 2\]; the data set has 3 classes", None),
        ("sample_networks:probabilities", "ends in a softmax", None),
        ("sample_networks:built_in_batch", "has a fixed batch size of 64", None),
        ("sample_networks:private_layer", "has the layer __scaled, but names in a SavedModel begin with", None),
        ("sample_networks:other_size", "cannot process images of 8 x 8 x 1", None),
    ],
)
def test_a_bad_one_is_told(name: str, message: str, nearest: str | None) -> None:
    error = refusal(name)
    with pytest.raises(UserError, match=message):
        raise error
    assert (error.setting, error.value, error.nearest) == ("model.builder", name, nearest)
    assert error.fix


@pytest.mark.parametrize("name", ["sample_networks:raises", "broken_import:build", "sample_networks:other_size"])
def test_the_users_own_exception_stays_the_cause(name: str) -> None:
    assert refusal(name).__cause__ is not None


def test_an_unknown_argument_is_told_with_the_nearest() -> None:
    error = refusal("sample_networks:dense", unit=5)
    assert (error.setting, error.value, error.nearest) == ("model.arguments", {"unit": 5}, "units")
    assert "units" in (error.allowed or "")


def test_a_stop_while_the_builder_runs_is_no_mistake_of_it() -> None:
    with pytest.raises(SystemExit), builder.user_code():
        sys.exit(STOPPED)


def test_processes_and_threads_of_user_code_end_as_they_ask_for() -> None:
    with builder.user_code():
        if (child := os.fork()) == 0:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_module_is_loaded_without_keras() -> None:
    assert builder.load("slipway.core.errors:report").__name__ == "report"


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("slipway.trainer.models.digits:build", (8, 8, 1)),
        ("slipway.trainer.models.mnist:small", (28, 28, 1)),
        ("slipway.trainer.models.mnist:tpu_guide", (28, 28, 1)),
        ("slipway.trainer.models.flowers:build", (180, 180, 3)),
    ],
)
def test_the_networks_that_come_along_are_classifiers(name: str, shape: tuple[int, int, int]) -> None:
    from slipway.trainer.engines.keras import model as keras_model

    assert keras_model.build_network(ModelSettings(builder=name), manifest_of(shape, classes=5)).output_shape == (
        None,
        5,
    )


def test_half_of_a_network_that_keras_cannot_save_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from slipway.trainer.engines.keras import model as keras_model

    def save(file: Path) -> None:
        file.write_bytes(b"half")
        raise NotImplementedError("Scaled has no get_config")

    keras_model.save(cast(Any, SimpleNamespace(save=save)), tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert "model.keras is not written" in caplog.text
    assert "Scaled has no get_config" in caplog.text
