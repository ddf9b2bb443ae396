"""`slipway drift`: compare new data with those that a model was evaluated on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipway.core.errors import UserError
from slipway.pipelines.cli.serving import MODEL, SPLIT, Module, Trust
from slipway.pipelines.options import Configuration, Json, Overrides, Registry, check_folder_of, configured
from slipway.pipelines.prediction.inputs import STANDARD_INPUT, WORDS, listed
from slipway.pipelines.terminal import EXIT_DRIFTED, console, print_json, say, user_errors


@user_errors
def drift(
    model: Annotated[str, typer.Argument(help=MODEL)],
    data: Annotated[list[str], typer.Argument(metavar="DATA...", help=f"New data: {WORDS}.")],
    reference: Annotated[
        list[str] | None,
        typer.Option(metavar="DATA", help="What to compare with; default: held-out splits of the model's data set."),
    ] = None,
    store: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the prepared data sets.")] = Path("datasets"),
    false_alarms: Annotated[
        float, typer.Option(min=0.001, max=0.5, metavar="RATE", help="How often data without drift are said to have.")
    ] = 0.01,
    examples: Annotated[int, typer.Option(min=10, metavar="COUNT", help="Examples of each that are compared.")] = 5000,
    seed: Annotated[int, typer.Option(metavar="SEED", help="Draws the examples.")] = 0,
    split: Annotated[str, typer.Option(metavar="SPLIT", help=SPLIT)] = "all",
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write a page (HTML).")] = None,
    notify: Annotated[
        bool, typer.Option("--notify", help="If they have drifted, notify those whom the configuration names.")
    ] = False,
    config: Configuration = None,
    overrides: Overrides = None,
    module: Module = None,
    trust: Trust = False,
    registry: Registry = Path("models"),
    as_json: Json = False,
) -> None:
    """Compare new data with those that a model was evaluated on. Exits with 4 if they have drifted."""
    from slipway.components.check_drift import drift as drifts
    from slipway.components.check_drift import features, page
    from slipway.components.notify.settings import NotifySettings
    from slipway.core.atomic import replace_file
    from slipway.core.paths import in_project
    from slipway.pipelines.drift import samples
    from slipway.pipelines.notification import notification
    from slipway.pipelines.prediction import models

    if STANDARD_INPUT in [*data, *(reference or ())]:
        raise UserError("Examples to compare are read twice, so not from stdin.", setting="DATA", value="-")
    if output is not None:
        check_folder_of(output)
    notified = configured(None, config, overrides) if notify else None
    if notified is not None and notified.section(NotifySettings) is None:
        raise UserError(
            "The configuration names nobody to notify.", setting="notify", value=None,
            allowed="notify.webhook or notify.topic", fix="--set notify.webhook=env:CHAT_WEBHOOK",
        )  # fmt: skip
    chosen = models.find(model, registry, module)
    models.say_once(chosen, registry, trust=trust)
    loaded = models.ready(chosen)
    if loaded.is_custom:
        raise UserError(
            f"The model in {chosen.folder} is loaded by a function, so its inputs are not known.",
            setting="MODEL",
            value=str(chosen),
            allowed="a model of Slipway's trainer, or a SavedModel",
        )
    if reference:
        before = samples.measured(loaded, listed(reference, split), examples, seed)
    else:
        before = features.of_split(loaded, samples.reference_of(loaded, in_project(store)), examples, seed)
    now = samples.measured(loaded, listed(data, split), examples, seed + 1)
    if few := drifts.too_few(before, now):
        raise UserError(
            f"{few}.", setting="DATA", value=" ".join(data), allowed=f"at least {drifts.FEWEST} examples, better 100",
            fix="name more data, or --reference with more of them",
        )  # fmt: skip
    shifts = drifts.compare(before, now, false_alarms=false_alarms, seed=seed)
    if output is not None:
        replace_file(output, page.render(str(chosen), shifts, before, now, false_alarms=false_alarms).encode())
        say(f"page: {output}")
    if as_json:
        print_json(drifts.as_json(shifts, before, now, false_alarms=false_alarms))
    else:
        for line in drifts.lines(shifts, before, now, false_alarms=false_alarms):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if any(shift.has_drifted for shift in shifts):
        if notified is not None:
            notice = drifts.notice_of(str(chosen), shifts, before, now, false_alarms=false_alarms)
            for problem in notification.notify_of(notified, notice):
                say(f"not everyone was notified: {problem}")
        raise typer.Exit(EXIT_DRIFTED)
