"""The local registry: atomic versions, and a champion that moves only with a verdict."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slipway.components.register_model import registry as registry_module
from slipway.components.register_model.registration import register
from slipway.components.register_model.registry import RegisterSettings, Registry
from slipway.core import integrity
from slipway.core.errors import UserError
from slipway.core.git import git_commit


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A model's folder as the trainer leaves it, as far as a registry looks."""
    folder = tmp_path / "trained"
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"graph" * 1000)
    (folder / "variables" / "variables.index").write_bytes(b"index")
    (folder / "variables" / "variables.data-00000-of-00001").write_bytes(os.urandom(100_000))
    (folder / "model.json").write_text(json.dumps({"weights_checksum": "abc", "data_fingerprint": "def"}))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def listing(registry: Registry, model: str = "digits") -> set[str]:
    return {path.name for path in (registry.root / model).iterdir()} - {".lock"}


def test_versions_are_numbered_and_hold_the_whole_model(tmp_path: Path, model_folder: Path) -> None:
    registry = Registry(tmp_path / "models")
    assert registry.champion("digits") is None
    assert registry.versions("digits") == []
    assert registry.models() == []
    first = registry.register("digits", model_folder, {"run_id": "a", "metrics": {"accuracy": 0.9}}, None)
    second = registry.register("digits", model_folder, {"run_id": "b"}, 1)
    assert [version.number for version in registry.versions("digits")] == [1, 2]
    assert first.champion
    assert second.champion
    assert registry.champion("digits").number == 2
    assert registry.models() == ["digits"]
    for version in registry.versions("digits"):
        stored = contents(version.folder)
        metadata = json.loads(stored.pop("metadata.json"))
        assert stored == contents(model_folder)
        assert (metadata["model"], metadata["version"], metadata["source"]) == (
            "digits",
            version.number,
            str(model_folder),
        )
        assert metadata["created"].endswith("+00:00")
    assert registry.versions("digits")[0].metadata["metrics"] == {"accuracy": 0.9}
    assert listing(registry) == {"1", "2", "champion"}


def test_the_same_runs_model_is_registered_once(tmp_path: Path, model_folder: Path) -> None:
    registry = Registry(tmp_path / "models")
    metadata = {"run_id": "a", "weights_checksum": "abc"}
    first = registry.register("digits", model_folder, metadata, None)
    again = registry.register("digits", model_folder, metadata, None)
    assert again.version == first.version
    assert again.champion
    assert listing(registry) == {"1", "champion"}
    other = registry.register("digits", model_folder, {"run_id": "a", "weights_checksum": "xyz"}, 1)
    assert other.version.number == 2


def test_a_repeated_step_moves_the_alias_that_its_first_try_did_not(tmp_path: Path, model_folder: Path) -> None:
    """The first try was killed between the version's rename and the alias."""
    registry = Registry(tmp_path / "models")
    metadata = {"run_id": "a", "weights_checksum": "abc"}
    registry.register("digits", model_folder, metadata, None)
    (registry.root / "digits" / "champion").unlink()
    assert registry.register("digits", model_folder, metadata, None).champion
    assert registry.champion("digits").number == 1


def test_the_champion_stays_where_another_has_taken_its_place(tmp_path: Path, model_folder: Path) -> None:
    registry = Registry(tmp_path / "models")
    registry.register("digits", model_folder, {"run_id": "a"}, None)
    registry.register("digits", model_folder, {"run_id": "b"}, 1)
    late = registry.register("digits", model_folder, {"run_id": "c"}, 1)
    assert not late.champion
    assert "compared with version 1, and version 2 has become champion since" in late.note
    unaware = registry.register("digits", model_folder, {"run_id": "d"}, None)
    assert not unaware.champion
    assert "compared with no champion" in unaware.note
    assert registry.champion("digits").number == 2
    assert [version.number for version in registry.versions("digits")] == [1, 2, 3, 4]


def test_without_a_champion_to_beat_the_model_takes_its_place(tmp_path: Path, model_folder: Path) -> None:
    registry = Registry(tmp_path / "models")
    registry.register("digits", model_folder, {"run_id": "a"}, None)
    assert registry.register("digits", model_folder, {"run_id": "b"}, "any").champion
    (registry.root / "digits" / "champion").write_text("77\n")
    assert registry.register("digits", model_folder, {"run_id": "c"}, "any").champion
    assert registry.champion("digits").metadata["run_id"] == "c"


@pytest.mark.parametrize("text", ["9\n", "", "latest", "01", "7" * 5000, "a folder"])
def test_an_alias_that_names_no_version_is_an_error_with_its_fix(tmp_path: Path, model_folder: Path, text: str) -> None:
    registry = Registry(tmp_path / "models")
    registry.register("digits", model_folder, {"run_id": "a"}, None)
    registry.register("digits", model_folder, {"run_id": "b"}, 1)
    file = registry.root / "digits" / "champion"
    if text == "01":
        shutil.rmtree(registry.root / "digits" / "1")
    if text == "a folder":
        file.unlink()
        file.mkdir()
    else:
        file.write_text(text)
    with pytest.raises(UserError) as caught:
        registry.champion("digits")
    assert len(str(caught.value)) < 1500
    assert f"echo 2 > {file}" in caught.value.fix
    assert "--set evaluate.champion=none" in caught.value.fix
    with pytest.raises(UserError):
        registry.register("digits", model_folder, {"run_id": "c"}, 1)
    assert "3" not in listing(registry)


def test_a_version_that_the_alias_names_is_not_given_out_anew(tmp_path: Path, model_folder: Path) -> None:
    """Else a removed champion's alias would silently name a model that no gate let through."""
    registry = Registry(tmp_path / "models")
    registry.register("digits", model_folder, {"run_id": "a"}, None)
    shutil.rmtree(registry.champion("digits").folder)
    number = registry.register("digits", model_folder, {"run_id": "b"}, "any").version.number
    assert number == 2


@pytest.mark.parametrize("text", ["{", "[]", "null", "\N{LATIN SMALL LETTER E WITH ACUTE}"])
def test_a_version_without_metadata_is_named(tmp_path: Path, model_folder: Path, text: str) -> None:
    registry = Registry(tmp_path / "models")
    version = registry.register("digits", model_folder, {"run_id": "a"}, None).version
    (version.folder / "metadata.json").write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=f"{version.folder} cannot be read"):
        registry.champion("digits")
    with pytest.raises(UserError, match=f"{version.folder} cannot be read"):
        registry.register("digits", model_folder, {"run_id": "b"}, 1)


def _register_in_a_process(root: Path, source: Path, run_id: str, barrier: Any, results: Any) -> None:
    barrier.wait()
    registration = Registry(root).register("digits", source, {"run_id": run_id}, None)
    results.put((registration.version.number, registration.champion))


def test_two_at_once_get_two_numbers_and_one_champion(tmp_path: Path, model_folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    root = tmp_path / "models"
    processes = [
        context.Process(target=_register_in_a_process, args=(root, model_folder, f"run-{index}", barrier, results))
        for index in range(4)
    ]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    assert [number for number, _ in found] == [1, 2, 3, 4]
    assert sum(champion for _, champion in found) == 1
    assert Registry(root).champion("digits").number == 1
    assert listing(Registry(root)) == {"1", "2", "3", "4", "champion"}


def test_a_full_disk_leaves_nothing_of_the_version(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(tmp_path / "models")
    registry.register("digits", model_folder, {"run_id": "a"}, None)
    copy = shutil.copyfile

    def full(source: Path, target: Path) -> None:
        if source.name.startswith("variables.data"):
            target.write_bytes(b"the beginning")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        copy(source, target)

    monkeypatch.setattr(registry_module.shutil, "copyfile", full)
    with pytest.raises(UserError) as caught:
        registry.register("digits", model_folder, {"run_id": "b"}, 1)
    assert "its disk is full" in caught.value.message
    assert caught.value.setting == "register.registry"
    assert "free space" in caught.value.fix
    assert listing(registry) == {"1", "champion"}
    assert registry.champion("digits").number == 1


@pytest.mark.parametrize("where", ["source", "copy"])
def test_a_damaged_model_is_not_registered(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    registry = Registry(tmp_path / "models")
    integrity.seal(model_folder, {"weights_checksum": "abc"})
    registry.register("digits", model_folder, {"run_id": "a"}, None)
    copy = shutil.copyfile

    def lossy(source: Path, target: Path) -> None:
        copy(source, target)
        if source.name == "saved_model.pb":
            os.truncate(target, 0)

    if where == "source":
        (model_folder / "saved_model.pb").write_bytes(b"")
    else:
        monkeypatch.setattr(registry_module.shutil, "copyfile", lossy)
    with pytest.raises(UserError, match=r"is damaged: saved_model\.pb has 0 bytes instead of 5,000"):
        registry.register("digits", model_folder, {"run_id": "b"}, 1)
    assert listing(registry) == {"1", "champion"}
    assert registry.champion("digits").number == 1


def test_another_programs_model_that_is_copied_with_other_content_is_not_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "forest.pkl").write_bytes(b"trees")
    monkeypatch.setattr(registry_module.shutil, "copyfile", lambda _source, target: target.touch())
    with pytest.raises(UserError, match=r"forest\.pkl was copied with other content"):
        Registry(tmp_path / "models").register("forest", tmp_path / "trained", {"run_id": "a"}, None)


def test_another_programs_model_is_verified_and_keeps_its_files(tmp_path: Path) -> None:
    source, registry = tmp_path / "trained", Registry(tmp_path / "models")
    (source / "layers").mkdir(parents=True)
    for name in ("forest.pkl", "metadata.json", "layers/metadata.json"):
        (source / name).write_text(f'{{"file": "{name}"}}')
    integrity.seal(source, {}, integrity.CHECKSUMS_FILE)
    first = registry.register("forest", source, {"run_id": "a"}, None).version
    assert integrity.damage(first.folder) is None
    assert first.metadata["files_checksum"] == integrity.checksum(source)
    assert json.loads((first.folder / "layers/metadata.json").read_text()) == {"file": "layers/metadata.json"}
    (source / "forest.pkl").write_bytes(b"")
    with pytest.raises(UserError, match=r"is damaged: forest\.pkl has 0 bytes instead of 22"):
        registry.register("forest", source, {"run_id": "b"}, "any")
    assert listing(registry, "forest") == {"1", "champion"}


@pytest.mark.root
def test_a_small_file_system_that_is_full(tmp_path: Path, model_folder: Path) -> None:
    root = tmp_path / "small"
    root.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(root)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        with pytest.raises(UserError, match="its disk is full"):
            Registry(root).register("digits", model_folder, {"run_id": "a"}, None)
        assert listing(Registry(root)) == set()
    finally:
        subprocess.run(["umount", str(root)], check=True)


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path, model_folder: Path) -> None:
    registry = Registry(tmp_path / "models")
    left = registry.root / "digits" / ".unfinished-1"
    left.mkdir(parents=True)
    (left / "saved_model.pb").write_bytes(b"half")
    version = registry.register("digits", model_folder, {"run_id": "a"}, None).version
    assert contents(version.folder)["saved_model.pb"] == contents(model_folder)["saved_model.pb"]
    assert listing(registry) == {"1", "champion"}


def test_the_commit_of_a_checkout(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    commit = git_commit(tmp_path)
    assert len(commit) == 40
    (tmp_path / "file").write_text("2")
    assert git_commit(tmp_path) == f"{commit}-dirty"


def test_the_registry_is_imported_without_anything_heavy() -> None:
    code = "import sys, slipway.components.register_model.registry; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[3], check=True
    )
    assert not {"kfp", "tensorflow", "numpy", "matplotlib"} & set(loaded.stdout.split())


def test_only_what_the_gate_promoted_is_registered(tmp_path: Path, model_folder: Path) -> None:
    settings = RegisterSettings(registry=str(tmp_path / "models"))
    arguments: dict[str, Any] = {"model_name": "digits", "run_id": "a", "champion": "", "metrics": {}}
    with pytest.raises(ValueError, match="'reject'"):
        register(settings, verdict="reject", source=model_folder, **arguments)
    assert not (tmp_path / "models").exists()
    with pytest.raises(UserError, match="There is no trained model in") as refused:
        register(settings, verdict="promote", source=tmp_path / "empty", **arguments)
    assert refused.value.fix == "slipway run --resume a, which trains it again"  # resume forgets a model that is lost
    assert not (tmp_path / "models").exists()
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf/weights.gguf").write_bytes(b"any format")
    version = register(settings, verdict="promote", source=tmp_path / "gguf", **arguments).version
    assert (version.folder / "weights.gguf").read_bytes() == b"any format"


def test_the_component_registers_and_reports(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kfp import dsl

    from slipway.components.register_model.component import register_model

    monkeypatch.setenv("SLIPWAY_EVENTS", str(tmp_path / "events.jsonl"))
    settings = RegisterSettings(registry=str(tmp_path / "models")).model_dump_json()

    def run(run_id: str, champion: str, **more: str) -> tuple[dsl.Artifact, list[dict[str, Any]]]:
        (tmp_path / "events.jsonl").unlink(missing_ok=True)
        registered = dsl.Artifact(uri=str(tmp_path / "registered"))
        register_model.python_func(
            settings=settings,
            model_name="digits",
            run_id=run_id,
            verdict="promote",
            champion=champion,
            model=dsl.Model(uri=str(model_folder)),
            metrics=dsl.Metrics(uri="metrics", metadata={"accuracy": 0.98, "display_name": "metrics", **more}),
            registered=registered,
        )
        return registered, [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]

    registered, events = run("a", champion="")
    folder = tmp_path / "models" / "digits" / "1"
    assert registered.uri == str(folder)
    assert events[-1]["outputs"] == {"model": str(folder), "version": 1, "champion": True, "checked": True}
    metadata = json.loads((folder / "metadata.json").read_text())
    expected = {"run_id": "a", "metrics": {"accuracy": 0.98}, "weights_checksum": "abc", "data_fingerprint": "def"}
    assert expected.items() <= metadata.items()
    assert "unchecked" not in metadata
    assert run("b", champion=str(folder))[1][-1]["outputs"]["champion"]
    _, events = run("c", champion=str(folder))
    assert not events[-1]["outputs"]["champion"]
    assert any("not the champion" in event.get("text", "") for event in events)
    assert run("d", champion="none")[1][-1]["outputs"]["champion"]
    assert Registry(tmp_path / "models").champion("digits").number == 4
    _, events = run("e", champion="none", unchecked="No minimum is set.")
    assert not events[-1]["outputs"]["checked"]
    assert Registry(tmp_path / "models").champion("digits").metadata["unchecked"] == "No minimum is set."


@pytest.mark.parametrize("mode", [0o2775, 0o755])
def test_whoever_may_write_to_a_models_folder_may_lock_it(tmp_path: Path, model_folder: Path, mode: int) -> None:
    folder = tmp_path / "models" / "digits"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    Registry(tmp_path / "models").register("digits", model_folder, {}, None)
    assert (folder / ".lock").stat().st_mode & 0o777 == mode & 0o666
