"""Commands to prepare for runs: `slipway doctor` and `data`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipway.core.errors import UserError
from slipway.pipelines.cli.targets import Target, check_runner_on
from slipway.pipelines.options import (
    Configuration,
    ConfigurationFile,
    Hardware,
    Json,
    Overrides,
    Runner,
    StepRunner,
    configuration_path,
    configured,
)
from slipway.pipelines.platforms.table import DEFAULT, platform_of, with_hardware
from slipway.pipelines.terminal import (
    EXIT_FAILED,
    command_group,
    console,
    error_console,
    print_json,
    say,
    user_errors,
)

if TYPE_CHECKING:
    from rich.table import Table

    from slipway.pipelines.checks import Finding

# Common names of data sets that TensorFlow Datasets calls something else.
ALIASES = {"flowers": "tf_flowers"}


@user_errors
def doctor(
    file: ConfigurationFile = None,
    config: Configuration = None,
    target: Target = DEFAULT,
    hardware: Hardware = None,
    overrides: Overrides = None,
    runner: StepRunner = Runner.process,
    as_json: Json = False,
) -> None:
    """Check the machine, the project and the configuration, and show how to fix what fails."""
    from slipway.pipelines.doctor import checks_of, examine_all
    from slipway.pipelines.platforms.base import Context

    configuration = with_hardware(configured(file, config, overrides, hardware), target, say)
    check_runner_on(target, runner)
    context = Context(configuration, platform_of(target), False, Path.cwd(), runner.value)
    width = max(len(check.name) for check in checks_of(context.platform))
    if as_json:
        findings = examine_all(context)
        print_json([finding.as_dict() for finding in findings])
    else:
        findings = examine_all(context, lambda finding: console.print(lines_of(finding, width)))
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def lines_of(finding: Finding, width: int) -> Table:
    """Return a finding of the doctor, with the fix below a failure or warning; `width` is that of the checks' names."""
    from rich.markup import escape
    from rich.table import Table

    marks = {"pass": "[green]✓[/]", "warning": "[yellow]![/]", "fail": "[red]✗[/]", "skipped": "[dim]–[/]"}
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(min_width=width)
    text = escape(finding.found)
    if finding.status == "skipped":
        text = f"[dim]skipped: {text}[/]"
    table.add_row(marks[finding.status], finding.check, text)
    if finding.fix:
        table.add_row("", "", f"fix: {escape(finding.fix)}")
    return table


data = command_group("Check and download data sets.")


@data.command(epilog="[bold]Examples[/]\n\nslipway data check -c my.yaml\n\nslipway data check --split")
@user_errors
def check(
    file: ConfigurationFile = None,
    config: Configuration = None,
    overrides: Overrides = None,
    split: Annotated[
        bool, typer.Option("--split", help="Also show all that was measured to find out whether the split flatters.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read the data of a configuration as a run does, without keeping anything; say what there is."""
    from slipway.components.prepare_data import scan as images
    from slipway.components.prepare_data import scan_table
    from slipway.pipelines.cli import image_folder, table_file
    from slipway.pipelines.config.config import load_data
    from slipway.pipelines.config.locations import locations

    configuration = load_data(configuration_path(file, config), overrides or ())
    settings = configuration.prepared
    if settings is None:
        raise UserError(
            "The configuration has no data that Slipway prepares.",
            setting="data.source",
            fix="slipway data check --set data.source=SOURCE",
        )
    for place in locations(configuration):
        place.require_mount()
    with (error_console if as_json else console).status(f"reading {settings.source}"):
        is_folder = settings.source.startswith("images:") and configuration.task == "classification"
        table = scan_table.scan(settings, configuration.task) if split or not is_folder else None
        if is_folder:
            scan = images.scan(settings)
            facts, summary = image_folder.facts(scan), image_folder.summary(settings.source, scan)
        elif table:
            facts, summary = table_file.facts(table), table_file.summary(settings.source, table)
        if split and table:
            facts = {**facts, "split": [finding.as_dict() for finding in table.split_findings]}
            summary += "\n\n" + table_file.split_summary(table)
    if as_json:
        print_json({"source": settings.source, **facts, "text": summary})
    else:
        console.print(summary, markup=False)


@data.command(name="ledger", epilog="[bold]Examples[/]\n\nslipway data ledger\n\nslipway data ledger --json")
@user_errors
def show_ledger(
    store: Annotated[str, typer.Argument(help="Folder or gs:// URI of prepared data sets (data.store).")] = "datasets",
    as_json: Json = False,
) -> None:
    """Show which models were evaluated on each test split of a store. Exits with 1 if a line was changed or removed."""
    from slipway.components.evaluate import ledger
    from slipway.core.formatting import number
    from slipway.core.paths import local_path

    folder = local_path(store).expanduser().absolute() / ledger.FOLDER
    ledgers = [ledger.read(path) for path in sorted(folder.glob("*"))]
    if as_json:
        print_json([test_split.as_dict() for test_split in ledgers])
    for test_split in () if as_json else ledgers:
        console.print(f"test split {test_split.folder.name}: {test_split.count} models", markup=False)
        for look in test_split.looks:
            about = (look.when, look.run or "no run", f"{look.metric} {number(look.value)}", look.decision, look.who)
            console.print(f"{look.number:>4}  {'  '.join(about)}", markup=False)
        for problem in test_split.problems:
            console.print(problem, markup=False)
    if not ledgers and not as_json:
        console.print(f"No model was evaluated on a test split of {store} yet.", markup=False)
    if any(test_split.problems for test_split in ledgers):
        raise typer.Exit(EXIT_FAILED)


DataSet = Annotated[Path, typer.Argument(help="Folder of a prepared data set: STORE/NAME/FINGERPRINT.")]


@data.command(epilog="[bold]Examples[/]\n\nslipway data lock datasets/digits/c006c50876f1fcd7 --to /evaluation")
@user_errors
def lock(
    dataset: DataSet,
    to: Annotated[str, typer.Option("--to", help="Folder or gs:// URI that only the step evaluate can read.")],
) -> None:
    """Keep the test split's examples, and with them its labels, where only the step evaluate reads them."""
    from slipway.core import locked

    count = locked.lock(dataset.absolute(), to)
    console.print(f"{count:,} shards of the test split are in {locked.location_of(dataset)}", markup=False)


@data.command(epilog="[bold]Examples[/]\n\nslipway data unlock datasets/digits/c006c50876f1fcd7")
@user_errors
def unlock(dataset: DataSet) -> None:
    """Move the test split's examples back to the data set."""
    from slipway.core import locked

    count = locked.unlock(dataset.absolute())
    console.print(f"{count:,} shards are back in {dataset}" if count else f"{dataset} is not locked", markup=False)


@data.command(epilog="[bold]Examples[/]\n\nslipway data get mnist\n\nslipway data get flowers photographs")
@user_errors
def get(
    name: Annotated[str, typer.Argument(help="mnist, flowers, cifar10, or any other TensorFlow Datasets name.")],
    folder: Annotated[Path | None, typer.Argument(help="Output folder; default: ./NAME.")] = None,
) -> None:
    """Download a data set from TensorFlow Datasets, verify its checksums, and save images as FOLDER/split/class/*."""
    from slipway.components.prepare_data.settings import DataSettings
    from slipway.components.prepare_data.sources.tfds_set import data_dir, save_images

    settings = DataSettings(source=f"tfds:{ALIASES.get(name, name)}")
    folder = folder or Path(name.partition("/")[0].partition(":")[0])
    console.print(f"{settings.source}, cached in {data_dir(settings)}")
    count = save_images(settings, folder)
    console.print(f"{count:,} images in {folder}: --set data.source=images:{folder}")
