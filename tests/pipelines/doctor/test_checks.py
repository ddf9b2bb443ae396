"""`slipway run`, `config compile` and `doctor` refuse the same configurations with one message and leave no files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from slipway import extensions
from slipway.components.register_model.registry import Registry
from slipway.core.errors import UserError, lowered
from slipway.pipelines import doctor
from slipway.pipelines.checks import Finding, examine
from slipway.pipelines.cli.app import app
from slipway.pipelines.config.config import validate
from slipway.pipelines.doctor.configuration import champion
from slipway.pipelines.platforms.base import Check, Context
from slipway.pipelines.platforms.table import platform_of
from slipway.trainer.engines import installed

DIGITS: dict[str, Any] = {
    "name": "digits",
    "data": {"source": "digits"},
    "model": {"builder": "slipway.trainer.models.digits:build"},
    "train": {"epochs": 1, "batch_size": 64},
}
VERTEX = {"project": "p-1", "region": "europe-west4", "bucket": "gs://p-1-runs"}
KUBEFLOW = {"host": "http://localhost:1", "image": "registry.example.com/trainer:1", "volume": "slipway"}
BUILDERS = """
def no_arguments(): ...
def one(image_shape): ...
def narrow(image_shape, classes, units=8): ...
def more(image_shape, classes, *, units): ...
if __name__ == "__main__": ...
"""


def folder(*paths: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    """Create empty files; a path that ends with a slash is a folder."""

    def make(here: Path, _patch: pytest.MonkeyPatch) -> None:
        for path in paths:
            (here / path).parent.mkdir(parents=True, exist_ok=True)
            (here / path).mkdir(exist_ok=True) if path.endswith("/") else (here / path).write_text("no image")

    return make


NOTHING = folder()


def builders(here: Path, _patch: pytest.MonkeyPatch) -> None:
    (here / "own_builders.py").write_text(BUILDERS)


def without(*modules: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    def hide(_here: Path, patch: pytest.MonkeyPatch) -> None:
        there = installed.is_installed
        patch.setattr(installed, "is_installed", lambda name: name not in modules and there(name))

    return hide


def regression_champion(here: Path, _patch: pytest.MonkeyPatch) -> None:
    (here / "trained").mkdir()
    (here / "trained" / "model.json").write_text('{"task": "regression", "weights_checksum": "1"}')
    Registry(here / "models").register("digits", here / "trained", {}, None)


@dataclass(frozen=True)
class Case:
    """A refused configuration: the message, the commands that refuse it, and the files in the folder."""

    says: str
    options: tuple[str, ...] = ()
    target: str = "local"
    make: Callable[[Path, pytest.MonkeyPatch], None] = NOTHING
    more: tuple[tuple[str, Any], ...] = ()
    compiled: bool = True

    @property
    def extension(self) -> str:
        """The extension that it needs, "" for none: the platform's, or the one that builds images of containers."""
        if self.target == "local":
            return "google" if "docker" in self.options else ""
        return self.target


def data(source: str, says: str, *paths: str) -> Case:
    return Case(says, ("--set", f"data.source={source}"), make=folder(*paths))


def builder(name: str, says: str, *arguments: str, **more: Any) -> Case:
    return Case(says, ("--set", f"model.builder={name}", *arguments), make=builders, **more)


def vertex(says: str, *options: str, **settings: Any) -> Case:
    return Case(says, options, "vertex", more=(("vertex", {**VERTEX, "serving_image": "e.g/serving:1", **settings}),))


CASES = {
    "no file of weights": Case("There is no file none.weights.h5", ("--set", "model.weights.file=none.weights.h5")),
    "an unknown source": data("digist", "There is no source"),
    "no such folder": data("images:nowhere", "There is no folder"),
    "an empty folder": data("images:some", "no class folders", "some/"),
    "images without class folders": data("images:some", "no class folders", "some/a.png"),
    "an empty class folder": data("images:some", "no images in the class folder", "some/a/1.png", "some/b/"),
    "folders in class folders": data("images:some", "contains a folder", "some/a/b/1.png"),
    "a split without classes": data("images:some", "is empty", "some/train/a/1.png", "some/test/"),
    "no archive": data("images:some.zip", "cannot be read", "some.zip"),
    "a list without its columns": data("csv:some.csv", "no column", "some.csv"),
    "records without a description": data("tfrecord:some.tfrecord", "no features file", "some.tfrecord"),
    "no such module": builder("own_builder:build", "There is no Python module"),
    "no such function": builder("own_builders:build", "has no build"),
    "a builder without arguments": builder("own_builders:no_arguments", "too many positional arguments"),
    "a builder of one argument": builder("own_builders:one", "too many positional arguments"),
    "an unknown argument": builder("own_builders:narrow", "unexpected keyword", "--set", "model.arguments={unit: 3}"),
    "a missing argument": builder("own_builders:more", "missing a required"),
    "no such serving function": Case("has no lod", ("--set", "serve.module=own_builders:lod"), make=builders),
    "a serving function of two arguments": Case(
        "cannot be called with (folder)", ("--set", "serve.module=own_builders:narrow"), make=builders
    ),
    "accelerators of this machine": Case("t4x1 needs 1 NVIDIA T4 here", ("--hardware", "t4x1")),
    "a batch that is not shared evenly": Case("cannot be split evenly", ("--hardware", "cpu*3")),
    "a setting that the engine lacks": Case(".", ("--set", "train.engine=jax", "--set", "train.xla=false")),
    "a champion that is lost": Case("champion", make=folder("models/digits/champion")),
    "no training packages": Case("package matplotlib is not installed", make=without("matplotlib")),
    "no package docker": Case(
        "docker is not installed", ("--runner", "docker"), make=without("docker"), compiled=False
    ),
    "no Docker": Case("No Docker API answers", ("--runner", "docker"), compiled=False),
    "no place on Vertex AI": Case("has no section vertex", target="vertex"),
    "no serving image": vertex("With vertex.image no images are built", image="e.g/trainer:1", serving_image=None),
    "an image that cannot serve": vertex(
        "cannot serve models of the engine jax: TensorFlow 2.15 and 2.17 load",
        *("--set", "train.engine=jax"),
        image="e.g/trainer:1",
        serving_image=f"europe-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15@sha256:{'1' * 64}",
    ),
    "hardware of another region": vertex("europe-west4", "--hardware", "tpu-v5e-2x4", image="e.g/trainer:1"),
    "a repository of someone else's": vertex("Artifact Registry", build={"repository": "localhost:5000/slipway"}),
    "code that is not in git": builder(
        "own_builders:narrow",
        "git",
        target="vertex",
        more=(("vertex", {**VERTEX, "serving_image": "e.g/serving:1"}),),
        compiled=False,
    ),
    "no packages for a cloud": Case(
        "package tenacity is not installed", target="vertex", make=without("tenacity"), more=(("vertex", VERTEX),)
    ),
    "no place on Kubeflow": Case("has no section kubeflow", target="kubeflow"),
    "no Kubeflow server": Case(
        "No Kubeflow Pipelines server", target="kubeflow", more=(("kubeflow", KUBEFLOW),), compiled=False
    ),
    "a kind of GPU on Kubeflow for a trainjob": Case(
        "Nothing selects nodes with NVIDIA L4", ("--hardware", "l4x4*2"), "kubeflow", more=(("kubeflow", KUBEFLOW),)
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.extension(case.extension)] if case.extension else [])
        for name, case in CASES.items()
    ],
)
def test_doctor_run_and_compile_report_the_same_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**DIGITS, **dict(case.more)}))
    case.make(tmp_path, monkeypatch)

    def slipway(command: str, *more: str) -> Result:
        arguments = [*command.split(), "-c", "run.yaml", "--target", case.target, *case.options, *more]
        return CliRunner().invoke(app, arguments)

    ran = slipway("run", "--json")
    assert ran.exit_code == 2, ran.output
    error = json.loads(ran.stdout)["error"]
    assert case.says in error["message"]
    assert not (tmp_path / "runs").exists()
    doctor = slipway("doctor", "--json")
    assert doctor.exit_code == 1, doctor.output
    failed = [row for row in json.loads(doctor.stdout) if row["status"] == "fail"]
    assert failed[0]["error"] == error
    if case.compiled:
        compiled = slipway("config compile", "-o", "spec.yaml")
        assert compiled.exit_code == 2, compiled.output
        screen = str(UserError.from_dict(error | {"setting": None}))
        assert re.sub(r"\n  setting:  .*", "", compiled.stderr) == f"error: {lowered(screen)}\n"
        assert not (tmp_path / "spec.yaml").exists()


def test_a_champion_of_another_task_stops_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the evaluation says, after it, that the models are not comparable."""
    monkeypatch.chdir(tmp_path)
    regression_champion(tmp_path, monkeypatch)
    config = validate(DIGITS, "the test")
    found = examine(
        Check("champion", champion), Context(config, platform_of("local"), rehearsal=False, folder=tmp_path)
    )
    assert (found.status, found.found) == (
        "warning",
        "digits version 1 was trained for the task regression, not classification: the models will not be comparable, "
        "and the champion stays",
    )


def test_a_valid_configuration_passes_all_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder("some/a/1.png", "some/b/1.png")(tmp_path, monkeypatch)
    builders(tmp_path, monkeypatch)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(DIGITS))
    options = ["-c", "run.yaml", "--target", "local", "--set", "data.source=images:some"]
    options += ["--set", "model.builder=own_builders:more", "--set", "model.arguments={units: 3}"]
    checked = CliRunner().invoke(app, ["doctor", *options])
    assert checked.exit_code == 0, checked.output
    made = CliRunner().invoke(app, ["config", "compile", *options, "-o", "spec.yaml"])
    assert made.exit_code == 0, made.output
    assert re.search(r"^# PIPELINE DEFINITION", (tmp_path / "spec.yaml").read_text())


def test_a_run_is_refused_by_the_first_check_that_fails_before_others_are_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = []

    def fails(_: Context) -> str:
        raise UserError("the first")

    checks = (Check("one", fails, of_run=True), Check("two", lambda _: str(made.append(2)), of_run=True))
    monkeypatch.setattr(doctor, "GENERAL", checks)
    monkeypatch.setattr(extensions, "installed", tuple)
    context = Context(validate(DIGITS, "the test"), platform_of("local"), False, tmp_path)
    with pytest.raises(UserError, match="the first"):
        doctor.refuse_on_failure(context)
    assert made == []
    shown: list[Finding] = []
    assert [found.status for found in doctor.examine_all(context, shown.append)] == ["fail", "pass"]
    assert [found.check for found in shown] == ["one", "two"]
