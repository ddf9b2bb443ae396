"""Apache Beam writes the same data set as local processes."""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slipway.components.prepare_data.beam import options as beam_module
from slipway.components.prepare_data.beam import pipeline
from slipway.components.prepare_data.beam import workers as by_beam
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.publishing import store
from slipway.components.prepare_data.settings import BeamSettings, DataSettings
from slipway.components.prepare_data.sources.digits import DigitsSource
from slipway.components.prepare_data.writing.shards import ShardTask, ShardWriter
from slipway.core.errors import UserError

MakeFolder = Callable[..., Path]
MakeSettings = Callable[..., DataSettings]
OWN = "own_runner.OwnRunner"
# As the module of DaskRunner, which needs a package that is not installed here.
OWN_MODULE = """
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineRunner

class OwnOptions(PipelineOptions):
    @classmethod
    def _add_argparse_args(cls, parser):
        parser.add_argument("--own_client_address", dest="own_stored", type=str)
        parser.add_argument("--own_connection_timeout", dest="own_timeout", type=int)

class OwnRunner(PipelineRunner):
    def run_pipeline(self, pipeline, options):
        return Interrupted()

class Interrupted:
    # The result of a pipeline during which the user presses Ctrl-C. It has no state: that of Dask's result changes
    # only in wait_until_finish.
    cancelled = False

    def wait_until_finish(self):
        raise KeyboardInterrupt

    def cancel(self):
        Interrupted.cancelled = True
"""
HERE = {"runner": "DirectRunner", "from_gigabytes": 0}


def files(prepared: Prepared) -> dict[str, bytes]:
    """Return a data set's files except the manifest, which names the writer."""
    return {path.name: path.read_bytes() for path in prepared.folder.iterdir() if path.name != "manifest.json"}


def same(prepared: Prepared, other: Prepared) -> bool:
    one = prepared.manifest.model_copy(update={"written_by": other.manifest.written_by})
    return one == other.manifest and files(prepared) == files(other)


@pytest.fixture
def folder(make_folder: MakeFolder) -> Path:
    """Images, of which two are unusable and one is in two splits."""
    root = make_folder({"train/a": 50, "train/b": 40, "test/a": 9, "test/b": 9})
    (root / "train" / "a" / "image 3.png").write_bytes(b"no image")
    (root / "test" / "b" / "image 4.png").write_bytes(b"")
    (root / "train" / "b" / "copy.png").write_bytes((root / "test" / "a" / "image 1.png").read_bytes())
    return root


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_the_set_is_the_same(folder: Path, make_settings: MakeSettings, tmp_path: Path) -> None:
    about = {"skip_corrupt": 0.05, "duplicates": "drop"}
    one = prepare(make_settings(folder, **about), 3)
    other = prepare(make_settings(folder, **about, beam=HERE, store=str(tmp_path / "beam")), 3)
    assert same(one, other)
    assert one.manifest.skipped_count == 3
    assert one.manifest.written_by == "processes of one machine"
    assert other.manifest.written_by.startswith("Apache Beam 2.")
    assert other.manifest.written_by.endswith(", DirectRunner")
    # The data set is reused regardless of the writer.
    assert prepare(make_settings(folder, **about, beam=HERE), 3).reused
    assert {path.name for path in other.folder.parent.iterdir()} == {".listings", other.folder.name}


@pytest.mark.slow
def test_a_table_and_its_statistics_are_the_same(make_settings: MakeSettings, tmp_path: Path) -> None:
    rows = [f"{n / 7},{'xyz'[n % 3]},{n / 3}" for n in range(200)]
    (tmp_path / "table.csv").write_text("\n".join(["size,kind,label", *rows]))
    source = f"csv:{tmp_path / 'table.csv'}"
    one = prepare(make_settings(source), 3, task="regression")
    other = prepare(make_settings(source, beam=HERE, store=str(tmp_path / "beam")), 3, task="regression")
    assert same(one, other)
    assert other.manifest.written_by.startswith("Apache Beam")
    assert (other.manifest.inputs, other.manifest.target) == (one.manifest.inputs, one.manifest.target)


@pytest.mark.slow
def test_the_pipeline_does_not_grow_with_the_number_of_shards(tmp_path: Path) -> None:
    work = functools.partial(by_beam.write_shard, ShardWriter(DigitsSource(), tmp_path, ["0", "1"]))

    def pipeline_bytes(shards: int) -> int:
        tasks = [
            ShardTask(tmp_path / f"{n}.tfrecord", tmp_path / f"{n}.list", tmp_path / f"{n}.json", 0,
                      refuse_damaged=False, resize=None, images=[], max_skipped_named=1, gaps=True)
            for n in range(shards)
        ]  # fmt: skip
        made = pipeline._pipeline(BeamSettings.model_validate(HERE), work, tasks)
        ranges = pipeline._write_tasks(tasks, tmp_path / pipeline.TASKS)
        read = [task for part in ranges for task in pipeline._read_tasks(tmp_path / pipeline.TASKS, part)]
        assert read == tasks
        stored = (tmp_path / pipeline.TASKS).read_bytes()
        (tmp_path / pipeline.TASKS).write_bytes(stored[:50] + bytes([stored[50] ^ 1]) + stored[51:])
        with pytest.raises(OSError, match="not those that were written"):
            pipeline._read_tasks(tmp_path / pipeline.TASKS, ranges[0])
        return len(made.to_runner_api().SerializeToString())

    assert pipeline_bytes(20_000) < 1.1 * pipeline_bytes(1000)  # the numbers of its ranges have more digits


@pytest.mark.slow
def test_small_sets_are_left_to_processes(make_folder: MakeFolder, make_settings: MakeSettings, tmp_path: Path) -> None:
    root = make_folder({"a": 20, "b": 20})
    size = sum(path.stat().st_size + 120 for path in root.rglob("*.png"))
    for limit, is_large in ((size / 1e9 * 1.01, False), (size / 1e9 * 0.99, True)):
        beam = {"runner": "DirectRunner", "from_gigabytes": limit}
        prepared = prepare(make_settings(root, beam=beam, store=str(tmp_path / str(is_large))), 1)
        assert prepared.manifest.written_by.startswith("Apache Beam") == is_large


def test_a_mistake_is_the_one_that_processes_find(
    make_folder: MakeFolder, make_settings: MakeSettings, encoded: Callable[..., bytes]
) -> None:
    root = make_folder({"a": 30, "b": 30})
    (root / "b" / "odd.png").write_bytes(encoded(5, (9, 4)))
    settings = make_settings(root, beam=HERE)
    with pytest.raises(UserError, match=r"b/odd\.png has 9x4 pixels") as error:
        prepare(settings, 1)
    assert error.value.setting == "data.image_size"
    assert not Path(settings.store).exists()


@pytest.mark.slow
def test_an_interrupted_run_is_resumed(
    make_folder: MakeFolder, make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder({"a": 60, "b": 60})
    expected = prepare(make_settings(root, store=str(tmp_path / "other")), 4)
    settings = make_settings(root, beam=HERE)
    asked: list[int] = []
    run = by_beam.write_by_beam

    def some(beam: Any, writer: Any, tasks: list[Any], tick: Any, share: Any) -> Iterator[Any]:
        asked.append(len(tasks))
        yield from run(beam, writer, tasks[:5] if len(asked) == 1 else tasks, tick, share)
        if len(asked) == 1:
            # The state that a killed run leaves.
            monkeypatch.setattr(store.shutil, "rmtree", lambda *arguments, **options: None)
            raise KeyboardInterrupt

    monkeypatch.setattr(by_beam, "write_by_beam", some)
    with pytest.raises(KeyboardInterrupt):
        prepare(settings, 4)
    monkeypatch.undo()
    monkeypatch.setattr(by_beam, "write_by_beam", some)
    assert same(prepare(settings, 4), expected)
    assert asked == [12, 7]


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        ({"source": "images:image_folder"}, "data.source"),
        ({"source": "images:gs://bucket/image_folder.zip"}, "data.source"),
        ({"source": "digits"}, "data.source"),
        ({"store": "datasets"}, "data.store"),
        ({"source": "tfds:mnist"}, "data.tfds.data_dir"),
    ],
)
def test_what_workers_elsewhere_cannot_reach_is_refused(change: dict[str, str], setting: str) -> None:
    about = {"source": "images:gs://bucket/image_folder", "store": "gs://bucket/sets", **change}
    settings = DataSettings.model_validate({**about, "beam": {"from_gigabytes": 0}})
    with pytest.raises(UserError, match="cannot access") as error:
        beam_module.beam_for(settings, 1)
    assert error.value.setting == setting


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        ({"store": "gs://bucket/sets"}, "data.store"),
        ({"beam": {"from_gigabytes": 0, "access": "paths"}}, "data.beam.access"),  # on Dataflow
    ],
)
def test_a_shared_volume_is_no_bucket_and_dataflow_has_none(change: dict[str, Any], setting: str) -> None:
    options = {"project": "p", "region": "r", "temp_location": "gs://bucket/temp"}
    about = {"source": "digits", "store": "/volume/sets", "beam": {**HERE, "runner": "FlinkRunner", "access": "paths"}}
    about |= change
    about["beam"]["options"] = options
    with pytest.raises(UserError) as error:
        beam_module.beam_for(DataSettings.model_validate(about), 1)
    assert error.value.setting == setting


def test_a_shared_volume_has_any_source() -> None:
    beam = {"runner": "FlinkRunner", "from_gigabytes": 0, "access": "paths"}
    settings = DataSettings.model_validate({"source": "digits", "store": "/volume/sets", "beam": beam})
    assert beam_module.beam_for(settings, 1) == settings.beam


def test_options_that_are_not_there_are_named(make_folder: MakeFolder, make_settings: MakeSettings) -> None:
    settings = make_settings(make_folder({"a": 1}), beam={**HERE, "options": {"machine_typ": "n2"}})
    with pytest.raises(UserError, match="no option 'machine_typ'") as error:
        prepare(settings, 1)  # reported before the listing, which would fail for lack of images
    assert (error.value.setting, error.value.nearest) == ("data.beam.options.machine_typ", "machine_type")


@pytest.fixture
def own_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_runner.py").write_text(OWN_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("own_runner")
def test_a_pipeline_is_cancelled_with_its_step(make_folder: MakeFolder, make_settings: MakeSettings) -> None:
    beam = {"runner": OWN, "access": "paths", "from_gigabytes": 0}
    with pytest.raises(KeyboardInterrupt):
        prepare(make_settings(make_folder({"a": 9, "b": 9}), beam=beam), 1)
    assert importlib.import_module("own_runner").Interrupted.cancelled


@pytest.mark.usefixtures("own_runner")
@pytest.mark.parametrize(
    ("runner", "options", "stored"),
    [
        ("DataflowRunner", {"no_use_public_ips": True}, {"use_public_ips": False}),
        ("DataflowRunner", {"use_public_ips": True, "labels": ["a=b"]}, {"use_public_ips": True, "labels": ["a=b"]}),
        ("FlinkRunner", {"flink_master": "host:8081", "parallelism": 4}, {"flink_master": "host:8081"}),
        (
            OWN,
            {"own_client_address": "tcp://h", "own_connection_timeout": "30"},
            {"own_stored": "tcp://h", "own_timeout": 30},
        ),
    ],
)
def test_options_have_the_names_of_their_flags(
    runner: str, options: dict[str, object], stored: dict[str, object]
) -> None:
    settings = BeamSettings(runner=runner, options=options)
    everything = beam_module.options_of(settings).get_all_options()
    assert {name: everything[name] for name in stored} == stored


@pytest.mark.usefixtures("own_runner")
@pytest.mark.parametrize(
    ("runner", "option", "near"),
    [
        (OWN, "own_client_adress", "own_client_address"),
        (OWN, "own_stored", None),  # how Beam stores it is not documented
        ("FlinkRunner", "flink_masters", "flink_master"),
        ("DirectRunner", "runner", "data.beam.runner"),
    ],
)
def test_unknown_options_of_runners_are_refused(runner: str, option: str, near: str | None) -> None:
    with pytest.raises(UserError) as error:
        beam_module.options_of(BeamSettings(runner=runner, options={option: "x"}))
    assert error.value.setting == f"data.beam.options.{option}"
    if near:
        assert error.value.nearest == near


@pytest.mark.usefixtures("own_runner")
@pytest.mark.parametrize(
    ("runner", "words"),
    [
        ("DataflwRunner", "There is no runner 'DataflwRunner'"),
        ("no_such_package.Runner", "cannot be imported: No module named 'no_such_package'"),
        ("own_runner.Runner", "has no runner Runner"),
    ],
)
def test_unknown_runners_are_refused(runner: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        beam_module.options_of(BeamSettings(runner=runner))
    assert error.value.setting == "data.beam.runner"


@pytest.mark.slow
def test_beam_is_imported_when_it_is_used_only(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from slipway.components.prepare_data.prepare import prepare\n"
        "from slipway.components.prepare_data.settings import DataSettings\n"
        f"prepare(DataSettings(source='digits', store={str(tmp_path)!r}, beam={{'runner': 'DirectRunner'}}), 1)\n"
        "assert 'apache_beam' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=180)
