"""The `slipway` command line; registers every command."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperArgument

from slipway.pipelines.cli.artifacts import build, clean, compile_, verify
from slipway.pipelines.cli.batch import batch
from slipway.pipelines.cli.configuration import config as config_group
from slipway.pipelines.cli.existing_runs import cancel, compare, explain, list_, logs, open_, status, track
from slipway.pipelines.cli.preparation import data as data_group
from slipway.pipelines.cli.preparation import doctor, hardware_, migrate, setup
from slipway.pipelines.cli.prices import prices as prices_group
from slipway.pipelines.cli.project import init
from slipway.pipelines.cli.serving import drift, predict, serve
from slipway.pipelines.cli.start import diagnose, rehearse, reproduce, run
from slipway.pipelines.cli.tuning import tune
from slipway.pipelines.platforms.tpu.commands import app as tpu_app
from slipway.pipelines.platforms.vertex.endpoints.commands import app as endpoints_app
from slipway.pipelines.platforms.vertex.endpoints.commands import deploy, rollback
from slipway.pipelines.platforms.vertex.schedules.commands import app as schedule_app
from slipway.pipelines.terminal import (
    HELP_OPTIONS,
    Commands,
    output_errors,
    print_any_character,
    show_help_alone,
    user_errors,
)

# In the order of --help: group, command, function, examples.
COMMANDS = (
    ("Train", "init", init, ("slipway init", "slipway init my_project --template program")),
    (
        "Train",
        "run",
        run,
        ("slipway run", "slipway run -c my.yaml --set train.epochs=5", "slipway run --resume latest"),
    ),
    ("Train", "rehearse", rehearse, ("slipway rehearse --hardware 'l4x4*2' --steps 20",)),
    ("Train", "reproduce", reproduce, ("slipway reproduce latest", "slipway reproduce RUN --verify")),
    ("Train", "tune", tune, ("slipway tune", "slipway tune -c my.yaml --set tune.trials=50")),
    (
        "Use models",
        "predict",
        predict,
        ("slipway predict digits image.png folder", "slipway predict digits/1 table.csv --output predictions.csv"),
    ),
    (
        "Use models",
        "batch",
        batch,
        (
            "slipway batch digits --input photos --output predictions --processes 8",
            "slipway batch digits --target vertex --input gs://bucket/in.jsonl --output gs://bucket/out",
        ),
    ),
    ("Use models", "drift", drift, ("slipway drift digits photos", "slipway drift digits new.csv --false-alarms 0.05")),
    ("Use models", "serve", serve, ("slipway serve", "slipway serve digits --port 9000")),
    ("Use models", "deploy", user_errors(deploy), ("slipway deploy", "slipway deploy --endpoint digits --version 3")),
    ("Use models", "rollback", user_errors(rollback), ("slipway rollback --endpoint digits",)),
    ("Follow runs", "list", list_, ("slipway list", "slipway list --where 'accuracy>0.97' --sort seconds")),
    ("Follow runs", "compare", compare, ("slipway compare RUN RUN", "slipway compare --where train.engine=jax")),
    ("Follow runs", "open", open_, ("slipway open", "slipway open latest")),
    ("Follow runs", "status", status, ("slipway status", "slipway status --follow RUN", "slipway status --all")),
    ("Follow runs", "logs", logs, ("slipway logs --step train", "slipway logs --follow")),
    ("Follow runs", "explain", explain, ("slipway explain", "slipway explain RUN --json")),
    ("Follow runs", "diagnose", diagnose, ("slipway diagnose", "slipway diagnose RUN --try")),
    ("Follow runs", "cancel", cancel, ("slipway cancel latest",)),
    (
        "Follow runs",
        "track",
        track,
        ("slipway track latest", "slipway track RUN --set track.mlflow=http://localhost:5000"),
    ),
    ("Follow runs", "verify", verify, ("slipway verify", "slipway verify digits", "slipway verify latest --json")),
    ("Follow runs", "clean", clean, ("slipway clean", "slipway clean --older-than 7d --apply")),
    ("Prepare", "doctor", doctor, ("slipway doctor -c my.yaml", "slipway doctor --target vertex --hardware l4x1")),
    ("Prepare", "hardware", hardware_, ("slipway hardware --region europe-west4", "slipway hardware 'l4x4*2'")),
    ("Prepare", "setup", setup, ("slipway setup -c my.yaml --apply", "slipway setup --target kubeflow -c my.yaml")),
    (
        "Prepare",
        "migrate",
        migrate,
        ("slipway migrate config.yaml -o my.yaml", "slipway migrate -- my_job --scale-tier=BASIC_GPU"),
    ),
    ("Build and schedule", "compile", compile_, ("slipway compile --target vertex -c my.yaml -o spec.yaml",)),
    ("Build and schedule", "build", build, ("slipway build --target vertex -c my.yaml", "slipway build --no-push")),
)
SCHEDULE_EXAMPLES = ("slipway schedule list", "slipway schedule apply nightly", "slipway schedule pause nightly")
ENDPOINT_EXAMPLES = ("slipway endpoints list", "slipway endpoints diff digits", "slipway endpoints apply digits")
TPU_EXAMPLES = ("slipway tpu list -c my.yaml", "slipway tpu delete slipway-digits-1-1")
EXAMPLES = (
    "slipway init         write a small project that runs at once",
    "slipway doctor       check this machine and slipway.yaml",
    "slipway run          train, evaluate and register a model on this machine",
    "slipway explain      explain why the last run failed",
    "slipway run -c my.yaml --target vertex --hardware l4x1",
)


def _examples(lines: tuple[str, ...]) -> str:
    """Format the examples below a help page, one paragraph each because typer joins the lines of a paragraph."""
    return "\n\n".join(["[bold]Examples[/]", *lines])


def _keep_help_of_arguments() -> None:
    """Keep the help of arguments, which click 8.5 resets after this version of typer has set it."""
    make = TyperArgument.__init__

    def make_and_keep(self: TyperArgument, *, help: str | None = None, **fields: Any) -> None:
        make(self, help=help, **fields)
        self.help = help

    TyperArgument.__init__ = make_and_keep  # type: ignore[method-assign]


_keep_help_of_arguments()
app = typer.Typer(
    name="slipway",
    cls=Commands,
    help="From a data set to a trained, evaluated, registered model, as one Kubeflow pipeline.",
    epilog=_examples(EXAMPLES),
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click suggests them, too
    context_settings=HELP_OPTIONS,
)
for group, name, function, lines in COMMANDS:
    app.command(name, rich_help_panel=group, epilog=_examples(lines))(function)
app.add_typer(config_group, name="config", rich_help_panel="Prepare")
app.add_typer(data_group, name="data", rich_help_panel="Prepare")
app.add_typer(prices_group, name="prices", rich_help_panel="Prepare")
app.add_typer(tpu_app, name="tpu", rich_help_panel="Follow runs", epilog=_examples(TPU_EXAMPLES))
app.add_typer(endpoints_app, name="endpoints", rich_help_panel="Use models", epilog=_examples(ENDPOINT_EXAMPLES))
app.add_typer(schedule_app, name="schedule", rich_help_panel="Build and schedule", epilog=_examples(SCHEDULE_EXAMPLES))


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        from slipway.trainer.engines.installed import DISTRIBUTION

        typer.echo(f"slipway {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def slipway(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 (its callback answers)
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    show_help_alone(context)


def main() -> None:
    """Entry point of the console script."""
    print_any_character()
    with output_errors():
        app()
