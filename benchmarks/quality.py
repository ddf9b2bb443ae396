"""Models of tables and texts with Slipway's defaults, beside scikit-learn's: `python -m benchmarks.quality`.

Six tables: scikit-learn's iris, wine, breast cancer, digits (64 columns) and diabetes, and a generated one with gaps,
dates, zip codes and a key, `adult-like`, whose class depends on all columns but the key and one other. One set of
texts: the first paragraphs of the docstrings of installed packages, labeled with the package.

Each set becomes a CSV file with a random split of its own, 60 % training, 15 % validation, 25 % test. Slipway's
networks are what `slipway init --table` writes and `slipway run` trains, unchanged; its trees are those of
`--template trees`. Beside them, fitted to the same rows, the training split: logistic regression or ridge,
standardized, with means in place of missing numbers and a column for each category; HistGradientBoosting and LightGBM
with their defaults, with days in place of dates. For texts: logistic regression on TF-IDF of words. Accuracy, or RMSE
of diabetes, on the test split: the mean of `--rounds` splits with its standard error. The last column is the mean
difference between the trees and the best other model of trees on the same splits, positive if the trees are better:
with `--autogluon PYTHON` AutoGluon's preset medium_quality without networks, too.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pandas as pd

from slipway.pipelines.runs.record import RunFolder

SPLITS = {"train": 0.6, "validation": 0.15, "test": 0.25}
PACKAGES = ("sklearn", "scipy", "numpy", "pandas", "keras", "matplotlib")
MAX_TEXTS = 1000
ROWS = 3000
TEXT = "docstrings"
HEADINGS = {
    "network": "network", "trees": "trees", "linear": "linear", "boosting": "HistGradientBoosting",
    "lightgbm": "LightGBM",
}  # fmt: skip


def main() -> None:
    """Compare on all sets, or on those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="*", choices=HEADINGS, default=list(HEADINGS))
    parser.add_argument("--autogluon", metavar="PYTHON", help="also compare AutoGluon; see quality_autogluon.py")
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    arguments = parser.parse_args()
    rows = []
    for name in arguments.sets:
        metrics: dict[str, list[float]] = {}
        for seed in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as folder:
                for model, metric in compared(name, Path(folder), seed, arguments).items():
                    metrics.setdefault(model, []).append(metric)
        rows.append((name, metrics))
        print(name, {model: shown(values) for model, values in metrics.items()}, flush=True)
    show(rows)


def compared(name: str, folder: Path, seed: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Return the metric of each model on the test split."""
    table = SETS[name]()
    rng = np.random.default_rng(seed)
    table["split"] = rng.choice(list(SPLITS), len(table), p=list(SPLITS.values()))
    path = folder / "table.csv"
    table.to_csv(path, index=False)
    metrics, models = {}, arguments.models
    if "network" in models:
        metrics["network"] = slipway(folder, path, None)
    if "trees" in models and name != TEXT:
        metrics["trees"] = slipway(folder, path, "trees")
    if arguments.autogluon and name != TEXT:
        program = str(Path(__file__).with_name("quality_autogluon.py"))
        command = [arguments.autogluon, program, str(path), str(folder / "autogluon")]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        result = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        metrics["autogluon"] = float(result.stdout.split()[-1])
    rows = pd.read_csv(path, dtype={"zip": str})
    train, test = (rows[rows["split"] == split] for split in ("train", "test"))
    others = (of_texts if name == TEXT else of_tables)(train, test)
    return metrics | {model: metric for model, metric in others.items() if model in models}


def slipway(folder: Path, table: Path, template: str | None) -> float:
    """Train on a table as `slipway init` says, with a network or a template's model; return the test metric."""
    project = folder / (template or "network")
    paths = os.pathsep.join([str(Path(__file__).absolute().parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if template is not None and (folder / "network").exists():  # on the same data
        shutil.copytree(folder / "network" / "datasets", project / "datasets")
    begun = ["init", str(project), "--table", str(table), "--label", "target"]
    for where, arguments in (
        (folder, begun + (["--template", template] if template else [])),
        (project, ["run"]),
    ):
        command = [sys.executable, "-m", "slipway", *arguments]
        subprocess.run(command, cwd=where, env=environment, check=True, stdout=subprocess.DEVNULL)
    metrics = RunFolder(project / "runs" / "latest").read().metrics
    return float(metrics["rmse"] if "rmse" in metrics else metrics["accuracy"])


def of_tables(train: pd.DataFrame, test: pd.DataFrame) -> dict[str, float]:
    """Return the metrics of scikit-learn's models of a table."""
    from lightgbm import LGBMClassifier, LGBMRegressor
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    x, held_out = (columns(table) for table in (train, test))
    is_target = train["target"].dtype.kind == "f"
    texts = [name for name in x if x[name].dtype == "category"]
    numbers = [name for name in x if name not in texts]
    prepared = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()), numbers),
            ("texts", OneHotEncoder(handle_unknown="ignore"), texts),
        ]
    )
    linear = make_pipeline(prepared, Ridge() if is_target else LogisticRegression(max_iter=2000))
    boosted = (HistGradientBoostingRegressor if is_target else HistGradientBoostingClassifier)(
        categorical_features="from_dtype", random_state=0
    )
    light = (LGBMRegressor if is_target else LGBMClassifier)(verbosity=-1, random_state=0)
    for name in texts:  # categories that are not among the training split's are missing
        held_out[name] = held_out[name].cat.set_categories(x[name].cat.categories)
    return {
        name: score(model.fit(x, train["target"]).predict(held_out), test["target"], is_target)
        for name, model in {"linear": linear, "boosting": boosted, "lightgbm": light}.items()
    }


def columns(table: pd.DataFrame) -> pd.DataFrame:
    """Return the columns as an expert would pass them to scikit-learn."""
    found = table.drop(columns=["target", "split", "person"], errors="ignore")
    for name in found:
        if name == "hired":
            found[name] = (pd.to_datetime(found[name], format="%d.%m.%Y") - pd.Timestamp(0)).dt.days
        elif not pd.api.types.is_numeric_dtype(found[name]):
            found[name] = found[name].fillna("missing").astype("category")
    return found


def of_texts(train: pd.DataFrame, test: pd.DataFrame) -> dict[str, float]:
    """Return the accuracy of logistic regression on TF-IDF."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=10, max_iter=2000))
    model.fit(train["text"], train["target"])
    return {"linear": float(model.score(test["text"], test["target"]))}


def score(predicted: Any, expected: pd.Series, is_target: bool) -> float:
    """Return the RMSE, or the accuracy."""
    if is_target:
        return float(np.sqrt(np.mean((predicted - expected) ** 2)))
    return float((predicted == expected).mean())


def shipped(load: str) -> Callable[[], pd.DataFrame]:
    """Return the function of a set that scikit-learn ships, with a column target."""

    def table() -> pd.DataFrame:
        import sklearn.datasets

        arguments = {"scaled": False} if load == "load_diabetes" else {}
        found = getattr(sklearn.datasets, load)(as_frame=True, **arguments)
        frame = found.frame.rename(columns=lambda name: str(name).replace("/", " per "))
        if load != "load_diabetes":
            frame["target"] = [f"class {label}" for label in found.target]
        return frame

    return table


def adult_like() -> pd.DataFrame:
    """Return a generated table with gaps, dates, zip codes and a key."""
    rng = random.Random(0)
    bonus = {"school": -1.0, "college": 0.5, "master": 2.0, "": 0.0}
    rows = []
    for number in range(ROWS):
        age, education = rng.randrange(18, 80), rng.choice(list(bonus))
        hours, region, year = rng.choice([20, 40, 40, 50]), rng.choice(["01", "02", "10"]), rng.randrange(1990, 2024)
        day = f"{rng.randrange(1, 29):02}.{rng.randrange(1, 13):02}.{year}"
        value = (age - 40) / 12 + bonus[education] + (hours - 40) / 8 - (year - 2007) / 8 + (region == "10")
        rows.append(
            {
                "person": f"P{number:05}",
                "age": age if rng.random() > 0.1 else None,
                "zip": f"{region}{rng.randrange(100, 110)}",
                "hired": day if rng.random() > 0.1 else None,
                "education": education or None,
                "hours": hours if rng.random() > 0.2 else None,
                "remark": rng.choice(["ok", "see file", None]),
                "target": ">50K" if value + rng.gauss(0, 1) > 1.5 else "<=50K",
            }
        )
    return pd.DataFrame(rows)


def docstrings() -> pd.DataFrame:
    """Return the first paragraphs of docstrings of installed packages, at most `MAX_TEXTS` of each."""
    site, rng, rows = Path(sysconfig.get_path("purelib")), random.Random(0), []
    for package in PACKAGES:
        texts: set[str] = set()
        for path in sorted((site / package).rglob("*.py")):
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if "test" not in str(path) else ()
            for node in nodes:
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                    texts.add(" ".join(text.split("\n\n")[0].split()))
        listed = sorted(text for text in texts if len(text.split()) > 3)
        rows += [{"text": text, "target": package} for text in rng.sample(listed, min(MAX_TEXTS, len(listed)))]
    return pd.DataFrame(rows).drop_duplicates("text").sample(frac=1, random_state=0)


SETS: dict[str, Callable[[], pd.DataFrame]] = {
    **{name: shipped(f"load_{name}") for name in ("iris", "wine", "breast_cancer", "digits", "diabetes")},
    "adult-like": adult_like,
    TEXT: docstrings,
}


def shown(values: Sequence[float]) -> str:
    """Return a mean with its standard error."""
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{mean(values):.4g} ± {error:.2g}"


def difference(name: str, metrics: dict[str, list[float]]) -> str:
    """Return by how much the trees are better than the best other trees on the same splits."""
    others = [metrics[model] for model in ("boosting", "lightgbm", "autogluon") if model in metrics]
    if "trees" not in metrics or not others:
        return ""
    sign = -1 if name == "diabetes" else 1
    best = max(others, key=lambda values: sign * mean(values))
    return shown([sign * (value - other) for value, other in zip(metrics["trees"], best, strict=True)])


def show(rows: list[tuple[str, dict[str, list[float]]]]) -> None:
    """Print the metrics."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    headings = {**HEADINGS, "autogluon": "AutoGluon"}
    for heading in ("", *headings.values(), "difference"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, metrics in rows:
        cells = (shown(metrics[model]) if model in metrics else "" for model in headings)
        table.add_row(name, *cells, difference(name, metrics))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
