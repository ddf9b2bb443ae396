"""Programs of libraries that read torchrun's variables, on two replicas: one is killed, and both resume."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.end_to_end.workspace import Workspace

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
BEGIN = """
import os, signal
import torch
from slipway import training

rank, folder = int(os.environ["RANK"]), training.checkpoint_dir()
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(64, 4, generator=generator)
targets = inputs @ torch.tensor([[1.0], [2.0], [3.0], [4.0]])

def die_once(step):
    killed = folder / "killed"
    if rank == 1 and step >= 4 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)

def end(first, size, loss):
    print("rank", rank, "of", size, "from", first, flush=True)
    if rank == 0:
        (training.model_dir() / "model.txt").write_text(str(loss))
    training.finish({"loss": loss, "first": first, "replicas": size})
"""
LIGHTNING = """
import lightning
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.first = 0
    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.last = float(loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

class Die(Callback):
    def on_train_start(self, trainer, module):
        module.first = trainer.current_epoch
    def on_train_epoch_start(self, trainer, module):
        die_once(trainer.current_epoch)

last = folder / "last.ckpt"
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), 16)
trainer = lightning.Trainer(
    accelerator="cpu", devices=1, num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), strategy="ddp", max_epochs=6,
    callbacks=[ModelCheckpoint(folder, save_last=True), Die()], logger=False, enable_progress_bar=False,
)
network = Network()
trainer.fit(network, data, ckpt_path=last if last.exists() else None)
assert trainer.global_rank == rank
end(network.first, trainer.world_size, network.last)
"""
TRANSFORMERS = """
import transformers
from transformers.trainer_utils import get_last_checkpoint

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(self.layer(x), labels)}

class Die(transformers.TrainerCallback):
    first = 0
    def on_train_begin(self, args, state, control, **_):
        Die.first = state.global_step
    def on_step_begin(self, args, state, control, **_):
        die_once(state.global_step)

data = [{"x": x, "labels": y} for x, y in zip(inputs, targets)]
arguments = transformers.TrainingArguments(
    str(folder), use_cpu=True, max_steps=6, save_steps=2, per_device_train_batch_size=8, report_to=[], seed=1,
    disable_tqdm=True,
)
trainer = transformers.Trainer(Network(), arguments, train_dataset=data, callbacks=[Die()])
found = trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)))
assert arguments.process_index == rank
end(Die.first, arguments.world_size, found.training_loss)
"""
ACCELERATE = """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
network = torch.nn.Linear(4, 1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), 16)
network, optimizer, data = accelerator.prepare(network, torch.optim.SGD(network.parameters(), 0.01), data)
states = sorted(folder.glob("state-*/done"))
first = int(states[-1].parent.name.removeprefix("state-")) if states else 0
if states:
    accelerator.load_state(states[-1].parent)
for epoch in range(first, 6):
    die_once(epoch)
    for x, y in data:
        loss = torch.nn.functional.mse_loss(network(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.save_state(folder / f"state-{epoch + 1}")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (folder / f"state-{epoch + 1}" / "done").touch()
    accelerator.wait_for_everyone()
assert accelerator.process_index == rank
end(first, accelerator.num_processes, float(loss))
"""
CONFIGURATION = """
name: own
hardware: cpu*2
train: {module: program}
evaluate: {gate: {metric: loss, maximum: 100}}
"""


@pytest.mark.parametrize(
    ("library", "program"),
    [("lightning", LIGHTNING), ("transformers", TRANSFORMERS), ("accelerate", ACCELERATE)],
    ids=["lightning", "transformers", "accelerate"],
)
def test_a_library_forms_one_group_of_both_replicas_and_resumes_after_a_kill(
    tmp_path: Path, library: str, program: str
) -> None:
    for name in (library, "accelerate", "torch"):  # transformers' Trainer needs accelerate
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    workspace = Workspace(tmp_path)
    (tmp_path / "program.py").write_text(BEGIN + program)
    (tmp_path / "slipway.yaml").write_text(CONFIGURATION)
    result = workspace.slipway("run")
    assert result.returncode == 0, result.stdout + result.stderr + workspace.log("train")
    metrics = workspace.record()["metrics"]
    assert metrics["replicas"] == 2
    assert metrics["first"] >= 2, "it resumed from a checkpoint"
    ends = [line for line in workspace.log("train").splitlines() if "of 2 from" in line]
    assert len(ends) == 2
    assert {"rank 0" in line for line in ends} == {True, False}
