"""Which tests try a mutant, by what a recording run has stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mutants.judge import Judge

FIXTURE = "tests/trainer/test_a.py::data"
TESTS = [  # name, outcome, seconds, fixtures of a wider scope
    ("tests/trainer/test_a.py::test_first", "passed", 9.0, [FIXTURE]),
    ("tests/trainer/test_a.py::test_user", "passed", 1.0, [FIXTURE]),
    ("tests/trainer/test_a.py::test_skipped", "skipped", 0.0, [FIXTURE]),
    ("tests/core/test_b.py::test_slow", "passed", 4.0, []),
    ("tests/core/test_b.py::test_fast", "passed", 2.0, []),
    ("tests/core/test_b.py::test_broken", "failed", 1.0, []),
]
HITS = [
    (0, "tests/core/test_b.py::test_slow"),
    (0, "tests/core/test_b.py::test_broken"),
    (0, f"tests/trainer/test_a.py::test_first\t{FIXTURE}"),
    (0, "tests/core/test_b.py::test_fast"),
    (1, ""),
]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    records = [
        {"test": test, "outcome": outcome, "seconds": seconds, "shared": shared}
        for test, outcome, seconds, shared in TESTS
    ]
    (tmp_path / "results").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (tmp_path / "hits").write_text("".join(f"{number}\t{test}\n" for number, test in HITS))
    (tmp_path / "recorded").touch()
    result = Judge(tmp_path, tmp_path)
    result.record()
    return result


def test_users_of_a_fixture_try_its_mutants_and_cheap_files_are_first(judge: Judge) -> None:
    assert judge.covering(0, "slipway/core/paths.py") == [
        "tests/core/test_b.py::test_fast",
        "tests/core/test_b.py::test_slow",
        "tests/trainer/test_a.py::test_user",
        "tests/trainer/test_a.py::test_first",
    ]
    assert judge.failed == ["tests/core/test_b.py::test_broken"]


def test_what_runs_at_import_is_tried_by_the_tests_of_its_folder(judge: Judge) -> None:
    assert judge.covering(1, "slipway/core/paths.py") == [
        "tests/core/test_b.py::test_fast",
        "tests/core/test_b.py::test_slow",
    ]
    assert judge.covering(2, "slipway/core/paths.py") == []
