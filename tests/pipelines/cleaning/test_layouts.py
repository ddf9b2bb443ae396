"""Projects in random layouts, such as moved, nested or with one store: what any of them needs is never deleted."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slipway.pipelines.cleaning.local import LocalCleaner
from slipway.pipelines.cleaning.users import ABOUT, FOLDER, Users
from tests.pipelines.cleaning.project import AGE, DAYS, data_set, register, run, written

LAYOUTS = 200
RUNS = 3
KINDS = ("moved", "nested", "copied", "shared", "lent", "linked", "progress")


@dataclass
class Built:
    """A project: its folder, its store as it sees it, and what it needs; the rest is what it does not."""

    root: Path
    store: Path
    runs: set[str] = field(default_factory=set)
    data: set[str] = field(default_factory=set)
    unneeded: set[str] = field(default_factory=set)

    def check(self) -> None:
        """Assert that everything that the project needs still exists."""
        for name in self.runs:
            assert (self.root / "runs" / name / "weights").is_file(), f"{self.root} lost the run {name}"
        for fingerprint in self.data:
            assert (self.root / self.store / "digits" / fingerprint / "shard").is_file(), (
                f"{self.root} lost the data set {fingerprint}"
            )


def build(
    chance: random.Random, root: Path, store: Path, number: int, *, is_noted: bool, patch: pytest.MonkeyPatch
) -> Built:
    """Write a project's runs, data sets, models and configuration, by what it needs."""
    root.mkdir(parents=True)
    patch.chdir(root)
    built = Built(root, store)
    registry = Path(chance.choice(["models", "models", "../registry", "registry/of-the-team"]))
    sections = [f"name: digits\nregister:\n  registry: {registry}\n"]
    users = Users(store, root)
    names = [f"digits-20260101-{chance.randrange(10**6):06}-{number:04x}" for number in range(RUNS)]
    sources: dict[str, str] = {}
    data: dict[str, str] = {}
    for index, name in enumerate(names):
        days = chance.choice([1, 40, 60, 90, 120])
        fingerprint = data[name] = f"{chance.randrange(16**16):016x}"
        if index and chance.random() < 0.3:  # the same data as an earlier run
            fingerprint = data[name] = data[chance.choice(names[:index])]
        if not (store / "digits" / fingerprint).exists():
            data_set(fingerprint, max(days, 40), store=store)
        earlier = chance.choice([None, None, *names[:index]])
        by = chance.choice(["part", "weights", "argument"]) if earlier else ""
        model = f"{registry.absolute()}/digits/{number + index}" if chance.random() < 0.2 else None
        folder = run(name, days, store / "digits" / fingerprint, earlier if by == "part" else None, model=model)
        if by == "weights":
            folder.configuration_file.write_text(f"model:\n  weights:\n    file: runs/{earlier}/train/model/weights\n")
        if by == "argument":
            folder.configuration_file.write_text(f"train:\n  arguments: [--from, '{earlier}', --x]\n")
        if by:
            sources[name] = str(earlier)
        with folder.configuration_file.open("a") as file:
            file.write(f"register:\n  registry: {registry}\n")
        if is_noted:
            users.begin(name)
            users.end(name, [fingerprint])
        if model:
            register(number + index, name, fingerprint, registry)
        if days < DAYS or model or index == RUNS - 1:
            built.runs.add(name)
    if chance.random() < 0.2:
        sections.append(f"model:\n  weights:\n    file: runs/{names[0]}/train/model/weights\n")
        built.runs.add(names[0])
    if chance.random() < 0.2:
        Path("best").symlink_to(Path("runs", names[1]))
        built.runs.add(names[1])
    Path("slipway.yaml").write_text("".join(sections))
    for _ in names:
        built.runs |= {sources[name] for name in built.runs if name in sources}
    built.data = {data[name] for name in built.runs}
    built.unneeded = {*names, *data.values()} - built.runs - built.data
    return built


def foreign(chance: random.Random, store: Path) -> list[Path]:
    """Write what is not Slipway's into a store."""
    stranger = store / "photos" / f"{chance.randrange(16**16):016x}"
    stranger.mkdir(parents=True, exist_ok=True)
    (stranger / "manifest.json").write_text(chance.choice(["{}", "[", '{"name": "an extension"}', ""]))
    written(stranger / "manifest.json", 90)
    target = store.parent / "elsewhere" / f"{chance.randrange(16**16):016x}"
    data_set(target.name, 90, name="elsewhere", store=store.parent)
    (store / "photos" / target.name).symlink_to(Path("..", "..", "elsewhere", target.name))
    return [stranger / "manifest.json", target / "shard", store / "photos" / target.name / "shard"]


def layout(seed: str, world: Path, patch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Build one, clean one or more of its projects, and return the numbers of runs and data sets that were deleted."""
    chance = random.Random(seed)
    kinds = {
        kind for kind in ("moved", "nested", "copied", "shared", "lent", "linked", "progress") if chance.random() < 0.4
    }
    is_noted = "shared" not in kinds or chance.random() < 0.7  # otherwise, earlier versions of Slipway wrote all runs
    common = world / "common"
    common.mkdir(parents=True)
    projects: list[Built] = []
    for name in ("first", "second"):
        root = projects[0].root / "inner" if projects and "nested" in kinds else world / name
        store = Path("datasets")
        if "shared" in kinds:
            store = common
        elif projects and "lent" in kinds:
            store = projects[0].root / "datasets"
        projects.append(build(chance, root, store, 1 + len(projects) * RUNS, is_noted=is_noted, patch=patch))
        if "linked" in kinds and "shared" in kinds:
            (root / "datasets").symlink_to(common)
        if is_noted:
            (root / store / FOLDER / ABOUT).touch()
            written(root / store / FOLDER / ABOUT, chance.choice([0, 100]))
    kept = [path for built in projects for path in foreign(chance, built.root / built.store)]
    if "copied" in kinds:
        first = projects[0]
        copy = world / "copy"
        shutil.copytree(first.root, copy, symlinks=True)
        projects.append(Built(copy, first.store, set(first.runs), set(first.data)))
    if "moved" in kinds and "nested" not in kinds:
        (world / "moved").mkdir()
        if (world / "registry").is_dir():
            (world / "registry").rename(world / "moved" / "registry")
        for built in projects[:2]:
            if not any(other.store.is_relative_to(built.root) for other in projects):
                target = world / "moved" / built.root.name
                kept = [
                    target / path.relative_to(built.root) if path.is_relative_to(built.root) else path for path in kept
                ]
                built.root = built.root.rename(target)
    if "progress" in kinds and "shared" in kinds:
        busy = projects[1]
        patch.chdir(busy.root)
        newest = Path("runs/latest").readlink()
        run("a-run", 0, status="running")
        Path("runs/latest").unlink()
        Path("runs/latest").symlink_to(newest)
        Users(common, busy.root).begin("a-run")
        busy.data.add(data_set(f"{chance.randrange(16**16):016x}", 90, store=common).name)
    deleted = [0, 0]
    for built in chance.sample(projects, chance.randint(1, len(projects))):
        folder = built.root / chance.choice([".", ".", "notebooks/models/datasets"])
        folder.mkdir(parents=True, exist_ok=True)
        patch.chdir(folder)
        age = chance.choice([AGE, type(AGE)(AGE.least, store=built.root / built.store)])
        gone = list(LocalCleaner(age).delete(LocalCleaner(age).unneeded()))
        deleted[0] += sum(each.kind == "run" for each in gone)
        deleted[1] += sum(each.kind == "data set" for each in gone)
        expected = {name for name in built.unneeded if name.startswith("digits") or not kinds & {"shared", "lent"}}
        assert expected <= {Path(each.path).name for each in gone}, "what nothing refers to is deleted"
        built.unneeded = set()
    for built in projects:
        built.check()
    for path in kept:
        assert path.is_file(), f"{path} is not Slipway's"
    return deleted[0], deleted[1]


@pytest.mark.slow
def test_nothing_that_a_kept_run_a_model_or_another_project_needs_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    counts = []
    for number in range(LAYOUTS):
        world = tmp_path / str(number)
        print("layout", number)
        counts.append(layout(f"{seed}-{number}", world, monkeypatch))
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(world)
    # On average 220 and 69; of a tenth of these, no seed is in danger.
    assert sum(runs for runs, _ in counts) >= LAYOUTS / 10
    assert sum(sets for _, sets in counts) >= LAYOUTS / 40
