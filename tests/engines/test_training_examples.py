"""The PyTorch and JAX examples of docs/your-own-training-loop.md, interrupted once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.end_to_end.examples import Example
from tests.end_to_end.workspace import Workspace, steps

pytestmark = pytest.mark.timeout(900)  # of several runs, on a busy machine


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


@pytest.mark.engine("pytorch")
def test_the_pytorch_program_is_registered_and_survives_a_kill(workspace: Workspace) -> None:
    import torch

    example = Example(workspace, "PyTorch, as with torchrun")
    long = ("--set", "train.arguments=[--epochs, '100']")
    undisturbed = example.run(*long)
    assert undisturbed["verdict"]["decision"] == "promote"
    assert undisturbed["metrics"]["rmse"] < 65
    killed = example.run(*long, meanwhile=lambda: example.interrupt(signal.SIGKILL, rank=1))
    (restart,) = steps(killed)["train"]["outputs"]["restarts"]
    assert (restart["replica"], restart["reason"]) == ("workerpool1-0", "was killed by SIGKILL")
    assert killed["metrics"] == undisturbed["metrics"]
    models = [
        torch.load(workspace.path / "runs" / record["run_id"] / "train" / "model" / "network.pt")
        for record in (undisturbed, killed)
    ]
    assert all(torch.equal(one, other) for one, other in zip(*(model.values() for model in models), strict=True))
    assert (workspace.path / "models" / "pytorch-diabetes" / "1" / "network.pt").is_file()


@pytest.mark.engine("pytorch")
def test_the_pytorch_program_trains_in_a_process_per_device(workspace: Workspace) -> None:
    example = Example(workspace, "PyTorch, as with torchrun")
    (workspace.path / f"{example.module}.py").open("a").write("print(f'rank {cluster.rank} of {cluster.world_size}')\n")
    record = example.run("--hardware", "cpu", "--set", "train.processes=2")
    assert record["metrics"]["rmse"] < 65
    log = workspace.log("train")
    assert "rank 0 of 2" in log
    assert "rank 1 of 2" in log


@pytest.mark.engine("jax")
def test_the_jax_program_is_registered_and_survives_sigterm(workspace: Workspace) -> None:
    example = Example(workspace, "JAX")
    long = ("--set", "train.arguments=[--epochs, '20']")
    undisturbed = example.run(*long)
    assert undisturbed["verdict"]["decision"] == "promote"
    assert undisturbed["metrics"]["accuracy"] >= 0.95
    stopped = example.run(*long, meanwhile=lambda: example.interrupt(signal.SIGTERM, rank=0))
    (restart,) = steps(stopped)["train"]["outputs"]["restarts"]
    assert (restart["replica"], restart["reason"]) == ("workerpool0-0", "was stopped by SIGTERM")
    assert "asked to stop: ended by the program" in workspace.log("train")
    checksums = {steps(record)["train"]["outputs"]["weights_checksum"] for record in (undisturbed, stopped)}
    assert len(checksums) == 1, "a program that was stopped ends with the weights of one that was not"


@pytest.mark.engine("pytorch", "jax")
def test_a_network_of_a_custom_program_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Keras network on each backend, and a Module, as Slipway's evaluation runs it."""
    from slipway.trainer.engines.quick_import import import_tensorflow
    from tests.engines.conftest import ENGINE

    import_tensorflow(ENGINE)
    import numpy as np

    from slipway import training
    from slipway.components.evaluate import served_model
    from tests.trainer.conftest import CLASSES, DataSets, class_image, encode

    DataSets().write(tmp_path / "set", train=[6])
    monkeypatch.setenv("SLIPWAY_DATA", str(tmp_path / "set"))
    for name in ("MODEL", "CHECKPOINT", "TENSORBOARD_LOG"):
        monkeypatch.setenv(f"AIP_{name}_DIR", str(tmp_path / name))
    import keras
    import tensorflow as tf

    manifest = training.data().manifest
    layers = keras.layers
    networks = [
        keras.Sequential(
            [keras.Input(manifest.image_shape), layers.Flatten(), layers.BatchNormalization(), layers.Dense(3)]
        )
    ]
    if ENGINE == "pytorch":
        import torch

        networks.append(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)))
    pixels = np.stack([class_image(label, 0) for label in range(3)])[..., np.newaxis]
    for network in networks:
        inputs = pixels.astype(np.float32) / 255
        if isinstance(network, keras.Model):
            expected = keras.ops.convert_to_numpy(keras.ops.softmax(network(inputs, training=False)))
        else:
            expected = torch.softmax(network(torch.tensor(inputs).permute(0, 3, 1, 2)), 1).detach().numpy()
        training.export(network)
        model = served_model.load(tmp_path / "MODEL", manifest)
        found = model.predict({"image_bytes": tf.constant([encode(image[..., 0]) for image in pixels])})
        assert model.names == CLASSES
        np.testing.assert_allclose(found["probabilities"], expected, atol=1e-6)
        assert (tmp_path / "MODEL" / "model.keras").exists() == isinstance(network, keras.Model)
