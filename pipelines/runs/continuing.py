"""How a run is continued: what may change when it is resumed, and the command to type after it has failed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from slipway.core.atomic import replace_file
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, load
from slipway.pipelines.runs.record import LOCAL, ROOT, RunFolder, RunRecord

# Sections that may change when a run is resumed, because neither the data nor the checkpoints depend on them.
CHANGEABLE = ("data.workers", "evaluate", "register", "train.restarts", "train.export", "tpu")
# Settings that refer to files, where the file can be fixed without changing the setting.
NAMES_OF_FILES = ("data.source", "data.features", "data.module", "model.builder", "train.module", "train.command")
# An option in a fix; what follows its last quote or character is punctuation.
OPTION = r"--(?:set|hardware) (?:'[^']*'|[^\s'])*(?:'[^']*'|[^\s',;.:])"


def is_changeable(setting: str) -> bool:
    """Return whether a setting may change when a run is resumed."""
    return _is_in(setting, CHANGEABLE)


def _is_in(setting: str, sections: tuple[str, ...]) -> bool:
    return any(f"{setting}.".startswith(f"{section}.") for section in sections)


def new_run_with(record: RunRecord, options: str) -> str:
    """Return the command that starts a new run with the configuration of `record` and `options`."""
    target = "" if record.platform == LOCAL else f" --target {record.platform}"
    command = "rehearse" if record.rehearsal else "run"
    return f"slipway {command} -c {ROOT / record.run_id / 'config.yaml'}{target} {options}"


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
    """Return the commands to watch or stop a run after the user stopped watching it."""
    return (
        f"Run {record.run_id} continues in the background.\n"
        f"  watch:  slipway status --follow {record.run_id}\n"
        f"  stop:   slipway cancel {record.run_id}"
    )


def check_resumable(record: RunRecord, *, changed: bool) -> None:
    """Check that a run can be resumed: it has not succeeded, or settings after training change.

    Raises:
        UserError: The run is still running, or has succeeded and nothing changes.
    """
    if record.status == "running":
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
            allowed="data.workers, evaluate.*, register.*, train.restarts.* and tpu.*, which do not affect the "
            "weights, and before the model is exported train.export",
            fix=new_run_with(record, " ".join(fixed)),
        )
    configuration = load(folder.configuration_file, overrides)
    if overrides:
        replace_file(folder.configuration_file, configuration.as_yaml().encode())
        record.champion = None  # the registry may have changed
    return configuration
