"""The doctor's checks: each reports its problem with the fix, and does not hide others."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from slipway.core.errors import UserError
from slipway.pipelines.checks import Finding, examine
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.doctor import checks_of, configuration, examine_all, machine
from slipway.pipelines.platforms.base import Context
from slipway.pipelines.platforms.table import platform_of
from tests.trainer.distributed.test_accelerators import devices, pci


def subject(folder: Path, target="local", rehearsal=False, **fields) -> Context:
    values = {
        "name": "digits",
        "data": {"source": "digits", "store": str(folder)},
        "model": {"builder": "slipway.trainer.models.digits:build"},
        "train": {"epochs": 1},
        "register": {"registry": str(folder / "models")},
        **fields,
    }
    return Context(RunConfig.model_validate(values), platform_of(target), rehearsal, folder)


def findings(context: Context) -> dict[str, tuple[str, str]]:
    return {finding.check: (finding.status, finding.found) for finding in examine_all(context)}


def finding_of(name: str, context: Context) -> Finding:
    return examine(next(check for check in checks_of(context.platform) if check.name == name), context)


# Also what this configuration does not ask for.
NOT_LOCAL = (
    "hugging face",
    "evaluation",
    "trees",
    "serving",
    "modules",
    "results",
    "model memory",
    "compiled step",
    "stages",
    "image context",
    "locked packages",
    "notification",
    "signing key",
    "tracker",
)


@pytest.mark.extension("google", "notify", "track", "trees")
def test_a_valid_configuration_passes_all_checks(tmp_path):
    statuses = {check: status for check, (status, _) in findings(subject(tmp_path)).items()}
    assert {statuses.pop(name) for name in NOT_LOCAL} == {"skipped"}
    assert statuses.pop("accelerators") in ("skipped", "warning")
    assert set(statuses.values()) == {"pass"}


def test_one_failure_does_not_hide_another(tmp_path):
    broken = subject(tmp_path, model={"builder": "no.such:build"}, data={"source": "digist"})
    statuses = {check: status for check, (status, _) in findings(broken).items()}
    assert [check for check, status in statuses.items() if status == "fail"] == ["data source", "model builder"]


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("def build(image_shape, classes): ...", False),
        ("def build(*arguments: undefined, **more): ...", False),
        ("def build(image_shape, /, classes=undefined, *, units=8): ...", False),
        ("def build(): ...", True),
        ("def build(image_shape, *, classes): ...", True),
        ("@decorated\ndef build(): ...", False),
        ("def build(): ...\nbuild = other", False),
        ("from elsewhere import build", False),
        ("build = 3", False),
        ("from elsewhere import *", False),
        ("if True:\n    def build(): ...", False),
        ("globals()['build'] = print", False),
        ("def __getattr__(name): ...", False),
        ("def biuld(): ...", True),
        ("def other():\n    build = 3\nif __name__ == '__main__': other()", True),
        ("import build.other as something", True),
        ("def (", False),
    ],
)
def test_a_builder_is_found_without_being_run(tmp_path, text, fails):
    (tmp_path / "mine.py").write_text(text)
    finding = finding_of("model builder", subject(tmp_path, model={"builder": "mine:build"}))
    assert (finding.status == "fail") == fails


def test_a_missing_builder_names_the_nearest(tmp_path):
    finding = finding_of("model builder", subject(tmp_path, model={"builder": "slipway.trainer.models.digit:build"}))
    assert isinstance(finding.error, UserError)
    assert finding.error.nearest == "slipway.trainer.models.digits:build"


def test_a_full_disk_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: machine.shutil._ntuple_diskusage(10, 9, 1))
    finding = finding_of("disk", subject(tmp_path))
    assert finding.status == "fail"
    assert "data.store" in finding.fix


def test_conflicting_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "version_of", lambda name: "1.0")
    finding = finding_of("packages", subject(tmp_path))
    assert finding.status == "fail"
    assert "tensorflow-tpu" in finding.found


@pytest.mark.extension("vertex")
def test_too_many_replicas_for_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "available_cores", lambda: 2)
    assert finding_of("cores", subject(tmp_path, hardware="cpu*8")).status == "pass"
    assert finding_of("cores", subject(tmp_path, hardware="cpu*9")).fix == "--hardware 'cpu*8'"
    assert finding_of("cores", subject(tmp_path, target="vertex", hardware="cpu*9")).status == "skipped"


def wide(image_shape, classes, width):
    """A network of one layer of the given width."""
    import keras

    flat = keras.Sequential([keras.Input(image_shape), keras.layers.Flatten(), keras.layers.Dense(width)])
    return keras.Sequential([flat, keras.layers.Dense(classes)])


@pytest.mark.parametrize(("width", "status"), [(100, "pass"), (8_000, "fail")])
@pytest.mark.extension("vertex")
def test_a_model_that_does_not_fit_in_memory_is_refused_with_its_size(tmp_path, monkeypatch, width, status):
    manifest = {
        "name": "d", "fingerprint": "f", "source": "images:d", "settings": {}, "classes": ["a", "b"],
        "image_size": [16, 16], "channels": 1, "resize": False, "encodings": ["png"], "splits": {},
    }  # fmt: skip
    (tmp_path / "d" / "f").mkdir(parents=True)
    (tmp_path / "d" / "f" / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(configuration.builder, "load", lambda _: wide)
    monkeypatch.setattr("slipway.pipelines.hardware.memory.device_bytes", lambda _: 30_000_000)
    asked = subject(
        tmp_path,
        target="vertex",
        hardware="t4x1",
        data={"source": "images:d", "store": str(tmp_path)},
        model={"builder": "any:wide", "arguments": {"width": width}},
    )
    finding = finding_of("model memory", asked)
    assert finding.status == status
    assert "variables" in finding.found
    assert "state of adam" in finding.found


def test_the_builder_is_called_with_the_inputs_of_the_prepared_data(tmp_path, monkeypatch):
    manifest = {
        "name": "d", "fingerprint": "f", "source": "csv:d.csv", "settings": {}, "task": "regression", "classes": [],
        "target": {"kind": "number", "mean": [0], "deviation": [1]},
        "inputs": {"age": {"kind": "number", "mean": [0], "deviation": [1]}},
        "image_size": [0, 0], "channels": 1, "resize": False, "encodings": [], "splits": {},
    }  # fmt: skip
    (tmp_path / "d" / "f").mkdir(parents=True)
    (tmp_path / "d" / "f" / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "forms.py").write_text("def images(image_shape, classes): ...\ndef named(inputs, outputs): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    common = {"task": "regression", "data": {"source": "csv:d.csv", "store": str(tmp_path)}}
    common["evaluate"] = {"gate": {"metric": "rmse"}}
    assert finding_of("model builder", subject(tmp_path, model={"builder": "forms:named"}, **common)).status == "pass"
    refused = finding_of("model builder", subject(tmp_path, model={"builder": "forms:images"}, **common))
    assert "accepts image_shape, but is called with (inputs, outputs), because the inputs are age" in refused.found


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="/sys is Linux's")
def test_a_read_only_folder_fails(tmp_path):
    assert finding_of("folder", subject(tmp_path)).status == "pass"
    finding = finding_of("folder", subject(Path("/sys/kernel")))  # where not even root may create a file
    assert finding.status == "fail"
    assert "/sys/kernel" in finding.found


def test_the_chips_of_a_tpu_vm_from_v5e_on_are_found(tmp_path, monkeypatch):
    """They are vfio devices; the doctor said that local runs train on the CPU."""
    own = devices(tmp_path / "dev", *(f"vfio/{number}" for number in range(8)))
    system = pci(tmp_path / "sys", ("0x1ae0", "0x0063"))
    monkeypatch.setattr(machine, "find", functools.partial(machine.find, devices=own, system=system))
    assert finding_of("accelerators", subject(tmp_path)).found == "8 TPU chips (from device files)"
