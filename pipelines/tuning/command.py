"""`slipway tune`: search for better settings, then evaluate and register the best model."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from slipway.core.errors import UserError
from slipway.core.formatting import number
from slipway.core.values import spoken
from slipway.pipelines.cli.start import Outcome
from slipway.pipelines.cli.targets import Target, show_cost, show_warnings
from slipway.pipelines.options import Configuration, ConfigurationFile, Hardware, Json, Overrides, configuration_path
from slipway.pipelines.platforms.table import DEFAULT, PLATFORMS, platform_of, with_hardware
from slipway.pipelines.terminal import EXIT_INTERRUPTED, console, error_console, say, user_errors
from slipway.pipelines.tuning.platform import WithSearch

if TYPE_CHECKING:
    import optuna

    from slipway.components.train.tuning import SearchSettings
    from slipway.pipelines.tuning.trials import Ended

SEARCHED = [DEFAULT, *(name for name, platform in PLATFORMS.items() if isinstance(platform, WithSearch))]


@user_errors
def tune(
    file: ConfigurationFile = None,
    config: Configuration = None,
    target: Target = DEFAULT,
    hardware: Hardware = None,
    overrides: Overrides = None,
    continued: Annotated[
        bool, typer.Option("--continue", help="Add trials to a search although code or data have changed since.")
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Submit the search and return at once; not on this machine.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train with different settings (section tune); evaluate and register the best model.

    On this machine, the same command continues a search that was stopped, or adds trials if tune.trials is raised; with
    other settings, code or data it begins another one. It tries failed trials again if they stopped the search. On
    Vertex AI and Kubeflow, a search is a run, whose training is a hyperparameter tuning job or a TrainJob per trial.
    """
    from slipway.components.train.study import drawn
    from slipway.pipelines.api import starting
    from slipway.pipelines.config.config import load
    from slipway.pipelines.platforms.local.forkserver import run_starter
    from slipway.pipelines.platforms.local.launch import stop_on_signals
    from slipway.pipelines.runs import record as runs
    from slipway.pipelines.runs.observers import observers
    from slipway.pipelines.tuning import search, trials
    from slipway.pipelines.tuning import study as studies

    platform = platform_of(target)
    if target != DEFAULT and not isinstance(platform, WithSearch):
        raise UserError(
            f"slipway tune does not search on {platform.title}.",
            setting="--target",
            value=target,
            allowed=spoken(
                [DEFAULT, *(name for name, platform in PLATFORMS.items() if isinstance(platform, WithSearch))]
            ),
            fix="slipway tune, on this machine",
        )
    if continued and target != DEFAULT:
        raise UserError(
            f"--continue is for searches on this machine; one on {target} is a run.",
            setting="--continue",
            value=target,
            fix="remove --continue; a run is continued by slipway run --resume RUN",
        )
    path = configuration_path(file, config)
    configuration = with_hardware(load(path, overrides or (), hardware), target, say)
    settings = search.settings_of(configuration)
    for values in search.extremes(settings.parameters):  # whether they are valid
        load(path, [*(overrides or ()), *search.overrides(values, configuration.train.arguments)], hardware)
    outcome = Outcome(error_console if as_json else console, as_json=as_json)
    if target != DEFAULT and settings.trial_hours is not None:
        raise UserError(
            f"tune.trial_hours is for trials on this machine; on {platform.title}, it has no effect.",
            setting="tune.trial_hours",
            value=settings.trial_hours,
            fix="--set tune.trial_hours=null; on Vertex AI, +timeout=2h of the hardware limits a trial",
        )
    if isinstance(platform, WithSearch):
        show_warnings(starting.check(configuration, target, submitting=True, search=settings, say=outcome.say))
        show_cost(configuration, target, outcome.say, settings.trials)
        outcome.of_remote(platform.tune(configuration, settings, outcome.say), wait=not no_wait)
        return
    show_warnings(starting.check(configuration, DEFAULT, search=settings))
    with contextlib.ExitStack() as contexts:
        contexts.enter_context(studies.locked(configuration))
        study, prepared = trials.begin(configuration, settings, outcome.say, continued=continued)
        for observer in observers():
            contexts.enter_context(observer.searching(configuration, study.study_name, outcome.say))
        forks = run_starter(configuration, platform_of(DEFAULT))
        with stop_on_signals() as stop, forks as starter:
            base = prepared or trials.prepare(configuration, study, outcome.say)
            trials.note(configuration, study, base)
            execution = trials.Trials(study, base, configuration, settings, starter)
            done = sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))
            outcome.say(f"{settings.trials} trials, {settings.parallel} at once, data of run {base.run_id}" + (
                f"; {done} were executed before" if done else ""))  # fmt: skip
            for ended in execution.execute(lambda: stop.requested):
                outcome.say(_line(ended, settings))
        if stop.requested:
            outcome.say("stopped; the same command continues it, and each trial from its checkpoint")
            raise typer.Exit(EXIT_INTERRUPTED)
        _check_finished(study, execution.failed(), settings)
        best = study.best_trial
        outcome.say(f"\nbest trial {best.number}: validation {settings.metric} {number(best.value)}")
        for name, value in drawn(best.params, settings.parameters).items():
            outcome.say(f"  {name} = {value}")
        _say_importance(outcome, study)
        with starting.rerun(runs.find(best.user_attrs[trials.RUN]), None, "evaluate", (), None) as ready:
            ready.record.study = study.study_name
            outcome.of_local(ready)


def _line(ended: Ended, settings: SearchSettings) -> str:
    values = " ".join(
        f"{name}={f'{value:.4g}' if isinstance(value, float) else value}" for name, value in ended.values.items()
    )
    result = {
        "COMPLETE": f"{settings.metric} {number(ended.value)}" if ended.value is not None else "",
        "PRUNED": "pruned",
        "FAIL": "failed",
    }[ended.state]
    error = f"\n  {ended.error}" if ended.error else ""
    return f"trial {ended.number:>3}  {ended.seconds or 0:>6.1f} s  {result:<16} {values}{error}"


def _check_finished(study: optuna.Study, failed: int, settings: SearchSettings) -> None:
    """Raise UserError if too many trials failed, or none succeeded."""
    succeeded = any(trial.state.name == "COMPLETE" for trial in study.get_trials(deepcopy=False))
    if failed <= settings.failures and succeeded:
        return
    last = next((trial for trial in reversed(study.get_trials()) if trial.state.name == "FAIL"), None)
    run = last.user_attrs.get("run") if last else None
    raise UserError(
        f"{failed} trials failed, and at most {settings.failures} may; the last one: {last.user_attrs.get('error')}"
        if last
        else "No trial has succeeded: all were pruned, or tune.hours left no time for one.",
        setting="tune.failures",
        value=settings.failures,
        fix=f"{f'slipway explain {run}; ' if run else ''}then the same command, which tries the failed trials again",
    )


def _say_importance(outcome: Outcome, study: optuna.Study) -> None:
    """Say how much each parameter matters, which needs two of them and some trials that differ."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    try:
        importances = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    except (ValueError, RuntimeError):  # too few trials
        return
    if len(importances) > 1:
        outcome.say("importance: " + ", ".join(f"{escape(name)} {value:.2f}" for name, value in importances.items()))
