"""`slipway doctor`: the checks that apply to runs on every platform; `slipway run` and `config compile` share them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from slipway import extensions
from slipway.pipelines.checks import Finding, Show, examine, examine_in_parallel, refuse
from slipway.pipelines.doctor import configuration, machine, model_builder, user_code
from slipway.pipelines.platforms.base import Check, Context, Platform
from slipway.pipelines.platforms.capabilities import WithRemoteChecks

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
    Check("buckets", configuration.buckets, of_run=True),
    Check("data source", configuration.data_source, of_run=True),
    Check("model builder", model_builder.model_builder, of_run=True),
    Check("evaluation", model_builder.evaluation, of_run=True),
    Check("serving", model_builder.serving, of_run=True),
    Check("modules", user_code.imports, of_run=True),
    Check("results", user_code.outputs, of_run=True),
    Check("model memory", configuration.model_memory, each="hardware"),
    Check("compiled step", configuration.compiled_step, of_run=True, each="hardware"),
    Check("stages", configuration.stages),
    Check("signing key", configuration.signing_key, of_run=True),
    Check("champion", configuration.champion, of_run=True),
)


def checks_of(platform: Platform) -> tuple[Check, ...]:
    """Return the checks of a run on a platform."""
    added = (check for reference in extensions.references("checks") for check in extensions.load(reference))
    return (*GENERAL, *added, *platform.checks())


def examine_all(context: Context, show: Show = lambda _: None) -> list[Finding]:
    """Run all checks and return their findings: those of this machine in order, then the remote ones, in parallel.

    `show` receives each finding as soon as it is known, so the remote ones in any order.
    """
    checks, findings = checks_of(context.platform), []
    for finding in _on_this_machine(checks, context):
        show(finding)
        findings.append(finding)
    return [*findings, *_remote(checks, context, show)]


def refuse_on_failure(context: Context, *, submitting: bool = False) -> list[Finding]:
    """Run the checks that apply to a run, up to the first that fails; return the warnings.

    Args:
        context: The run to check.
        submitting: Whether the run is about to be submitted; if so, its project is checked, too.

    Raises:
        UserError: The error of the first check that failed.
    """
    checks = [check for check in checks_of(context.platform) if check.of_run]
    warnings = refuse(_on_this_machine(checks, context))
    return [*warnings, *(refuse(_remote(checks, context)) if submitting else [])]


def _by_candidate(checks: Sequence[Check], context: Context) -> Iterator[tuple[list[Check], Context, str]]:
    """Yield the checks that are made for each candidate of the run, with its context and its title; the first has none.

    All are made for the first one, and for others those that depend on what they do not share with one before.
    """
    seen: set[str] = set()
    for candidate in context.candidates():
        hardware = str(candidate.config.training_hardware)
        repeated = [c for c in checks if c.each == "candidate" or (c.each == "hardware" and hardware not in seen)]
        title = f", {context.platform.candidate_title(candidate.config)}" if seen else ""
        yield repeated if seen else list(checks), candidate, title
        seen.add(hardware)


def _on_this_machine(checks: Sequence[Check], context: Context) -> Iterator[Finding]:
    for group, candidate, title in _by_candidate([check for check in checks if not check.remote], context):
        for check in group:
            finding = examine(check, candidate)
            yield replace(finding, check=f"{finding.check}{title}")


def _remote(checks: Sequence[Check], context: Context, show: Show = lambda _: None) -> list[Finding]:
    """Return the findings of the remote checks.

    What only some candidates lack, such as quota, is a warning: the run continues on another one. So, with several,
    the findings are shown at the end. Platforms without services have none, also not those of extensions.
    """
    if not isinstance(context.platform, WithRemoteChecks):
        return []
    groups = list(_by_candidate([check for check in checks if check.remote], context))
    if len(groups) == 1:
        [(alone, candidate, _)] = groups
        return examine_in_parallel(alone, candidate, show=show)
    examined = [
        (title, finding) for group, candidate, title in groups for finding in examine_in_parallel(group, candidate)
    ]
    may_move = {check.name for check in checks if check.moves}
    may_move &= {finding.check for _, finding in examined if finding.status != "fail"}

    def softened(finding: Finding) -> Finding:
        is_lack = finding.status == "fail" and finding.check in may_move
        return replace(finding, status="warning", error=None) if is_lack else finding

    findings = [replace(softened(finding), check=f"{finding.check}{title}") for title, finding in examined]
    for finding in findings:
        show(finding)
    return findings
