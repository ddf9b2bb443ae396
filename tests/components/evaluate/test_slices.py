"""Slices: which examples belong to each, their metrics recomputed by scikit-learn, and the gate on them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest, norm
from sklearn import metrics as reference

from slipway.components.evaluate.evaluate import Evaluation, evaluate
from slipway.components.evaluate.gate import Opponent, Shortfall, SliceValues, Verdict, decide
from slipway.components.evaluate.measures.base import shortfall
from slipway.components.evaluate.measures.regression import RegressionMeasures, Values
from slipway.components.evaluate.measures.significance import holm, mcnemar_shortfall
from slipway.components.evaluate.report import render
from slipway.components.evaluate.settings import EvaluateSettings, GateSettings
from slipway.core.errors import UserError
from slipway.core.manifest import Input, signature_names
from tests.components.evaluate.tables import rows, write_model, write_table

KINDS = ["flat", "house", "hut"]
OWN = """
def by_place(inputs):
    x, y = inputs["place"]
    return "east" if x > 0.5 else "north" if y > 1 else None

def failing(inputs):
    return inputs["nothing"]
"""


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    return rows(400, seed=3)


@pytest.fixture(scope="module")
def kinds(table: dict[str, Any]) -> np.ndarray:
    generator = np.random.default_rng(4)
    scores = np.stack([-table["size"] / 20 + 2.5, table["size"] / 20 - 2.5, table["place"][:, 0]], axis=1)
    found: np.ndarray = (scores + generator.normal(0, 1, scores.shape)).argmax(axis=1)
    return found


@pytest.fixture(scope="module")
def data(table: dict[str, Any], kinds: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("data") / "homes", "classification", table, kinds, KINDS)


def model(folder: Path, scale: float) -> Path:
    import tensorflow as tf

    def predict(values: dict[str, Any]) -> dict[str, Any]:
        size = values["size"] / 20 - 2.5
        scores = tf.stack([-size, size, scale * values["place"][:, 0]], axis=1)
        names = tf.broadcast_to(tf.constant(KINDS), tf.shape(scores))
        return {"classes": names, "probabilities": tf.nn.softmax(scores)}

    return write_model(folder, predict, ["size", "place"], task="classification", classes=KINDS, weights_checksum=scale)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return model(folder / "new", 1.0), model(folder / "3", -0.5)


SLICES = ["city", "size>55", "city != Bern", "size", "own_slices:by_place"]


@pytest.fixture(scope="module")
def evaluation(data: Path, folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    project = tmp_path_factory.mktemp("project")
    (project / "own_slices.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        patch.syspath_prepend(str(project))
        settings = EvaluateSettings(slices=SLICES, batch_size=64, worst_examples=0)
        yield evaluate(settings, folders[0], data, folders[1])


def expected_masks(table: dict[str, Any]) -> dict[str, np.ndarray]:
    size, place, city = table["size"], table["place"], table["city"]
    edges = np.quantile(size, [0, 0.25, 0.5, 0.75, 1])
    masks = {f"city={name}": city == name for name in np.unique(city)}
    masks |= {"size>55": size > 55, "city != Bern": city != "Bern"}
    masks |= {f"quarter {index}": (size >= edges[index]) & (size < edges[index + 1]) for index in range(3)}
    masks["quarter 3"] = size >= edges[3]
    east = place[:, 0] > 0.5
    return masks | {"own_slices:by_place=east": east, "own_slices:by_place=north": ~east & (place[:, 1] > 1)}


def test_the_metrics_of_each_slice_are_those_of_scikit_learn(
    evaluation: Evaluation, table: dict[str, Any], kinds: np.ndarray
) -> None:
    masks = expected_masks(table)
    found = {each.name: each for each in evaluation.model.slices}
    quarters = [name for name in found if name.startswith("size ")]
    named = {
        **{name: name for name in masks},
        **dict(zip((f"quarter {index}" for index in range(4)), quarters, strict=True)),
    }
    assert found.keys() == set(named.values())
    for models, scale in ((evaluation.model, np.float32(1.0)), (evaluation.champion, np.float32(-0.5))):
        scored = models.measures.scored.values.astype(np.float64)
        predicted = scored.argmax(axis=1)
        assert len(np.unique(predicted)) == 3, scale
        slices = {each.name: each.measures for each in models.slices}
        for name, mask in masks.items():
            metrics, truth, guess = slices[named[name]].metrics(), kinds[mask], predicted[mask]
            assert metrics["examples"] == mask.sum()
            assert metrics["accuracy"] == pytest.approx(reference.accuracy_score(truth, guess), abs=1e-12)
            present = np.unique(truth)
            for metric in ("f1", "precision", "recall"):
                score = getattr(reference, f"{metric}_score")
                value = score(truth, guess, labels=present, average="macro", zero_division=0)
                assert metrics[f"macro_{metric}"] == pytest.approx(value, abs=1e-12)
            areas = [reference.roc_auc_score(truth == index, scored[mask][:, index]) for index in present]
            assert metrics["macro_auc"] == pytest.approx(np.mean(areas), abs=1e-12)


def test_slices_are_in_the_record_and_in_the_report_the_worst_first(evaluation: Evaluation) -> None:
    stored = evaluation.as_dict()["slices"]
    assert stored["size>55"]["metrics"]["accuracy"] == next(
        each.measures.metrics()["accuracy"] for each in evaluation.model.slices if each.name == "size>55"
    )
    low, high = stored["size>55"]["intervals"]["accuracy"]
    assert low < stored["size>55"]["metrics"]["accuracy"] < high
    html = render(evaluation).partition(">Slices</h2>")[2]
    order = sorted(stored, key=lambda name: stored[name]["metrics"]["accuracy"])
    positions = [html.index(f'class="break">{name.replace(">", "&gt;").replace("_", "_<wbr>")}<') for name in order]
    assert positions == sorted(positions)


@pytest.fixture(scope="module")
def rare(table: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, np.ndarray]:
    """A table of two classes, a model of it whose `threshold` is far from 0.5, and the indices of the classes."""
    import tensorflow as tf

    classes = ["no", "yes"]
    noise = np.random.default_rng(5).normal(0, 1, len(table["size"]))
    labels = (table["size"] / 20 - 3.5 + noise > 0).astype(np.int64)

    def predict(values: dict[str, Any]) -> dict[str, Any]:
        score = values["size"] / 20 - 4
        names = tf.broadcast_to(tf.constant(classes), [tf.shape(score)[0], 2])
        return {"classes": names, "probabilities": tf.nn.softmax(tf.stack([-score, score], axis=1))}

    folder = tmp_path_factory.mktemp("rare")
    described = {"task": "classification", "classes": classes, "weights_checksum": "rare", "threshold": 0.2}
    return (
        write_table(folder / "data", "classification", table, labels, classes),
        write_model(folder / "model", predict, ["size"], **described),
        labels,
    )


@pytest.mark.parametrize("batch_size", [1, 7, 64, 400])
def test_slices_are_judged_by_the_threshold_of_the_split(
    batch_size: int, rare: tuple[Path, Path, np.ndarray], table: dict[str, Any]
) -> None:
    data, folder, labels = rare
    settings = EvaluateSettings(slices=["size>-1000", "city"], batch_size=batch_size, worst_examples=0)
    model = evaluate(settings, folder, data, None).model
    assert model.measures is not None
    slices = {each.name: each.measures for each in model.slices}
    assert slices["size>-1000"].metrics() == model.metrics
    guess = (model.measures.scored.values[:, 1] >= np.float32(0.2)).astype(int)
    assert (guess != model.measures.scored.values.argmax(axis=1)).mean() > 0.05
    for name in np.unique(table["city"]):
        mask = table["city"] == name
        expected = reference.f1_score(labels[mask], guess[mask], average="macro")
        assert slices[f"city={name}"].metrics()["macro_f1"] == pytest.approx(expected, abs=1e-12)
    assert (
        sum(slices[f"city={name}"].confusion for name in np.unique(table["city"])) == model.measures.confusion
    ).all()


@pytest.mark.parametrize(("center", "width"), [(8.54, 1e-4), (1e6, 3), (4e7, 200), (-1e-7, 1e-9), (55.0, 20)])
def test_quarters_that_are_close_have_names_of_their_own(
    center: float, width: float, tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    values = rows(200, seed=6)
    values["size"] = (center + np.linspace(0, width, 200)).astype(np.float32)
    data = write_table(tmp_path / "near", "classification", values, np.arange(200) % 3, KINDS)
    found = evaluate(EvaluateSettings(slices=["size"], worst_examples=0), folders[0], data, folders[1])
    assert found.champion is not None
    names = [each.name for each in found.model.slices]
    edges = np.unique(np.quantile(values["size"], [0, 0.25, 0.5, 0.75, 1]))
    assert len(set(names)) == len(names) == len(edges) - 1 > 1
    assert [each.name for each in found.champion.slices] == names
    assert found.as_dict()["slices"].keys() == set(names)
    assert sum(each.measures.examples for each in found.model.slices) == 200


HEADERS = (
    "Marital status",
    "kind (x)",
    "kind/y",
    "a.b",
    "city>3",
    "own:kind",
    "class",
    "名前",
    "Größe",
    "x" * 200,
    "[z]",
)


@pytest.mark.parametrize("header", HEADERS)
def test_a_column_of_any_name_is_evaluated_and_sliced(header: str, table: dict[str, Any], tmp_path: Path) -> None:
    import tensorflow as tf

    stored = signature_names({header: Input(kind="category")})[header]
    labels = np.where(table["city"] == "Bern", 1, 0)

    def predict(values: dict[str, Any]) -> dict[str, Any]:
        bern = tf.cast(values[stored] == "Bern", tf.float32)
        names = tf.broadcast_to(tf.constant(KINDS[:2]), [tf.shape(bern)[0], 2])
        return {"classes": names, "probabilities": tf.stack([1 - bern, bern], axis=1)}

    data = write_table(tmp_path / "data", "classification", {header: table["city"]}, labels, KINDS[:2])
    described = {"task": "classification", "classes": KINDS[:2], "weights_checksum": "header"}
    folder = write_model(tmp_path / "model", predict, [stored], **described)
    found = evaluate(EvaluateSettings(slices=[header]), folder, data, None)
    assert found.model.metrics["accuracy"] == 1.0
    assert {each.name: each.measures.examples for each in found.model.slices} == {
        f"{header}={name}": int((table["city"] == name).sum()) for name in np.unique(table["city"])
    }
    assert [(each.input, each.examples) for each in found.unseen] == [(header, int((table["city"] == "Wil").sum()))]
    assert "Slices" in render(found)


Slices = list[tuple[int, float, float | None]]


def gated(values: Slices, *, compared: bool = False, p_values: Sequence[float | None] = (), **gate: object) -> Verdict:
    tests: list[Shortfall | None] = [
        Shortfall(p_value, 0.04, "" if p_value is not None else "there is no prediction of b") for p_value in p_values
    ]
    slices = [
        SliceValues(f"part {index}", 40 if compared else count, ours, ours, theirs, count, test)
        for index, ((count, ours, theirs), test) in enumerate(zip_longest(values, tests))
    ]
    champion = Opponent("version 3", {"accuracy": 0.9}) if any(theirs is not None for _, _, theirs in values) else None
    return decide(GateSettings(**gate), {"accuracy": 0.9}, champion, "There is no champion yet.", slices=slices)


def test_no_slice_may_fall_below_the_limit() -> None:
    found = gated([(40, 0.7, None), (50, 0.75, None), (29, 0.1, None), (60, 0.95, None)], slice_limit=0.8)
    assert (found.decision, found.failed) == ("reject", 1)
    assert found.reasons[0] == (
        "On the slice part 0 (40 examples), the accuracy, 0.7000, is below the limit of slices, 0.8; so it is on 1 "
        "more of the 3 slices of at least 30 examples."
    )
    passing = gated([(40, 0.8, None), (29, 0.1, None)], slice_limit=0.8)
    assert passing.decision == "promote"
    assert passing.checked
    assert gated([(29, 0.1, None)], slice_limit=0.8, slice_examples=29).decision == "reject"


def test_no_slice_may_fall_significantly_behind_the_champion() -> None:
    values: Slices = [(40, 0.7, 0.69), (40, 0.8, 0.9)]
    found = gated(values, p_values=[0.6, 0.02], slice_margin=-0.05)
    assert found.decision == "reject"
    assert found.reasons[0] == (
        "On the slice part 1 (40 examples), the accuracy, 0.8000 against 0.9000, is significantly more than 0.05 "
        "behind the champion's: its p-value is 0.02 (one-sided paired tests, with a false alarm in 0.05 of the "
        "evaluations of all slices)."
    )
    passing = gated(values, p_values=[0.6, 0.026], slice_margin=-0.05)
    assert passing.decision == "promote", "of two tests, Holm's correction halves the limit"
    seen = (norm.ppf(1 - 0.05 / 2) + norm.ppf(0.8)) * 0.04 + 0.05
    assert f"In 8 of 10 samples, they see a slice that is {seen:.4f} behind." in passing.reasons[-1]


@pytest.mark.parametrize(
    ("p_values", "rejected"),
    [
        ([0.04], [True]),
        ([0.04, 0.03], [False, False]),
        ([0.03, 0.02], [True, True]),
        ([0.5, 0.01, 0.04, 0.026], [False, True, False, False]),
    ],
)
def test_tests_of_many_slices_have_the_correction_of_holm(p_values: list[float], rejected: list[bool]) -> None:
    assert holm(p_values, 0.05) == rejected


def test_too_few_compared_examples_of_a_slice_decide_nothing() -> None:
    values: Slices = [(4, 0.7, 0.9), (29, 0.5, 0.9)]
    # Of 40 examples each, which is enough for a limit.
    few = gated(values, compared=True, p_values=[0.0, 0.0], slice_margin=-0.02)
    assert few.decision == "promote"
    assert (
        "No slice is of at least 30 examples that neither model has seen: slice_margin decides nothing." in few.reasons
    )
    assert "none of the 0" not in " ".join(few.reasons)
    enough = gated([*values, (30, 0.7, 0.9)], compared=True, p_values=[0.0, 0.0, 0.001], slice_margin=-0.02)
    assert enough.decision == "reject"
    assert enough.reasons[0].startswith("On the slice part 2 (30 examples), the accuracy, 0.7000 against 0.9000, is")
    assert gated(values, compared=True, slice_limit=0.8).decision == "reject"


def test_slices_without_a_test_decide_nothing() -> None:
    found = gated([(40, 0.7, 0.9)], p_values=[None], slice_margin=-0.02)
    assert found.decision == "promote"
    assert found.reasons[-1] == (
        "No slice is of at least 30 examples that neither model has seen and can be tested: slice_margin decides "
        "nothing. 1 cannot be tested: there is no prediction of b."
    )
    mixed = gated([(40, 0.7, 0.9), (40, 0.9, 0.9)], p_values=[None, 0.5], slice_margin=-0.02)
    assert mixed.reasons[-1].startswith("On none of the 1 slices of at least 30 examples")
    assert mixed.reasons[-1].endswith("1 cannot be tested: there is no prediction of b.")


@pytest.mark.parametrize(("only_ours", "only_theirs"), [(0, 0), (3, 9), (12, 5), (0, 6)])
def test_a_slice_without_a_margin_has_mcnemars_exact_test(only_ours: int, only_theirs: int) -> None:
    p_value, _ = mcnemar_shortfall(only_ours, only_theirs, 40, 0.0)
    differing = only_ours + only_theirs
    expected = binomtest(only_ours, differing, 0.5, alternative="less").pvalue if differing else 1.0
    assert p_value == pytest.approx(expected)


@pytest.mark.parametrize("margin", [-0.2, -0.02, 0.05])
def test_a_margin_has_the_score_test_of_tango(margin: float) -> None:
    """The variance is that of the most likely probabilities whose difference is the margin."""
    ours, theirs, examples = 3, 9, 40

    def likelihood(second: float) -> float:
        chances = (second + margin, second, 1 - 2 * second - margin)
        return -float(np.dot((ours, theirs, examples - ours - theirs), np.log(np.clip(chances, 1e-12, 1))))

    second = minimize_scalar(
        likelihood, bounds=(max(0, -margin), (1 - margin) / 2), method="bounded", options={"xatol": 1e-10}
    ).x
    error = np.sqrt((2 * second + margin - margin**2) / examples)
    found = mcnemar_shortfall(ours, theirs, examples, margin)
    assert found == pytest.approx((norm.cdf(((ours - theirs) / examples - margin) / error), error), rel=1e-4)


@pytest.mark.parametrize("slices", [1, 5, 20])
def test_an_equally_good_model_is_rarely_rejected_for_its_slices(slices: int) -> None:
    """By the values alone, 40%, 90% and 100% of equally good models were rejected."""
    generator, margin = np.random.default_rng(slices), -0.02
    rejected, by_value, noticed = 0, 0, 0
    for _ in range(300):
        counts = generator.multinomial(30, [0.1, 0.1, 0.8], slices)
        tests = [mcnemar_shortfall(int(ours), int(theirs), 30, margin)[0] for ours, theirs, _ in counts]
        rejected += any(holm(tests, 0.05))
        by_value += ((counts[:, 0] - counts[:, 1]) / 30 < margin).any()
        worse = generator.multinomial(30, [0.02, 0.5, 0.48])
        noticed += holm([mcnemar_shortfall(int(worse[0]), int(worse[1]), 30, margin)[0], *tests], 0.05)[0]
    assert by_value / 300 > 0.3
    assert rejected / 300 < 0.05 + 2 * np.sqrt(0.05 * 0.95 / 300)
    assert noticed / 300 > 0.7


@pytest.mark.parametrize(("metric", "minimized"), [("rmse", True), ("r2", False)])
def test_other_metrics_of_slices_have_a_one_sided_t_test(metric: str, minimized: bool) -> None:
    generator = np.random.default_rng(0)
    actual, rejected = generator.normal(0, 3, 60), {}
    for worse in (0.0, 1.0):
        models = []
        for scale in (1 + worse, 1.0):
            measures = RegressionMeasures(Input(kind="number", mean=(0.0,), deviation=(3.0,)), 60)
            measures.update(Values(actual, actual + scale * generator.normal(0, 1, 60)))
            models.append(measures)
        gate = GateSettings(metric=metric, slice_margin=-0.02)
        assert gate.minimized == minimized
        test, opposite = shortfall(*models, gate), shortfall(*models[::-1], gate)
        assert test.p_value is not None
        assert opposite.p_value is not None
        rejected[worse] = test.p_value < 0.05
        assert test.p_value + opposite.p_value > 1, "both are at most 0.02 worse only by chance"
    assert rejected == {0.0: False, 1.0: True}


def test_the_compared_examples_of_a_slice_are_those_that_the_champion_has_not_seen(
    data: Path, folders: tuple[Path, Path], tmp_path: Path, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    unseen = np.random.default_rng(7).random(400) < 0.25
    monkeypatch.setattr("slipway.components.evaluate.evaluate.unseen_by", lambda *_: unseen)
    found = evaluate(EvaluateSettings(slices=["city"], gate={"slice_margin": -0.02}), folders[0], data, folders[1])
    counts = {part.name: (part.examples, part.compared) for part in found.slices}
    cities = {name: table["city"] == name for name in np.unique(table["city"])}
    assert counts == {f"city={name}": (mask.sum(), (mask & unseen).sum()) for name, mask in cities.items()}
    html = render(found).partition(">Slices</h2>")[2]
    assert all(f"<small>{compared} compared</small>" in html for _, compared in counts.values())
    assert all(part.shortfall is not None and part.shortfall.p_value is not None for part in found.slices)
    assert any("slices of at least 30 examples that neither model has seen" in each for each in found.verdict.reasons)


def test_a_limit_that_no_slice_is_large_enough_for_checks_nothing() -> None:
    few = gated([(29, 0.1, None)], slice_limit=0.8)
    assert (few.decision, few.checked) == ("promote", False)
    assert "No slice is of at least 30 examples: slice_limit decides nothing." in few.reasons


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        (["citty"], "has no column citty"),
        (["place"], "has no column place of one value"),
        (["size>big"], "'big' is not a number"),
        (["width>3"], "has no column width"),
        (["own_slices:failing"], "own_slices:failing"),
        (["own_slices:absent"], "absent"),
    ],
)
def test_a_mistake_in_the_slices_is_one_error(
    slices: list[str], message: str, data: Path, folders: tuple[Path, Path], tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "own_slices.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        evaluate(EvaluateSettings(slices=slices), folders[0], data, None)
    assert caught.value.setting == "evaluate.slices"


def test_metrics_that_a_program_reports_have_no_slices(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text('{"accuracy": 0.9}')
    with pytest.raises(UserError, match=r"evaluate\.slices needs Slipway's own evaluation") as caught:
        evaluate(EvaluateSettings(slices=["city"]), tmp_path, "s3://rows", None)
    assert caught.value.fix.startswith("--set evaluate.slices='[]'")


def test_a_gate_on_slices_needs_slices() -> None:
    with pytest.raises(UserError, match=r"evaluate\.slices names none"):
        EvaluateSettings(gate={"slice_limit": 0.5})
