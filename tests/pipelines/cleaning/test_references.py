"""What keeps a run or data set: content, not paths, in every layout of a project."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slipway.core.errors import UserError
from slipway.pipelines.cleaning.local import LocalCleaner
from slipway.pipelines.cleaning.users import ABOUT, FOLDER, Users
from slipway.pipelines.cli.app import app
from tests.pipelines.cleaning.project import AGE, data_set, register, run, written

NEWEST = "newest"


def deleted(folder: Path, patch: pytest.MonkeyPatch) -> set[str]:
    """Clean the project of a folder, and return the names of what was deleted."""
    patch.chdir(folder)
    cleaner = LocalCleaner(AGE)
    return {Path(each.path).name for each in cleaner.delete(cleaner.unneeded())}


def make(root: Path, patch: pytest.MonkeyPatch, store: Path = Path("datasets")) -> Path:
    """Write a project with a champion in ../registry, an unneeded run, and their data sets."""
    root.mkdir(parents=True, exist_ok=True)
    patch.chdir(root)
    Path("slipway.yaml").write_text(f"name: digits\nregister:\n  registry: ../registry\ndata:\n  store: {store}\n")
    champion, old = data_set(f"of-{root.name}", 90, store=store), data_set(f"old-{root.name}", 90, store=store)
    run("champion", 90, champion, model=str(register(1, "champion", "x", Path("../registry")).absolute()))
    run("old", 90, old)
    run(NEWEST, 0)
    return root


def test_a_moved_project_keeps_the_run_and_the_data_set_of_its_champion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "before" / "here", monkeypatch)
    (tmp_path / "before").rename(tmp_path / "after")
    assert deleted(tmp_path / "after" / "here", monkeypatch) == {"old", "old-here"}


def test_a_run_is_kept_whose_registry_does_not_exist_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(tmp_path / "here", monkeypatch)
    (tmp_path / "registry").rename(tmp_path / "unmounted")
    assert deleted(root, monkeypatch) == {"old", "old-here"}
    (reason,) = (each.reason for each in LocalCleaner(AGE).kept("champion"))
    assert "registry/digits/1, whose registry does not exist here" in reason
    (tmp_path / "registry").mkdir()
    assert deleted(root, monkeypatch) == {"champion", "of-here"}, "the version was deleted"


def test_a_project_inside_of_another_one_leaves_what_is_the_outer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = make(tmp_path / "outer", monkeypatch)
    inner = outer / "experiments" / "inner"
    inner.mkdir(parents=True)
    (inner / "slipway.yaml").write_text("name: digits\n")
    assert deleted(inner, monkeypatch) == set()
    sources = outer / "source" / "models"
    sources.mkdir(parents=True)
    assert deleted(sources.parent, monkeypatch) == {"old", "old-outer"}, "a folder of code is not the registry"


def share(tmp_path: Path, patch: pytest.MonkeyPatch) -> tuple[Path, Path, Path]:
    """Write two projects, the first of which has a link to the store that both use, as its runs have noted."""
    shared = tmp_path / "shared"
    shared.mkdir()
    first, second = (make(tmp_path / name / name, patch, shared) for name in ("first", "second"))
    (first / "slipway.yaml").write_text("name: digits\nregister:\n  registry: ../registry\n")
    (first / "datasets").symlink_to(shared)
    for root in (first, second):
        users = Users(shared, root)
        for name in ("champion", "old"):
            users.begin(name)
            users.end(name, [f"{'of' if name == 'champion' else name}-{root.name}"])
    written(shared / FOLDER / ABOUT, 100)
    return shared, first, second


def reasons(path: str) -> str:
    return "; ".join(each.reason for each in LocalCleaner(AGE).kept(path))


def test_a_shared_store_keeps_what_another_project_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, first, second = share(tmp_path, monkeypatch)
    assert deleted(first, monkeypatch) == {"old", "old-first"}
    assert f"it is used by the project {second}" in reasons("old-second")
    assert deleted(second, monkeypatch) == {"old", "old-second"}
    assert deleted(first, monkeypatch) == set()
    written(shared / FOLDER / ABOUT, 1)
    Users(shared, first).others()[0].file.unlink()
    assert "records since" in reasons("of-second"), "an older data set may be used by others that are not known"


def test_data_sets_of_a_shared_store_are_kept_while_a_run_of_another_project_is_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, first, second = share(tmp_path, monkeypatch)
    users = Users(shared, second)
    users.begin("a-run")
    assert deleted(first, monkeypatch) == {"old"}
    reason = reasons("old-first")
    assert f"run a-run of the project {second}" in reason
    assert "if it is not, run slipway runs clean there" in reason
    monkeypatch.chdir(second)
    assert CliRunner().invoke(app, ["runs", "clean"]).exit_code == 0, "the run was killed"
    assert deleted(first, monkeypatch) == {"old-first"}


def test_a_project_that_no_longer_exists_can_be_removed_from_a_shared_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first, second = share(tmp_path, monkeypatch)
    assert deleted(first, monkeypatch) == {"old", "old-first"}
    shutil.rmtree(second)
    file = reasons("old-second").partition("(delete ")[2].partition(" if it")[0]
    subprocess.run(["rm", *shlex.split(file)], check=True)
    assert deleted(first, monkeypatch) == {"old-second", "of-second"}


def test_runs_that_are_named_or_linked_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["weights", "argument", "script", "linked", "behind", "half", "old"]
    for name in names:
        run(f"digits-{name}", 90)
    starting = run(NEWEST, 0)
    Path("best").symlink_to("runs/digits-behind/train")
    Path("runs/digits-behind/train").mkdir()
    starting.configuration_file.write_text(
        "model:\n  weights:\n    file: runs/digits-weights/train/model/weights.h5\n"
        "train:\n  arguments: [--teacher=digits-argument, best/model]\n"
    )
    Path("train.sh").write_text("slipway run --set model.weights.file=runs/digits-script/model\n")
    Path("production").mkdir()
    Path("production/model").symlink_to("../runs/digits-linked")
    Path("runs/unfinished").mkdir()
    Path("runs/unfinished/config.yaml").write_text("train:\n  arguments: [/elsewhere/runs/digits-half/x]\n")
    assert deleted(tmp_path, monkeypatch) == {"digits-old"}
    assert reasons("digits-weights") == f"run {NEWEST} refers to it"
    assert reasons("digits-linked") == "production/model links to it"
    assert reasons("digits-script") == "train.sh names it"


def test_what_is_not_slipways_is_named_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    target = data_set("linked", 90, store=Path("elsewhere"))
    data_set("old", 90)
    run(NEWEST, 0)
    Path("datasets/digits/linked").symlink_to(target.absolute())
    Path("datasets/browser/extension").mkdir(parents=True)
    Path("datasets/browser/extension/manifest.json").write_text('{"manifest_version": 3}')
    written(Path("datasets/browser/extension/manifest.json"), 90)
    result = CliRunner().invoke(app, ["runs", "clean", "--apply"])
    assert result.exit_code == 0
    assert "1 deleted" in result.output
    assert "not deleted: folder    datasets/browser/extension: not Slipway's" in result.output
    assert "not deleted: link      datasets/digits/linked: links are not followed" in result.output
    assert (target / "shard").is_file()
    assert Path("datasets/browser/extension/manifest.json").is_file()
    assert Path("datasets/digits/linked").is_symlink()


def test_what_was_deleted_can_be_restored_for_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("old", 90, data_set("old-data", 90))
    run(NEWEST, 0)
    runner = CliRunner()
    shown = runner.invoke(app, ["runs", "clean", "--apply"]).output
    assert "to put one back: slipway runs clean --restore PATH" in shown
    for path in ("runs/old", "datasets/digits/old-data"):
        restored = runner.invoke(app, ["runs", "clean", "--restore", path])
        assert f"restored {path}" in restored.output
    assert Path("runs/old/weights").is_file()
    assert Path("datasets/digits/old-data/shard").is_file()
    wrong = runner.invoke(app, ["runs", "clean", "--restore", "runs/old"])
    assert "the trash is empty" in wrong.output
    runner.invoke(app, ["runs", "clean", "--apply"])
    again = runner.invoke(app, ["runs", "clean", "--apply"])
    assert Path("runs/.trash/old/weights").is_file(), "a clean within the day leaves it"
    near = runner.invoke(app, ["runs", "clean", "--restore", "runs/odl"])
    assert "fix:      slipway runs clean --restore runs/old" in near.output, again.output
    Path("runs/old").mkdir()
    blocked = runner.invoke(app, ["runs", "clean", "--restore", "old"])
    fix = blocked.output.partition("fix:")[2].strip()
    subprocess.run(fix, shell=True, check=True)
    assert runner.invoke(app, ["runs", "clean", "--restore", "old"]).exit_code == 0
    runner.invoke(app, ["runs", "clean", "--apply"])
    written(Path("runs/.trash/old"), 2)
    runner.invoke(app, ["runs", "clean", "--apply"])
    assert not Path("runs/.trash/old").exists()


def test_a_killed_clean_leaves_nothing_half_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in its place nor in the trash: what is being removed has a name that cannot be restored."""
    monkeypatch.chdir(tmp_path)
    run("old", 90)
    run(NEWEST, 0)
    assert deleted(tmp_path, monkeypatch) == {"old"}
    written(Path("runs/.trash/old"), 2)

    def killed(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            list(LocalCleaner(AGE).delete([]))
    assert [path.name for path in Path("runs/.trash").iterdir()] == [".deleted-old"]
    with pytest.raises(UserError, match="no old in the trash"):
        LocalCleaner(AGE).restore("old")
    assert list(LocalCleaner(AGE).delete([])) == []
    assert not Path("runs/.trash").exists()


def test_why_names_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("source", 90, data_set("data", 90))
    run("based", 80, source="source")
    register(3, "based", "x")
    run("old", 90)
    run(NEWEST, 0)
    runner = CliRunner()
    assert runner.invoke(app, ["runs", "clean", "--why", "runs/source/weights"]).stdout == (
        "run       runs/source: run based refers to it\n"
    )
    assert runner.invoke(app, ["runs", "clean", "--why", "latest"]).stdout == "run       runs/newest: the newest run\n"
    every = runner.invoke(app, ["runs", "clean", "--why", "."]).stdout
    assert "data set  datasets/digits/data: run source refers to it" in every
    assert "run       runs/based: it trained models/digits/3" in every
    assert "run       runs/old: nothing refers to it: it can be deleted" in every
    wrong = runner.invoke(app, ["runs", "clean", "--why", "sorce"]).output
    assert "fix:      slipway runs clean --why source" in wrong
    assert "why others are kept: slipway runs clean --why ." in runner.invoke(app, ["runs", "clean"]).output


def test_what_cannot_be_moved_is_named_and_the_rest_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a folder of another user, which containers that ran as root have left."""
    monkeypatch.chdir(tmp_path)
    for name in ("first", "of-root", "last"):
        run(name, 90)
    run(NEWEST, 0)
    utime = os.utime

    def refused(path: Path, *arguments: object) -> None:
        if Path(path).name == "of-root":
            raise PermissionError(1, "Operation not permitted")
        utime(path, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "utime", refused)
    result = CliRunner().invoke(app, ["runs", "clean", "--apply"])
    assert result.exit_code == 0, result.output
    assert "2 deleted" in result.output
    assert "not deleted: run       runs/of-root: could not be moved to .trash: Operation not permitted" in result.output
    assert Path("runs/of-root/weights").is_file()
    for folder in Path("runs").glob(".trash"):
        subprocess.run(f"rm -r {folder}", shell=True, check=True)  # as docs/scale.md says, to free the space at once
    assert CliRunner().invoke(app, ["runs", "clean", "--apply"]).exit_code == 0
