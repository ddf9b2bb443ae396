"""The step check_drift: whether the data differ from those of the champion, so that a new model is needed."""

from kfp import dsl
from kfp.dsl import HTML, Dataset, Input, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def check_drift(dataset: Input[Dataset], champion: str, page: Output[HTML]) -> str:
    """Return "drift", after which the run trains, or "same", after which it ends.

    Args:
        dataset: The prepared data set.
        champion: The folder or gs:// URI of the champion; "" (or "none") if there is none yet.
        page: Each feature's distance and distribution, or why there is nothing to compare.
    """
    from html import escape
    from pathlib import Path

    from slipway.components.check_drift.check import FALSE_ALARMS, check
    from slipway.components.check_drift.page import render
    from slipway.components.step import step
    from slipway.core.paths import local_path
    from slipway.core.values import write_metadata

    with step("check_drift") as outcome:
        found = check(Path(dataset.path), local_path(champion) if champion not in ("", "none") else None)
        if found.samples is None:
            content = f"<!doctype html><meta charset=utf-8><title>Drift</title><p>{escape(found.reason)}</p>"
        else:
            content = render("champion", found.shifts, *found.samples, false_alarms=FALSE_ALARMS)
        Path(page.path).parent.mkdir(parents=True, exist_ok=True)
        Path(page.path).write_text(content, encoding="utf-8")
        page.metadata.update(decision=found.decision, reason=found.reason)
        write_metadata(page)
        outcome.outputs = {"decision": found.decision, "reason": found.reason, "page": page.path}
    return found.decision
