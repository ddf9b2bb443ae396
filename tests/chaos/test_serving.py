"""A short attack on the server, moved champions, and what counts as a wrong answer; minutes: `make chaos-serving`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from tests.chaos.serving import LATE_SECONDS, Champion, Soak


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_attacked_server_answers_its_clients_and_loses_none_when_it_stops(tmp_path: Path) -> None:
    report = Soak(tmp_path).run(12, attacks=True, restart=8, reload=0)
    assert report.problems == []
    for name in ("endless headers", "half requests", "pages of other sites"):
        assert report.counts[name]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_newest_readable_champion_is_served_while_reads_fail(tmp_path: Path) -> None:
    report = Soak(tmp_path).run(20, attacks=False, restart=0, reload=2.5)
    assert report.problems == []
    assert report.counts["champions with one failing read"]
    assert report.counts["unreadable champions"]


def test_an_answer_of_an_older_champion_is_wrong_after_ten_seconds(tmp_path: Path) -> None:
    soak, now = Soak(tmp_path), time.monotonic()
    soak.report.champions = [Champion("1", now - 100), Champion("2", now - LATE_SECONDS - 1), Champion("3", now - 2)]
    for label, wrong in {"2": 0, "3": 0, "1": 1}.items():
        soak._check(label, now)
        assert soak.report.counts["wrong"] == wrong
