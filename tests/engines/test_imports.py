"""The import order of TensorFlow and Triton, which comes with PyTorch's GPU builds, does not crash the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

TRAINER = (
    "from slipway.trainer.engines.quick_import import *; import_tensorflow('pytorch'); import torch._dynamo, triton"
)
EVALUATION = (
    "from slipway.trainer.engines.quick_import import *; import_before_tensorflow(); "
    "import_tensorflow(keras=False); import triton"
)


@pytest.mark.engine("pytorch")
@pytest.mark.parametrize("program", [TRAINER, EVALUATION])
def test_triton_does_not_end_the_process(program: str) -> None:
    end = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert end.returncode == 0, end.stderr


@pytest.mark.engine("pytorch")
def test_triton_after_tensorflow_still_ends_the_process() -> None:
    """If this fails, `EngineRow.imported_first_if_installed` is no longer needed."""
    program = "import tensorflow, triton"
    end = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert end.returncode < 0
