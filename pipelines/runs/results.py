"""What the steps did, in a few words, from their outputs: the functions of the rows in the table of steps."""

from __future__ import annotations

from slipway.core.formatting import number
from slipway.core.paths import short
from slipway.core.values import JsonObject


def build_image(outputs: JsonObject, *, judged: bool) -> str:  # noqa: ARG001
    return str(outputs.get("image", ""))


def prepare_data(outputs: JsonObject, *, judged: bool) -> str:  # noqa: ARG001
    if "examples" not in outputs:
        return ""
    counts = ", ".join(f"{count:,} {split}" for split, count in outputs["examples"].items())
    skipped = f"; {outputs['skipped']}" if outputs.get("skipped") else ""
    return f"{counts} examples in {short(outputs['dataset'])}{skipped}"


def plan_training(outputs: JsonObject, *, judged: bool) -> str:  # noqa: ARG001
    if "steps" in outputs:
        replicas, examples = outputs["replicas"], outputs["batch_per_replica"]
        divided = f" on {replicas} replicas, {examples} examples each per step" if replicas > 1 else ""
        return f"{outputs['steps']:,} steps, {outputs['steps_per_epoch']:,} per epoch{divided}"
    return f"{outputs['program']} in every replica" if "program" in outputs else ""


def train(outputs: JsonObject, *, judged: bool) -> str:  # noqa: ARG001
    if outputs.get("rehearsed_steps"):
        return f"ended after {outputs['rehearsed_steps']:,} steps"
    if not outputs.get("validation"):
        return ""
    measured = sorted(outputs["validation"].items(), key=lambda metric: metric[0] != "accuracy")
    text = "validation " + ", ".join(f"{name} {number(value)}" for name, value in measured)
    restarts = len(outputs.get("restarts", []))
    text += f", {restarts} restart{'s' if restarts > 1 else ''}" if restarts else ""
    tuned = ", ".join(f"{name} {value}" for name, value in outputs.get("parameters", {}).items())
    return text + (f" of trial {outputs['trial']}: {tuned}" if tuned else "")


def evaluate(outputs: JsonObject, *, judged: bool) -> str:
    """Return the gate's metric and the baseline; the verdict only if the run is `judged`."""
    if "metrics" not in outputs:
        return ""
    metric = outputs.get("metric", "accuracy")
    text = f"{metric} {number(outputs['metrics'][metric])}"
    if (baseline := (outputs.get("baseline_metrics") or {}).get(metric)) is not None:
        text += f" (baseline {number(baseline)})"
    return text + (f": {outputs['verdict']['decision']}" if judged else "")


def register_model(outputs: JsonObject, *, judged: bool) -> str:  # noqa: ARG001
    if "model" not in outputs:
        return ""
    place = "the champion" if outputs["champion"] else "not the champion: another was promoted in the meantime"
    unchecked = "" if outputs.get("checked", True) else " (unchecked: the gate has no limit)"
    return f"{short(outputs['model'])}, {place}{unchecked}"


def deploy(outputs: JsonObject, *, judged: bool) -> str:  # noqa: ARG001
    return str(outputs["version"] or "not deployed: not the champion") if "version" in outputs else ""
