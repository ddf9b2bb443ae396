"""The step evaluate: measure the model and the champion on the test split, and apply the gate."""

from kfp import dsl
from kfp.dsl import HTML, ClassificationMetrics, Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def evaluate(
    settings: str,
    model: Input[Model],
    champion: str,
    metrics: Output[Metrics],
    classification: Output[ClassificationMetrics],
    report: Output[HTML],
    uri: str = "",
    serve_module: str = "",
    run: str = "",
    seed_metrics: list = [],  # type: ignore[type-arg]  # noqa: B006
    dataset: Input[Dataset] = None,
) -> str:
    """Return the gate's decision: "promote", "reject", "unchanged" or "not comparable".

    Args:
        settings: EvaluateSettings as JSON.
        model: The trained model.
        champion: The folder or gs:// URI of the registered version to beat, "" (or "none") for none.
        metrics: The model's metrics.
        classification: Its confusion matrix and ROC curve.
        report: The HTML report.
        uri: The data of a custom program, for evaluate.module, if no data set is prepared; "" for none.
        serve_module: What loads a custom program's model for serving (serve.module); "" for none.
        run: The run's id, which the report names.
        seed_metrics: The gate's metric of the same training with other seeds.
        dataset: The prepared data set, whose test split Slipway's evaluation uses; None if there is none.
    """
    from pathlib import Path

    from slipway.components.evaluate.evaluate import evaluate as work
    from slipway.components.evaluate.gate import INTERVALS, UNCHECKED
    from slipway.components.evaluate.settings import EvaluateSettings
    from slipway.components.inputs import read
    from slipway.components.step import step
    from slipway.core import events
    from slipway.core.paths import local_path
    from slipway.core.values import write_metadata

    with step("evaluate") as outcome:
        opponent = None if champion in ("", "none") else local_path(champion)
        data = Path(dataset.path) if dataset else uri or None
        read_settings = read(EvaluateSettings, "evaluate", settings)
        evaluation = work(read_settings, Path(model.path), data, opponent, serve_module, seed_metrics, run)
        events.phase("writing the report")
        from slipway.components.evaluate.report import log_classification, render

        log_classification(evaluation, classification)
        Path(report.path).parent.mkdir(parents=True, exist_ok=True)
        Path(report.path).write_text(render(evaluation, run), encoding="utf-8")
        for name, value in evaluation.model.metrics.items():
            metrics.log_metric(name, value)
        verdict = evaluation.verdict
        report.metadata.update(
            decision=verdict.decision,
            reasons=" ".join(verdict.reasons),
            checked=verdict.checked,
            metric=evaluation.settings.gate.name,
        )
        outputs = evaluation.as_dict()
        if outputs.get(INTERVALS):  # the registry stores them with the metrics, as it does UNCHECKED
            metrics.metadata[INTERVALS] = outputs[INTERVALS]
        if not verdict.checked:
            metrics.metadata[UNCHECKED] = " ".join(verdict.reasons)
        write_metadata(metrics, classification)
        outcome.outputs = {**outputs, "report": report.path, "classification": classification.path}
    return evaluation.verdict.decision
