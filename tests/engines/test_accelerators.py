"""An engine, and a custom program with its library, refuse GPUs that the driver shows but the library does not see."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.trainer.engines.table import ENGINES
from tests.engines.conftest import ENGINE, Bench
from tests.trainer.driver import REFUSAL_SECONDS, run_with_gpus

TITLES = {"tensorflow": "TensorFlow", "jax": "JAX", "pytorch": "PyTorch"}
PROGRAM = "from slipway import training\nimport {library}\ntraining.report(1, loss=2.0)\nprint('it trains')\n"


@pytest.mark.parametrize("count", [1, 2])
def test_an_engine_refuses_gpus_that_it_does_not_see(bench: Bench, tmp_path: Path, count: int) -> None:
    config = bench.job(steps=10).model_dump_json()
    outputs = {f"AIP_{name}_DIR": str(tmp_path / name) for name in ("MODEL", "CHECKPOINT", "TENSORBOARD_LOG")}
    status, said, seconds = run_with_gpus(
        count, "slipway.trainer", "--config", config, folder=tmp_path, SLIPWAY_ACCELERATORS=f"gpu:{count}", **outputs
    )
    assert status == 1, said
    assert f"should have {count} GPU{'s' * (count > 1)}, but {TITLES[ENGINE]} sees 0. Found: " in said
    assert not (tmp_path / "MODEL").exists()
    assert seconds < REFUSAL_SECONDS


@pytest.mark.parametrize("before", ["1", "0"])  # it starts, or during its first report
def test_a_custom_programs_library_has_to_see_the_gpus(tmp_path: Path, before: str) -> None:
    planned = {"SLIPWAY_ACCELERATORS": "gpu:1", "SLIPWAY_VERIFY_LIBRARIES": before}
    (tmp_path / "program.py").write_text(PROGRAM.format(library=ENGINES[ENGINE].keras_backend))
    outputs = {f"AIP_{name}_DIR": str(tmp_path / name) for name in ("MODEL", "CHECKPOINT", "TENSORBOARD_LOG")}
    status, said, seconds = run_with_gpus(1, "slipway.trainer.launch", "program", folder=tmp_path, **planned, **outputs)
    assert status == 1, said
    assert "This machine should have 1 GPU, but " in said
    assert f"{TITLES[ENGINE]} sees 0" in said
    assert "it trains" not in said
    assert seconds < REFUSAL_SECONDS


@pytest.mark.engine("pytorch")
def test_a_server_with_gpus_does_not_predict_on_the_cpu(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from slipway.trainer.engines.pytorch import export

    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),)), tmp_path / "model.pt2")
    export.load(tmp_path)
    monkeypatch.setenv("AIP_ACCELERATOR_TYPE", "NVIDIA_L4")
    with pytest.raises((AssertionError, RuntimeError), match=r"(?i)cuda"):
        export.load(tmp_path)
