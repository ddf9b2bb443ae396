"""The gate compares on examples that neither model has seen, after data sets grow, are reordered or split anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.components.evaluate import report
from slipway.components.evaluate.evaluate import FEWEST_COMPARED, _check_enough, evaluate
from slipway.components.evaluate.gate import Opponent, Verdict, decide
from slipway.components.evaluate.measured import unseen_by
from slipway.components.evaluate.measures.base import comparisons
from slipway.components.evaluate.measures.classification import ClassificationMeasures
from slipway.components.evaluate.served_model import OtherData
from slipway.components.evaluate.settings import EvaluateSettings, GateSettings
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core import seen
from slipway.core.errors import UserError

ROWS, MORE = 12_000, 1_800
TRIALS = 1_000
# The probability that the champion is right, on examples that it has seen and on others; and a challenger's, on any.
SEEN, UNSEEN, BETTER, WORSE = 0.98, 0.7, 0.92, 0.55
GATE = GateSettings(significance=0.05)


@pytest.fixture(scope="module")
def rows() -> list[str]:
    numbers = np.random.default_rng(0).normal(size=(ROWS + MORE, 2)).round(1)  # some rows are equal
    return [f"{one},{other},{int(one > 0)}\n" for one, other in numbers.tolist()]


@pytest.fixture(scope="module")
def prepared(rows: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Prepared]:
    folder = tmp_path_factory.mktemp("seen")

    def prepare_rows(found: list[str], seed: int = 0) -> Prepared:
        (folder / "rows.csv").write_text("x,y,label\n" + "".join(found))
        settings = DataSettings(source=f"csv:{folder / 'rows.csv'}", store=str(folder / "store"), seed=seed, workers=1)
        return prepare(settings, replicas=1)

    return prepare_rows


@pytest.fixture(scope="module")
def champion(rows: list[str], prepared: Callable[..., Prepared], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that was trained on the first rows."""
    first, folder = prepared(rows[:ROWS]), tmp_path_factory.mktemp("champion")
    seen.write_seen(first.folder, first.manifest, folder)
    return folder


def test_rows_in_another_order_are_the_same_data_set(rows: list[str], prepared: Callable[..., Prepared]) -> None:
    first = prepared(rows[:ROWS])
    assert len(set(rows[:ROWS])) < ROWS - 1_000
    again = prepared(rows[:ROWS][::-1])
    assert again.reused
    assert again.manifest.fingerprint == first.manifest.fingerprint


def test_growth_moves_few_examples_between_splits(
    rows: list[str], prepared: Callable[..., Prepared], champion: Path
) -> None:
    first, grown = prepared(rows[:ROWS]), prepared(rows)
    before, after = (seen.of_split(each.folder, each.manifest, "test") for each in (first, grown))
    assert np.isin(before, after).mean() > 0.9
    unseen = unseen_by(after, champion)
    assert unseen is None or unseen.mean() > 0.9


@pytest.mark.parametrize(
    "variant",
    [pytest.param("reordered", marks=pytest.mark.long), pytest.param("grown", marks=pytest.mark.long), "split anew"],
)
def test_better_challengers_are_promoted_and_others_rejected_at_the_stated_rates(
    rows: list[str], prepared: Callable[..., Prepared], champion: Path, variant: str
) -> None:
    generator = np.random.default_rng(1)
    found = {
        "reordered": lambda: prepared(rows[:ROWS][::-1]),
        "grown": lambda: prepared(sorted(rows)),
        "split anew": lambda: prepared(rows[:ROWS], seed=1),
    }[variant]()
    hashes = seen.of_split(found.folder, found.manifest, "test")
    unseen = unseen_by(hashes, champion)
    known = np.zeros(len(hashes), bool) if unseen is None else ~unseen
    compared = ~known
    assert compared.sum() > 90
    assert (known.mean() > 0.85) == (variant == "split anew")

    def rate(right: float, examples: np.ndarray) -> float:
        theirs = generator.random((TRIALS, len(hashes))) < np.where(known, SEEN, UNSEEN)
        ours = generator.random((TRIALS, len(hashes))) < right
        verdicts = [verdict(*each) for each in zip(ours[:, examples], theirs[:, examples], strict=True)]
        return float(np.mean([each.decision == "promote" for each in verdicts]))

    assert rate(BETTER, compared) > 0.9
    assert rate(UNSEEN, compared) < 0.025 + 0.015  # two-sided: half of the errors are promotions
    assert rate(WORSE, compared) < 0.005
    if variant == "split anew":
        assert rate(BETTER, np.ones(len(hashes), bool)) < 0.005  # on all examples, the champion always wins


def verdict(ours: np.ndarray, theirs: np.ndarray) -> Verdict:
    """The gate's verdict on models that are right on these examples."""
    model, champion = (measured(each) for each in (ours, theirs))
    comparison = comparisons(model, champion)["accuracy"]
    opponent = Opponent("version 1", champion.metrics(), comparison=comparison, ours=model.metrics())
    return decide(GATE, model.metrics(), opponent, "")


def measured(right: np.ndarray) -> ClassificationMeasures:
    measures, labels = ClassificationMeasures(["0", "1"], len(right), 0), np.zeros(len(right), np.int64)
    values = np.where(right[:, None], [[0.9, 0.1]], [[0.1, 0.9]])
    measures.update(measures.predictions(labels, values, np.arange(2)))
    return measures


@pytest.fixture
def marked(data_set: Path, weak_folder: Path, tmp_path: Path) -> Callable[[int], tuple[Path, Path]]:
    """Returns the digits and a champion that has seen all of the 360 test images but so many."""

    def mark(unseen: int) -> tuple[Path, Path]:
        data, version = tmp_path / "data", tmp_path / "models" / "3"
        shutil.copytree(data_set, data)
        shutil.copytree(weak_folder, version)
        (version / "metadata.json").write_text(json.dumps({"version": 3}))
        hashes = np.arange(360, dtype=np.uint64)[::-1]
        hashes.tofile(data / "test.u64")
        np.sort(hashes[unseen:]).tofile(version / seen.SEEN_FILE)
        return data, version

    return mark


def test_examples_that_the_champion_has_seen_are_excluded_from_the_comparison(
    marked: Callable[[int], tuple[Path, Path]], model_folder: Path, digits: Any, regression: Any, weak_regression: Any
) -> None:
    data, version = marked(100)
    found = evaluate(EvaluateSettings(batch_size=64), model_folder, data, version)
    right, theirs = (
        each.probabilities(digits.test_pixels / 255).argmax(axis=1) == digits.test_labels
        for each in (regression, weak_regression)
    )
    assert found.model.metrics["accuracy"] == pytest.approx(right.mean())
    assert found.champion.metrics["accuracy"] == pytest.approx(theirs[:100].mean())
    assert found.verdict.decision == "promote"
    excluded, compared = found.verdict.reasons[:2]
    assert excluded == (
        "The comparison excludes 260 of the 360 test examples, on which the champion was trained or selected."
    )
    assert compared.startswith(f"The accuracy, {right[:100].mean():.4f}, is better by ")
    assert f"right on {(right & ~theirs)[:100].sum()} of 100 examples" in found.verdict.reasons[2]
    page = " ".join(report.render(found).split())
    assert "those on the 100 test images that neither model has seen" in page
    assert "Champion’s F1" not in page


@pytest.mark.parametrize(("unseen", "is_judged"), [(50, True), (49, False), (0, False)])
def test_the_gate_does_not_judge_on_too_few_examples(
    marked: Callable[[int], tuple[Path, Path]], model_folder: Path, unseen: int, is_judged: bool
) -> None:
    data, version = marked(unseen)
    found = evaluate(EvaluateSettings(), model_folder, data, version)
    assert (found.verdict.decision != "not comparable") == is_judged
    if not is_judged:
        said = f"trained or selected on {360 - unseen} of the 360 test examples; the other {unseen} are too few"
        assert said in found.verdict.reasons[-1]
        assert said in " ".join(report.render(found).split())


def test_the_verdict_says_so_if_the_champion_may_have_seen_test_examples(
    marked: Callable[[int], tuple[Path, Path]], model_folder: Path
) -> None:
    data, version = marked(360)
    found = evaluate(EvaluateSettings(), model_folder, data, version)
    assert not any("may include" in each for each in found.verdict.reasons)
    (version / seen.SEEN_FILE).unlink()
    assert evaluate(EvaluateSettings(), model_folder, data, version).verdict.reasons[-1] == (
        "The comparison may include test examples on which the champion was trained or selected: there is no record of "
        "them (seen.u64)."
    )


@pytest.mark.parametrize(("unseen", "words"), [(360, None), (100, "includes 260 of the 360 test examples on which")])
def test_a_function_of_ones_own_measures_on_examples_that_the_champion_has_seen(
    marked: Callable[[int], tuple[Path, Path]], model_folder: Path, monkeypatch: pytest.MonkeyPatch, unseen: int,
    words: str | None,
) -> None:  # fmt: skip
    data, version = marked(unseen)
    monkeypatch.syspath_prepend(str(version.parent))
    (version.parent / f"measured_{unseen}.py").write_text("def of(model, data): return {'accuracy': 0.5}\n")
    found = evaluate(EvaluateSettings(module=f"measured_{unseen}:of"), model_folder, data, version)
    caveats = [each for each in found.verdict.reasons if "trained or selected" in each]
    assert len(caveats) == (words is not None)
    assert words is None or words in caveats[0]


def test_a_fine_tuned_model_has_seen_what_its_base_has(
    prepared: Callable[..., Prepared], rows: list[str], champion: Path, tmp_path: Path
) -> None:
    other = prepared(rows[ROWS:])
    seen.write_seen(other.folder, other.manifest, tmp_path, champion)
    found = set(seen.seen_by(tmp_path).tolist())
    assert found > set(seen.seen_by(champion).tolist())
    assert found > set(seen.of_split(other.folder, other.manifest, "train").tolist())


def test_the_hashes_of_a_split_are_those_of_its_records(
    marked: Callable[[int], tuple[Path, Path]], model_folder: Path
) -> None:
    data, version = marked(100)
    np.arange(359, dtype=np.uint64).tofile(data / "test.u64")
    with pytest.raises(UserError, match="it has 359 hashes, and the split 360 examples"):
        evaluate(EvaluateSettings(), model_folder, data, version)


@pytest.mark.parametrize(("kept", "examples"), [(9, 20), (FEWEST_COMPARED - 1, 10_000)])
def test_fewer_common_unseen_examples_than_half_and_than_the_minimum_are_not_compared(kept: int, examples: int) -> None:
    with pytest.raises(OtherData, match=f"the other {kept} are too few to compare on"):
        _check_enough(np.arange(examples) < kept)
    _check_enough(np.arange(examples) <= kept)
