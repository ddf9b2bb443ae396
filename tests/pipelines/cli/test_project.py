"""`slipway init`: what it writes, what it refuses, and the default configuration."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from slipway.core.errors import UserError
from slipway.core.manifest import Input
from slipway.pipelines.cli.app import app
from slipway.pipelines.cli.project import Template
from slipway.pipelines.config.config import load
from slipway.pipelines.options import configuration_path


@pytest.mark.parametrize("template", list(Template))
def test_every_template_is_a_valid_project_with_the_schema_of_its_header(tmp_path: Path, template: Template):
    folder = tmp_path / "My 1st_project"
    result = CliRunner().invoke(app, ["init", str(folder), "--template", template.value])
    assert result.exit_code == 0, result.output
    lines = (folder / "slipway.yaml").read_text().splitlines()
    assert lines[0] == "# yaml-language-server: $schema=schema.json"
    assert (folder / "schema.json").is_file()
    assert load(folder / "slipway.yaml").name == "my-1st-project"
    assert {"/runs/", "/datasets/", "/models/"} <= set((folder / ".gitignore").read_text().split())
    named = yaml.safe_load("\n".join(lines))
    module = named["train"].get("module") or named["model"]["builder"].partition(":")[0]
    assert (folder / f"{module}.py").is_file()
    if "model" in named:
        assert (named["train"]["export"], "early_stop" in named["train"]) == ("best", True)


@pytest.mark.slow
def test_the_network_of_a_table_is_reloaded_without_a_warning(tmp_path: Path):
    import keras

    from slipway.pipelines.templates.tabular import model

    columns = {"a b": Input(kind="number"), "city": Input(kind="category", vocabulary=["Bern", "Basel"])}
    model.build(columns, 2).save(tmp_path / "model.keras")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keras.models.load_model(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="km/h"):  # no name of a layer
        model.build({"km/h": Input(kind="number"), **columns}, 2)


def test_nothing_is_written_through_a_link(tmp_path: Path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "model.py").symlink_to(tmp_path / "elsewhere.py")
    result = CliRunner().invoke(app, ["init", str(tmp_path / "project")])
    assert result.exit_code == 2
    assert "already contains model.py." in result.stderr
    assert not (tmp_path / "elsewhere.py").exists()


@pytest.mark.parametrize("name", ["file", "file/project"])
def test_a_file_instead_of_a_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["init", name])
    assert result.exit_code == 2
    assert f": {name}.\n  fix: " in result.stderr


@pytest.mark.parametrize("command", [["init"], ["run"], ["compile"], ["predict", ".", "x.csv"]])
def test_a_folder_whose_name_is_not_utf8_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
):
    (tmp_path / "project").mkdir()
    if command != ["init"]:
        CliRunner().invoke(app, ["init", str(tmp_path / "project")])
        (tmp_path / "project" / "model.json").write_text("{}")
    folder = (tmp_path / "project").rename(os.fsdecode(bytes(tmp_path) + b"/\xff"))
    before = sorted(folder.iterdir())
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert f"error: the path of the folder {tmp_path}/\\xff is not UTF-8.\n  fix: " in result.stderr
    assert sorted(folder.iterdir()) == before


def test_nothing_is_overwritten(tmp_path: Path):
    (tmp_path / "model.py").write_text("mine")
    result = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert result.exit_code == 2
    assert "already contains model.py." in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]


@pytest.mark.parametrize(
    ("name", "expected"), [("2026", "project"), ("Ünïcode!", "n-code"), ("a" * 39 + "-b", "a" * 39), ("x_y", "x-y")]
)
def test_the_name_is_made_from_the_folders(tmp_path: Path, name: str, expected: str):
    CliRunner().invoke(app, ["init", str(tmp_path / name)])
    assert load(tmp_path / name / "slipway.yaml").name == expected


def test_the_default_configuration_is_the_projects_then_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"no slipway\.yaml in this folder") as error:
        configuration_path(None, None)
    assert "slipway init" in str(error.value.fix)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/digits.yaml").touch()
    assert configuration_path(None, None) == Path("configs/digits.yaml")
    (tmp_path / "slipway.yaml").touch()
    assert configuration_path(None, None) == Path("slipway.yaml")
    assert configuration_path(None, Path("other.yaml")) == Path("other.yaml")
