"""`slipway doctor`: the checks that apply to runs on every platform; `slipway run` and `compile` share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slipway.pipelines.checks import Check, Context, Finding, examine, examine_in_parallel, refuse
from slipway.pipelines.doctor import configuration, machine, model_builder, user_code
from slipway.pipelines.platforms.base import Platform

GENERAL = (
    Check("python", machine.python_version),
    Check("folder", machine.folder),
    Check("folder's name", machine.folder_name, of_run=True),
    Check("disk", machine.disk),
    Check("cores", machine.cores),
    Check("accelerators", machine.accelerators, of_run=True),
    Check("packages", machine.packages, of_run=True),
    Check("hardware", configuration.hardware_choice, of_run=True, each="candidate"),
    Check("batch", configuration.batch, of_run=True, each="hardware"),
    Check("engine", configuration.training_engine, of_run=True, each="hardware"),
    Check("data source", configuration.data_source, of_run=True),
    Check("model builder", model_builder.model_builder, of_run=True),
    Check("evaluation", model_builder.evaluation, of_run=True),
    Check("serving", model_builder.serving, of_run=True),
    Check("modules", user_code.imports, of_run=True),
    Check("results", user_code.outputs, of_run=True),
    Check("model memory", configuration.model_memory, each="hardware"),
    Check("compiled step", configuration.compiled_step, of_run=True, each="hardware"),
    Check("stages", configuration.stages),
    Check("image context", configuration.image_context, of_run=True),
    Check("notification", configuration.notification, of_run=True),
    Check("signing key", configuration.signing_key, of_run=True),
    Check("tracker", configuration.tracker, of_run=True),
    Check("champion", configuration.champion, of_run=True),
)


def checks_of(platform: Platform) -> tuple[Check, ...]:
    """Return the checks of a run on a platform."""
    return (*GENERAL, *platform.checks())


def examine_all(context: Context) -> list[Finding]:
    """Run all checks and return their findings: those of this machine in order, then the remote ones, in parallel."""
    checks = checks_of(context.platform)
    findings = _of_candidates([check for check in checks if not check.remote], context)
    return findings + _of_candidates([check for check in checks if check.remote], context)


def refuse_on_failure(context: Context, *, submitting: bool = False) -> list[Finding]:
    """Run the checks that apply to a run; return the warnings.

    Args:
        context: The run to check.
        submitting: Whether the run is about to be submitted; if so, its project is checked, too.

    Raises:
        UserError: The error of the first check that failed.
    """
    checks = [check for check in checks_of(context.platform) if check.of_run]
    warnings = refuse(_of_candidates([check for check in checks if not check.remote], context))
    if submitting:
        warnings += refuse(_of_candidates([check for check in checks if check.remote], context))
    return warnings


def _of_candidates(checks: Sequence[Check], context: Context) -> list[Finding]:
    """Return the findings of checks that are all on this machine or all remote, for each candidate of the run.

    What only some candidates lack, such as quota, is a warning: the run continues on another one.
    """
    first, *others = context.candidates()
    findings = _examined(checks, first)
    seen, of_others = {str(first.config.parsed_hardware)}, []
    for other in others:
        hardware = str(other.config.parsed_hardware)
        each = [c for c in checks if c.each == "candidate" or (c.each == "hardware" and hardware not in seen)]
        of_others.append(_examined(each, other))
        seen.add(hardware)
    may_move = {check.name for check in checks if check.moves}
    passed = {found.check for all_of in (findings, *of_others) for found in all_of if found.status != "fail"}

    def softened(found: Finding) -> Finding:
        if others and found.status == "fail" and found.check in may_move & passed:
            return replace(found, status="warning", error=None)
        return found

    result = [softened(found) for found in findings]
    for other, found in zip(others, of_others, strict=True):
        title = context.platform.candidate_title(other.config)
        result += [replace(softened(one), check=f"{one.check}, {title}") for one in found]
    return result


def _examined(checks: Sequence[Check], context: Context) -> list[Finding]:
    if any(check.remote for check in checks):
        return examine_in_parallel(checks, context)
    return [examine(check, context) for check in checks]
