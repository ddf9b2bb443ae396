"""`slipway init`: what it writes, what it refuses, and the default configuration."""

from __future__ import annotations

import importlib.util
import os
import random
import re
import warnings
import zlib
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.scan_table import scan_table
from slipway.core.errors import UserError
from slipway.core.manifest import Input
from slipway.pipelines.cli.app import app
from slipway.pipelines.cli.project import TEMPLATES
from slipway.pipelines.config.config import load
from slipway.pipelines.options import configuration_path
from tests import photographs


@pytest.mark.parametrize("template", ", ".join(TEMPLATES).split(", "))
def test_every_template_is_a_valid_project_with_the_schema_of_its_header(tmp_path: Path, template: str):
    folder, options = tmp_path / "My 1st_project", []
    if template == "photos":
        write_images(tmp_path / "photos" / "cat", 3, (300, 400))
        options = ["--images", str(tmp_path / "photos")]
    result = CliRunner().invoke(app, ["init", str(folder), "--template", template, *options])
    assert result.exit_code == 0, result.output
    lines = (folder / "slipway.yaml").read_text().splitlines()
    assert lines[0] == "# yaml-language-server: $schema=schema.json"
    assert (folder / "schema.json").is_file()
    assert load(folder / "slipway.yaml").name == "my-1st-project"
    assert {"/runs/", "/datasets/", "/models/", "/tuning/"} <= set((folder / ".gitignore").read_text().split())
    named = yaml.safe_load("\n".join(lines))
    module = named["train"].get("module") or named["model"]["builder"].partition(":")[0]
    assert importlib.util.find_spec(module) if "." in module else (folder / f"{module}.py").is_file()
    if "model" in named:
        assert (named["train"]["export"], "early_stop" in named["train"]) == ("best", True)


@pytest.mark.slow
def test_the_network_of_a_table_is_reloaded_without_a_warning(tmp_path: Path):
    import keras

    from slipway.pipelines.templates.tabular import model

    columns = {
        "a b": Input(kind="number"),
        "city": Input(kind="category", vocabulary=["Bern", "Basel"]),
        "zip": Input(kind="category", vocabulary=[f"{number:05}" for number in range(99)]),
        "sold": Input(kind="date", shape=(7,)),
        "about": Input(kind="text", shape=(9,), vocabulary=["a", "house"]),
    }
    model.build(columns, 2).save(tmp_path / "model.keras")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keras.models.load_model(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="km/h"):  # no name of a layer
        model.build({"km/h": Input(kind="number"), **columns}, 2)


def test_what_agents_are_told_fits_a_screen_and_theirs_is_kept(tmp_path: Path):
    assert CliRunner().invoke(app, ["init", str(tmp_path / "new")]).exit_code == 0
    assert len((tmp_path / "new" / "AGENTS.md").read_text().splitlines()) <= 60
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "AGENTS.md").write_text("Speak French.\n")
    result = CliRunner().invoke(app, ["init", str(tmp_path / "old")])
    assert result.exit_code == 0, result.output
    assert "kept " in result.stderr + result.stdout
    assert (tmp_path / "old" / "AGENTS.md").read_text() == "Speak French.\n"


def test_programs_are_told_which_commands_print_json():
    """The list of AGENTS.md is that of the commands."""
    text = (Path(str(files("slipway.pipelines"))) / "templates" / "all" / "AGENTS.md").read_text()
    listed = text.partition("nothing else there:")[2].partition(".")[0]
    for command in re.findall(r"`([a-z ]+)`", listed):
        shown = CliRunner().invoke(app, [*command.split(), "--help"])
        assert "--json" in shown.output, command


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


@pytest.mark.parametrize("command", [["init"], ["run"], ["config", "compile"], ["predict", ".", "x.csv"]])
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


# --images


def write_images(folder: Path, count: int, size: tuple[int, int] = (20, 20)) -> None:
    """Write images of noise, each with its own content."""
    folder.mkdir(parents=True)
    for number in range(count):
        seed = zlib.crc32(f"{folder.name} {number}".encode())
        photographs.unlike(*size, seed=seed).save(folder / f"{number}.png")


def on_images(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["init", *arguments], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_images_of_one_moderate_size_need_no_setting_but_the_source(tmp_path: Path):
    write_images(tmp_path / "project" / "my images" / "cat", 12)
    write_images(tmp_path / "project" / "my images" / "dog", 11)
    said = on_images(str(tmp_path / "project"), "--images", str(tmp_path / "project" / "my images"))
    assert "sizes       20x20 pixels" in said and "copies      none" in said
    assert "labels      2: cat 12, dog 11" in said
    written = yaml.safe_load((tmp_path / "project" / "slipway.yaml").read_text())
    assert written["data"] == {"source": "images:my images"}
    assert "class_weights" not in written["train"]
    assert load(tmp_path / "project" / "slipway.yaml").data.stored_size is None


def test_what_would_stop_a_run_has_a_setting_that_lets_it_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    images = tmp_path / "images"
    write_images(images / "cat", 40, (300, 400))
    write_images(images / "dog", 12, (700, 300))
    (images / "dog" / "0.png").write_bytes((images / "cat" / "5.png").read_bytes())
    Image.open(images / "cat" / "7.png").save(images / "cat" / "again.jpg")
    (images / "dog" / "1.png").write_bytes((images / "dog" / "2.png").read_bytes()[:-50])
    (images / "cat" / "3.png").write_text("not found")
    (images / "cat" / "notes.txt").write_text("seen at the zoo")
    monkeypatch.chdir(tmp_path)
    said = on_images("project", "--images", "images")
    assert "300x400 to 700x300 pixels (height x width), the shorter side usually 300" in said
    assert "unusable    2: cat/3.png (it is not an image of a supported format); dog/1.png (" in said
    assert "copies      1: dog/0.png = cat/5.png" in said
    assert "conflicts   1: dog/0.png = cat/5.png (the same image in two classes: one of them is wrong)" in said
    assert "lookalikes  2 images in 1 group cat/7.png ~ cat/again.jpg" in said
    assert "ignored     1: cat/notes.txt (not images)" in said
    written = yaml.safe_load((tmp_path / "project" / "slipway.yaml").read_text())
    assert written["data"] == {
        "source": f"images:{images}",
        "image_size": [224, 224],
        "skip_corrupt": pytest.approx(2 / 53, abs=1e-4),
        "duplicates": "drop",
        "near_duplicates": "group",
    }
    assert written["train"]["class_weights"] == "balanced"
    assert written["evaluate"]["gate"]["metric"] == "macro_f1"
    prepared = prepare(load(tmp_path / "project" / "slipway.yaml").data, 1)
    # Two that cannot be used; the copy is in the same split.
    assert (prepared.manifest.skipped_count, prepared.manifest.image_size) == (2, (224, 224))


def test_mistakes_of_images_are_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    for arguments, says in (
        (["--images", "image"], f"error: there is no folder {tmp_path}/image.\n  setting:  --images = 'image'"),
        (["--images", "image"], f"fix:      slipway init project --images {tmp_path}/images"),
        (["--images", "images"], f"error: there are no class folders in {tmp_path}/images."),
        (["--images", "images", "--template", "tabular"], "slipway init project --images images"),
        (["--template", "photos"], "slipway init project --template photos --images FOLDER"),
    ):
        result = CliRunner().invoke(app, ["init", "project", *arguments])
        assert result.exit_code == 2, result.output
        assert says in result.stderr
    assert not (tmp_path / "project").exists()


@pytest.mark.parametrize("count", [4, 100])
def test_few_images_and_rows_make_several_batches(tmp_path: Path, count: int):
    for label in ("cat", "dog"):
        write_images(tmp_path / "images" / label, count)
    rows = [f"{number}.5,{'ab'[number % 2]}" for number in range(5 * count)]
    (tmp_path / "t.csv").write_text("\n".join(["x,label", *rows]))
    on_images(str(tmp_path / "photographs"), "--images", str(tmp_path / "images"))
    on_images(str(tmp_path / "rows"), "--table", str(tmp_path / "t.csv"))
    for name in ("photographs", "rows"):
        config = load(tmp_path / name / "slipway.yaml")
        examples = prepare(config.data, 1).manifest.splits["train"].examples
        assert 1 <= config.train.batch_size <= examples / 2
        assert examples / config.train.batch_size < 4 or config.train.batch_size == (64 if name == "rows" else 32)


def write_table(path: Path) -> None:
    """Write a table of flats, with gaps, a key, dates, zip codes and notes."""
    rng = random.Random(4)
    rows = ["flat,built,zip,rooms,notes,price"]
    for row in range(300):
        rooms = rng.randrange(1, 6)
        built = f"{rng.randrange(1, 29)}.{rng.randrange(1, 13)}.{rng.randrange(1990, 2020)}" if row % 8 else ""
        notes = " ".join(rng.choice(["near", "lake", "noisy", "quiet", "old"]) for _ in range(6))
        price = f"{100 * rooms + rng.random():.3f}" if row != 7 else ""
        rows.append(f"F{row:03},{built},0{rng.randrange(1000, 1009)},{rooms if row % 5 else '?'},{notes} {row},{price}")
    path.write_text("\n".join(rows) + "\n")


@pytest.mark.slow
def test_a_table_is_scanned_and_its_configuration_prepares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_table(tmp_path / "flats.csv")
    monkeypatch.chdir(tmp_path)
    said = on_images("project", "--table", "flats.csv", "--label", "price")
    assert "flats.csv: 300 rows\nlabel       price, for the task regression\n" in said
    assert re.search(r"built +date +[0-9.]+, [0-9.]+, [0-9.]+; 38 missing", said)
    assert re.search(r"flat +no input +F000, F001, F002", said)
    assert "The column flat is no input: it is probably an identifier" in said
    config = load(tmp_path / "project" / "slipway.yaml")
    assert (config.task, config.data.skip_corrupt) == ("regression", pytest.approx(1 / 300, abs=1e-4))
    assert config.data.inputs == ["built", "zip", "rooms", "notes"]
    inputs = prepare(config.data, 1, task=config.task).manifest.inputs
    assert [each.kind for each in inputs.values()] == ["date", "category", "number", "text"]
    assert "a network for texts" in (tmp_path / "project" / "model.py").read_text()  # as one input is a text
    assert not list((tmp_path / "project").glob("*.csv"))
    checked = CliRunner().invoke(app, ["data", "check", "project/slipway.yaml"])
    assert checked.exit_code == 0, checked.output
    assert [line.split()[-1] for line in checked.output.splitlines() if "splits" in line] == ["30"]


@pytest.mark.parametrize(
    ("cells", "task"),
    [
        (["1", "2", "3"] * 20, "classification"),
        ([str(number) for number in range(60)], "regression"),
        (["0.5", "1.5"] * 30, "regression"),
        (["sea|sun", "sun", ""] * 20, "multilabel"),
        (["yes", "no"] * 30, "classification"),
    ],
)
def test_the_label_shows_the_task(tmp_path: Path, cells: list[str], task: str):
    table = tmp_path / "t.csv"
    table.write_text("x,label\n" + "".join(f"{number}.5,{cell}\n" for number, cell in enumerate(cells)))
    assert scan_table(table, None).manifest.task == task


def test_mistakes_of_tables_are_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("age,income\n1,2\n")
    for arguments, says in (
        (["--table", "t.csv"], "is to be predicted?\n  setting:  --label = None\n  allowed:  age, income\n"),
        (["--table", "t.csv", "--label", "incom"], "closest:  income\n  fix:      --label income"),
        (["--table", "u.csv"], "u.csv cannot be read: No such file or directory."),
        (["--text", "t.txt"], "t.txt is no table."),
        (["--table", "t.csv", "--template", "text"], "--table chooses the template itself."),
        (["--template", "imags"], "there is no template 'imags'.\n  setting:  --template = 'imags'\n"),
    ):
        result = CliRunner().invoke(app, ["init", "project", *arguments])
        assert result.exit_code == 2, result.output
        assert says in result.stderr
    assert not (tmp_path / "project").exists()


def test_a_rare_class_has_a_threshold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = [f"{row}.5,{'rare' if row % 10 == 0 else 'usual'}" for row in range(200)]
    (tmp_path / "t.csv").write_text("\n".join(["x,label", *lines]) + "\n")
    monkeypatch.chdir(tmp_path)
    assert "labels      2: usual 180, rare 20\n" in on_images("project", "--table", "t.csv")
    config = load(tmp_path / "project" / "slipway.yaml")
    assert (config.train.threshold, config.evaluate.gate.name) == ("f1", "macro_f1")


@pytest.mark.parametrize(("rows", "decay"), [(200, 1.0), (10_000, 0.5)])
def test_a_network_of_few_rows_has_more_weight_decay(tmp_path: Path, rows: int, decay: float):
    (tmp_path / "t.csv").write_text("x,label\n" + "".join(f"{row}.5,{'ab'[row % 2]}\n" for row in range(rows)))
    on_images(str(tmp_path / "project"), "--table", str(tmp_path / "t.csv"))
    train = load(tmp_path / "project" / "slipway.yaml").train
    assert (train.optimizer, train.weight_decay) == ("adamw", decay)
