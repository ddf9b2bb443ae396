"""How a run is continued, as a whole or by some of its steps: what may change, and the command after a failure."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator

from slipway.core.atomic import replace_file
from slipway.core.errors import UserError, nearest
from slipway.pipelines.config.config import RunConfig, load
from slipway.pipelines.runs.record import LOCAL, ROOT, Part, RunFolder, RunRecord, discard
from slipway.pipelines.table import STEPS

# Sections that may change when a run is resumed, because neither the data nor the checkpoints depend on them.
CHANGEABLE = (
    *("data.workers", "evaluate", "register", "train.restarts", "train.export"),
    *("vertex.regions", "vertex.order", "tpu", "budget", "budget_per_month", "budget_label", "notify", "track"),
)
# Settings that refer to files, where the file can be fixed without changing the setting.
NAMES_OF_FILES = (
    *("data.source", "data.features", "data.module", "data.text.vocabulary"),
    *("model.builder", "train.module", "train.command"),
)
# An option in a fix; what follows its last quote or character is punctuation.
OPTION = r"--(?:set|hardware) (?:'[^']*'|[^\s'])*(?:'[^']*'|[^\s',;.:])"


class UnansweredError(UserError):
    """A platform did not answer a request, which may have had its effect."""


def is_changeable(setting: str) -> bool:
    """Return whether a setting may change when a run is resumed."""
    return _is_in(setting, CHANGEABLE)


def _is_in(setting: str, sections: tuple[str, ...]) -> bool:
    return any(f"{setting}.".startswith(f"{section}.") for section in sections)


def new_run_with(record: RunRecord, options: str) -> str:
    """Return the command that starts a new run with the configuration of `record` and `options`."""
    target = "" if record.platform == LOCAL else f" --target {record.platform}"
    command = "rehearse" if record.rehearsal else "run"
    folds = record.arguments.get("prepare_data", {}).get("folds")
    repeated = f" --folds {folds}" if folds else ""
    return f"slipway {command} -c {ROOT / record.run_id / 'config.yaml'}{target}{repeated} {options}"


def next_command(record: RunRecord) -> str | None:
    """Return the command to type after fixing a failed run: resume it, or start a new run if data or weights change.

    It has all options with which the fix begins, not those of its alternatives.

    None if the configuration has to change and the error does not say how.
    """
    fix = (record.error.fix if record.error else None) or ""
    cause = record.error.setting if record.error else None
    resume = f"slipway run --resume {record.run_id}"
    options = re.search(f"{OPTION}(?: {OPTION})*", fix)
    if "without --resume" in fix:
        return new_run_with(record, "").strip()
    if options is None:
        return resume if cause is None or _is_in(cause, (*CHANGEABLE, *NAMES_OF_FILES)) else None
    changed = re.findall(r"--(?:set|hardware) '?([\w.]+)", options[0])
    if "--hardware" not in options[0] and all(map(is_changeable, changed)):
        return f"{resume} {options[0]}"
    return new_run_with(record, options[0])


def how_to_watch_on(record: RunRecord) -> str:
    """Return the commands to watch or stop a run that the user stopped watching, or to resume it if it has ended."""
    if record.status != "running":
        return f"Run {record.run_id} is not running.\n  resume: slipway run --resume {record.run_id}"
    state = "may have been submitted" if record.requested else "continues in the background"
    return (
        f"Run {record.run_id} {state}.\n"
        f"  watch:  slipway status --follow {record.run_id}\n"
        f"  stop:   slipway cancel {record.run_id}"
    )


@contextlib.contextmanager
def submitting(folder: RunFolder, earlier: RunRecord | None, say: Callable[[str], None]) -> Iterator[None]:
    """Return a context that submits a run; of one that is refused, or was not requested yet, nothing remains.

    Args:
        folder: The run's folder: removed if the run is new, else its record is restored.
        earlier: The record of the previous try; None if the run is new.
        say: Receives how to watch or stop a run whose submission was interrupted, or not answered.
    """
    try:
        yield
    except BaseException as error:
        record = folder.read() if folder.record_file.exists() else None
        is_refused = isinstance(error, UserError) and not isinstance(error, UnansweredError)
        if record is not None and record.status == "running" and not is_refused:
            if isinstance(error, KeyboardInterrupt | UnansweredError):
                say(how_to_watch_on(record))
        elif earlier is None:
            discard(folder)
        else:
            folder.write(earlier)
        raise


def check_resumable(record: RunRecord, *, changed: bool) -> None:
    """Check that a run can be resumed: it has not succeeded, or settings after training change.

    A run whose submission was not answered can, if Slipway chose its job's name: there is only one job of a name.

    Raises:
        UserError: The run is still running, or has succeeded and nothing changes.
    """
    if record.status == "running" and not (record.requested and record.job):
        raise UserError(f"Run {record.run_id} is still running.", fix=f"slipway status {record.run_id}")
    if record.status == "succeeded" and (record.rehearsal or not changed):
        raise UserError(f"Run {record.run_id} has already succeeded.", fix="slipway run")


def resumed_configuration(
    folder: RunFolder, record: RunRecord, overrides: Iterable[str], hardware: str | None
) -> RunConfig:
    """Return the configuration of a resumed run with `overrides` applied, and store it.

    Raises:
        UserError: An override would change something that the run's checkpoints depend on.
    """
    overrides = list(overrides)
    trained = record.step("train").status == "succeeded"
    names = [text.partition("=")[0] for text in overrides]
    fixed = [
        f"--set {shlex.quote(text)}"
        for name, text in zip(names, overrides, strict=True)
        if not is_changeable(name) or (trained and name == "train.export")  # exported already
    ]
    if hardware:
        fixed.append(f"--hardware {shlex.quote(hardware)}")
    if fixed:
        raise UserError(
            f"{fixed[0]} cannot be applied to a resumed run: its data and checkpoints depend on the original value.",
            setting=fixed[0].partition(" ")[0],
            value=fixed[0].partition(" ")[2],
            allowed="data.workers, evaluate.*, register.*, train.restarts.*, vertex.regions, vertex.order, tpu.*, "
            "budget, budget_per_month, budget_label, notify.* and track.*, which do not affect the weights, and before "
            "the model is exported train.export",
            fix=new_run_with(record, " ".join(fixed)),
        )
    configuration = load(folder.configuration_file, overrides)
    if overrides:
        replace_file(folder.configuration_file, configuration.as_yaml().encode())
        record.champion = None  # the registry may have changed
    return configuration


def part_of(record: RunRecord, only: str | None, from_step: str | None, last: str | None = None) -> Part:
    """Return which steps of a run are executed again: one, or all from one on up to `last`.

    Training includes its plan.

    Raises:
        UserError: There is no such step, or the run has not what the step needs.
    """
    option, step = ("--only", only) if only else ("--from-step", from_step)
    assert step is not None
    steps = [entry.name for entry in record.steps if STEPS[entry.name].settings]
    if step not in steps or (only and from_step):
        raise UserError(
            "--only and --from-step cannot be used together." if only and from_step else f"A run has no step {step}.",
            setting=option,
            value=step,
            allowed=", ".join(steps),
            nearest=nearest(step, steps),
            fix=f"slipway run {option} {nearest(step, steps) or steps[-1]} --from {record.run_id}",
        )
    if record.rehearsal:
        raise UserError(
            f"{record.run_id} is a rehearsal, which has no results for {option}.", setting="--from", fix="slipway run"
        )
    first = "plan_training" if step == "train" else step
    for prior in record.steps[: [entry.name for entry in record.steps].index(first)]:
        if prior.name != "build_image" and prior.status != "succeeded":
            raise UserError(
                f"The step {step} needs the result of {prior.name}, which is {prior.status} in run {record.run_id}.",
                setting="--from",
                value=record.run_id,
                fix=f"slipway run --resume {record.run_id}",
            )
    verdict = record.verdict or {}
    if step == "register_model" and verdict.get("decision") != "promote":
        raise UserError(
            f"The model of run {record.run_id} is not registered: {' '.join(verdict['reasons'])}",
            setting=option,
            value=step,
            fix=f"slipway run --from-step evaluate --from {record.run_id}, with another gate (--set evaluate.gate.…)",
        )
    return Part(source=record.run_id, first=first, last=only or last or steps[-1])


def part_configuration(folder: RunFolder, part: Part, overrides: Iterable[str], hardware: str | None) -> RunConfig:
    """Return the configuration of a run that executes some steps of the one in `folder`.

    Raises:
        UserError: An override would change a step that is not executed.
    """
    overrides = list(overrides)
    names = list(STEPS)
    executed = names[names.index(part.first) : names.index(part.last) + 1]
    sections = [section for name in executed for section in STEPS[name].settings]
    changed = [*overrides, *([f"hardware={hardware}"] if hardware else [])]
    for text in changed:
        setting, _, value = text.partition("=")
        if not _is_in(setting, tuple(sections)):
            section = setting.partition(".")[0]
            earlier = next((name for name in names if section in STEPS[name].settings), None)
            raise UserError(
                f"{setting} does not change the steps that are executed: {', '.join(executed)}.",
                setting=setting,
                value=value,
                allowed=", ".join(f"{allowed_section}.*" for allowed_section in dict.fromkeys(sections)),
                fix=f"slipway run --from-step {earlier} --from {part.source}" if earlier else "slipway run",
            )
    return load(folder.configuration_file, overrides, hardware)
