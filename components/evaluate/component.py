"""The step evaluate: measure the model and the champion on the test split, and apply the gate."""

from kfp import dsl
from kfp.dsl import HTML, ClassificationMetrics, Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def evaluate(
    settings: str,
    model: Input[Model],
    dataset: Input[Dataset],
    champion: str,
    metrics: Output[Metrics],
    classification: Output[ClassificationMetrics],
    report: Output[HTML],
) -> str:
    """Return the gate's decision: "promote" or "reject".

    Args:
        settings: EvaluateSettings as JSON.
        model: The trained model.
        dataset: The prepared data set; its test split is used.
        champion: The folder or gs:// URI of the registered version to beat, "" (or "none") for none.
        metrics: The model's figures.
        classification: Its confusion matrix and ROC curve.
        report: The HTML report.
    """
    from pathlib import Path

    from slipway.components.evaluate.evaluation import evaluate as work
    from slipway.components.evaluate.evaluation import log_classification
    from slipway.components.evaluate.gate import UNCHECKED, EvaluateSettings
    from slipway.components.inputs import read
    from slipway.components.step import step
    from slipway.core import events
    from slipway.core.paths import local_path
    from slipway.core.values import write_metadata

    with step("evaluate") as outcome:
        evaluation = work(
            read(EvaluateSettings, "evaluate", settings),
            model=Path(model.path),
            data=Path(dataset.path),
            champion=None if champion in ("", "none") else local_path(champion),
        )
        events.phase("writing the report")
        from slipway.components.evaluate.report import render

        Path(report.path).parent.mkdir(parents=True, exist_ok=True)
        Path(report.path).write_text(render(evaluation), encoding="utf-8")
        for name, value in evaluation.model.metrics.items():
            metrics.log_metric(name, value)
        log_classification(evaluation, classification)
        verdict = evaluation.verdict
        report.metadata.update(decision=verdict.decision, reasons=" ".join(verdict.reasons), checked=verdict.checked)
        if not verdict.checked:  # the registry stores it with the metrics
            metrics.metadata[UNCHECKED] = " ".join(verdict.reasons)
        write_metadata(metrics, classification)
        outcome.outputs = {**evaluation.as_dict(), "report": report.path}
    return evaluation.verdict.decision
