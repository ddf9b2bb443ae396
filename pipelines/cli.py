"""The command line: `slipway …`, put together from its commands."""

from __future__ import annotations

import typer

from pipelines.commands.build import build, compile_
from pipelines.commands.existing_runs import cancel, explain, list_, logs, status
from pipelines.commands.setting_up import doctor, hardware_, migrate, setup
from pipelines.commands.start import rehearse, run
from pipelines.schedules.commands import app as schedule_app
from pipelines.terminal import print_any_character

app = typer.Typer(
    name="slipway",
    help="From a data set to a trained, evaluated, registered model, as one Kubeflow pipeline.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# In the order in which --help lists them.
app.command()(run)
app.command()(rehearse)
app.command("compile")(compile_)
app.command()(build)
app.command()(status)
app.command("list")(list_)
app.command()(logs)
app.command()(explain)
app.command()(cancel)
app.command()(doctor)
app.command()(setup)
app.command("hardware")(hardware_)
app.command()(migrate)
app.add_typer(schedule_app, name="schedule")


def main() -> None:
    """The console script's entry."""
    print_any_character()
    app()
