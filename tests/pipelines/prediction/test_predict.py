"""`slipway predict`: every kind of input, errors per example, and the files that it writes."""

from __future__ import annotations

import csv
import json
import os
import select
import shutil
import socket
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from PIL import Image
from typer.testing import CliRunner, Result

from slipway.components.register_model.registration import register
from slipway.components.register_model.registry import RegisterSettings, Registry
from slipway.core import dsse
from slipway.core.errors import UserError
from slipway.core.tables.csv_file import MAX_CELL
from slipway.pipelines.cli.app import app
from slipway.pipelines.config.config import validate
from slipway.pipelines.prediction import models, parts, prediction
from slipway.pipelines.runs.record import RunRecord, StepRecord, create
from slipway.serving import instances, model
from slipway.serving.kinds import BadRequest, Field
from slipway.serving.model import Model
from slipway.trainer.engines import installed
from tests.components.evaluate.conftest import png, write_data_set
from tests.serving.conftest import HOUSE, HOUSE_PRICE, classifier, classifier_folder, houses, houses_folder

pytestmark = pytest.mark.slow
__all__ = ["classifier", "classifier_folder", "houses", "houses_folder"]


@pytest.fixture
def project(tmp_path: Path, classifier_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the registered model digits, and images, one of them damaged."""
    registry = Registry(tmp_path / "models")
    registry.register("digits", classifier_folder, {"run_id": "one", "weights_checksum": "1"}, None)
    registry.register("digits", classifier_folder, {"run_id": "two", "weights_checksum": "2"}, "any")
    (tmp_path / "images/inner").mkdir(parents=True)
    for index in range(5):
        pixels = np.random.default_rng(index).integers(0, 256, (8, 8))
        (tmp_path / f"images/inner/{index}.png").write_bytes(png(pixels))
    whole = (tmp_path / "images/inner/0.png").read_bytes()
    (tmp_path / "images/cut.PNG").write_bytes(whole[:-30])
    (tmp_path / "images/notes.txt").write_text("not an image")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["predict", *arguments], input=stdin)


def lines(result: Result) -> list[dict]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_folder_of_images_gets_a_line_each_and_damaged_ones_an_error(project: Path) -> None:
    result = run("digits", "images", "--batch-size", "4")
    assert result.exit_code == 0, result.output
    found = lines(result)
    assert [each["input"] for each in found] == ["images/cut.PNG", *(f"images/inner/{n}.png" for n in range(5))]
    assert found[0]["error"].startswith("The image cannot be decoded")
    assert all(set(each["prediction"]) == {"label", "classes", "probabilities"} for each in found[1:])
    assert "6 examples, 1 with an error" in result.stderr
    assert run("digits", "images", "--strict").exit_code == 1
    assert run("digits", "images/cut.PNG").exit_code == 1  # nothing was predicted


def test_files_of_a_folder_that_cannot_be_read_have_an_error(project: Path) -> None:
    folder = project / "mixed"
    folder.mkdir()
    shutil.copy(project / "images" / "inner" / "0.png", folder / "0.png")
    (folder / "notes.txt").write_text("no image")
    (folder / "1.gif").write_text("not found")
    (folder / "2.webp").write_bytes(b"RIFF____WEBP")
    os.mkfifo(folder / "3.png")
    result = run("digits", str(folder))
    found = lines(result)
    assert [Path(each["input"]).name for each in found] == ["0.png", "1.gif", "2.webp", "3.png"]
    assert "prediction" in found[0] and all("error" in each for each in found[1:])
    assert "4 examples, 3 with an error" in result.stderr


def test_images_that_are_cut_short_are_said_to_be_so_without_their_decoders_output(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Image.effect_noise((64, 64), 50).save("images/cut.jpg")
    whole = Path("images/cut.jpg").read_bytes()
    Path("images/cut.jpg").write_bytes(whole[: len(whole) // 2])
    capfd.readouterr()
    found = {each["input"]: each for each in lines(run("digits", "images"))}
    reason = "The image cannot be decoded: it is cut short"
    assert [found[f"images/cut.{name}"]["error"] for name in ("PNG", "jpg")] == [reason] * 2
    assert capfd.readouterr().err == ""


def test_predictions_are_those_of_single_requests(project: Path, classifier: Model) -> None:
    found = lines(run("digits/1", "images/inner"))
    for each in found:
        row = instances.row(classifier, Path(each["input"]).read_bytes())
        (alone,) = instances.predictions(classifier, classifier.predict(instances.stack(classifier, [row])))
        assert each["prediction"]["label"] == alone["label"]
        np.testing.assert_allclose(each["prediction"]["probabilities"], alone["probabilities"], rtol=1e-5)


def test_a_csv_output_has_a_column_per_class_and_appears_when_it_is_complete(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("digits", "images", "-o", "out.csv").exit_code == 0
    rows = list(csv.DictReader(Path("out.csv").read_text().splitlines()))
    assert list(rows[0]) == ["input", "label", *map(str, range(10)), "error"]
    assert rows[0]["error"] and not rows[0]["label"]
    assert rows[1]["label"] == max(map(str, range(10)), key=lambda name: float(rows[1][name]))
    before = Path("out.csv").read_bytes()

    def failing(*_: object) -> None:
        raise OSError("the machine failed")

    monkeypatch.setattr(prediction, "_answers", failing)
    assert run("digits", "images", "-o", "out.csv").exit_code != 0
    assert Path("out.csv").read_bytes() == before
    assert {path.name for path in project.iterdir()} == {"models", "images", "out.csv"}


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_terminal_receives_no_control_characters_of_names(project: Path, kind: str) -> None:
    shutil.copy(project / "images" / "inner" / "0.png", project / "images" / "\x1b]0;\x9b31m.png")
    controller, terminal = os.openpty()
    try:
        result = run("digits", "images", "--format", kind, "-o", os.ttyname(terminal))
        received = b""
        while select.select([controller], [], [], 1)[0]:  # one read may return a part of it
            received += os.read(controller, 100_000)
    finally:
        os.close(controller)
        os.close(terminal)
    assert result.exit_code == 0, result.output
    shown = received.decode()
    assert "\\x9b31m.png" in shown
    assert not set(shown) & {"\x1b", "\x9b"}
    assert "\x9b31m.png" in run("digits", "images", "--format", kind).stdout  # a pipe receives the name


def test_json_lines_from_stdin(project: Path, houses_folder: Path) -> None:
    given = [json.dumps(HOUSE), "", "{", json.dumps(HOUSE | {"rooms": "many"})]
    found = lines(run(str(houses_folder), "-", stdin="\n".join(given)))
    assert found[0]["prediction"]["prediction"] == pytest.approx(HOUSE_PRICE)
    assert [each["input"] for each in found] == ["line 1", "line 3", "line 4"]
    assert "not JSON" in found[1]["error"]
    assert found[2]["error"] == "rooms: The value is a text, not an integer"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("NaN", "NaN is not a JSON number"),
        ("-Infinity", "-Infinity is not a JSON number"),
        ("5_9", "Expecting ',' delimiter"),
        ("1e999", "area: The value is outside the range of float32"),
        ('"\udcff"', "'utf-8' codec can't decode byte 0xff"),
        ("[" * 100_000, "maximum recursion depth exceeded"),
    ],
    ids=["nan", "infinity", "underscore", "too-large", "not-utf-8", "nested"],
)
def test_json_lines_are_refused_as_by_the_server(
    project: Path, houses_folder: Path, houses: Model, value: str, problem: str
) -> None:
    line = json.dumps(HOUSE).replace("55.0", value).encode(errors="surrogateescape")
    with pytest.raises(BadRequest) as refused:
        instances.arrays(houses, instances.read(b'{"instances": [%b]}' % line))
    assert problem in f"{refused.value.field}: {refused.value.problem}"
    Path("some.jsonl").write_bytes(line)
    for result in (run(str(houses_folder), "some.jsonl"), run(str(houses_folder), "-", stdin=line)):
        assert problem in lines(result)[0]["error"], result.output


@pytest.mark.parametrize("value", ["nan", "NaN", "5_9", "five", "", "inf", "1e999", "\N{FULLWIDTH DIGIT FIVE}"])
def test_cells_that_are_no_numbers_of_json_are_refused(project: Path, houses_folder: Path, value: str) -> None:
    Path("houses.csv").write_text(f"street,area,sides,rooms\nOak,{value},1 2,3\nOak,55,1 {value},3\nOak,55,1 2,3\n")
    first, second, third = lines(run(str(houses_folder), "houses.csv"))
    assert "is not a number" in first["error"] or "outside the range" in first["error"]
    assert second["error"].startswith("sides: ")
    assert third["prediction"]["prediction"] == pytest.approx(HOUSE_PRICE)


def test_a_row_whose_prediction_is_not_finite_has_an_error(project: Path, houses_folder: Path) -> None:
    given = [HOUSE | {"area": area} for area in (55.0, 3e38, -3e38, 55.0)]
    Path("houses.jsonl").write_text("\n".join(map(json.dumps, given)))
    first, high, low, last = lines(run(str(houses_folder), "houses.jsonl"))
    assert first["prediction"]["prediction"] == last["prediction"]["prediction"] == pytest.approx(HOUSE_PRICE)
    assert high["error"] == low["error"] == "The model failed: the model returned NaN or infinite prediction"


def test_a_text_that_is_not_utf8_has_an_error(project: Path, houses_folder: Path) -> None:
    Path("houses.csv").write_bytes(b"street,area,sides,rooms\n\xff,55,1 2,3\nOak,55,1 2,3\n")
    bad, good = lines(run(str(houses_folder), "houses.csv"))
    assert bad["error"] == "The line is not valid UTF-8"
    assert good["prediction"]["prediction"] == pytest.approx(HOUSE_PRICE)


def test_inputs_that_cannot_be_read_are_named(project: Path, houses_folder: Path) -> None:
    Path("houses.csv").write_text(f"street,area,sides,rooms\nOak,55,1 2,3\n{'x' * (MAX_CELL + 1)},55,1 2,3\n")
    os.mkfifo("fifo.jsonl")
    problems = {
        "houses.csv": "line 3 of houses.csv is not CSV: field larger than field limit",
        "fifo.jsonl": "is neither a file nor a folder",
        os.devnull: "is neither a file nor a folder",
    }
    for given, problem in problems.items():
        for command in (
            ["predict", str(houses_folder), given],
            ["batch", str(houses_folder), "--input", given, "-o", "out"],
        ):
            result = CliRunner().invoke(app, command)
            assert result.exit_code == 2 and problem in result.stderr, result.output


def test_the_columns_of_a_csv_file(project: Path, houses_folder: Path) -> None:
    Path("houses.csv").write_text(
        "street,label,area,sides,rooms\nOak,7,55,1 2,3\nOak,7,big,1;2,3\nOak,7\n", encoding="utf-8"
    )
    found = lines(run(str(houses_folder), "houses.csv"))
    assert found[0]["prediction"]["prediction"] == pytest.approx(HOUSE_PRICE)
    assert [each.get("error") for each in found[1:]] == [
        "area: 'big' is not a number",
        "The line has 2 columns; line 1 has 5",
    ]
    Path("houses.csv").write_text("street,label,aera,sides,rooms\n")
    result = run(str(houses_folder), "houses.csv")
    assert result.exit_code == 2
    assert "no column area" in result.stderr and "closest:  aera" in result.stderr


def test_a_csv_file_of_images(project: Path) -> None:
    Path("images/list.csv").write_text("image,label\ninner/0.png,3\nmissing.png,4\n")
    found = lines(run("digits", "images/list.csv"))
    assert [each["input"] for each in found] == ["inner/0.png", "missing.png"]
    assert found[0]["prediction"]["label"]
    assert found[1]["error"] == "The file cannot be read: No such file or directory"


def test_a_prepared_set(project: Path) -> None:
    images = [path.read_bytes() for path in sorted(Path("images/inner").iterdir())]
    write_data_set(project / "set", images, [0, 1, 2, 3, 4], [str(digit) for digit in range(10)])
    found = lines(run("digits", "set", "--batch-size", "2"))
    assert [each["input"] for each in found] == [f"{n}/{n:05d}.png" for n in range(5)]
    by_file = lines(run("digits", "images/inner"))
    for each, other in zip(found, by_file, strict=True):
        np.testing.assert_allclose(each["prediction"]["probabilities"], other["prediction"]["probabilities"], rtol=1e-5)
    result = run("digits", "set", "--split", "trian")
    assert result.exit_code == 2 and "no split 'trian'" in result.stderr


def test_models_by_name_version_folder_and_mistakes(project: Path, classifier_folder: Path) -> None:
    registry = Path("models")
    assert str(models.find("digits", registry)) == "digits/2"
    assert models.find(None, registry) == models.find("digits", registry) == models.find("models/digits", registry)
    assert models.find("digits", registry).follow
    assert models.find("digits/1", registry).folder == project / "models/digits/1"
    assert str(models.find("models/digits/1", registry)) == "digits/1"
    assert models.find(str(classifier_folder), registry).folder == classifier_folder
    result = run("digit", "images")
    assert result.exit_code == 2 and "closest:  digits" in result.stderr
    assert "there is no version 'digits/7'" in run("digits/7", "images").stderr
    assert "the input nowhere does not exist" in run("digits", "nowhere").stderr
    (project / "empty").mkdir()
    (project / "empty/metadata.json").write_text("[" * 100_000)
    assert "cannot be served" in run("empty", "images").stderr
    assert "the input empty has no files to predict on" in run("digits", "empty").stderr


def test_image_files_alone_are_refused_for_named_inputs(project: Path, houses_folder: Path) -> None:
    result = run(str(houses_folder), "images")
    assert result.exit_code == 2 and "predicts from area, sides, rooms, street" in result.stderr


def test_short_memory_halves_the_batch(classifier: Model) -> None:
    class ResourceExhaustedError(Exception):
        pass

    sizes = []

    def function(arrays):
        sizes.append(len(arrays["image_bytes"]))
        if sizes[-1] > 2:
            raise ResourceExhaustedError
        return classifier.function(arrays)

    small = replace(classifier, function=function)
    examples = [(str(n), {"image_bytes": png(np.full((8, 8), n))}) for n in range(5)]
    chunk = parts.chunk_of(small, examples)
    (answers,) = prediction.predict(small, iter([chunk]))
    assert len(answers.outputs["probabilities"]) == len(answers) == 5 and not answers.errors
    assert sizes == [5, 2, 3, 1, 2]


def test_lists_of_different_lengths_are_not_one_batch(houses: Model) -> None:
    free = replace(houses, inputs=houses.inputs | {"sides": Field("number", np.dtype("float32"), (None,))})
    examples = [(str(n), HOUSE | {"sides": [1.0] * n}) for n in (1, 2)]
    with pytest.raises(UserError, match="sides: The instances have values of different shapes") as error:
        parts.chunk_of(free, examples)
    assert error.value.fix == "--batch-size 1"


def test_a_failing_model_is_one_error(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(folder: Path, module: str | None) -> Model:
        loaded = model_load(folder, module)
        calls = []

        def function(arrays):
            calls.append(1)
            if len(calls) > 1:  # the first one is the warm-up
                raise RuntimeError("the device is lost")
            return original(arrays)

        original, loaded.function = loaded.function, function
        return loaded

    model_load = model.load
    monkeypatch.setattr(model, "load", load)
    result = run("digits", "images/inner")
    assert result.exit_code == 2
    assert "does not run: the device is lost" in result.stderr


def test_serve_names_the_missing_extra_and_a_port_that_is_taken(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", "digits", "--port", str(port)])
        assert result.exit_code == 2
        assert f"could not listen on 127.0.0.1:{port}" in result.stderr
    monkeypatch.setattr(installed, "is_installed", lambda name: name != "starlette")
    result = CliRunner().invoke(app, ["serve", "digits"])
    assert result.exit_code == 2
    assert "starlette is not installed" in result.stderr
    assert "pip install 'slipway-ml[serving]'" in result.stderr


def test_serve_allows_the_origins_of_pages(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(app, ["serve", "digits", "--allow-origin", "ftp://example.com"])
    assert result.exit_code == 2
    assert "'ftp://example.com' is not an origin" in result.stderr
    served: list[Any] = []
    monkeypatch.setattr("slipway.serving.app.run", served.append)
    options = [f"--allow-origin={origin}" for origin in ("https://Example.com/page", "localhost:3000")]
    assert CliRunner().invoke(app, ["serve", "digits", *options]).exit_code == 0
    assert served[0].settings.origins == ("https://example.com", "http://localhost:3000")


def test_a_registered_models_and_a_runs_own_function_load_them(project: Path) -> None:
    (project / "own_loading.py").write_text(
        "def load(folder):\n    return lambda instances: [len(one) for one in instances]\n"
    )
    folder = project / "program"
    folder.mkdir()
    (folder / "weights").write_text("in a format of its own")
    registration = register(
        RegisterSettings(), model_name="own", run_id="one", verdict="promote", champion="", source=folder, metrics={},
        serve_module="own_loading:load",
    )  # fmt: skip
    for name in ("own", "own/1", str(registration.version.folder)):
        assert lines(run(name, "-", stdin='"four"\n[1]\n')) == [
            {"input": "line 1", "prediction": 4},
            {"input": "line 2", "prediction": 1},
        ]
    program = {"model": None, "train": {"module": "own_loading"}, "serve": {"module": "own_loading:load"}}
    made = create(validate({"name": "mine", **program}, "the test"))
    trained = StepRecord(name="train", status="succeeded", outputs={"model": str(folder)})
    made.write(
        RunRecord(
            run_id=made.run_id,
            name="mine",
            platform="local",
            hardware="cpu",
            created=datetime.now(UTC),
            steps=[trained],
        )
    )
    assert models.find(made.run_id, Path("models")).module == "own_loading:load"
    inside = made.path / "train" / "model"
    shutil.copytree(project / "models/digits/1", inside)
    assert models.find(str(inside), Path("models")).name == made.run_id
    assert run(str(folder), "-", stdin='"four"').exit_code == 2


@pytest.mark.parametrize("layout", ["version", "registry"])
def test_the_function_that_an_unregistered_folder_names_is_not_executed(project: Path, layout: str) -> None:
    hostile = project / "n;touch PWNED;"
    folder = hostile / "1" if layout == "registry" else hostile
    folder.mkdir(parents=True)
    (folder / "metadata.json").write_text(json.dumps({"serve_module": "os:system", "version": 1}))
    if layout == "registry":
        (hostile / "champion").write_text("1\n")
    for command in ("predict", "batch", "serve"):
        given = {"predict": ["-"], "batch": ["--input", "images", "-o", "out"], "serve": []}[command]
        result = CliRunner().invoke(app, [command, hostile.name, *given], input="1")
        assert result.exit_code == 2 and "is not registered" in result.stderr, result.output
        assert "'os:system'" in result.stderr
        assert "--module MODULE:FUNCTION, of your own project, if you trust the model" in result.stderr
    assert not Path("PWNED").exists()
    (project / "os.py").touch()
    assert "--module os:system, if you trust the model" in run(hostile.name, "-", stdin="1").stderr
    trusted = CliRunner().invoke(app, ["predict", hostile.name, "-", "--module", "os:system"], input="1")
    assert Path("PWNED").exists(), trusted.output


def test_devices_links_and_fifos_are_written_through(project: Path) -> None:
    expected = run("digits", "images").stdout
    (project / "target.jsonl").write_text("before\n" * 100)
    (project / "link").symlink_to("target.jsonl")
    (project / "dangling").symlink_to("new.jsonl")
    (project / "null").symlink_to(os.devnull)
    os.mkfifo("fifo")
    for name in ("link", "dangling", "null"):
        assert run("digits", "images", "-o", name).exit_code == 0
        assert Path(name).is_symlink()
    assert Path("target.jsonl").read_text() == Path("new.jsonl").read_text() == expected
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(Path("fifo").read_text()), daemon=True)
    reader.start()
    assert run("digits", "images", "-o", "fifo").exit_code == 0
    reader.join(60)
    assert Path("fifo").is_fifo() and received == [expected]
    refused = run("digits", "images", "-o", "images")
    assert refused.exit_code == 2 and "images is a folder" in refused.stderr


def test_a_model_from_outside_of_the_project_is_announced_once(
    project: Path, houses_folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = json.dumps(HOUSE)
    announced = f"{houses_folder} is from outside of this project, and a model can run any code"
    shutil.copytree(houses_folder, "copy")
    for arguments, count in (([houses_folder], 1), ([houses_folder, "--trust"], 0), (["copy"], 0)):
        result = run(*map(str, arguments), "-", stdin=house)
        assert (result.exit_code, " ".join(result.stderr.split()).count(announced)) == (0, count), result.stderr
    elsewhere = tmp_path_factory.mktemp("another project") / "models"
    shutil.copytree("models", elsewhere)
    for registry, name, count in (
        ("models", "digits", 0),
        ("models", str(elsewhere / "digits"), 1),
        (str(elsewhere), "digits/1", 0),
    ):
        result = run(name, "images", "--registry", registry)
        assert (result.exit_code, result.stderr.count("can run any code")) == (0, count), result.stderr


def test_serve_with_a_key_serves_only_signed_models(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway.serving.app.run", lambda _: pytest.fail("it is served"))
    Path("signing.pub").write_text(dsse.pem(Ed25519PrivateKey.generate().public_key()))
    result = CliRunner().invoke(app, ["serve", "digits", "--key", "signing.pub"])
    assert (result.exit_code, "cannot be trusted: it is not signed" in result.stderr) == (2, True), result.stderr
