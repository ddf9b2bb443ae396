"""Runs, data sets and models in random graphs: what anything else depends on is never deleted."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from slipway.core.errors import UserError
from slipway.pipelines.cleaning.cleaner import Unneeded
from slipway.pipelines.cleaning.local import LocalCleaner
from slipway.pipelines.cli.app import app
from slipway.pipelines.runs.record import LATEST
from tests.pipelines.cleaning.project import AGE, DAYS, NOW, data_set, register, run, written


def cleaned(*options: str) -> set[str]:
    """Clean, and return the names of what was deleted; the list without --apply is the same."""
    runner = CliRunner()
    planned, done = (runner.invoke(app, ["runs", "clean", *options, *more, "--json"]) for more in ((), ("--apply",)))
    assert planned.exit_code == done.exit_code == 0, done.output
    assert json.loads(planned.stdout) == json.loads(done.stdout)
    return {Path(each["path"]).name for each in json.loads(done.stdout)}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "a project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.usefixtures("here")
def test_old_runs_and_data_sets_that_nothing_refers_to_are_deleted() -> None:
    used, unused = data_set("used", 90), data_set("unused", 90)
    data_set("new", 1)
    data_set("of-a-model", 90, "other name")
    run("old", 40, unused)
    run("source", 80, used)
    run("failed", 31, status="failed")
    run("registered", 90)
    run("recent", 29, used, source="source")
    register(1, "registered", "of-a-model")
    assert cleaned() == {"old", "failed", "unused"}
    assert {path.name for path in Path("runs").iterdir()} == {"source", "registered", "recent", LATEST, ".trash"}
    assert (used / "shard").is_file()
    assert cleaned() == set()
    assert cleaned("--older-than", "12h") == {"new"}, "the newest run, its source and its data set are kept"


@pytest.mark.usefixtures("here")
def test_without_apply_nothing_is_deleted_and_the_sizes_are_said() -> None:
    data = data_set("old", 90)
    run("old", 40, data)
    run("newest", 0)
    result = CliRunner().invoke(app, ["runs", "clean"])
    assert result.exit_code == 0
    assert "data set  datasets/digits/old" in result.stdout
    assert "2 can be deleted, " in result.output
    assert " kB: add --apply" in result.output
    assert (data / "shard").is_file()
    assert Path("runs/old/weights").is_file()
    result = CliRunner().invoke(app, ["runs", "clean", "--apply"])
    deleted = [line.split()[-1] for line in result.stdout.splitlines()]
    assert deleted == ["runs/old", "datasets/digits/old"], "each is said as soon as it is deleted"


@pytest.mark.usefixtures("here")
def test_runs_of_a_search_that_can_be_continued_are_kept() -> None:
    run("trial", 90, study="digits-1")
    run("newest", 0)
    Path("tuning").mkdir()
    Path("tuning/digits.db").touch()
    assert cleaned() == set()
    Path("tuning/digits.db").unlink()
    assert cleaned() == {"trial"}


@pytest.mark.usefixtures("here")
def test_while_a_run_is_in_progress_no_data_set_is_deleted() -> None:
    """It may have chosen one that it has not recorded yet."""
    data_set("old", 90)
    run("old", 90)
    beginning = run("beginning", 90, status="running")
    run("newest", 0)
    assert cleaned() == {"old"}
    planned = [Unneeded("data set", str(Path("datasets/digits/old").absolute()), NOW, 1)]
    assert list(LocalCleaner(AGE).delete(planned)) == [], "one that begins after the list was made"
    assert "while a run is in progress: beginning" in CliRunner().invoke(app, ["runs", "clean"]).output
    beginning.write(replace(beginning.read(), status="failed"))
    written(beginning.record_file, 90)
    assert cleaned() == {"beginning", "old"}


@pytest.mark.usefixtures("here")
def test_what_is_used_or_deleted_after_the_list_was_made_is_not_deleted() -> None:
    def delete(*names: str) -> list[str]:
        chosen = [each for each in found if Path(each.path).name in names]
        return [Path(each.path).name for each in LocalCleaner(AGE).delete(chosen)]

    data = data_set("old", 90)
    resumed, source = run("resumed", 90), run("source", 90)
    run("gone", 90)
    run("newest", 0)
    found = LocalCleaner(AGE).unneeded()
    assert {Path(each.path).name for each in found} == {"resumed", "source", "gone", "old"}
    assert delete("gone") == ["gone"]
    assert delete("gone") == []
    with resumed.held():
        assert delete("resumed") == []
    run("later", 0, data, source="source")
    assert delete("source", "old") == [], "a run that began after the list was made is based on them"
    written(resumed.record_file, 1)
    assert delete("resumed") == [], "it was resumed, and has ended"
    written(resumed.record_file, 90)
    assert delete("resumed") == ["resumed"]
    assert (source.path / "weights").is_file()


@pytest.mark.usefixtures("here")
def test_a_run_counts_from_when_it_was_last_written() -> None:
    """One that was created long ago, resumed and killed has no end."""
    killed = run("killed", 90, status="failed")
    run("newest", 0)
    written(killed.record_file, 2)
    assert cleaned() == set()


@pytest.mark.usefixtures("here")
def test_runs_of_models_in_other_registries_are_kept(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "1"
    elsewhere.mkdir(parents=True)
    run("elsewhere", 90, model=str(elsewhere))
    run("vertex", 90, model="projects/p/locations/l/models/digits@1")
    run("removed", 90, model=str(tmp_path / "elsewhere" / "2"))
    run("newest", 0)
    assert cleaned() == {"removed"}
    refused = CliRunner().invoke(app, ["runs", "clean", "--registry", "modles", "--apply"])
    assert "there is no registry modles" in refused.output


def test_in_a_subfolder_the_projects_registry_counts(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_set("of-a-model", 90)
    run("registered", 90)
    run("newest", 0)
    register(1, "registered", "of-a-model")
    Path("notebooks").mkdir()
    monkeypatch.chdir(here / "notebooks")
    assert cleaned() == set()


@pytest.mark.usefixtures("here")
def test_what_cannot_be_read_stops_it() -> None:
    data_set("old", 90)
    run("old", 90)
    run("newest", 0)
    Path("runs/old/run.json").write_text("{")
    with pytest.raises(UserError, match="no readable run record") as caught:
        LocalCleaner(AGE).unneeded()
    assert CliRunner().invoke(app, ["runs", "clean"]).exit_code == 2
    subprocess.run(str(caught.value.fix).partition(", after")[0], shell=True, check=True)
    assert CliRunner().invoke(app, ["runs", "clean"]).exit_code == 0
    assert LocalCleaner(AGE).unneeded()[0].kind == "data set"
    register(1, "x", "y")
    Path("models/digits/1/metadata.json").write_text("[")
    with pytest.raises(UserError, match="cannot be read"):
        LocalCleaner(AGE).unneeded()


@pytest.mark.usefixtures("here")
def test_an_age_is_shown_as_typed() -> None:
    run("newest", 0)
    assert (
        "nothing is older than 0d and not needed"
        in CliRunner().invoke(app, ["runs", "clean", "--older-than", "0d"]).output
    )


def test_an_age_is_in_days_or_hours() -> None:
    result = CliRunner().invoke(app, ["runs", "clean", "--older-than", "a week"])
    assert result.exit_code != 0


NAMES = [f"run-{number}" for number in range(6)]
SETS = [f"set-{number}" for number in range(4)]


@given(
    st.fixed_dictionaries(
        {
            name: st.tuples(st.integers(0, 60), st.sampled_from([None, *SETS]), st.sampled_from([None, *NAMES]))
            for name in NAMES
        }
    ),
    st.fixed_dictionaries({name: st.integers(0, 60) for name in SETS}),
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(SETS)), max_size=3),
)
def test_nothing_is_deleted_that_is_referred_to(
    made: dict[str, tuple[int, str | None, str | None]], sets: dict[str, int], models: list[tuple[str, str]]
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        data = {name: data_set(name, days) for name, days in sets.items()}
        for name, (days, used, source) in made.items():
            run(name, days, data[used] if used else None, source)
        for number, (run_id, fingerprint) in enumerate(models, 1):
            register(number, run_id, fingerprint)
        deleted = {Path(each.path).name for each in LocalCleaner(AGE).delete(LocalCleaner(AGE).unneeded())}
        left = set(NAMES) - deleted
        for name in left:
            _, used, source = made[name]
            assert used is None or data[used].is_dir()
            assert source is None or source in left
        assert {run_id for run_id, _ in models} <= left
        assert all(data[fingerprint].is_dir() for _, fingerprint in models)
        # And all that is old and not referred to is deleted.
        needed = {name for name in NAMES if made[name][0] < DAYS} | {run_id for run_id, _ in models} | {list(made)[-1]}
        for _ in NAMES:
            needed |= {source for name in needed if (source := made[name][2])}
        assert left == needed
        expected = {made[name][1] for name in needed} | {fingerprint for _, fingerprint in models}
        assert {path.name for path in data.values() if path.is_dir()} == {
            name for name, days in sets.items() if name in expected or days < DAYS
        }
