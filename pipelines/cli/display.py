"""Terminal output about runs: steps, the summary, the list of runs, explanations of failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.markup import escape

from slipway.core.formatting import number
from slipway.core.paths import short
from slipway.pipelines.runs.record import RunRecord

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from slipway.pipelines.hardware import Hardware
    from slipway.pipelines.runs.running import Running
    from slipway.pipelines.runs.timings import Timing
    from slipway.trainer.config import TrainSettings

# Settings that the list of runs shows below a run.
MAX_SETTINGS = 8


def timings_table(rows: list[Timing]) -> Table:
    """Return the phases of a run, with the seconds of each and of each step, and their sum."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("step", "phase", "seconds"):
        table.add_column(column, justify="right" if column == "seconds" else "left")
    for step in dict.fromkeys(row.step for row in rows):
        phases = [row for row in rows if row.step == step]
        table.add_row(step, "", f"[bold]{sum(row.seconds for row in phases):.2f}[/]")
        for row in phases:
            table.add_row("", escape(row.phase), f"{row.seconds:.2f}")
    table.add_row("all", "", f"[bold]{sum(row.seconds for row in rows):.2f}[/]")
    return table


def summary(record: RunRecord, running: Mapping[str, str] | None = None) -> str:
    """Return the summary printed below the steps of a run; paths and URLs are whole lines, to be copied.

    `running` are the labels and texts of one that is running: see `slipway.pipelines.runs.remaining.lines`.
    """
    after = f" after {record.seconds:.1f} s" if record.seconds else ""
    rows = {"run": f"{record.run_id}: {record.status}{after}"}
    rows |= running or {}
    if record.choice:
        rows["hardware"] = f"{record.hardware}, {record.choice['why']}"
    if record.verdict:
        rows["verdict"] = f"{record.verdict['decision']}. {' '.join(record.verdict['reasons'])}"
    if record.refused:
        rows["tried"] = "; ".join(attempt.title for attempt in record.refused)
    if record.cost:
        rows["cost"] = str(record.cost)
    if record.model:
        rows["model"] = short(record.model)
    if record.report:
        rows["report"] = short(record.report)
    if record.statistics:
        rows["data"] = short(record.statistics)
    if page := record.outputs("check_drift").get("page"):
        rows["drift"] = short(page)
    if record.console:
        rows["console"] = record.console
    return "\n" + escape("\n".join(f"{name:<9}{text}" for name, text in rows.items()))


def rehearsal_summary(
    record: RunRecord, hardware: Hardware, train: TrainSettings, compiled: Sequence[str] = ()
) -> Group:
    """Return the summary of a successful rehearsal: what it has proven and what it has not.

    `compiled` is what the compiler of the hardware says of the step.
    """
    from rich.console import Group
    from rich.table import Table

    unit = "host" if hardware.machines_per_replica > 1 else "replica"
    layout = f"{hardware.hosts} {unit}{'s' if hardware.hosts > 1 else ''}"
    if train.program:
        proven, not_proven = _program_rehearsed(record, layout, train)
    else:
        proven, not_proven = _trainer_rehearsed(record, layout, hardware, train, compiled)
    if hardware.accelerator_row is not None:
        not_proven.append(f"the use of {hardware.accelerator_row.title}: {_verification(train, hardware)}")
    table = Table.grid(padding=(0, 2))
    table.add_row("run", f"{record.run_id}: {record.status} after {record.seconds:.1f} s")
    for title, lines in (("proven", proven), ("not proven", [*not_proven, "training speed"])):
        for position, line in enumerate(lines):
            table.add_row("" if position else title, escape(line))
    return Group("", table)


def _verification(train: TrainSettings, hardware: Hardware) -> str:
    """Return what each real machine verifies about its accelerators, which depends on the kind of program."""
    number, device = hardware.accelerators_per_host, "TPU device" if hardware.is_tpu else "GPU"
    planned = f"{number} {device}{'s' * (number > 1)}"
    if train.image is not None and train.program == train.image:
        return f"only the image's entry point can check that it sees {planned}"
    has = "it has TPU chips" if hardware.is_tpu else f"its driver shows {planned}"
    if train.program is None:
        return f"before step 1, each real machine checks that {has}, and that the framework sees {planned}"
    if train.image is None:
        sees = "an installed framework has libtpu" if hardware.is_tpu else "an installed framework sees them"
        return f"before the program starts, each real machine checks that {has}, and that {sees}"
    files = "device files" if hardware.is_tpu else f"the device files of {planned} and the driver's library"
    return (
        f"before the program starts, each real machine checks that the container has {files}, and what the frameworks "
        "of the image's Python see"
    )


def _program_rehearsed(record: RunRecord, layout: str, train: TrainSettings) -> tuple[list[str], list[str]]:
    """Return what the rehearsal of a custom program has proven, and what not."""
    steps = record.step("train").outputs["rehearsed_steps"]
    end = f"until slipway.training.report of step {steps:,}" if steps else "to its end"
    not_proven = ["the evaluation", *(["the export of the model"] if steps else [])]
    return [f"{layout} ran {train.program} {end}"], not_proven


def _trainer_rehearsed(
    record: RunRecord, layout: str, hardware: Hardware, train: TrainSettings, compiled: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return what the rehearsal of Slipway's trainer has proven, and what not."""
    from slipway.pipelines.hardware.compiled import missing
    from slipway.pipelines.hardware.memory import device_bytes, fits_memory

    plan, trained = record.step("plan_training").outputs, record.step("train").outputs
    devices = hardware.accelerators_per_host
    layout += f" of {devices} devices each" if devices > 1 else ""
    batch = plan["batch_per_replica"] * plan["replicas"]
    proven = [
        f"{layout} trained {plan['steps']} steps of {batch} examples and ended with identical weights",
        "a checkpoint was saved, and the exported model was evaluated on the test split",
    ]
    not_proven = []
    if compiled:
        proven += compiled
    elif hardware.accelerator_row is not None:
        need = fits_memory(
            hardware,
            trained["variables_bytes"],
            train.optimizer_kind,
            trainable_bytes=trained["trainable_bytes"],
            engine=train.engine,
            sharding=train.sharding,
        )
        has = device_bytes(hardware)
        room = f" of {has / 2**30:.0f} GiB" if has else ""
        not_proven.append(
            f"memory on {hardware.accelerator_row.title}: {need}{room} per device, not counting activations"
        )
        if hardware.is_tpu:
            not_proven.append(f"the step compiled for the TPU: {missing(hardware, train.engine)}")
    return proven, not_proven


def explanation(record: RunRecord, *, with_traceback: bool = True) -> str:
    """Return why a run failed and how to fix it, as one screen of text."""
    tried = [
        f"  no quota or capacity on {attempt.title}, {attempt.ended:%Y-%m-%d %H:%M} UTC: {attempt.message}"
        # The last one is the error.
        for attempt in record.refused[: -1 if record.error and record.error.moves else None]
    ]
    if record.error is None:
        where = f" on {record.hardware} in {record.region}" if tried else ""
        return "\n".join([f"Run {record.run_id} has not failed; its status is {record.status}{where}.", *tried])
    error = record.error
    where = f"The step {error.step} failed" if error.step else "The run failed"
    where += f" in the replica {error.replica}" if error.replica else ""
    lines = [f"{where}: {error.message}"]
    if error.job:
        lines.append(f"  job:      {error.job}")
    if with_traceback and error.traceback:
        lines += ["", *(f"  {line}" for line in error.traceback.rstrip().splitlines()[-24:]), ""]
    if error.fix:
        lines.append(f"  fix:      {error.fix}")
    return "\n".join([*lines, *tried])


def run_lines(records: list[RunRecord], settings: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the list of runs: a line of columns for each, and below it the settings that differ between the runs.

    Lines are as long as they have to be: ids, which contain the start time, are copied. A metric that all runs share is
    the column's name.

    Args:
        records: The runs.
        settings: The settings of each, by dotted name.
    """
    measured = [record.outputs("evaluate").get("metric", "accuracy") if record.metrics else "" for record in records]
    shared = {name for name in measured if name}
    result = shared.pop() if len(shared) == 1 else "metric"
    cost = "cost" if any(record.cost for record in records) else ""
    rows = [("run", "status", "hardware", result, "verdict", "seconds", cost)]
    for record, metric in zip(records, measured, strict=True):
        value = number(record.metrics[metric]) if metric in record.metrics else ""
        rows.append((
            record.run_id,
            record.status,
            record.hardware,
            value if metric in ("", result) else f"{metric} {value}",
            "rehearsal" if record.rehearsal else (record.verdict or {}).get("decision", ""),
            "" if record.seconds is None else f"{record.seconds:.1f}",
            "" if record.cost is None else f"~${record.cost.dollars:,.2f}",
        ))  # fmt: skip
    header, *lines = in_columns(rows)
    below = [f"\n  [dim]{escape(text)}[/]" if text else "" for text in differences(settings)]
    return [f"[bold]{header}[/]", *(escape(line) + more for line, more in zip(lines, below, strict=True))]


def running_lines(running: Sequence[Running]) -> list[str]:
    """Return the runs that are running, a line of columns for each, and the sum of their costs."""

    def price(amount: float | None) -> str:
        return "not known" if amount is None else f"~${amount:,.2f}" if amount else ""

    rows = [("run", "target", "hardware", "running", "for", "per hour", "at most")]
    for active in running:
        since = str(timedelta(seconds=round(active.seconds)))
        where = f"{active.hardware} in {active.region}" if active.region else active.hardware
        steps = ", ".join(active.steps) or "deployed"
        rows.append(
            (active.run_id, active.target, where, steps, since, price(active.per_hour), price(active.worst_case))
        )
    header, *lines = in_columns(rows)
    known = [run.per_hour for run in running if run.per_hour]
    unknown = sum(run.per_hour is None for run in running)
    least = "at least " if unknown else ""
    cost = (
        [f"{least}~${sum(known):,.2f} per hour, by list prices of trainings and replicas"] if known or unknown else []
    )
    return [f"[bold]{header}[/]", *map(escape, [*lines, *cost])]


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, whose columns are as wide as they have to be."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def differences(settings: Sequence[Mapping[str, object]]) -> list[str]:
    """Return for each configuration the settings that are not the same in all of them, such as "train.epochs=5"."""
    from slipway.pipelines.selection import selection

    different = [name for name in selection.differences(settings) if name != "hardware"]
    lines = []
    for run_settings in settings:
        values = {name: run_settings[name] for name in different if run_settings.get(name) is not None}
        shown = [f"{name}={f'{value:g}' if isinstance(value, float) else value}" for name, value in values.items()]
        more = f" and {len(shown) - MAX_SETTINGS} more" if len(shown) > MAX_SETTINGS else ""
        lines.append(" ".join(shown[:MAX_SETTINGS]) + more)
    return lines
