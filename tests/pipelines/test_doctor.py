"""The doctor's checks: each finds what is wrong, says the mend, and hides no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.config import RunConfig
from pipelines.doctor import Subject, examine_all, machine
from pipelines.doctor.check import examine
from pipelines.doctor.run import ModelBuilder
from trainer.errors import UserError


def subject(folder: Path, target="local", rehearsal=False, **fields) -> Subject:
    values = {
        "name": "digits",
        "data": {"source": "digits", "store": str(folder)},
        "model": {"builder": "trainer.models.digits:build"},
        "train": {"epochs": 1},
        "register": {"registry": str(folder / "models")},
        **fields,
    }
    return Subject(RunConfig.model_validate(values), target, rehearsal, folder)


def findings(subject: Subject) -> dict[str, tuple[str, str]]:
    return {finding.check: (finding.status, finding.found) for finding in examine_all(subject)}


def test_a_sound_configuration_passes_everywhere(tmp_path):
    assert {status for status, _ in findings(subject(tmp_path)).values()} == {"pass"}


def test_one_failure_does_not_hide_another(tmp_path):
    broken = subject(tmp_path, model={"builder": "no.such:build"}, data={"source": "digist"})
    statuses = {check: status for check, (status, _) in findings(broken).items()}
    assert [check for check, status in statuses.items() if status == "fail"] == ["data source", "model builder"]


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("def build(): ...", False),
        ("from elsewhere import build", False),
        ("build = 3", False),
        ("from elsewhere import *", False),
        ("if True:\n    def build(): ...", False),
        ("def biuld(): ...", True),
        ("import build.other as something", True),
        ("def (", False),
    ],
)
def test_a_builder_is_found_without_being_run(tmp_path, text, fails):
    (tmp_path / "mine.py").write_text(text)
    finding = examine(ModelBuilder(), subject(tmp_path, model={"builder": "mine:build"}))
    assert (finding.status == "fail") == fails


def test_a_missing_builder_names_the_nearest(tmp_path):
    finding = examine(ModelBuilder(), subject(tmp_path, model={"builder": "trainer.models.digit:build"}))
    assert isinstance(finding.error, UserError)
    assert finding.error.nearest == "trainer.models.digits:build"


def test_a_full_disk_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: machine.shutil._ntuple_diskusage(10, 9, 1))
    finding = examine(machine.Disk(), subject(tmp_path))
    assert finding.status == "fail"
    assert "data.store" in finding.mend


def test_clashing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_version", lambda name: "1.0")
    finding = examine(machine.Packages(), subject(tmp_path))
    assert finding.status == "fail"
    assert "tensorflow-tpu" in finding.found


def test_too_many_replicas_for_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert examine(machine.Cores(), subject(tmp_path, hardware="cpu*8")).status == "pass"
    assert examine(machine.Cores(), subject(tmp_path, hardware="cpu*9")).mend == "--hardware 'cpu*8'"
    assert examine(machine.Cores(), subject(tmp_path, target="vertex", hardware="cpu*9")).status == "skipped"
