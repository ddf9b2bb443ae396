"""Reports and statistics pages of made-up data: from few classes to 200, with names that are long or alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.components.check_drift.drift import compare
from slipway.components.check_drift.features import Sample
from slipway.components.check_drift.page import render as render_drift
from slipway.components.evaluate.evaluate import Evaluation, _as_opponent
from slipway.components.evaluate.gate import decide
from slipway.components.evaluate.measured import Measured, MeasuredSlice, Unseen
from slipway.components.evaluate.measures import EVALUATED
from slipway.components.evaluate.measures.base import Example, Measures
from slipway.components.evaluate.report import render
from slipway.components.evaluate.settings import EvaluateSettings
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.manifest import Input, Manifest, Shard, Split, TaskName
from slipway.pipelines.advice.page import written
from tests.components.evaluate.conftest import png
from tests.components.prepare_data.conftest import encoded_image
from tests.pipelines.advice.test_page import OFFERS, compared, offer

RUN = "digits-20261125-101500-0a1b"
ALIKE = [f"Diabetic retinopathy, {each}" for each in ("mild", "moderate", "severe", "proliferative")]
MACULAR = [f"Age-related macular degeneration, {each}" for each in ("dry", "wet")]
OCCLUSIONS = [f"{each} occlusion" for each in ("Central vein", "Branch vein", "Central artery", "Branch artery")]
LONG = [*ALIKE, *MACULAR, *OCCLUSIONS, "Macular hole", "Normal"]
UNBROKEN = ["x" * 100, "Donaudampfschifffahrtsgesellschaft" * 2, '<b>tag</b> & "quotes"', "short"]
SLICES = [*(f"city={name}" for name in ("Bern", "Genf", "Zug")), "age>65", "y" * 60]


def data_set(task: TaskName, classes: Sequence[str] = (), inputs: int = 0, **about: Any) -> Manifest:
    """A data set of images, or of a table with that number of inputs."""
    numbers = {
        f"measurement {index} of the patient": Input(kind="number", mean=(0.0,), deviation=(1.0,))
        for index in range(inputs)
    }
    size = 800
    counts = {name: size // len(classes) for name in classes}
    split = Split(examples=size, classes=counts, shards=[Shard(file="a", examples=size, bytes=1, sha256="0" * 64)])
    return Manifest(
        name="eyes", fingerprint="0123456789abcdef" * 4, source="images:eyes",
        settings={"label": "progression"}, task=task, classes=list(classes),
        target=Input(kind="number", mean=(150.0,), deviation=(70.0,)) if task == "regression" else None,
        inputs=numbers, image_size=(0, 0) if inputs else (8, 8), channels=1, resize=False,
        encodings=[] if inputs else ["png"], splits={"train": split, "test": split},
        **about,
    )  # fmt: skip


def history() -> str:
    """300 training steps and 15 validations."""
    decay = [0.98**step for step in range(300)]
    records = [
        {"kind": "train", "step": step, "loss": 5 * rest + 0.01, "accuracy": 1 - 0.9 * rest, "mae": 80 * rest}
        for step, rest in enumerate(decay)
    ]
    records += [{**record, "kind": "validation"} for record in records[::20]]
    return "\n".join(map(json.dumps, records))


def measured(data: Manifest, values: np.ndarray, labels: np.ndarray, folder: Path, worst: int = 6) -> Measured:
    """A model that predicts these values."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text(history())
    measures: Measures[Any] = EVALUATED[data.task].of(data, len(labels), worst)
    order = np.arange(len(data.classes)) if data.classes else np.arange(1)
    batch = measures.predictions(labels, values, order)
    measures.update(batch)
    scores = measures.scores(batch)
    shown = {name: f"{index * 1.25:g}" for index, name in enumerate(list(data.inputs)[:12])}
    generator = np.random.default_rng(0)
    for index in measures.worst.candidates(scores).tolist():
        image = b"" if data.inputs else png(generator.integers(0, 255, (8, 8)))
        true, predicted = measures.describe(batch, index)
        measures.worst.add(
            [Example(f"folder/example {index}.png", true, predicted, float(scores[index]), image, shown)]
        )
    description = {
        "builder": "slipway.trainer.models.digits:build",
        "engine": "tensorflow",
        "task": data.task,
        "steps": 300,
        "weights_checksum": folder.name * 8,
        "arguments": {"filters": [32, 64]},
        "learning_rate": 0.002,
    }
    slices = []
    for number, name in enumerate(SLICES if data.inputs else []):
        mask = np.arange(len(labels)) % len(SLICES) == number
        part: Measures[Any] = EVALUATED[data.task].of(data, int(mask.sum()))
        part.update(part.predictions(labels[mask], values[mask], order))
        slices.append(MeasuredSlice(name, part, part))
    return Measured(folder, description, measures.metrics(), measures, measures, slices)


def evaluation(
    folder: Path, data: Manifest, noise: float, champion_noise: float | None = None, gate: dict[str, Any] | None = None,
    *, same: bool = False,
) -> Evaluation:  # fmt: skip
    """The evaluation of a model, the better the less noise, and of a champion, if it has a noise."""
    generator = np.random.default_rng(7)
    examples, classes = 800, len(data.classes)
    if data.task == "classification":
        labels: np.ndarray = np.arange(examples) % classes
        signal = 6.0 * np.eye(classes)[labels]
    elif data.task == "multilabel":
        labels = generator.random((examples, classes)) < 0.4
        signal = 3.0 * (2 * labels - 1)
    else:
        labels = generator.normal(150, 70, examples).astype(np.float32)
        signal = labels.astype(np.float64)

    def predicted(size: float) -> np.ndarray:
        logits = signal + np.random.default_rng(11).normal(0, size, signal.shape)
        if data.task == "classification":
            exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
            return exponentials / exponentials.sum(axis=1, keepdims=True)
        return 1 / (1 + np.exp(-logits)) if data.task == "multilabel" else logits

    model = measured(data, predicted(noise), labels, folder / "model")
    champion = None
    if champion_noise is not None:
        champion = measured(data, predicted(champion_noise), labels, folder / ("model" if same else "3"))
    settings = EvaluateSettings.model_validate({"gate": gate or {}})
    settings = settings.model_copy(update={"gate": settings.gate.of(data.task)})
    opponent = _as_opponent(champion, model, settings.gate.name, caveat="") if champion else None
    baseline = {name: value / 3 for name, value in model.metrics.items() if name != "examples"}
    verdict = decide(settings.gate, model.metrics, opponent, "There is no champion yet.", baseline=baseline)
    return Evaluation(
        settings=settings, data=folder, model=model, champion=champion, opponent=opponent, how="on the test split",
        manifest=data, baseline=baseline, verdict=verdict,
        unseen=[Unseen("city", 3, [("Wil", 3)])] if data.inputs else [],
    )  # fmt: skip


def custom(folder: Path) -> Evaluation:
    """An evaluation by a function of the user, with a table of 200 rows."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"store": f"store number {index}", "error": index / 7, "note": "n" * (index % 60)} for index in range(200)]
    found = {"rmse": 11.8312345678, "bias": -0.9231629134606353, "wape": 0.00003}
    model = Measured(folder, {}, found, tables={"Errors by store": rows})
    settings = EvaluateSettings.model_validate({"module": "own:evaluate", "gate": {"metric": "rmse", "maximum": 12}})
    verdict = decide(settings.gate, found, None, "There is no champion yet.", "that own:evaluate returned")
    return Evaluation(
        settings=settings, data=None, model=model, champion=None, opponent=None, how="that own:evaluate returned",
        verdict=verdict,
    )  # fmt: skip


def names(count: int) -> list[str]:
    return [f"class {index:03d} of a family" for index in range(count)]


SIGNIFICANT = {"metric": "macro_f1", "significance": 0.05}
REPORTS: dict[str, Callable[[Path], Evaluation]] = {
    "two": lambda path: evaluation(path, data_set("classification", ["benign", "malignant"], 30), 2.8, 3.4),
    "ten": lambda path: evaluation(path, data_set("classification", list("0123456789")), 1.9, 2.2, {"minimum": 0.9}),
    "perfect": lambda path: evaluation(path, data_set("classification", ["cat", "dog"]), 0.1),
    "unchanged": lambda path: evaluation(path, data_set("classification", ["cat", "dog"]), 2.0, 2.0, same=True),
    "long": lambda path: evaluation(path, data_set("classification", LONG), 2.5, 2.5001, SIGNIFICANT),
    "unbroken": lambda path: evaluation(path, data_set("classification", UNBROKEN), 3.0, 3.1),
    "forty": lambda path: evaluation(path, data_set("classification", names(40)), 2.4, 2.6),
    "two_hundred": lambda path: evaluation(path, data_set("classification", names(200)), 2.2, 2.2001),
    "labels": lambda path: evaluation(path, data_set("multilabel", names(80), 20), 2.5, 3.0),
    "few_labels": lambda path: evaluation(path, data_set("multilabel", ["sea", "dogs", "sand"]), 2.5),
    "regression": lambda path: evaluation(path, data_set("regression", inputs=10), 50.0, 55.0),
    "wide": lambda path: evaluation(path, data_set("regression", inputs=200), 50.0),
    "custom": custom,
}  # fmt: skip


def columns(folder: Path, count: int) -> Path:
    """The statistics page of a table."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    head = ["price", *(f"column {index} with a name" for index in range(count - 2)), "city"]
    rows = [
        [f"{generator.lognormal(12, 1):.2f}",
         *(f"{each:.3f}" if each > -1.5 else "" for each in generator.normal(size=count - 2)),
         generator.choice(["Bern", "Genf", "Zug"])] for _ in range(300)
    ]  # fmt: skip
    table = folder / "homes.csv"
    table.write_text("\n".join(",".join(row) for row in [head, *rows]) + "\n")
    settings = DataSettings.model_validate(
        {"source": f"csv:{table}", "label": "price", "store": str(folder / "store"), "workers": 1}
    )
    return prepare(settings, 1, task="regression").folder / "statistics.html"


def photographs(folder: Path, classes: Sequence[str], count: int = 3) -> Path:
    """The statistics page of images of many sizes."""
    generator = np.random.default_rng(0)
    for number, name in enumerate(classes):
        (folder / "images" / name).mkdir(parents=True)
        for index in range(count + number % 4):
            height, width = generator.integers(8, 90, 2)
            image = encoded_image(number * 1000 + index, (int(height), int(width)))
            (folder / "images" / name / f"{index}.png").write_bytes(image)
    settings = DataSettings.model_validate(
        {"source": f"images:{folder / 'images'}", "store": str(folder / "store"), "image_size": [8, 8], "workers": 1}
    )
    return prepare(settings, 1).folder / "statistics.html"


STATISTICS: dict[str, Callable[[Path], Path]] = {
    "table": lambda path: columns(path, 8),
    "wide table": lambda path: columns(path, 200),
    "photographs": lambda path: photographs(path, ["cat", "dog", "x" * 60], 30),
    "sixty classes": lambda path: photographs(path, names(60)),
}


def drift(folder: Path) -> Path:
    """The page of a comparison for drift: of numbers, one with gaps, and categories, of which some have drifted."""
    folder.mkdir(parents=True)
    samples = []
    for moved in (0.0, 0.4):
        draws = np.random.default_rng(0)
        features = {f"measurement {index} of the patient": draws.normal(index * moved, 1, 300) for index in range(4)}
        features["income"] = np.where(draws.random(300) < moved, np.nan, draws.lognormal(10, 1, 300))
        features["x" * 60] = draws.choice(["Bern", "Genf", "y" * 60], 300, p=[0.6 - moved, 0.2 + moved, 0.2])
        samples.append(Sample(features, 300, 2))
    shifts = compare(*samples, false_alarms=0.01)
    (folder / "drift.html").write_text(render_drift("eyes/3", shifts, *samples, false_alarms=0.01))
    return folder / "drift.html"


def hardware(folder: Path) -> Path:
    """The page of a comparison of many choices of hardware, with a deadline and a budget."""
    folder.mkdir(parents=True)
    offers = [
        offer(f"{base}*{replicas}" if replicas > 1 else base, hours / replicas**0.8, per_hour * replicas)
        for base, hours, per_hour in HARDWARE
        for replicas in (1, 2, 4)
    ]
    comparison = compared([*OFFERS, *offers], deadline=6 * 3600, budget=40)
    comparison["measured"] = [
        {"hardware": "l4x1", "estimated_seconds": 14_000, "measured_seconds": 15_200, "run": f"{RUN[:-1]}{number}"}
        for number in range(3)
    ]
    (folder / "hardware.html").write_text(written(comparison, "Hardware for eyes"))
    return folder / "hardware.html"


HARDWARE = (
    ("t4x2", 4.5, 0.9), ("l4x2", 2.2, 2.0), ("l4x8", 0.9, 8.0), ("a100x1", 2.0, 3.7), ("a100x2", 1.3, 7.3),
    ("a100x16", 0.3, 56), ("a100-80gbx2", 1.1, 11), ("h100x1", 1.1, 11), ("h100x2", 0.8, 22), ("h200x8", 0.38, 87),
    ("b200x8", 0.28, 91), ("cpu@n2-standard-16", 150, 0.8),
)  # fmt: skip
OTHERS: dict[str, Callable[[Path], Path]] = {"drift": drift, "hardware": hardware}


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All pages by name."""
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, made in REPORTS.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(render(made(folder / "reports" / name), RUN))
    found |= {f"statistics: {name}": made(folder / "statistics" / name) for name, made in STATISTICS.items()}
    return found | {name: made(folder / name) for name, made in OTHERS.items()}
