import errno
import io
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from slipway.components.evaluate.charts import read_history
from slipway.core import integrity
from slipway.core.errors import UserError, lowered, nearest, system_error
from slipway.pipelines.config.config import load

# Its first bytes are those of no memory: every read fails with EIO.
FAILING = Path("/proc/self/mem")


def test_an_unknown_name_offers_the_closest_with_its_command():
    error = UserError.unknown("engine", "tensorfow", ("tensorflow", "jax"), setting="train.engine")
    assert str(error).splitlines() == [
        "There is no engine 'tensorfow'.",
        "  setting:  train.engine = 'tensorfow'",
        "  allowed:  tensorflow, jax",
        "  closest:  tensorflow",
        "  fix:      --set train.engine=tensorflow",
    ]


def test_an_unknown_name_without_a_close_one_lists_what_exists():
    error = UserError.unknown("step", "xyz", ("train", "evaluate"), setting="--step")
    assert (error.allowed, error.nearest, error.fix) == ("train, evaluate", None, None)
    assert UserError.unknown("run", "xyz", ()).allowed == "none exists"


@pytest.mark.parametrize(
    ("value", "candidates", "closest"),
    [
        ("n1-standard-6", ["n1-standard-64", "n1-standard-16", "n1-standard-4", "n1-standard-8"], "n1-standard-4"),
        ("n1-standrd-90", ["n1-standard-4", "n1-standard-96", "n1-standard-64"], "n1-standard-96"),
        ("a2-highgpu-7g", ["a2-highgpu-1g", "a2-highgpu-4g", "a2-highgpu-8g"], "a2-highgpu-8g"),
        ("digits/12", ["digits/1", "digits/2", "digits/9"], "digits/9"),
        ("300", ["1", "30", "299"], "299"),
        ("europe-west44", ["europe-west4", "europe-west9"], "europe-west4"),  # a name, not a quantity
        ("acuracy", ["loss", "accuracy"], "accuracy"),
        ("zebra-7", ["accuracy"], None),
    ],
)
def test_the_nearest_name_by_quantity_or_by_letters(value: str, candidates: list[str], closest: str | None):
    assert nearest(value, candidates) == closest


@pytest.mark.parametrize(
    ("setting", "value", "fix"),
    [
        ("train.epochs", "4", "--set train.epochs=4"),
        ("data.image_size", "[24, 24]", "--set 'data.image_size=[24, 24]'"),
        ("hardware", "cpu*8", "--hardware 'cpu*8'"),
        ("--step", "train", "--step train"),
        ("train.stages.0.epochs", "4", None),
        ("RUN", "digits", None),
        ("max_replicas", "3", None),
    ],
)
def test_the_fix_sets_the_setting_to_the_closest_value(setting: str, value: str, fix: str | None):
    assert UserError("No.", setting=setting, nearest=value).fix == fix
    assert UserError("No.", setting=setting, nearest=value, fix="another").fix == "another"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("There is no run x.\n  fix:  No", "there is no run x.\n  fix:  No"),
        ("Input/output error: f.", "input/output error: f."),
        ("A: B.", "a: B."),
        ("Vertex AI refused.", "Vertex AI refused."),
        ("TensorFlow is missing.", "TensorFlow is missing."),
        ("a100x3 is not available.", "a100x3 is not available."),
        ("'The' is not a class.", "'The' is not a class."),
        ("", ""),
    ],
)
def test_a_message_starts_in_lower_case_unless_with_a_name(message: str, shown: str):
    assert lowered(message) == shown


def test_a_long_value_is_shortened_wherever_it_is_named():
    value = "a" * 200_000
    error = UserError(f"There is no run {value} in runs/.", setting="RUN", value=value, fix=f"slipway run\n{value}")
    for text in (str(error), *(str(part) for part in error.as_dict().values())):
        assert len(text) < 1000
    assert error.message.startswith("There is no run aaa")
    assert error.message.endswith("aaa in runs/.")
    assert "(200000 characters)" in str(error)
    assert len(str(UserError("No.", setting="data", value=list(range(50_000))))) < 1000


def test_shared_memory_that_cannot_be_written_is_mounted_not_moved():
    error = system_error(PermissionError(errno.EACCES, "Permission denied", "/dev/shm/pym-1-x"))
    assert error is not None
    assert "mount -t tmpfs" in (error.fix or "")
    assert "another folder" not in str(error)


class Failing(io.RawIOBase):
    """A file of a disk that fails; its errors have no file name, as those of every read."""

    name = "runs/digits/metrics.jsonl"

    def readall(self) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_failed_read_names_the_file_that_was_read():
    file = Failing()
    with pytest.raises(OSError, match="Input/output error") as caught:
        file.read()
    error = system_error(caught.value)
    assert error is not None
    assert error.message == "Input/output error: runs/digits/metrics.jsonl."
    assert "check the disk" in (error.fix or "")


def verify_model(path: Path) -> None:
    path.touch()
    integrity.seal(path.parent, {})
    path.unlink()
    path.symlink_to(FAILING)
    integrity.verify(path.parent)


def read(function: Callable[[Path], object], path: Path) -> None:
    path.symlink_to(FAILING)
    function(path)


@pytest.mark.skipif(not FAILING.exists(), reason="only on Linux is there a file that no one can read")
@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("metrics.jsonl", partial(read, read_history)),
        ("digits.yaml", partial(read, load)),
        ("statistics.html", partial(read, lambda path: shutil.copyfile(path, path.with_name("copy.html")))),
        ("fingerprint.pb", verify_model),
    ],
)
def test_a_file_of_a_disk_that_fails_is_named_wherever_it_is_read(
    tmp_path: Path, name: str, act: Callable[[Path], None]
):
    with pytest.raises(OSError, match="Input/output error") as caught:
        act(tmp_path / name)
    error = system_error(caught.value)
    assert error is not None
    assert error.message == f"Input/output error: {tmp_path / name}."
    assert "check the disk" in (error.fix or "")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.EIO])
def test_every_error_of_a_path_is_a_sentence(number: int):
    error = system_error(OSError(number, os.strerror(number), b"runs/\xff"))
    assert error is not None
    assert error.message == f"{os.strerror(number)}: runs/\udcff."


def test_every_error_of_the_system_is_a_sentence_without_a_path_too():
    for number in sorted({*errno.errorcode} - {errno.EPIPE, errno.EBADF}):
        error = system_error(OSError(number, os.strerror(number)))
        assert error is not None
        assert error.message == f"{os.strerror(number)}."


@pytest.mark.parametrize("error", [BrokenPipeError(errno.EPIPE, "x", "pipe"), OSError("x"), OSError(errno.EBADF, "x")])
def test_a_closed_pipe_and_a_bug_are_no_user_errors(error: OSError):
    assert system_error(error) is None
