"""Report sections of a regression: predicted against actual values, and residuals."""

from __future__ import annotations

from slipway.components.evaluate import charts
from slipway.components.evaluate.measures.regression import RegressionMeasures
from slipway.components.evaluate.served_model import Measured
from slipway.core.manifest import Manifest
from slipway.core.values import JsonObject


def content(_manifest: Manifest, model: Measured, _champion: Measured | None) -> JsonObject:
    """Return what the sections show of a model."""
    assert isinstance(model.measures, RegressionMeasures)
    sample = model.measures.sample
    return {
        "sampled": len(sample.actual),
        "predicted_actual": charts.predicted_actual(sample.actual, sample.predicted),
        "residual_plot": charts.residual_plot(sample.predicted, sample.residuals),
        "residual_histogram": charts.residual_histogram(sample.residuals),
        "mean_error": model.metrics["mean_error"],
    }
