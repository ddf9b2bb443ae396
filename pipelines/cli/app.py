"""The `slipway` command line: a row for each command, whose module is imported when it is called."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping
from typing import Annotated, Any, get_type_hints

import click
import typer
from typer.core import TyperArgument
from typer.models import ArgumentInfo

from slipway import extensions
from slipway.core.network import share_settings
from slipway.extensions import Command
from slipway.pipelines.terminal import (
    HELP_OPTIONS,
    Commands,
    command_group,
    output_errors,
    print_any_character,
    show_help_alone,
)


class LazyCommand(click.Command):
    """What a help page shows of a command or group of commands, which is imported when it is called."""

    def __init__(self, row: Command, members: Mapping[str, LazyCommand] | None = None) -> None:
        self.extra = row.extra
        super().__init__(row.name, help=row.help)
        self.rich_help_panel = row.panel
        self.source = row.source
        self.examples = row.examples
        self.members = members or {}

    @property
    def hidden(self) -> bool:
        """Whether no help page lists it: only these need to know which packages are installed."""
        if not self.extra:
            return False
        from slipway.trainer.engines.installed import is_extra_installed

        return not is_extra_installed(self.extra)

    @hidden.setter
    def hidden(self, value: bool) -> None:
        """Ignore what click's constructor sets."""

    @functools.cached_property
    def loaded(self) -> click.Command:
        """The command itself.

        Raises:
            UserError: A package that it needs is not installed.
        """
        if self.extra:
            from slipway.trainer.engines.installed import verify_extra

            verify_extra(self.extra)
        source = extensions.load(self.source) if self.source else command_group(self.help or "")
        parent = typer.Typer(suggest_commands=False)
        if isinstance(source, typer.Typer):
            parent.add_typer(source, name=self.name, epilog=_epilog(self.examples))
        else:
            parent.command(self.name, epilog=_epilog(self.examples))(source)
        [command] = typer.main.get_group(parent).commands.values()
        _restore_help(command)
        if isinstance(command, click.Group):
            command.commands.update(self.members)
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        return self.loaded.make_context(info_name, args, parent, **extra)


class LazyCommands(Commands):
    """The group of `COMMANDS` and the commands of extensions."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        rows = (*COMMANDS, *(command for extension in extensions.installed() for command in extension.commands))
        members: dict[str, dict[str, LazyCommand]] = defaultdict(dict)
        for row in rows:
            if row.group:
                members[row.group][row.name] = LazyCommand(row)
        top = {row.name: LazyCommand(row, members[row.name]) for row in rows if not row.group}
        self.commands = {name: command for name, command in top.items() if command.source or command.members}
        self.paths = {member: f"slipway {name} {member}" for name, command in top.items() for member in command.members}
        self.paths |= {name: name for name in self.commands}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first of `args` names; an error suggests the closest, also in a group."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            from difflib import get_close_matches

            name = error.command_name
            names = [name] if name in self.paths else get_close_matches(name, self.paths, n=1)
            vars(error)["possibilities"] = [self.paths[near] for near in names]  # declared final
            raise


def _restore_help(command: click.Command) -> None:
    """Set the help of a command's arguments, or of those of a group's commands, from their annotations.

    Typer sets it before it calls click's constructor, which resets it since click 8.5: no argument would have a help.
    Seen with typer 0.21.2 and click 8.5.1; https://github.com/huggingface/huggingface_hub/pull/4759 describes it.
    """
    for member in command.commands.values() if isinstance(command, click.Group) else ():
        _restore_help(member)
    arguments = [parameter for parameter in command.params if isinstance(parameter, TyperArgument)]
    hints = get_type_hints(command.callback, include_extras=True) if arguments else {}
    for argument in arguments:
        argument.help = next(info.help for info in hints[argument.name].__metadata__ if isinstance(info, ArgumentInfo))


def _epilog(examples: tuple[str, ...]) -> str | None:
    """Format the examples below a help page, one paragraph each because typer joins the lines of a paragraph."""
    return "\n\n".join(["[bold]Examples[/]", *examples]) if examples else None


# The commands of the core, in the order of --help; those of extensions follow in each panel.
COMMANDS = (
    Command(
        "Train", "init", "slipway.pipelines.cli.project:init",
        "Write a small project that `slipway run` trains at once, to begin your own from.",
        ("slipway init", "slipway init my_project --template program"),
    ),
    Command(
        "Train", "run", "slipway.pipelines.cli.start:run",
        "Run the whole pipeline: prepare data, train, evaluate, register.",
        ("slipway run", "slipway run -c my.yaml --set train.epochs=5", "slipway run --resume latest"),
    ),
    Command(
        "Train", "rehearse", "slipway.pipelines.cli.start:rehearse",
        "Try a hardware layout on this machine for a few training steps.",
        ("slipway rehearse --hardware 'l4x4*2' --steps 20",),
    ),
    Command(
        "Use models", "predict", "slipway.pipelines.cli.serving:predict",
        "Predict on files with a model on this machine. Inputs that cannot be read get a line with the error.",
        ("slipway predict digits image.png folder", "slipway predict digits/1 table.csv --output predictions.csv"),
    ),
    Command(
        "Use models", "batch", "slipway.pipelines.cli.batch:batch",
        "Predict on many inputs in several processes, or as a job on Vertex AI. The same command continues a batch.",
        (
            "slipway batch digits --input photos --output predictions --processes 8",
            "slipway batch digits --target vertex --input gs://bucket/in.jsonl --output gs://bucket/out",
        ),
    ),
    Command(
        "Use models", "serve", "slipway.pipelines.cli.serving:serve",
        "Serve a model over HTTP on this machine, with a page to try it.",
        ("slipway serve", "slipway serve digits --port 9000"),
    ),
    Command(
        "Follow runs", "list", "slipway.pipelines.cli.existing_runs:list_",
        "List runs, newest first, with the settings that differ between them.",
        ("slipway list", "slipway list --where 'accuracy>0.97' --sort seconds"),
    ),
    Command(
        "Follow runs", "status", "slipway.pipelines.cli.existing_runs:status",
        "Show a run's steps, result and error.",
        ("slipway status", "slipway status --follow RUN", "slipway status --all"),
    ),
    Command(
        "Follow runs", "logs", "slipway.pipelines.cli.existing_runs:logs",
        "Print a run's logs.",
        ("slipway logs --step train", "slipway logs --follow"),
    ),
    Command(
        "Follow runs", "explain", "slipway.pipelines.cli.existing_runs:explain",
        "Explain why a run failed: step, replica, traceback and fix. Exits with 1 for a failed run.",
        ("slipway explain", "slipway explain RUN --json"),
    ),
    Command(
        "Follow runs", "cancel", "slipway.pipelines.cli.existing_runs:cancel",
        "Stop a run. Finished steps are kept; slipway run --resume continues it.",
        ("slipway cancel latest",),
    ),
    Command(
        "Follow runs", "runs", "",
        "Open the report of a run, verify its files, and what else is done with existing runs now and then.",
        ("slipway runs open latest", "slipway runs verify latest"),
    ),
    Command(
        "", "open", "slipway.pipelines.cli.existing_runs:open_",
        "Open the report of a run in a browser.",
        ("slipway runs open", "slipway runs open latest"),
        group="runs",
    ),
    Command(
        "", "verify", "slipway.pipelines.cli.artifacts:verify",
        "Read models, checkpoints and prepared data sets, and compare every file with its checksum.",
        ("slipway runs verify", "slipway runs verify digits", "slipway runs verify latest --json"),
        group="runs",
    ),
    Command(
        "Prepare", "doctor", "slipway.pipelines.cli.preparation:doctor",
        "Check the machine, the project and the configuration, and show how to fix what fails.",
        ("slipway doctor -c my.yaml", "slipway doctor --target vertex --hardware l4x1"),
    ),
    Command(
        "Prepare", "hardware", "slipway.pipelines.cli.hardware:hardware",
        "List the available hardware, or show what one choice resolves to or why it is refused.",
        ("slipway hardware --region europe-west4", "slipway hardware 'l4x4*2'"),
    ),
    Command(
        "Prepare", "config", "slipway.pipelines.cli.configuration:config",
        "Show a configuration, the JSON Schema of configuration files, or the pipeline spec that one becomes.",
    ),
    Command(
        "", "compile", "slipway.pipelines.cli.artifacts:compile_",
        "Write the pipeline spec that a run executes.",
        ("slipway config compile --target vertex -c my.yaml -o spec.yaml",),
        group="config",
    ),
    Command(
        "Prepare", "data", "slipway.pipelines.cli.preparation:data",
        "Check and download data sets.",
    ),
)  # fmt: skip
EXAMPLES = (
    "slipway init         write a small project that runs at once",
    "slipway doctor       check this machine and slipway.yaml",
    "slipway run          train, evaluate and register a model on this machine",
    "slipway explain      explain why the last run failed",
    "slipway run -c my.yaml --target vertex --hardware l4x1",
)


app = typer.Typer(
    name="slipway",
    cls=LazyCommands,
    help="From a data set to a trained, evaluated, registered model, as one Kubeflow pipeline.\n\n"
    "What is typed every day stands at the top; what is done with existing runs now and then is in `runs`, what a "
    "configuration becomes in `config`, and what has files of its own in its group.",
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
