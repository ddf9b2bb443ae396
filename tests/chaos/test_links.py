"""Two representative faults of links; `make chaos-links` tries all, with two and three replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.links import Links, missing


@pytest.mark.long
@pytest.mark.timeout(900)  # two minutes on an idle machine
@pytest.mark.root
def test_lost_data_connections_are_noticed_and_a_freeze_of_all_is_not_a_loss(tmp_path: Path) -> None:
    if lacking := missing():
        pytest.skip(lacking)
    links = Links("tensorflow", 2, tmp_path)
    expected = links.undisturbed()
    for fault in ("data only", "all frozen 20 s"):
        assert links.run(fault, expected).problems == []
