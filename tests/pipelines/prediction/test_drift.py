"""`slipway drift`: distances by hand, the rate of false alarms, and which shifts are found."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from scipy import stats
from typer.testing import CliRunner

from slipway.components.check_drift import page as drift_page
from slipway.components.check_drift.drift import DEVIATIONS, MISSING, SHARES, Divisions, Shift, compare, lines, too_few
from slipway.components.check_drift.features import Sample
from slipway.components.register_model.registry import Registry
from slipway.core.formatting import brief
from slipway.pipelines.cli.app import app
from tests.components.evaluate.conftest import png
from tests.fakes.webhook import FakeWebhook
from tests.serving.conftest import HOUSE, classifier_folder, houses_folder

__all__ = ["classifier_folder", "houses_folder"]

numbers = st.lists(st.sampled_from([0.0, 0.5, 1.0, 7.25, -3.0, 1e6]), min_size=2, max_size=30)


@given(numbers, numbers)
@settings(max_examples=50, deadline=None)
def test_distances_are_those_of_scipy(before: list[float], now: list[float]) -> None:
    both = np.array([*before, *now])
    found = Divisions(len(before), len(now), 0).distances(both)
    assert found[SHARES][0] == pytest.approx(stats.ks_2samp(before, now, method="asymp").statistic)
    area = stats.wasserstein_distance(before, now) / (both.std() or 1)
    assert found[DEVIATIONS][0] == pytest.approx(area, abs=1e-9)


def test_missing_numbers_are_equal_and_beyond_all_others() -> None:
    found = Divisions(4, 4, 0).distances(np.array([np.nan, np.nan, 1.0, 1.0, np.nan, 1.0, 1.0, 1.0]))
    assert (found[SHARES][0], found[DEVIATIONS][0], found[MISSING][0]) == (0.25, 0.0, 0.25)
    assert MISSING not in Divisions(2, 2, 0).distances(np.arange(4.0))


@given(numbers, numbers, st.integers(0, 5), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_the_distance_in_deviations_is_that_of_the_known_numbers(
    before: list[float], now: list[float], lacking: int, missing: int
) -> None:
    samples = [np.array([*before, *[np.nan] * lacking]), np.array([*[np.nan] * missing, *now])]
    values = np.concatenate(samples)
    found = Divisions(len(samples[0]), len(samples[1]), 0).distances(values)
    area = stats.wasserstein_distance(before, now) / (np.nanstd(values) or 1)
    assert found[DEVIATIONS][0] == pytest.approx(area, abs=1e-9)
    if lacking or missing:
        expected = abs(lacking / len(samples[0]) - missing / len(samples[1]))
        assert found[MISSING][0] == pytest.approx(expected, abs=1e-12)


def test_equal_numbers_with_more_gaps_differ_in_the_gaps_alone() -> None:
    """With 5 and 65% gaps, they were 2.3 standard deviations apart, since a gap counted as the largest number."""
    draws, samples = np.random.default_rng(0), []
    for share in (0.05, 0.65):
        values = draws.normal(0, 1, 600)
        values[draws.random(600) < share] = np.nan
        samples.append(Sample({"x": values}, 600, 0))
    (shift,) = compare(*samples, false_alarms=0.01)
    assert (shift.has_drifted, shift.measure) == (True, MISSING)
    assert shift.distance == pytest.approx(0.6, abs=0.05)
    found = Divisions(600, 600, 0).distances(np.concatenate([each.features["x"] for each in samples]))
    assert found[DEVIATIONS][0] < 0.3
    line, _ = lines([shift], *samples, false_alarms=0.01)
    assert f"{shift.distance:.1%} of the examples missing (threshold" in line


@pytest.mark.parametrize(("before", "now", "words"), [
    (100, 1, "1 new example cannot show drift: at least 6 are needed"),
    (100, 5, "5 new examples cannot show drift: at least 6 are needed"),
    (5, 100, "5 reference examples cannot show drift: at least 6 are needed"),
    (6, 6, ""),
])  # fmt: skip
def test_few_examples_cannot_show_drift(before: int, now: int, words: str) -> None:
    assert too_few(Sample({}, before, 0), Sample({}, now, 0)) == words


def test_the_distance_of_texts_is_the_share_that_differs() -> None:
    found = Divisions(4, 5, 0).distances(np.array([*"aabb", *"abbcc"]))
    assert found[SHARES][0] == pytest.approx(0.4)  # 0.5 - 0.2 of a, none of b, and 0.4 of c more: (0.3 + 0.1 + 0.4) / 2


def sample(draws: np.random.Generator, count: int, **changes: float) -> Sample:
    """Return examples of five features, which `changes` move."""
    ages = draws.normal(40 + changes.get("age", 0), 10, count)
    ages[draws.random(count) < 0.1 + changes.get("missing", 0)] = np.nan
    incomes = draws.lognormal(10, 1, count)
    incomes[draws.random(count) < changes.get("outliers", 0)] *= 100
    more = changes.get("city", 0)
    features = {
        "age": ages,
        "income": incomes,
        "income in thousands": np.round(incomes / 1000),  # depends on another one
        "city": draws.choice(["Bern", "Rome", "Oslo"], count, p=[0.5, 0.3 - more, 0.2 + more]),
        "constant": np.zeros(count),
    }
    return Sample(features, count, 0)


def drifted(**changes: float) -> list[str]:
    draws = np.random.default_rng(7)
    found = compare(sample(draws, 800), sample(draws, 600, **changes), false_alarms=0.01)
    assert [shift.feature for shift in found if shift.feature == "constant"] == []
    return [shift.feature for shift in found if shift.has_drifted]


def test_shifts_are_found_in_their_features() -> None:
    assert drifted() == []
    assert drifted(age=5) == ["age"]
    assert drifted(missing=0.15) == ["age"]
    assert drifted(city=0.15) == ["city"]
    assert set(drifted(outliers=0.05)) == {"income", "income in thousands"}


def test_examples_that_are_all_the_same_have_not_drifted() -> None:
    same = Sample({"constant": np.zeros(20)}, 20, 0)
    assert compare(same, same, false_alarms=0.01) == []
    assert list(lines([], same, same, false_alarms=0.01)) == [
        "no drift: 20 examples, compared with 20; rate of false alarms 0.01"
    ]


@pytest.mark.parametrize("rate", [0.1, 0.02])
def test_false_alarms_are_at_most_as_frequent_as_stated(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50 draws without drift; more than these are less frequent than one in ten thousand."""
    monkeypatch.setattr("slipway.components.check_drift.drift.DIVISIONS", 199)  # the rate is that of any number
    draws = np.random.default_rng(3)
    alarms = 0
    for seed in range(50):
        shifts = compare(sample(draws, 200), sample(draws, 100), false_alarms=rate, seed=seed)
        alarms += any(shift.has_drifted for shift in shifts)
    assert alarms <= stats.binom.ppf(1 - 1e-4, 50, rate)


@pytest.fixture
def photographs(tmp_path: Path, classifier_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a registered model, 60 images, and their negatives of which one is damaged."""
    Registry(tmp_path / "models").register(
        "digits", classifier_folder, {"run_id": "one", "weights_checksum": "1"}, None
    )
    for number in range(60):
        pixels = np.random.default_rng(number).integers(0, 128, (8, 8))
        folder = tmp_path / ("known" if number % 2 else "new")
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.png").write_bytes(content := png(pixels))
        negative = tmp_path / "negatives" / f"{number}.png"
        negative.parent.mkdir(exist_ok=True)
        ImageOps.invert(Image.open(io.BytesIO(content)).convert("L")).save(negative)
    (tmp_path / "negatives" / "cut.png").write_bytes(negative.read_bytes()[:-30])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_photographs_and_what_is_predicted_of_them_are_compared(photographs: Path) -> None:
    same = CliRunner().invoke(app, ["drift", "digits", "new", "--reference", "known", "-o", "drift.html"])
    assert same.exit_code == 0, same.output
    assert "<h1>No drift</h1>" in Path("drift.html").read_text()
    assert "no drift: 30 examples, compared with 30; rate of false alarms 0.01" in same.output
    command = ["drift", "digits", "negatives", "--reference", "known", "--json"]
    other = CliRunner().invoke(app, command)
    assert other.exit_code == 4, other.output
    found = json.loads(other.stdout)
    assert (found["drifted"], found["examples"], found["failed"]) == (True, 60, 1)
    first = found["features"][0]
    assert (first["feature"], first["drifted"]) == ("image: brightness", True)
    assert any(each["feature"].startswith("prediction: ") for each in found["features"])
    with FakeWebhook() as chat:
        values = {
            "name": "digits",
            "data": {"source": "digits"},
            "train": {"module": "a"},
            "notify": {"webhook": chat.url},
        }
        Path("slipway.yaml").write_text(yaml.safe_dump(values))
        assert CliRunner().invoke(app, [*command, "--notify"]).exit_code == 4
        assert CliRunner().invoke(app, ["drift", "digits", "new", "--reference", "known", "--notify"]).exit_code == 0
    (message,) = chat.received
    assert (message["status"], message["model"]) == ("drifted", "digits/1")
    count = sum(each["drifted"] for each in found["features"])
    assert f": {count} of {len(found['features'])} features have drifted: 60 examples, 1 without" in message["text"]
    assert message["text"].splitlines()[1].startswith("image: brightness ")
    assert len(message["features"]) == count
    few = CliRunner().invoke(app, [*command, "--examples", "20"])
    assert 10 < json.loads(few.stdout)["examples"] < 40


@pytest.mark.slow
def test_a_model_whose_data_set_is_not_here_needs_a_reference(photographs: Path) -> None:
    result = CliRunner().invoke(app, ["drift", "digits", "new"])
    assert result.exit_code == 2
    assert "is not in datasets" in result.output and "--reference DATA" in result.output
    refused = CliRunner().invoke(app, ["drift", "digits", "-"])
    assert (refused.exit_code, "not from stdin" in refused.output) == (2, True)
    values = {"name": "digits", "data": {"source": "digits"}, "train": {"module": "a"}}
    Path("slipway.yaml").write_text(yaml.safe_dump(values))
    nobody = CliRunner().invoke(app, ["drift", "digits", "new", "--notify"])
    assert (nobody.exit_code, "the configuration names nobody to notify" in nobody.output) == (2, True)


@pytest.mark.slow
def test_rows_of_a_table_are_compared_by_column(
    tmp_path: Path, houses_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(1)
    name = next(name for name, value in HOUSE.items() if isinstance(value, float | int))

    def write(file: str, factor: float) -> None:
        rows = ({**HOUSE, name: HOUSE[name] * factor * draws.uniform(0.5, 1.5)} for _ in range(50))
        (tmp_path / file).write_text("".join(json.dumps(row) + "\n" for row in rows))

    write("known.jsonl", 1)
    write("new.jsonl", 1)
    write("larger.jsonl", 2)
    for file, code in (("new.jsonl", 0), ("larger.jsonl", 4)):
        result = CliRunner().invoke(app, ["drift", str(houses_folder), file, "--reference", "known.jsonl"])
        assert result.exit_code == code, result.output
    assert f"! {name}" in result.output
    few = "\n".join((tmp_path / "new.jsonl").read_text().splitlines()[:5])
    (tmp_path / "few.jsonl").write_text(f"{few}\n")
    result = CliRunner().invoke(app, ["drift", str(houses_folder), "few.jsonl", "--reference", "known.jsonl"])
    assert (result.exit_code, "5 new examples cannot show drift" in result.output) == (2, True)
    with (tmp_path / "new.jsonl").open("a") as file:
        file.write("{}\n")
    result = CliRunner().invoke(app, ["drift", str(houses_folder), "new.jsonl", "--reference", "known.jsonl"])
    assert "50 examples, 1 without a prediction, compared with 50" in result.output


def test_the_ratio_of_a_feature_that_never_differs_is_none() -> None:
    assert Shift("constant", SHARES, 0.0, 0.0, "", "").ratio == 0.0


def test_the_page_has_each_features_distance_and_distribution() -> None:
    draws = np.random.default_rng(4)
    before, now = sample(draws, 400), sample(draws, 300, age=15, city=0.3)
    shifts = compare(before, now, false_alarms=0.01)
    html = " ".join(drift_page.render("people/3", shifts, before, now, false_alarms=0.01).split())
    drifted = [shift for shift in shifts if shift.has_drifted]
    assert {"age", "city"} <= {shift.feature for shift in drifted}
    assert f"<h1>{len(drifted)} of {len(shifts)} features drifted</h1>" in html
    assert html.count('<tr class="drifted">') == len(drifted)
    assert html.count("<figure>") == len(shifts) - 1, "texts have no distribution"
    ages = [ages[np.isfinite(ages)] for ages in (before.features["age"], now.features["age"])]
    edges = np.histogram_bin_edges(np.concatenate(ages), drift_page.BINS)
    first = np.histogram(ages[1], edges)[0].argmax()
    tallest = np.histogram(ages[1], edges)[0][first] / 300
    assert f": {brief(tallest)}</title>" in html, "missing ages count as examples"
    same = sample(draws, 300)
    calm = drift_page.render("people/3", compare(before, same, false_alarms=0.01), before, same, false_alarms=0.01)
    assert "<h1>No drift</h1>" in calm and 'class="drifted"' not in calm
