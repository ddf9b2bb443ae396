"""The `slipway` command line: `COMMANDS` has a row for each command, whose module is imported when it is called."""

from __future__ import annotations

import functools
import importlib
from typing import Annotated, Any

import click
import typer
from typer.core import TyperArgument

from slipway.core.network import share_settings
from slipway.pipelines.terminal import (
    HELP_OPTIONS,
    Commands,
    output_errors,
    print_any_character,
    show_help_alone,
)


class LazyCommand(click.Command):
    """What `slipway --help` shows of a command or group of commands, which is imported when it is called.

    Args:
        panel: The title above it in `slipway --help`.
        name: Its name.
        source: The module in slipway.pipelines, a colon, and the function, or the `typer.Typer` of a group.
        help: The first paragraph of its help.
        examples: The lines below its help.
    """

    def __init__(self, panel: str, name: str, source: str, help: str, *examples: str) -> None:
        super().__init__(name, help=help)
        self.rich_help_panel = panel
        self.source = source
        self.examples = examples

    @functools.cached_property
    def loaded(self) -> click.Command:
        """The command itself."""
        module, _, name = self.source.partition(":")
        source = getattr(importlib.import_module(f"slipway.pipelines.{module}"), name)
        parent = typer.Typer(suggest_commands=False)
        if isinstance(source, typer.Typer):
            parent.add_typer(source, name=self.name, epilog=_epilog(self.examples))
        else:
            parent.command(self.name, epilog=_epilog(self.examples))(source)
        [command] = typer.main.get_group(parent).commands.values()
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        return self.loaded.make_context(info_name, args, parent, **extra)


class LazyCommands(Commands):
    """The group of `COMMANDS`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {str(command.name): command for command in COMMANDS}


def _epilog(examples: tuple[str, ...]) -> str | None:
    """Format the examples below a help page, one paragraph each because typer joins the lines of a paragraph."""
    return "\n\n".join(["[bold]Examples[/]", *examples]) if examples else None


# In the order of --help.
COMMANDS = (
    LazyCommand(
        "Train", "init", "cli.project:init",
        "Write a small project that `slipway run` trains at once, to begin your own from.",
        "slipway init", "slipway init my_project --template program",
    ),
    LazyCommand(
        "Train", "run", "cli.start:run",
        "Run the whole pipeline: prepare data, train, evaluate, register.",
        "slipway run", "slipway run -c my.yaml --set train.epochs=5", "slipway run --resume latest",
    ),
    LazyCommand(
        "Train", "rehearse", "cli.start:rehearse",
        "Try a hardware layout on this machine for a few training steps.",
        "slipway rehearse --hardware 'l4x4*2' --steps 20",
    ),
    LazyCommand(
        "Train", "reproduce", "cli.start:reproduce",
        "Prepare and train a run again from its record, and compare data, checkpoints and weights bit for bit.",
        "slipway reproduce latest", "slipway reproduce RUN --verify",
    ),
    LazyCommand(
        "Train", "tune", "cli.tuning:tune",
        "Train with different settings (section tune); evaluate and register the best model.",
        "slipway tune", "slipway tune -c my.yaml --set tune.trials=50",
    ),
    LazyCommand(
        "Use models", "predict", "cli.serving:predict",
        "Predict on files with a model on this machine. Inputs that cannot be read get a line with the error.",
        "slipway predict digits image.png folder", "slipway predict digits/1 table.csv --output predictions.csv",
    ),
    LazyCommand(
        "Use models", "batch", "cli.batch:batch",
        "Predict on many inputs in several processes, or as a job on Vertex AI. The same command continues a batch.",
        "slipway batch digits --input photos --output predictions --processes 8",
        "slipway batch digits --target vertex --input gs://bucket/in.jsonl --output gs://bucket/out",
    ),
    LazyCommand(
        "Use models", "drift", "cli.serving:drift",
        "Compare new data with those that a model was evaluated on. Exits with 4 if they have drifted.",
        "slipway drift digits photos", "slipway drift digits new.csv --false-alarms 0.05",
    ),
    LazyCommand(
        "Use models", "serve", "cli.serving:serve",
        "Serve a model over HTTP on this machine, with a page to try it.",
        "slipway serve", "slipway serve digits --port 9000",
    ),
    LazyCommand(
        "Use models", "deploy", "platforms.vertex.endpoints.commands:deploy",
        "Deploy a registered model to an endpoint, step by step, and withdraw it if a check fails.",
        "slipway deploy", "slipway deploy --endpoint digits --version 3",
    ),
    LazyCommand(
        "Use models", "rollback", "platforms.vertex.endpoints.commands:rollback",
        "Return an endpoint's traffic to the previous model, in one update. Repeated, it changes nothing.",
        "slipway rollback --endpoint digits",
    ),
    LazyCommand(
        "Use models", "endpoints", "platforms.vertex.endpoints.commands:app",
        "Create, change, list and delete Vertex AI endpoints from the files in configs/endpoints.",
        "slipway endpoints list", "slipway endpoints diff digits", "slipway endpoints apply digits",
    ),
    LazyCommand(
        "Follow runs", "list", "cli.existing_runs:list_",
        "List runs, newest first, with the settings that differ between them.",
        "slipway list", "slipway list --where 'accuracy>0.97' --sort seconds",
    ),
    LazyCommand(
        "Follow runs", "compare", "cli.existing_runs:compare",
        "Write a page that compares runs: metrics, settings that differ, learning curves, data, code and time.",
        "slipway compare RUN RUN", "slipway compare --where train.engine=jax",
    ),
    LazyCommand(
        "Follow runs", "open", "cli.existing_runs:open_",
        "Open the report of a run, or the comparison of all runs, in a browser.",
        "slipway open", "slipway open latest",
    ),
    LazyCommand(
        "Follow runs", "status", "cli.existing_runs:status",
        "Show a run's steps, result and error.",
        "slipway status", "slipway status --follow RUN", "slipway status --all",
    ),
    LazyCommand(
        "Follow runs", "logs", "cli.existing_runs:logs",
        "Print a run's logs.",
        "slipway logs --step train", "slipway logs --follow",
    ),
    LazyCommand(
        "Follow runs", "explain", "cli.existing_runs:explain",
        "Explain why a run failed: step, replica, traceback and fix. Exits with 1 for a failed run.",
        "slipway explain", "slipway explain RUN --json",
    ),
    LazyCommand(
        "Follow runs", "diagnose", "cli.start:diagnose",
        "Say where the time of a training on this machine went, and the setting that would save most.",
        "slipway diagnose", "slipway diagnose RUN --try",
    ),
    LazyCommand(
        "Follow runs", "cancel", "cli.existing_runs:cancel",
        "Stop a run. Finished steps are kept; slipway run --resume continues it.",
        "slipway cancel latest",
    ),
    LazyCommand(
        "Follow runs", "track", "cli.existing_runs:track",
        "Send to the tracker (section track) what it does not have of a run or search, as after it was down.",
        "slipway track latest", "slipway track RUN --set track.mlflow=http://localhost:5000",
    ),
    LazyCommand(
        "Follow runs", "verify", "cli.artifacts:verify",
        "Read models, checkpoints and prepared data sets, and compare every file with its checksum.",
        "slipway verify", "slipway verify digits", "slipway verify latest --json",
    ),
    LazyCommand(
        "Follow runs", "clean", "cli.artifacts:clean",
        "Delete old runs, data sets, images, schedules and TPUs that no model, search or other run refers to.",
        "slipway clean", "slipway clean --older-than 7d --apply",
    ),
    LazyCommand(
        "Follow runs", "tpu", "platforms.tpu.commands:app",
        "List and delete the Cloud TPUs that runs with --target tpu have requested.",
        "slipway tpu list -c my.yaml", "slipway tpu delete slipway-digits-1-1",
    ),
    LazyCommand(
        "Prepare", "doctor", "cli.preparation:doctor",
        "Check the machine, the project and the configuration, and show how to fix what fails.",
        "slipway doctor -c my.yaml", "slipway doctor --target vertex --hardware l4x1",
    ),
    LazyCommand(
        "Prepare", "hardware", "cli.hardware:hardware",
        "List the available hardware, or show what one choice resolves to or why it is refused.",
        "slipway hardware --region europe-west4", "slipway hardware 'l4x4*2'",
    ),
    LazyCommand(
        "Prepare", "setup", "cli.preparation:setup",
        "Show or create what runs need: on Vertex AI and TPUs APIs, bucket, accounts and roles, on Kubeflow a Role.",
        "slipway setup -c my.yaml --apply", "slipway setup --target kubeflow -c my.yaml",
    ),
    LazyCommand(
        "Prepare", "migrate", "cli.preparation:migrate",
        "Convert an AI Platform Training job into a run configuration.",
        "slipway migrate config.yaml -o my.yaml", "slipway migrate -- my_job --scale-tier=BASIC_GPU",
    ),
    LazyCommand(
        "Prepare", "config", "cli.configuration:config",
        "Show a configuration, or the JSON Schema of configuration files.",
    ),
    LazyCommand(
        "Prepare", "data", "cli.preparation:data",
        "Check and download data sets.",
    ),
    LazyCommand(
        "Prepare", "prices", "cli.prices:prices",
        "The list prices by which costs are estimated.",
    ),
    LazyCommand(
        "Build and schedule", "compile", "cli.artifacts:compile_",
        "Write the pipeline spec that a run executes.",
        "slipway compile --target vertex -c my.yaml -o spec.yaml",
    ),
    LazyCommand(
        "Build and schedule", "build", "cli.artifacts:build",
        "Build the images that a run needs, skip those already in the registry, and print their digests.",
        "slipway build --target vertex -c my.yaml", "slipway build --no-push",
    ),
    LazyCommand(
        "Build and schedule", "schedule", "platforms.vertex.schedules.commands:app",
        "Create, change and delete Vertex AI schedules from the files in configs/schedules.",
        "slipway schedule list", "slipway schedule apply nightly", "slipway schedule pause nightly",
    ),
)  # fmt: skip
EXAMPLES = (
    "slipway init         write a small project that runs at once",
    "slipway doctor       check this machine and slipway.yaml",
    "slipway run          train, evaluate and register a model on this machine",
    "slipway explain      explain why the last run failed",
    "slipway run -c my.yaml --target vertex --hardware l4x1",
)


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
    cls=LazyCommands,
    help="From a data set to a trained, evaluated, registered model, as one Kubeflow pipeline.",
    epilog=_epilog(EXAMPLES),
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click suggests them, too
    context_settings=HELP_OPTIONS,
)


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
    share_settings()
    with output_errors():
        app()
