"""The ledger of a test split counts models, and the gate's level shrinks with their number."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.components.evaluate import gate, ledger
from slipway.components.evaluate.gate import Comparison, Level, Opponent, decide
from slipway.components.evaluate.ledger import Ledger
from slipway.components.evaluate.settings import GateSettings
from slipway.core.manifest import Shard, Split

SPLIT = Split(examples=3, classes={}, shards=[Shard(file="test", examples=3, bytes=1, sha256="00")])


def add(folder: Path, model: str, **about: object) -> Ledger:
    values = {"run": "a-run", "metric": "accuracy", "value": 0.9, "decision": "reject", **about}
    return ledger.add(ledger.read(folder), model=model, **values)  # type: ignore[arg-type]


def test_each_model_is_a_signed_line_once(tmp_path: Path):
    for model in ("one", "two", "one", "three", "two"):
        looks = add(tmp_path / "split", model)
    assert [look.model for look in looks.looks] == ["one", "two", "three"]
    assert [look.number for look in looks.looks] == [1, 2, 3]
    assert not looks.problems and len({look.author for look in looks.looks}) == 1
    [first, *_] = looks.looks
    assert (first.run, first.metric, first.value, first.decision) == ("a-run", "accuracy", 0.9, "reject")
    assert "@" in first.who and first.when.endswith("+00:00")


def test_the_ledger_is_that_of_the_examples_whatever_their_order_and_the_name_of_the_data_set(tmp_path: Path):
    hashes = np.array([3, 1, 2], np.uint64)
    first = ledger.ledger_of(tmp_path / "store/a/0123", SPLIT, hashes)
    assert ledger.ledger_of(tmp_path / "store/renamed/4567", SPLIT, hashes[::-1]) == first
    assert ledger.ledger_of(tmp_path / "store/a/0123", SPLIT, hashes[:2]) != first
    assert ledger.ledger_of(tmp_path / "store/a/0123", SPLIT, None).parent == first.parent


@pytest.mark.parametrize("change", ["value", "removed", "garbage", "key"])
def test_a_changed_line_is_noticed_and_still_counts(tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch):
    for model in ("one", "two", "three"):
        add(tmp_path, model)
    path = tmp_path / "000002.json"
    if change == "removed":
        path.unlink()
    elif change == "garbage":
        path.write_text("{")
    elif change == "value":
        path.write_text(path.read_text().replace('"payload": "ey', '"payload": "fy'))
    else:  # signed with another key, the line is valid, but no longer the one that the next line names
        monkeypatch.setenv(ledger.KEY_VARIABLE, str(tmp_path / "another.key"))
        path.unlink()
        (tmp_path / "000003.json").rename(tmp_path / "kept")
        add(tmp_path, "four")
        (tmp_path / "kept").rename(tmp_path / "000003.json")
    looks = ledger.read(tmp_path)
    assert looks.count == 3
    assert len(looks.problems) >= 1
    assert looks.problems[0].startswith("The ledger of this test split was changed: ")


def test_runs_at_the_same_time_add_a_line_each(tmp_path: Path):
    threads = [threading.Thread(target=add, args=(tmp_path, f"model {number}")) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    looks = ledger.read(tmp_path)
    assert sorted(look.model for look in looks.looks) == [f"model {number}" for number in range(8)]
    assert not looks.problems


def test_comparisons_are_counted_without_the_first_champion_and_without_repetitions(tmp_path: Path):
    looks = add(tmp_path, "champion")
    assert looks.number_of("one", "champion") == 1
    looks = add(tmp_path, "one")
    assert (looks.number_of("one", "champion"), looks.number_of("two", "champion")) == (1, 2)
    looks = add(tmp_path, "two")
    assert looks.number_of("three", "two") == 3
    assert looks.number_of("three", "of another data set") == 4


@given(significance=st.floats(0.001, 0.5), count=st.integers(1, 300))
def test_all_levels_together_are_the_significance(significance: float, count: int):
    levels = [ledger.level(significance, number) for number in range(1, count + 1)]
    assert sum(levels) <= significance
    assert levels == sorted(levels, reverse=True)
    assert math.isclose(
        sum(ledger.level(significance, number) for number in range(1, 20_000)), significance, rel_tol=1e-3
    )


def verdict(p_value: float, level: Level | None, **settings: object) -> gate.Verdict:
    champion = Opponent("version 1", {"accuracy": 0.9}, comparison=Comparison("McNemar's exact test", p_value, "30"))
    settings = {"metric": "accuracy", **settings}
    return decide(GateSettings.model_validate(settings), {"accuracy": 0.92}, champion, "", level=level)


def test_the_verdict_names_the_level_of_a_used_test_split():
    assert verdict(0.04, None).decision == "promote"  # new examples: any difference counts
    first = verdict(0.04, Level(gate.AUTOMATIC, 1))
    assert first.decision == "promote"
    assert "On this test split, no model was compared before." in " ".join(first.reasons)
    tenth = verdict(0.04, Level(gate.AUTOMATIC, 10))
    assert tenth.decision == "reject"
    assert "9 models were compared before. However many will be, one that is no better is promoted with a " in (
        " ".join(tenth.reasons)
    )
    assert "its p-value, 0.04, is above 0.00061" in tenth.reasons[0]
    assert verdict(0.0005, Level(gate.AUTOMATIC, 10)).decision == "promote"
    assert verdict(0.04, Level(0.05, 2), significance=0.05).decision == "reject"
    assert verdict(0.04, None, significance=0.05).decision == "promote"


def test_a_full_disk_leaves_no_half_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, content: bytes) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    ledger._key()  # there is one
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        add(tmp_path, "one")
    assert not [*tmp_path.iterdir()]


def test_a_file_system_without_links_has_lines_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    for model in ("one", "two", "one"):
        looks = add(tmp_path, model)
    assert [look.model for look in looks.looks] == ["one", "two"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001.json", "000002.json"]


def test_lines_are_plain_envelopes(tmp_path: Path):
    add(tmp_path, "one")
    line = json.loads((tmp_path / "000001.json").read_text())
    assert line["payloadType"] == ledger.PAYLOAD
    assert line["publicKey"].startswith("-----BEGIN PUBLIC KEY-----")
