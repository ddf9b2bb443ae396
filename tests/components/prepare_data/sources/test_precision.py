"""Columns that float32 cannot represent."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from slipway.components.prepare_data.encoding.messages import integer_feature
from slipway.components.prepare_data.encoding.records import RecordEncoder
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.precision import Precision
from slipway.core.errors import UserError

MakeSettings = Callable[..., DataSettings]
GOOD = [number / 7 for number in range(60)]


def write(path: Path, **columns: list[object]) -> str:
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join([",".join(columns), *rows]))
    return f"csv:{path}"


@pytest.mark.parametrize(
    ("column", "numbers"),
    [
        ("milliseconds", [1_700_000_000_000 + 1000 * number for number in range(60)]),
        ("serial", [2_000_000_001 + number for number in range(60)]),
        ("price", [1e9 + number / 8 for number in range(60)]),
    ],
)
@pytest.mark.parametrize("use", ["input", "target"])
def test_a_column_that_loses_its_digits_is_refused(
    tmp_path: Path, make_settings: MakeSettings, column: str, numbers: list[float], use: str
) -> None:
    given = {"x": GOOD, column: numbers} if use == "target" else {column: numbers, "y": GOOD}
    settings = make_settings(write(tmp_path / "t.csv", **given), label=list(given)[-1])
    with pytest.raises(
        UserError, match=rf"Rounding to float32 loses digits of the column {column} \(.* becomes"
    ) as error:
        prepare(settings, 1, task="regression")
    assert f"subtract a constant in the source, such as {column} - " in (error.value.fix or "")
    assert not Path(settings.store).exists()


@pytest.mark.parametrize(
    "numbers",
    [
        [2**31 + 256 * number for number in range(60)],  # exact
        [2_000_000_001] * 60,
        [1e9 + 1e6 * number + 0.1 for number in range(60)],
        GOOD,
    ],
)
def test_a_column_that_keeps_its_digits_is_accepted(
    tmp_path: Path, make_settings: MakeSettings, numbers: list[float]
) -> None:
    prepare(make_settings(write(tmp_path / "t.csv", x=numbers, label=GOOD)), 1, task="regression")


@pytest.mark.usefixtures("processes")
def test_values_of_a_function_and_of_records(
    tmp_path: Path, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_precision.py").write_text(
        "import numpy as np\n"
        "def examples():\n    for n in range(60):\n"
        "        yield {'pair': np.array([n, 1.7e12 + n]), 'label': float(n)}\n"
    )
    settings = make_settings("own_precision:examples", features={"pair": "number[2]"})
    with pytest.raises(UserError, match=r"loses digits of the column pair \(17000000000"):
        prepare(settings, 1, task="regression")

    # Two files, which are listed by two processes.
    encoder = RecordEncoder()
    for part in range(2):
        found = [
            {b"x": integer_feature([n]), b"y": integer_feature([1_700_000_000_000 + 1000 * n + part])}
            for n in range(40)
        ]
        records = [encoder.encode_with(None, b"%d" % n, None, each.items()) for n, each in enumerate(found)]
        (tmp_path / f"{part}.tfrecord").write_bytes(b"".join(records))
    settings = make_settings(f"tfrecord:{tmp_path}/*.tfrecord", features={"x": "integer", "y": "integer"}, label="y")
    with pytest.raises(UserError, match=r"loses digits of the column y \(17000000"):
        prepare(settings, 1, task="regression")


def test_parts_add_up_to_the_whole() -> None:
    seed = random.randrange(2**32)
    print("seed:", seed)
    numbers = np.random.default_rng(seed).normal(1e9, 50, 20_000)
    parts = [Precision() for _ in range(3)]
    for index, number in enumerate(numbers.tolist()):
        parts[index % 3].add("x", number)
    whole = Precision()
    for part in parts:
        whole.merge(part)
    (found,) = whole.columns["x"]
    assert found.count == len(numbers)
    assert found.mean == pytest.approx(numbers.mean()) and found.deviation == pytest.approx(numbers.std(), rel=1e-9)
    assert found.error == np.abs(numbers - numbers.astype(np.float32)).max()
