"""Schedule files: what is read, what is rejected, what is suggested."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway.core.errors import UserError
from slipway.pipelines.platforms.vertex.schedules.files import FILES

EXAMPLES = Path("configs/schedules").absolute()
VERTEX = {"project": "p", "region": "europe-west4", "bucket": "gs://bucket", "image": "r/i:1", "serving_image": "r/s:1"}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a schedule file and the configuration that it names; return its path."""
    digits = yaml.safe_load(Path("configs/digits.yaml").read_text()) | {"vertex": VERTEX}
    monkeypatch.chdir(tmp_path)
    Path("configs/schedules").mkdir(parents=True)
    Path("configs/digits.yaml").write_text(yaml.safe_dump(digits))

    def written(name: str = "nightly", **settings: Any) -> Path:
        path = Path(f"configs/schedules/{name}.yaml")
        values = {"configuration": "configs/digits.yaml", "cron": "0 3 * * *", **settings}
        path.write_text(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))
        return path

    return written


def test_the_examples_are_schedules() -> None:
    names = [FILES.read(path).name for path in FILES.paths(folder=EXAMPLES)]
    assert "digits-nightly" in names


def test_set_and_hardware_override_the_configuration(write: Any) -> None:
    file = FILES.read(write(set=["train.epochs=7"], hardware="t4x1", time_zone="Europe/Berlin"))
    assert (file.config.train.epochs, str(file.config.training_hardware)) == (7, "t4x1")
    assert file.cron_text == "TZ=Europe/Berlin 0 3 * * *"


def test_times_without_a_zone_are_in_the_schedules_time_zone(write: Any) -> None:
    file = FILES.read(write(time_zone="Asia/Tokyo", start="2026-12-01", end="2026-12-03T12:00:00+00:00"))
    assert file.start == datetime(2026, 11, 30, 15, tzinfo=UTC)
    assert [time.isoformat() for time in file.next_times(5, now=datetime(2026, 11, 21, tzinfo=UTC))] == [
        "2026-12-01T03:00:00+09:00",
        "2026-12-02T03:00:00+09:00",
        "2026-12-03T03:00:00+09:00",
    ]


@pytest.mark.parametrize(
    ("settings", "setting", "near"),
    [
        ({"time_zone": "Europe/Berln"}, "time_zone", "Europe/Berlin"),
        ({"time_zone": "new york"}, "time_zone", "America/New_York"),
        ({"cron": "0 24 * * *"}, "cron", "23"),
        ({"cron": None}, "cron", None),
        ({"start": "2026-12-02", "end": "2026-12-01"}, "start", None),
        ({"configuration": "configs/digit.yaml"}, "configuration", "configs/digits.yaml"),
        ({"max_runs": 0}, "max_runs", None),
        ({"max_concurent_runs": 1}, "max_concurent_runs", "max_concurrent_runs"),
        ({"max_concurrent_runs": "many"}, "max_concurrent_runs", None),
        ({"set": ["train.epoch=3"]}, "train.epoch", "train.epochs"),
    ],
)
def test_invalid_schedules_are_refused(write: Any, settings: dict[str, Any], setting: str, near: str | None) -> None:
    with pytest.raises(UserError) as error:
        FILES.read(write(**settings))
    assert (error.value.setting, error.value.nearest) == (setting, near)
    assert error.value.fix


def test_an_unknown_name_is_refused_with_the_closest(write: Any) -> None:
    write("nightly")
    write("weekly")
    assert [file.name for file in FILES.read_all("weekly")] == ["weekly"]
    with pytest.raises(UserError) as error:
        FILES.read_all("nightli")
    assert error.value.nearest == "nightly"
    with pytest.raises(UserError, match="is not a valid schedule name") as error:
        FILES.read(write("Every Night"))
    assert error.value.nearest == "every-night"


def test_a_configuration_without_a_vertex_section_is_refused(write: Any) -> None:
    path = write()
    values = yaml.safe_load(Path("configs/digits.yaml").read_text())
    del values["vertex"]
    Path("configs/digits.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(UserError, match="has no section vertex"):
        FILES.read(path)
