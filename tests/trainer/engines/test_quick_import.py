"""The quick import of TensorFlow has no lasting side effects."""

from __future__ import annotations

import gc
import sys

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
