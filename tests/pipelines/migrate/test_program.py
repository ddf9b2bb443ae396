"""Where a migrated job's program is found, how it becomes importable, and what must change in it."""

from __future__ import annotations

import tarfile
import zipfile

import pytest
import yaml

from slipway.core.errors import UserError
from slipway.pipelines.migrate.changes import changes_in
from slipway.pipelines.migrate.command import save
from slipway.pipelines.migrate.legacy_apis import LEGACY_APIS
from slipway.pipelines.migrate.migration import from_arguments, migrate


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The folder in which the command runs."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def write(root, **files: str) -> None:
    """Write modules below `root`: trainer__task is trainer/task.py."""
    for name, text in files.items():
        path = root.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent != root:
            (path.parent / "__init__.py").touch()
        path.write_text(text)


def listed(root, module="task") -> list[str]:
    return [str(change) for change in changes_in(root, module)]


def found(text: str, root) -> list[tuple[str, str]]:
    """(lines, what was found) of a module that writes its model and metrics where they belong."""
    write(root, task=text + "\nfolder, metrics = 'AIP_MODEL_DIR', 'metrics.json'\n")
    return [(",".join(map(str, change.lines)), change.found) for change in changes_in(root, "task")]


# --- what must change

PROGRAMS = {
    "import tensorflow as tf\ntf.gfile.Exists('x')\ntf.io.gfile.exists('x')": [("2", "tf.gfile.Exists")],
    "import tensorflow.compat.v1 as tf\ntf.gfile.Exists('x')\ntf.Session()\ntf.estimator.RunConfig()": [
        ("4", "tf.compat.v1.estimator.RunConfig")
    ],
    "from tensorflow.contrib import layers\nlayers.fully_connected(1)": [
        ("1", "tf.contrib.layers"),
        ("2", "tf.contrib.layers.fully_connected"),
    ],
    "import tensorflow as tf\ntf.app.flags.DEFINE_string('a')\ntf.logging.info('b')": [
        ("2", "tf.app.flags.DEFINE_string"),
        ("3", "tf.logging.info"),
    ],
    "from tensorflow.keras import optimizers as o\no.Adam(lr=0.1)\no.SGD(learning_rate=0.1)": [("2", "lr= of Adam")],
    "from keras.optimizers import Adam\nAdam(lr=0.1)": [("2", "lr= of Adam")],
    "import keras\nmodel = keras.Sequential()\nmodel.save('a')\nmodel.save('a.keras')\nmodel.save(path + '/a.h5')": [
        ("3", ".save()")
    ],
    "import keras, os\nkeras.callbacks.ModelCheckpoint(os.path.join('a', 'cp'))": [
        ("2", "keras.callbacks.ModelCheckpoint")
    ],
    "import keras, numpy as np\nnp.save('a', [])": [],
    "import torch_xla.core.xla_model as xm\nxm.xla_device()": [("1", "import torch_xla.core.xla_model")],
    "import tensorflow as tf\nimport keras\nkept = tf.train.Checkpoint()\nkept.save('a')": [],
    "import tensorflow as tf\nr = tf.distribute.cluster_resolver.TPUClusterResolver()": [("2", "TPUClusterResolver()")],
    "import tensorflow as tf\nr = tf.distribute.cluster_resolver.TPUClusterResolver(tpu='local')": [],
    "import tensorflow as tf\ns = tf.distribute.experimental.TPUStrategy(r)": [
        ("2", "tf.distribute.experimental.TPUStrategy")
    ],
    "import tensorflow as tf\ns = tf.distribute.MultiWorkerMirroredStrategy()\nmodel.fit(x)": [("3", ".fit()")],
    "import tensorflow as tf\ns = tf.distribute.MirroredStrategy()\nmodel.fit(x)": [],
    "import os\nc = os.environ['TF_CONFIG']\nif c == 'master': pass": [
        ("2", "os.environ['TF_CONFIG']"),
        ("3", "'master'"),
    ],
    "import os\nos.environ['TF_CONFIG'] = ''\nbranch = 'main'": [],
    "branch = 'master'": [],
    "from tensorflow.python.saved_model import builder": [("1", "import tensorflow.python.saved_model.builder")],
    "import tensorflow as tf\ntf.keras.experimental.export_saved_model(m, 'a')": [
        ("2", "tf.keras.experimental.export_saved_model")
    ],
    "import urllib2\nfrom six.moves import range\nfor i in xrange(3): d.iteritems()": [
        ("1", "import urllib2"),
        ("3", ".iteritems()"),
        ("3", "xrange"),
    ],
    "try:\n    unicode\nexcept NameError:\n    unicode = str\ndef f(long): return long": [],
    "import tensorflow as tf\ntf.random_normal([2])\ntf.random.normal([2])": [("2", "tf.random_normal")],
    "import tensorflow as tf\ntf.keras.backend.learning_phase()": [("2", "tf.keras.backend.learning_phase")],
}


@pytest.mark.slow
@pytest.mark.parametrize("text", PROGRAMS)
def test_legacy_apis_are_found_by_line(text, tmp_path):
    assert found(text, tmp_path) == PROGRAMS[text]


def test_a_name_that_tensorflow_does_not_have_is_replaced_as_by_its_own_converter(tmp_path):
    write(tmp_path, task="import tensorflow as tf\ntf.random_normal([2])\n")
    assert "does not exist in TensorFlow 2." in listed(tmp_path)[-1]
    assert listed(tmp_path)[-1].endswith("; use tf.random.normal")


def test_python_2_is_listed_line_by_line_and_names_are_still_found(tmp_path):
    text = (
        "import tensorflow as tf\nprint 'a', tf.gfile\ntry:\n    x = 1\nexcept ValueError, e:\n    print e\n"
        "print >>f, 'b'\nif 1 <> 2:\n\tpass\nexec 'c'\n"
    )
    lines = found(text, tmp_path)
    assert [int(line) for line, what in lines if what == "this line"] == [2, 5, 6, 8, 10]
    assert ("7", "print >>") in lines
    assert ("2", "tf.gfile") in lines
    assert found("if True:\n\tx = 1\n        y = 2\n", tmp_path)[0][1] == "this line"


@pytest.mark.parametrize(
    "text", ["(" * 10_000, "\0\x01", "def f(:\n" * 30, "print 'a' % (\nb)\n", "\ufeff\u2028x=\n", ""]
)
def test_any_text_is_read(text, tmp_path):
    (tmp_path / "task.py").write_text(text)
    assert changes_in(tmp_path, "task")


def test_files_that_the_module_imports_are_read_and_no_others(tmp_path):
    write(
        tmp_path,
        trainer__task="from trainer import model\nfrom . import util\nimport helper\n",
        trainer__model="from trainer.deep import net\nimport urllib2\n",
        trainer__deep__net="import cPickle\n",
        trainer__util="import Queue\n",
        helper="import httplib\n",
        trainer__unused="import StringIO\n",
    )
    files = {change.path for change in changes_in(tmp_path, "trainer.task")}
    assert files == {"trainer/model.py", "trainer/deep/net.py", "trainer/util.py", "helper.py", "trainer/task.py"}


def test_an_import_that_only_python_2_finds_is_followed_and_listed(tmp_path):
    write(
        tmp_path,
        trainer__task="import model\nimport json\nimport helper\n",
        trainer__model="import urllib2\n",
        helper="",
    )
    changes = {(change.path, change.lines, change.found): change for change in changes_in(tmp_path, "trainer.task")}
    assert changes["trainer/task.py", (1,), "import model"].replacement == "use from trainer import model"
    assert ("trainer/model.py", (1,), "import urllib2") in changes
    assert {found for _, _, found in changes} == {"import model", "import urllib2", "the program"}


def test_a_package_is_run_by_its_main_module(here):
    write(here, trainer__task="import urllib2\n")
    (here / "trainer/task.py").rename(here / "trainer/__main__.py")
    assert migrate("pythonModule: trainer", source="config.yaml").program.changes[0].path == "trainer/__main__.py"


def test_where_the_model_and_its_metrics_are_written(tmp_path):
    write(tmp_path, task="import keras\nmodel.export('a')\n")
    model, metrics = sorted(listed(tmp_path), reverse=True)
    assert model == (
        "task.py:2: .export() writes outside AIP_MODEL_DIR, from where the model is registered; "
        "let the chief write the model to slipway.training.model_dir()"
    )
    assert metrics.startswith("task.py:1: the program writes no metrics.json")
    write(tmp_path, task="x = 1\n")
    assert [line.partition(";")[0].partition(" to ")[0] for line in listed(tmp_path)] == [
        "task.py:1: the program saves no model",
        "task.py:1: the program writes no metrics.json",
    ]
    write(tmp_path, task="from slipway import training\ntraining.export(model)\ntraining.finish({'accuracy': 1})\n")
    assert listed(tmp_path) == []


def example(row) -> str:
    """A program that uses what a row of the table describes."""
    name, _, keyword = row.pattern.rstrip(")").partition("(")
    root = name.partition(".")[0]
    used = {
        "name": f"import {'tensorflow as tf' if root == 'tf' else root}\n{name}(1)",
        "method": f"x.{name}(1)",
        "keyword": f"import keras\n{name if root == 'keras' else f'x.{name}'}({keyword}=1)",
        "text": f"x = {name!r}",
        "variable": f"import os\nos.environ[{name!r}]",
        "module": f"import {name}",
        "builtin": "print >>f, 1" if name == "print >>" else f"{name}(1)",
    }
    return f"{used[row.kind]}\n{row.beside!r}\n"


@pytest.mark.slow
def test_every_row_of_the_table_has_a_source_and_is_found_in_a_program_that_uses_it(tmp_path):
    for row in LEGACY_APIS:
        assert row.source.startswith(("https://", "docs/"))
        write(tmp_path, task=example(row))
        listed = [(change.why, change.replacement) for change in changes_in(tmp_path, "task")]
        assert (row.why, row.replacement) in listed, (row, listed)


# --- where the program is


def test_a_package_path_stays_where_it_is(here):
    write(here, trainer__task="import urllib2\n")
    (here / "setup.py").write_text("R = ['pandas>=1']\nsetup(install_requires=R)\n")
    migration = from_arguments(["job", "--package-path=trainer/", "--module-name=trainer.task"])
    assert migration.configuration["train"] == {"module": "trainer.task"}
    assert any("stays where it is" in text for text in migration.changed)
    assert any("setup.py requires pandas>=1" in text for text in migration.decisions)
    assert "import urllib2" in [change.found for change in migration.program.changes]
    assert any("train.module: the program must change in 3 places" in text for text in migration.decisions)


def test_a_package_path_elsewhere_names_the_folder_to_start_in(here, tmp_path):
    write(tmp_path / "there", trainer__task="")
    folder = tmp_path / "there" / "trainer"
    migration = from_arguments(["job", f"--package-path={folder}", "--module-name=trainer.task"])
    assert any(f"from the folder where it is started: {folder.parent}" in text for text in migration.decisions)
    missing = from_arguments(["job", "--package-path=nowhere", "--module-name=trainer.task"])
    assert any("there is no trainer.task in nowhere" in text for text in missing.decisions)


def archive_of(folder, name: str):
    """An archive of two packages and a module, as setuptools writes it."""
    source = folder.parent / "source"
    write(source, trainer__task="import helper, data.reading\n", data__reading="import urllib2\n", helper="x = 1\n")
    (source / "setup.py").write_text("")
    if name.endswith(".whl"):
        with zipfile.ZipFile(folder / name, "w") as wheel:
            for file in source.rglob("*.py"):
                wheel.write(file, file.relative_to(source))
    else:
        with tarfile.open(folder / name, "w:gz") as sdist:
            sdist.add(source, name.removesuffix(".tar.gz"))
    return folder / name


@pytest.mark.usefixtures("no_tar_filters")
@pytest.mark.parametrize("name", ["trainer-0.1.tar.gz", "trainer-0.1-py3-none-any.whl"])
def test_an_archive_is_unpacked_next_to_the_configuration(here, name):
    archive_of(here, name)
    job = yaml.safe_dump({"packageUris": [name, "more-1.tar.gz"], "pythonModule": "trainer.task"})
    migration = migrate(job, source="config.yaml")
    assert [path.name for path in here.iterdir()] == [name]
    assert sorted({change.path for change in migration.program.changes}) == ["data/reading.py", "trainer/task.py"]
    assert any("more-1.tar.gz was installed as well" in text for text in migration.decisions)
    project = here / "project"
    project.mkdir()
    save(migration, project / "run.yaml")
    assert sorted(path.name for path in project.iterdir() if path.suffix != ".py") == ["data", "run.yaml", "trainer"]
    assert (project / "trainer/task.py").is_file() and (project / "helper.py").is_file()
    assert not (project / "setup.py").exists()
    with pytest.raises(UserError, match="data already exists"):
        save(migration, project / "again.yaml")
    assert not (project / "again.yaml").exists()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


def test_links_and_devices_in_an_archive_are_not_unpacked(here):
    archive_of(here, "a.tar.gz")
    with tarfile.open(here / "a.tar.gz") as plain, tarfile.open(here / "b.tar.gz", "w:gz") as hostile:
        hostile.addfile(member("a/data", tarfile.SYMTYPE, "/"))
        hostile.addfile(member("a/pipe", tarfile.FIFOTYPE))
        for each in plain:
            hostile.addfile(each, plain.extractfile(each))
    job = yaml.safe_dump({"packageUris": ["b.tar.gz"], "pythonModule": "trainer.task"})
    save(migrate(job, source="config.yaml"), here / "run.yaml")
    assert not (here / "pipe").exists()
    assert (here / "data/reading.py").is_file() and not (here / "data").is_symlink()


@pytest.mark.parametrize("name", ["../outside.py", "/tmp/outside.py"])
def test_an_archive_with_members_outside_its_folder_is_refused(here, name):
    with tarfile.open(here / "a.tar.gz", "w:gz") as hostile:
        hostile.addfile(member(name))
    with pytest.raises(UserError, match="outside its folder"):
        migrate(yaml.safe_dump({"packageUris": ["a.tar.gz"], "pythonModule": "trainer.task"}), source="config.yaml")


def test_an_archive_that_is_missing_remote_or_broken(here):
    fields = {"pythonModule": "trainer.task"}
    missing = migrate(yaml.safe_dump(fields | {"packageUris": ["a.tar.gz"]}), source="config.yaml")
    assert any("a.tar.gz does not exist here" in text for text in missing.decisions)
    remote = migrate(yaml.safe_dump(fields | {"packageUris": ["gs://b/a.tar.gz"]}), source="config.yaml")
    assert any("gcloud storage cp gs://b/a.tar.gz ." in text for text in remote.decisions)
    for name in ("a.tar.gz", "a.whl", "a.txt"):
        (here / name).write_text("not an archive")
        with pytest.raises(UserError, match=f"{name} cannot be unpacked"):
            migrate(yaml.safe_dump(fields | {"packageUris": [name]}), source="config.yaml")


def test_a_module_in_this_folder_is_read(here):
    write(here, trainer__task="import urllib2\n")
    migration = migrate("pythonModule: trainer.task", source="config.yaml")
    assert any("trainer.task is in this folder" in text for text in migration.changed)
    uris = {"packageUris": ["gs://b/trainer-1.tar.gz", "gs://b/more-1.tar.gz"], "pythonModule": "trainer.task"}
    decisions = migrate(yaml.safe_dump(uris), source="config.yaml").decisions
    assert [text for text in decisions if "gs://" in text] == [
        "train.module: gs://b/more-1.tar.gz was installed as well; install it here, and pin it in build.requirements."
    ]
    assert migration.program.changes
