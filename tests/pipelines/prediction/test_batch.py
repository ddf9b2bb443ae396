"""`slipway batch` on this machine: parts, errors, and what happens to a batch that was stopped."""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from slipway.core import integrity
from slipway.core.errors import UserError
from slipway.pipelines.cli.app import app
from slipway.pipelines.prediction import batch as batches
from slipway.pipelines.prediction import inputs, models, parts, prediction
from slipway.pipelines.prediction.output import Format
from slipway.serving.model import Model
from tests.components.evaluate.conftest import png, write_data_set
from tests.pipelines.prediction.test_predict import lines, project, run
from tests.serving.conftest import (
    HOUSE,
    HOUSE_PRICE,
    assert_predictions_equal,
    classifier,
    classifier_folder,
    houses,
    houses_folder,
)

pytestmark = pytest.mark.slow
__all__ = ["classifier", "classifier_folder", "houses", "houses_folder", "project"]

# The examples from the third part on wait for a file.
WAITING_MODEL = """
import time
from pathlib import Path

def load(folder):
    def predict(instances):
        while instances[-1]["n"] >= 20 and not Path("continue").exists():
            time.sleep(0.01)
        return [each["n"] * 2 for each in instances]
    return predict
"""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict in this process: starting another one takes seconds."""

    def predict(batch, tasks, _processes, show):
        context = batches.multiprocessing.get_context("spawn")
        monkeypatch.setattr(batches, "_model", None)
        monkeypatch.setattr(batches, "_batch", batch, raising=False)
        monkeypatch.setattr(batches, "_examples", context.Value("q", 0), raising=False)
        for number, part in tasks:
            if error := batches._predict_part(number, part):
                raise UserError.from_dict(error)
            show(batches._examples.value)

    monkeypatch.setattr(batches, "_predict", predict)


def batch(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["batch", *arguments])


def predictions(folder: str = "out") -> list[dict]:
    return [json.loads(line) for path in sorted(Path(folder).glob("part-*.jsonl")) for line in path.open()]


def assert_same(answers: list[dict], expected: list[dict]) -> None:
    assert [answer["input"] for answer in answers] == [answer["input"] for answer in expected]
    assert_predictions_equal(*([answer["prediction"] for answer in lines] for lines in (answers, expected)))


def errors(folder: str = "out") -> list[dict]:
    return [json.loads(line) for line in Path(folder, "errors.jsonl").open()]


def names(folder: str = "out") -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def test_a_batch_predicts_as_predict_does_in_parts(project: Path, here: None) -> None:
    result = batch("digits", "--input", "images", "-o", "out", "--part-size", "2", "--batch-size", "2", "--json")
    assert result.exit_code == 0, result.output
    expected = lines(run("digits", "images"))
    assert_same(predictions(), [each for each in expected if "error" not in each])
    assert errors() == [each for each in expected if "error" in each]
    assert names() == ["errors.jsonl", *(f"part-0000{n}.jsonl" for n in range(3)), "summary.json"]
    summary = json.loads(result.stdout)
    assert (summary["examples"], summary["done"], summary["failed"], summary["parts"]) == (6, 5, 1, 3)
    assert summary["model"] == "digits/2"
    assert "6 inputs: 5 predicted in out, 1 in out/errors.jsonl" in result.stderr
    again = batch("digits", "--input", "images", "-o", "out", "--part-size", "2", "--strict")
    assert again.exit_code == 1 and "out is complete" in again.stderr


def test_a_stopped_batch_continues_with_the_missing_parts(
    project: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("digits", "--input", "images", "-o", "out", "--part-size", "2")
    calls = []

    def failing(model: Model, chunk: parts.Chunk) -> prediction.Answers:
        calls.append(chunk.keys)
        if len(calls) == 2:
            raise UserError("the machine failed")
        return original(model, chunk)

    original = prediction._answers
    monkeypatch.setattr(prediction, "_answers", failing)
    assert batch(*arguments).exit_code == 2
    assert names() == [".unfinished", "part-00000.jsonl"]
    other = batch("digits/1", *arguments[1:])
    assert other.exit_code == 2 and "the batch in out has another model: digits/2" in other.stderr
    record = Path("models/digits/2/model.json")
    before = record.read_bytes()
    record.write_bytes(before + b" ")
    replaced = batch(*arguments)
    assert replaced.exit_code == 2 and "models/digits/2 has changed since the batch in out was begun" in replaced.stderr
    assert "fix:      --output out-2\n" in replaced.stderr
    record.write_bytes(before)
    result = batch(*arguments)
    assert result.exit_code == 0, result.stderr
    assert "kept 1 of 3 parts" in result.stderr
    assert calls[2:] == [["images/inner/1.png", "images/inner/2.png"], ["images/inner/3.png", "images/inner/4.png"]]
    assert len(predictions()) == 5 and len(errors()) == 1
    Path("images/inner/0.png").write_bytes(png(np.zeros((8, 8))))
    changed = batch(*arguments)
    assert changed.exit_code == 2 and "inputs have changed" in changed.stderr


def test_a_model_that_is_replaced_before_a_process_loads_it_is_refused(
    project: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = batches.models.ready

    def late(chosen: batches.Chosen) -> Model:
        record = chosen.folder / "model.json"
        record.write_bytes(record.read_bytes() + b" ")
        return ready(chosen)

    monkeypatch.setattr(batches.models, "ready", late)
    refused = batch("digits", "--input", "images", "-o", "out")
    assert refused.exit_code == 2 and "models/digits/2 has changed since the batch in out was begun" in refused.stderr
    assert names() == [".unfinished"]


def test_a_process_hashes_the_files_of_a_model_with_checksums_once(
    project: Path, here: None, classifier_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(classifier_folder, "sealed")
    integrity.seal(Path("sealed"), json.loads(Path("sealed/model.json").read_bytes()))
    digest, hashed = integrity.file_digest, []
    monkeypatch.setattr(integrity, "file_digest", lambda path: hashed.append(path.name) or digest(path))
    assert batch("sealed", "--input", "images", "-o", "out").exit_code == 0
    assert "saved_model.pb" in hashed and len(hashed) == len(set(hashed))
    arguments = ("sealed", "--input", "images", "-o", "again", "--part-size", "2")
    record = Path("sealed/model.json")
    kept = record.read_bytes()
    record.write_bytes(kept[:-20])
    damaged = batch(*arguments)
    assert damaged.exit_code == 2 and "model.json cannot be read" in damaged.stderr
    record.write_bytes(kept)
    graph = Path("sealed/saved_model.pb")
    graph.write_bytes(graph.read_bytes()[:-1] + b"x")
    damaged = batch(*arguments)
    assert damaged.exit_code == 2 and "saved_model.pb does not match its checksum" in damaged.stderr


def test_no_file_is_open_in_the_folder_that_is_removed(
    project: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(folder: Path, ignore_errors: bool = False) -> None:
        links = list(Path("/proc/self/fd").iterdir())
        still_open = [link for link in links if link.exists() and link.resolve().parent == folder.resolve()]
        if still_open and not ignore_errors:  # a file system such as NFS renames an open file rather than remove it
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))
        if not still_open:
            original(folder, ignore_errors=ignore_errors)

    original = shutil.rmtree
    monkeypatch.setattr(batches.shutil, "rmtree", remove)
    result = batch("digits", "--input", "images", "-o", "out")
    assert result.exit_code == 0, result.output
    assert names() == ["errors.jsonl", "part-00000.jsonl", "summary.json"]


def test_other_files_and_stdin_are_refused(project: Path) -> None:
    Path("out").mkdir()
    Path("out/mine.txt").touch()
    result = batch("digits", "--input", "images", "-o", "out")
    assert result.exit_code == 2 and "has other files, such as mine.txt" in result.stderr
    assert names() == ["mine.txt"]
    assert "fix:      slipway predict MODEL -" in batch("digits", "--input", "-", "-o", "out").stderr
    Path("empty.jsonl").touch()
    assert "empty.jsonl has no examples" in batch("digits", "--input", "empty.jsonl", "-o", "new").stderr
    on_a_file = batch("digits", "--input", "images", "-o", "out/mine.txt")
    assert on_a_file.exit_code == 2 and "out/mine.txt cannot be created: Not a directory" in on_a_file.stderr


@pytest.mark.parametrize("given", [("images", "gs://bucket/out"), ("gs://bucket/a.jsonl", "out")])
def test_files_in_cloud_storage_are_refused_on_this_machine(project: Path, given: tuple[str, str]) -> None:
    result = batch("digits", "--input", given[0], "-o", given[1])
    assert result.exit_code == 2 and "fix:      --target vertex" in result.stderr
    assert not Path("gs:").exists() and not Path("out").exists()


def test_inputs_that_failed_at_once_can_be_corrected(project: Path, here: None) -> None:
    Path("images.csv").write_text("img\nimages/inner/1.png\n")
    arguments = ("digits", "--input", "images.csv", "-o", "out")
    assert "rename the column img to image" in batch(*arguments).stderr
    Path("out/part-00001.csv").touch()  # of a part that was killed before its record was written
    Path("images.csv").write_text("image\nimages/inner/1.png\n")
    result = batch(*arguments)
    assert result.exit_code == 0, result.stderr
    assert names() == ["errors.jsonl", "part-00000.jsonl", "summary.json"]


def test_names_that_are_not_utf8_and_broken_links_have_a_line(project: Path, here: None) -> None:
    image = Path("images/inner/1.png").read_bytes()
    Path("odd").mkdir()
    Path("odd/broken.png").symlink_to("nowhere")
    Path(os.fsdecode(b"odd/\xff.png")).write_bytes(image)
    Path(os.fsdecode(b"odd/\xffbad.png")).write_bytes(image[:20])
    result = batch("digits", "--input", "odd", "-o", "out")
    assert result.exit_code == 0, result.stderr
    assert [each["input"] for each in predictions()] == ["odd/\udcff.png"]
    assert [each["input"] for each in errors()] == ["odd/broken.png", "odd/\udcffbad.png"]


def test_rows_with_a_key_in_two_files(project: Path, here: None, houses_folder: Path) -> None:
    row = "Oak,55,1 2,3"
    Path("one.csv").write_text(
        f'\ufeffid,street,area,sides,rooms\r\n"a\n1",{row}\r\n\r\na2,{row}\r\na3,Oak,x,1 2,3\r\n'
    )
    keyed = [json.dumps(HOUSE | {"id": 7}), json.dumps(HOUSE)]
    Path("two.jsonl").write_text("\n".join(keyed))
    given = ("--input", "one.csv", "--input", "two.jsonl", "-o")
    result = batch(str(houses_folder), *given, "out", "--key", "id", "--part-size", "1", "--format", "csv")
    assert result.exit_code == 0, result.stderr
    rows = [row for path in sorted(Path("out").glob("part-*.csv")) for row in csv.DictReader(path.open(newline=""))]
    assert [row["input"] for row in rows] == ["a\n1", "a2", "7"]
    assert [float(row["prediction"]) for row in rows] == pytest.approx([HOUSE_PRICE] * 3)
    assert list(rows[0]) == ["input", "prediction"]
    assert errors() == [
        {"input": "a3", "error": "area: 'x' is not a number"},
        {"input": "two.jsonl line 2", "error": "The instance has no field id, the key"},
    ]
    missing = batch(str(houses_folder), *given, "other", "--key", "ID")
    assert missing.exit_code == 2 and "there is no column 'ID'" in missing.stderr


def test_parts_of_a_file_are_its_examples(project: Path, houses: Model) -> None:
    text = "\n".join("" if n % 3 == 0 else json.dumps(HOUSE | {"street": "Ö" * n}) for n in range(20)) + "\n{\n"
    Path("some.jsonl").write_text(text, encoding="utf-8")
    (whole,) = inputs.listed(["some.jsonl"], "test")

    def keys(part: parts.Part) -> list[str]:
        return [key for chunk in part.read(houses, 4) for key in chunk.keys]

    divided = list(whole.divided(5))
    assert [part.examples for part in divided] == [5, 5, 4]
    assert [key for part in divided for key in keys(part)] == keys(whole)


def test_each_shard_of_a_prepared_set_is_a_part(project: Path, here: None) -> None:
    images = [path.read_bytes() for path in sorted(Path("images/inner").iterdir())]
    write_data_set(project / "set", images, [0, 1, 2, 3, 4], [str(digit) for digit in range(10)])
    assert batch("digits", "--input", "set", "-o", "out").exit_code == 0
    assert_same(predictions(), lines(run("digits", "set")))
    shard = next(Path("set").glob("*.tfrecord*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    result = batch("digits", "--input", "set", "-o", "other")
    assert result.exit_code == 2 and "is damaged" in result.stderr
    shard.unlink()
    result = batch("digits", "--input", "set", "-o", "third")
    assert result.exit_code == 2 and "is missing" in result.stderr


def test_a_killed_command_leaves_no_process_and_is_continued(project: Path) -> None:
    Path("waiting.py").write_text(WAITING_MODEL)
    Path("format").mkdir()
    Path("format/model.json").write_text("{}")
    Path("many.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(100)))
    arguments = ["batch", "format", "--module", "waiting:load", "--input", "many.jsonl", "--output", "out"]
    arguments += ["--processes", "2", "--part-size", "10", "--batch-size", "2"]
    command = [sys.executable, "-m", "slipway.pipelines", *arguments]
    environment = {**os.environ, "MODEL_OF": str(project)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        until = time.monotonic() + 120
        while not list(Path("out/.unfinished").glob("0*.json")):
            assert process.poll() is None and time.monotonic() < until, process.communicate()
            time.sleep(0.02)
        process.kill()
    until = time.monotonic() + 30
    while _others(environment["MODEL_OF"]):
        assert time.monotonic() < until
        time.sleep(0.05)
    finished = len(list(Path("out/.unfinished").glob("0*.json")))
    assert 0 < finished < 10
    Path("continue").touch()
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    assert f"kept {finished} of 10 parts" in result.stderr
    assert [each["prediction"] for each in predictions()] == [n * 2 for n in range(100)]


def _others(mark: str) -> list[str]:
    """Return the processes that were started with a variable."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"MODEL_OF={mark}".encode() in (process / "environ").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return np.float32(1)", "a prediction is not JSON: Object of type float32 is not JSON serializable"),
        ("raise SystemExit(3)", "does not run"),
    ],
)
def test_a_custom_function_that_fails_is_explained(
    project: Path, here: None, monkeypatch: pytest.MonkeyPatch, body: str, sentence: str
) -> None:
    name = f"failing_{body[:3]}"
    code = (
        f"import numpy as np\ndef one():\n    {body}\ndef load(folder):\n    return lambda rows: [one() for _ in rows]"
    )
    Path(f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(project)
    Path("one.jsonl").write_text("1\n")
    result = batch("digits", "--input", "one.jsonl", "-o", "out", "--module", f"{name}:load")
    assert result.exit_code == 2 and sentence in result.stderr, result.output


def test_a_killed_process_is_one_error(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("deadly.py").write_text("import os\ndef load(folder):\n    return lambda instances: os.kill(os.getpid(), 9)\n")
    Path("format").mkdir()
    Path("one.jsonl").write_text("1\n")
    chosen = models.Chosen(Path("format"), "format", module="deadly:load")
    what = batches.Batch(chosen, ("one.jsonl",), Path("out"), Format.jsonl, 1, 1, "test")
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(UserError, match="was killed, perhaps for lack of memory"):
        batches.run(what, 1, lambda _done, _total: None)
    assert signal.getsignal(signal.SIGINT) is before
