"""What the command line does with runs on Kubeflow Pipelines, and what it says of them."""

from __future__ import annotations

from rich.console import Console

from pipelines import display
from pipelines.config import RunConfig
from pipelines.platforms.kubeflow import launch
from pipelines.runs import RunFolder, RunRecord
from trainer.errors import UserError

refresh = launch.refresh
cancel = launch.cancel


def start(config: RunConfig, console: Console) -> RunFolder:
    """Submit the run and say where it is."""
    folder, record = launch.submit(config)
    console.print(f"run {record.run_id} on {config.hardware}", highlight=False, soft_wrap=True)
    console.print(f"  {launch.address(folder, record)}", highlight=False, soft_wrap=True)
    if config.kubeflow is not None and not config.kubeflow.registers:
        left = launch.parameters_of(config.kubeflow, record.run_id)["output"]
        console.print(
            f"  no model is registered, as kubeflow.volume is not set: it is left in {left}/model",
            highlight=False,
            soft_wrap=True,
        )
    return folder


def follow(folder: RunFolder, console: Console) -> RunRecord | None:
    """Show the run to its end; None where the watching was interrupted, which leaves the run going."""
    record = folder.read()
    try:
        with display.RunDisplay(console) as watcher:
            return launch.watch(folder, record, watcher)
    except KeyboardInterrupt:
        console.print(
            f"the run goes on; watch it: slipway status {folder.run_id} --watch; "
            f"stop it: slipway cancel {folder.run_id}",
            highlight=False,
            soft_wrap=True,
        )
        return None


def where_logs_are(folder: RunFolder) -> UserError:
    """Kubeflow's client gives no logs: they are the pods'."""
    record = launch.refresh(folder)
    return UserError(
        "The logs of a run on Kubeflow are its pods', which the server's client does not give.",
        setting="RUN",
        value=record.run_id,
        mend=launch.log_command(folder, record),
    )
