"""Splits that flatter: 20 data sets with a planted leak, and 20 without: `python -m benchmarks.splits`.

Each set becomes a CSV file or a folder of images, and is scanned as `slipway data check --split` does: without a hint.
A leak is found if a finding of its kind is significant; a finding on a clean set is a false alarm. The seconds are
those of the check, and of all else that the scan does.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from sklearn import datasets

from benchmarks import looks
from slipway.components.prepare_data.scan_table import TableScan, scan, scan_table
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.writing import set_writer

Table = dict[str, Any]
START = datetime.date(2023, 1, 1)


class DataSet(NamedTuple):
    """A set: the kind of its leak, "" if it is clean, and the function that writes it and returns how it is scanned."""

    leak: str
    make: Callable[[np.random.Generator], Table]
    settings: dict[str, Any] = {}  # noqa: RUF012 (not changed)


def linear(random: np.random.Generator, rows: int = 800, columns: int = 6, noise: float = 1.0) -> Table:
    """Numbers, of which three decide the class with noise."""
    inputs = random.normal(size=(rows, columns))
    return {
        **{f"x{number}": inputs[:, number] for number in range(columns)},
        "label": np.where(inputs[:, :3].sum(axis=1) + noise * random.normal(size=rows) * 1.5 > 0, "yes", "no"),
    }


def of_groups(
    random: np.random.Generator, column: str, name: Callable[[int], str], *, groups: int = 100, regression: bool = False
) -> Table:
    """Several rows of each group, whose label is the group's, and whose inputs are nearly the same."""
    group = np.sort(random.integers(groups, size=900))
    center, label = random.normal(size=(groups, 6)), random.normal(size=groups)
    inputs = center[group] + 0.4 * random.normal(size=(900, 6))
    target = label[group] + 0.2 * random.normal(size=900)
    classes: Any = np.round(target * 10 + 50, 2) if regression else np.where(target > 0, "ill", "well")
    numbers = {f"x{number}": inputs[:, number] for number in range(6)}
    return {column: [name(number) for number in group.tolist()], **numbers, "label": classes}


def in_time(random: np.random.Generator, day: Callable[[int], object], *, column: str = "day") -> Table:
    """Rows in time, of regimes in which the class depends on the inputs in another way."""
    rows = 1200
    regime = np.repeat(np.arange(12), rows // 12)
    center, sign = random.normal(size=(12, 4)) * 2, random.choice([-1, 1], size=12)
    noise = random.normal(size=(rows, 4))
    score = sign[regime] * noise[:, 0] + 0.3 * random.normal(size=rows)
    columns = {f"x{number}": (center[regime] + noise)[:, number] for number in range(4)}
    return {column: [day(number) for number in range(rows)], **columns, "label": np.where(score > 0, "up", "down")}


def with_column(random: np.random.Generator, name: str, column: Callable[[np.ndarray], Any]) -> Table:
    """A table with a column that is made of the label."""
    table = linear(random, noise=2)
    return {name: column(table["label"] == "yes"), **table}


def date(number: int) -> str:
    """Return a day."""
    return str(START + datetime.timedelta(days=number))


def drifting_sum(random: np.random.Generator) -> Table:
    """A number that follows a random walk, in time: a forest looks it up in the days around it."""
    walk = np.cumsum(random.normal(size=1000))
    return {"timestamp": np.arange(1000) * 3600 + 1.7e9, "load": random.normal(size=1000), "label": np.round(walk, 3)}


def oversampled(random: np.random.Generator) -> Table:
    """Rows of the rare class, repeated with a little noise to balance the classes."""
    table = linear(random, rows=400, noise=3)
    values = np.column_stack([table[f"x{number}"] for number in range(6)])
    rare = random.permutation(len(values))[:120]
    repeated = np.repeat(rare, 5)
    values = np.vstack([values, values[repeated] + 0.01 * random.normal(size=(600, 6))])
    labels = np.concatenate([table["label"], table["label"][repeated]])
    return {**{f"x{number}": values[:, number] for number in range(6)}, "label": labels}


def target_encoded(random: np.random.Generator) -> Table:
    """A column with the mean of the label of the row's small group, the row included."""
    table = linear(random, noise=3)
    group = random.integers(350, size=800)
    positive = (table["label"] == "yes").astype(float)
    means = np.bincount(group, positive, 350) / np.maximum(np.bincount(group, minlength=350), 1)
    return {**table, "mean_of_shop": np.round(means[group], 3)}


def scenes(random: np.random.Generator, name: Callable[[int, int], str], *, shift: int = 0, noise: float = 12) -> Table:
    """Photographs, several of each scene, whose class is the scene's; `shift` moves the camera."""
    result: Table = {"images": []}
    for scene in range(40):
        label = "day" if scene % 2 else "night"
        coarse = random.uniform(0, 255, size=(10, 10))
        for shot in range(8):
            image = np.kron(coarse, np.ones((10, 10)))
            image = np.roll(image, random.integers(-shift, shift + 1) if shift else 0, axis=1)
            image = np.clip(image + random.normal(size=image.shape) * noise, 0, 255).astype(np.uint8)
            result["images"].append((f"{label}/{name(scene, shot)}.png", image))
    return result


def shapes(random: np.random.Generator, name: Callable[[int, str], str], *, count: int = 150) -> Table:
    """Images of discs and squares at random positions: each is another one."""
    result: Table = {"images": []}
    rows, columns = np.mgrid[:72, :72]
    for label in ("disc", "square"):
        for number in range(count):
            y, x, radius = random.integers(16, 56), random.integers(16, 56), random.integers(6, 15)
            inside = (rows - y) ** 2 + (columns - x) ** 2 < radius**2
            if label == "square":
                inside = (abs(rows - y) < radius) & (abs(columns - x) < radius)
            image = np.where(inside, 220, 40) + random.normal(size=rows.shape) * 20
            result["images"].append((f"{label}/{name(number, label)}.png", np.clip(image, 0, 255).astype(np.uint8)))
    return result


def bundled(loader: Callable[..., Any]) -> Callable[[np.random.Generator], Table]:
    """One of scikit-learn's sets."""

    def make(random: np.random.Generator) -> Table:
        loaded = loader(as_frame=True)
        names = getattr(loaded, "target_names", None)
        is_class = names is not None and len(names) == len(set(loaded.target)) and loaded.target.dtype.kind == "i"
        labels = [f"class {value}" for value in loaded.target] if is_class else loaded.target
        order = random.permutation(len(labels))
        return {**{name: loaded.data[name].to_numpy()[order] for name in loaded.data}, "label": np.array(labels)[order]}

    return make


def generated(function: Callable[..., Any], **options: Any) -> Callable[[np.random.Generator], Table]:
    """One of scikit-learn's generators."""

    def make(random: np.random.Generator) -> Table:
        inputs, labels = function(**options, random_state=int(random.integers(1 << 30)))
        is_class = labels.dtype.kind == "i"
        columns = {f"x{number}": inputs[:, number] for number in range(inputs.shape[1])}
        return {**columns, "label": [f"class {label}" for label in labels] if is_class else np.round(labels, 4)}

    return make


def beside(name: str, column: Callable[[np.random.Generator, int], Any], **options: Any) -> Callable[..., Table]:
    """A clean table with a column that has nothing to do with the label."""
    return lambda random: {name: column(random, 800), **linear(random, **options)}


def city(random: np.random.Generator) -> Table:
    """A category on which the class depends, and which new rows will have, too."""
    table, cities = linear(random), random.integers(40, size=800)
    effect = random.normal(size=40)[cities]
    labels = np.where((table["label"] == "yes") * 2 - 1 + 2 * effect > 0, "yes", "no")
    return {**table, "city": [f"Town of {'ABCDEFGHIJ'[c % 10]}{'aeiou'[c // 10]}" for c in cities], "label": labels}


def left_on(random: np.random.Generator) -> Table:
    """A date that only those who left have."""
    return with_column(
        random, "left_on", lambda leaves: [date(int(random.integers(300))) if leave else "" for leave in leaves]
    )


def refund(random: np.random.Generator) -> Table:
    """An amount that only one class has."""
    return with_column(random, "refund", lambda y: np.round(np.where(y, random.gamma(2, 20, len(y)), 0), 2))


def days_active(random: np.random.Generator) -> Table:
    """A number that is measured afterwards."""
    return with_column(random, "days_active", lambda y: np.round(np.where(y, 5, 30) + 5 * random.normal(size=len(y))))


def copies(random: np.random.Generator) -> Table:
    """Copies with noise of rows, without a column that tells which belong together."""
    table = of_groups(random, "x", str, groups=250)
    del table["x"]
    return table


def german(number: int) -> str:
    """Return a day as it is written in Germany."""
    return (START + datetime.timedelta(days=number)).strftime("%d.%m.%Y")


def month(number: int) -> str:
    """Return a month; ten numbers have the same one."""
    return f"{2015 + number // 120}-{1 + number // 10 % 12:02d}-01"


def burst(scene: int, shot: int) -> str:
    """Return a name that tells nothing of the scene."""
    return f"{scene * 7919 % 997}{shot * 31 % 97:02d}x"


CLUSTERS = {"n_samples": 1200, "n_informative": 6, "n_features": 12, "n_classes": 3}
UNEQUAL = {"n_samples": 1500, "weights": [0.93], "n_informative": 5}
DATA_SETS = {
    # Groups in several splits.
    "customers, an input": DataSet("group", lambda r: of_groups(r, "customer_id", lambda g: str(1000 + g))),
    "patients, codes": DataSet("group", lambda r: of_groups(r, "patient", lambda g: f"P-{g:04d}")),
    "machines, a number to predict": DataSet("group", lambda r: of_groups(r, "machine", str, regression=True)),
    "users, hexadecimal": DataSet("group", lambda r: of_groups(r, "who", lambda g: f"{g * 7919 + 99991:08x}")),
    "sessions of few": DataSet("group", lambda r: of_groups(r, "sessionId", lambda g: f"s{g}", groups=300)),
    "nearly equal rows, no column": DataSet("group", oversampled),
    "copies with noise": DataSet("group", copies),
    "photographs, series of names": DataSet("group", lambda r: scenes(r, lambda s, n: f"scene{s:03d}_{n}", shift=20)),
    "photographs in bursts": DataSet("group", lambda r: scenes(r, burst, noise=4)),
    "frames of videos": DataSet(
        "group", lambda r: scenes(r, lambda s, n: f"video {s}-frame {n:05d}", shift=12, noise=20)
    ),
    # In time.
    "a date, regimes": DataSet("time", lambda r: in_time(r, date)),
    "a timestamp, regimes": DataSet("time", lambda r: in_time(r, lambda n: 1.7e9 + 3600 * n, column="timestamp")),
    "months, regimes": DataSet("time", lambda r: in_time(r, month)),
    "German dates, regimes": DataSet("time", lambda r: in_time(r, german)),
    "a walk": DataSet("time", drifting_sum),
    # Inputs that give the label away.
    "a copy of the label": DataSet("input", lambda r: with_column(r, "status", lambda y: np.where(y, "shut", "open"))),
    "a date that only leavers have": DataSet("input", left_on),
    "a refund": DataSet("input", refund),
    "a measurement afterwards": DataSet("input", days_active),
    "an encoded target": DataSet("input", target_encoded),
    # Without a leak.
    "iris": DataSet("", bundled(datasets.load_iris)),
    "wine": DataSet("", bundled(datasets.load_wine)),
    "breast cancer": DataSet("", bundled(datasets.load_breast_cancer)),
    "diabetes": DataSet("", bundled(datasets.load_diabetes)),
    "digits, columns": DataSet("", bundled(datasets.load_digits)),
    "numbers": DataSet("", linear),
    "numbers, easy": DataSet("", lambda r: linear(r, noise=0.2)),
    "two moons": DataSet("", generated(datasets.make_moons, n_samples=800, noise=0.2)),
    "classes of clusters": DataSet("", generated(datasets.make_classification, **CLUSTERS)),
    "unequal classes": DataSet("", generated(datasets.make_classification, **UNEQUAL)),
    "a number to predict": DataSet("", generated(datasets.make_regression, n_samples=800, n_features=8, noise=20.0)),
    "friedman": DataSet("", generated(datasets.make_friedman1, n_samples=900, noise=1.0)),
    "a key of each row": DataSet("", beside("order_id", lambda r, n: r.permutation(n) + 10_000)),
    "customers without an effect": DataSet("", beside("customer_id", lambda r, n: r.integers(120, size=n))),
    "dates without an effect": DataSet("", beside("date", lambda _, n: [date(d) for d in range(n)])),
    "years without an effect": DataSet("", beside("year", lambda _, n: 2000 + np.arange(n) // 40)),
    "cities": DataSet("", city),
    "three columns": DataSet("", lambda r: linear(r, columns=3)),
    "shapes": DataSet("", lambda r: shapes(r, lambda n, _: f"{n:04d}")),
    "shapes, named by class": DataSet("", lambda r: shapes(r, lambda n, label: f"{label}_{n}", count=120)),
}


def write(table: Table, folder: Path) -> Path:
    """Write a CSV file, or a folder of images; return its path."""
    if "images" in table:
        for name, image in table["images"]:
            path = folder / "images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
        return folder / "images"
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    return folder / "table.csv"


def scanned(path: Path, table: Table) -> TableScan:
    """Scan a set as the command does."""
    if "images" in table:
        return scan(DataSettings(source=f"images:{path}"), "classification")
    first = scan_table(path, "label").settings.model_copy(update={"order_by": None})
    is_number = np.asarray(table["label"]).dtype.kind == "f"
    return scan(first, "regression" if is_number else "classification")


def main() -> None:
    """Print a line for each set, and how many were found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="Print all that was measured.")
    parser.add_argument("sets", nargs="*")
    arguments = parser.parse_args()
    check, seconds = set_writer.check_split, [0.0]

    def timed(*values: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return check(*values, **options)
        finally:
            seconds[0] = time.perf_counter() - start

    set_writer.check_split = timed
    counts: dict[bool, list[int]] = {True: [0, 0], False: [0, 0]}
    print("| data set | leak | found | measured | check / rest, s |\n|---|---|---|---|---|")
    for number, (name, data_set) in enumerate(DATA_SETS.items()):
        if arguments.sets and name not in arguments.sets:
            continue
        table = data_set.make(np.random.default_rng((arguments.seed, number)))
        with tempfile.TemporaryDirectory() as folder:
            path = write(table, Path(folder))
            start = time.perf_counter()
            findings = scanned(path, table).split_findings
            rest = time.perf_counter() - start - seconds[0]
        kinds = [finding.kind for finding in findings if finding.flatters]
        is_right = data_set.leak in kinds if data_set.leak else not kinds
        counts[bool(data_set.leak)][0] += data_set.leak in kinds if data_set.leak else bool(kinds)
        counts[bool(data_set.leak)][1] += 1
        shown = "; ".join(
            f"{finding.name}: {finding.metric} {finding.difference.first:.3f} / {finding.difference.second:.3f}, "
            f"{finding.difference.low:+.3f} to {finding.difference.high:+.3f}"
            for finding in findings
            if finding.flatters or arguments.verbose
        )
        mark = "" if is_right else "**wrong** "
        found = f"{mark}{', '.join(kinds) or '–'}"
        print(f"| {name} | {data_set.leak or '–'} | {found} | {shown} | {seconds[0]:.2f} / {rest:.2f} |", flush=True)
    leaks, alarms = ("{} of {}".format(*counts[is_leak]) for is_leak in (True, False))
    print(f"\n{leaks} leaks found, {alarms} clean sets suspected")
    if not arguments.sets:
        print("\nHow a test split wears out, see benchmarks.looks:\n")
        looks.show(arguments.seed)


if __name__ == "__main__":
    main()
