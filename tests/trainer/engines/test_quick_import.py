"""The quick import of TensorFlow has no lasting side effects."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest


@pytest.mark.usefixtures("tensorflow")
def test_what_was_imported_is_never_searched_for_garbage_again() -> None:
    assert gc.isenabled()
    assert gc.get_freeze_count() > 100_000


@pytest.mark.usefixtures("tensorflow")
def test_packages_that_keras_does_without_can_be_imported_afterwards() -> None:
    from slipway.trainer.engines.quick_import import _OPTIONAL, import_tensorflow

    import_tensorflow()
    assert not [name for name in _OPTIONAL if sys.modules.get(name, sys) is None]
    import matplotlib as mpl

    assert mpl.__version__


@pytest.mark.usefixtures("tensorflow")
def test_tensorflow_is_told_where_libtpu_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slipway.trainer.engines.quick_import import import_tensorflow
    from slipway.trainer.engines.table import PLUGGABLE_VARIABLE

    (tmp_path / "libtpu").mkdir()
    (tmp_path / "libtpu" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("TF_PLUGGABLE_DEVICE_LIBRARY_PATH", raising=False)
    import_tensorflow()
    assert "TF_PLUGGABLE_DEVICE_LIBRARY_PATH" not in os.environ
    monkeypatch.setenv(PLUGGABLE_VARIABLE, "true")
    monkeypatch.setenv("TF_PLUGGABLE_DEVICE_LIBRARY_PATH", "")  # so that it is restored
    monkeypatch.delenv("TF_PLUGGABLE_DEVICE_LIBRARY_PATH")
    import_tensorflow()
    assert os.environ["TF_PLUGGABLE_DEVICE_LIBRARY_PATH"] == str(tmp_path / "libtpu" / "libtpu.so")
