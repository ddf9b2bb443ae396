"""The source module:function: its examples are stored unchanged; on request, the function must be deterministic."""

from __future__ import annotations

import io
import itertools
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from slipway.components.prepare_data.encoding.messages import features_of, values
from slipway.components.prepare_data.encoding.records import read_records
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.publishing import store
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.writing.set_writer import SetWriter
from slipway.components.prepare_data.writing.shards import ShardWriter
from slipway.core import seen
from slipway.core.errors import UserError

pytestmark = pytest.mark.slow  # each example function runs in processes of its own

MakeSettings = Callable[..., DataSettings]
NAMES = itertools.count()
START = """
import os
import numpy as np
AGAIN = os.environ.get("PYTHONHASHSEED") == "1"
def image(number, *shape):
    return np.random.default_rng(number).integers(0, 256, shape or (6, 5), np.uint8)
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module with a function `examples` of this body to the working directory; returns the source."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(body: str) -> str:
        name = f"own_data_{next(NAMES)}"
        function = "def examples():\n" + textwrap.indent(textwrap.dedent(body), "    ")
        (tmp_path / f"{name}.py").write_text(START + function)
        return f"{name}:examples"

    return make


def stored(prepared: Prepared) -> dict[str, dict[str, object]]:
    """Return the features of all examples, one value each, and the split, by key."""
    result: dict[str, dict[str, object]] = {}
    for split, about in prepared.manifest.splits.items():
        for shard in about.shards:
            with (prepared.folder / shard.file).open("rb") as file:
                for message in read_records(file):
                    found = {name.decode(): values(value) for name, value in features_of(message).items()}
                    key = found.pop("key")[0]
                    assert isinstance(key, bytes)
                    result[key.decode()] = {"split": split, **found}
    return result


def pixels(encoded: object) -> np.ndarray:
    assert isinstance(encoded, bytes)
    with Image.open(io.BytesIO(encoded)) as image:
        return np.asarray(image)


@pytest.mark.usefixtures("processes")
def test_arrays_bytes_and_paths_come_through(
    write: Callable[[str], str], make_settings: MakeSettings, tmp_path: Path, encoded: Callable[..., bytes]
) -> None:
    (tmp_path / "photo 1.png").write_bytes(encoded(1, (6, 5), "RGB"))
    source = write("""
        from pathlib import Path
        for number in range(40):
            given = [image(number), image(number, 6, 5, 3), "photo 1.png", Path("photo 1.png").read_bytes()][number % 4]
            yield {"image": given, "label": np.int64(number % 2 + 9), "patient": f"p{number // 2}", "age": number,
                   "boxes": [[0.0, 0.0, 0.5, 0.5]] * (number % 3), "second": image(number, 2, 2, 3), "label_text": "ö"}
    """)
    features = {"boxes": "bounding_box[]", "second": "image"}
    settings = make_settings(source, features=features, group_by="column:patient", duplicates="keep")
    prepared = prepare(settings, 2)
    about = prepared.manifest
    assert about.name == "examples"
    assert about.classes == ["9", "10"]
    assert about.features == {
        "patient": "text", "age": "integer", "boxes": "bounding_box[]", "second": "image", "label_text": "text",
    }  # fmt: skip
    found = stored(prepared)
    assert sorted(found) == [f"{number:08d}" for number in range(40)]
    rng = np.random.default_rng
    for number in range(40):
        one = found[f"{number:08d}"]
        assert one["age"] == [number]
        assert one["label"] == [number % 2]
        assert one["boxes"] == [0.0, 0.0, 0.5, 0.5] * (number % 3)
        (image,), (second,) = one["image"], one["second"]  # type: ignore[misc]
        np.testing.assert_array_equal(pixels(second), rng(number).integers(0, 256, (2, 2, 3), np.uint8))
        if number % 4 == 0:
            np.testing.assert_array_equal(pixels(image), rng(number).integers(0, 256, (6, 5), np.uint8))
        elif number % 4 > 1:
            assert image == (tmp_path / "photo 1.png").read_bytes()
        assert one["split"] == found[f"{number // 2 * 2:08d}"]["split"]
    import tensorflow_datasets

    builder = tensorflow_datasets.builder_from_directory(str(prepared.folder))
    for example in tensorflow_datasets.as_numpy(builder.as_dataset(split="validation")):
        assert example["second"].shape == (2, 2, 3)
        assert example["boxes"].shape == (example["age"] % 3, 4)
    assert prepare(settings, 2).reused


def test_splits_and_keys_are_its_own(write: Callable[[str], str], make_settings: MakeSettings) -> None:
    source = write("""
        for number in range(30):
            split = ["train", "val", "test"][number % 3]
            yield {"image": image(number), "label": "ab"[number % 2], "split": split, "key": f"{split}/ü{number}"}
    """)
    found = stored(prepare(make_settings(source), 1))
    assert len(found) == 30
    assert all(one["split"] == {"val": "validation"}.get(key[:3], key.split("/")[0]) for key, one in found.items())


def test_rows_without_keys_are_recognized_in_another_order(
    write: Callable[[str], str], make_settings: MakeSettings
) -> None:
    row = "{'x': n // 2 % 30, 'label': 'ab'[n // 2 % 2]}"  # some rows are equal
    first, again = (prepare(make_settings(write(f"for n in range(80)[::{step}]: yield {row}")), 1) for step in (1, -1))
    assert again.manifest.fingerprint == first.manifest.fingerprint
    grown = prepare(make_settings(write(f"for n in range(84)[::-1]: yield {row}")), 1)
    hashes = [
        set(np.concatenate([seen.of_split(each.folder, each.manifest, split) for split in each.manifest.splits]))
        for each in (first, grown)
    ]
    assert len(hashes[0]) == 30  # the different rows
    assert hashes[1] == hashes[0]


@pytest.mark.usefixtures("processes")
def test_a_function_may_start_threads_of_its_own(write: Callable[[str], str], make_settings: MakeSettings) -> None:
    """Forked processes do not have their parent's threads, so the function must not start threads before the fork.

    Nor is a thread that runs on waited for.
    """
    source = write("""
        global pool
        if pool is None:
            from concurrent.futures import ThreadPoolExecutor
            pool = ThreadPoolExecutor(1)
            threading.Thread(target=threading.Event().wait).start()  # never ends
        for n in range(30):
            yield {"image": pool.submit(image, n).result(timeout=20), "label": "a"}
    """)
    module = Path(f"{source.partition(':')[0]}.py")
    module.write_text("import threading\npool = None\n" + module.read_text())
    assert len(stored(prepare(make_settings(source), 1))) == 30


def test_an_interrupted_run_is_resumed(
    write: Callable[[str], str], make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write("for n in range(60): yield {'image': image(n), 'label': 'ab'[n % 2], 'number': n}")
    expected = prepare(make_settings(source, store=str(tmp_path / "other")), 2)
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(SetWriter, "_finish", raise_interrupt)
        killed.setattr(store.shutil, "rmtree", lambda *arguments, **options: None)
        prepare(make_settings(source), 2)
    monkeypatch.setattr(ShardWriter, "__call__", raise_interrupt)  # no shard is written again
    prepared = prepare(make_settings(source), 2)
    assert {path.name: path.read_bytes() for path in prepared.folder.iterdir()} == {
        path.name: path.read_bytes() for path in expected.folder.iterdir()
    }


def raise_interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_what_cannot_be_used_is_counted_and_named(
    write: Callable[[str], str], make_settings: MakeSettings, tmp_path: Path
) -> None:
    source = write("""
        for number in range(90):
            yield {"image": image(number), "label": "ab"[number % 2], "age": 1}
        yield {"image": "none.png", "label": "a", "age": 1}
        yield {"image": np.full((6, 5), 300.5), "label": "a", "age": 1}
        yield {"image": image(1), "label": 1.5, "age": 1}
        yield {"image": image(1), "label": None, "age": 1}
        yield {"image": image(1), "label": "a", "age": "one"}
        yield {"image": image(1), "label": "a"}
        yield {"image": b"", "label": "a", "age": 1}
        yield {"image": image(99), "label": "a", "age": 1, "split": "tset"}
        yield 7
        yield {"label": "a", "age": 1}
        yield {"image": np.broadcast_to(np.uint8(0), (30_000, 30_000)), "label": "a", "age": 1}
        yield {"image": "large.png", "label": "a", "age": 1}
        yield {"image": "/dev/zero", "label": "a", "age": 1}
    """)
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(10**10)
    reasons = {
        "example 90": "its image none.png cannot be read: No such file or directory",
        "example 91": "its image is an array float64 [6, 5] with values from 300.5 to 300.5; "
        "whole numbers from 0 to 255, or fractions from 0 to 1, are pixels",
        "example 92": "its label 1.5 is neither text nor an integer",
        "example 93": "it has no label",
        "example 94": "its age: 'one' is not a valid integer",
        "example 95": "unlike the first example, it has no age",
        "00000096": "it is empty",
        "example 97": "its split 'tset' is not train, validation or test",
        "example 98": "it is a int, not a dict",
        "example 99": "its image is a NoneType, not encoded bytes, a path, a Pillow image or an array",
        "example 100": "it has 30000x30000 pixels, more than 89,478,485",
        "example 101": "it has 10,000,000,000 bytes, more than 536,870,912",
        "example 102": "its image /dev/zero is not a file",
    }
    with pytest.raises(UserError, match="13 of 103 images cannot be used") as error:
        prepare(make_settings(source), 1)
    assert "--set data.skip_corrupt=0.1263" in (error.value.fix or "")
    prepared = prepare(make_settings(source, skip_corrupt=0.13), 1)
    assert {item.key: item.reason for item in prepared.manifest.skipped} == reasons
    assert prepared.manifest.skipped_count == 13
    assert len(stored(prepared)) == 90


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import random\nfor n in range(9): yield {'image': image(n), 'label': random.random() > 0.5 and 'a' or 'b'}",
         "is not deterministic: example"),
        ("for n in {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}: yield {'image': image(1), 'label': n}",
         "is not deterministic: example"),
        ("for n in range(9 + AGAIN): yield {'image': image(n), 'label': 'a'}",
         "is not deterministic: it yields more examples"),
        ("for n in range(9 - AGAIN): yield {'image': image(n), 'label': 'a'}",
         "is not deterministic: it yields fewer examples"),
        ("for n in range(5): yield {'image': image(n), 'label': 'a'}\nif AGAIN: 1/0",
         "failed when it was called a second time, in another process: .* raised ZeroDivisionError"),
    ],
)  # fmt: skip
def test_what_is_not_the_same_twice_is_refused(
    write: Callable[[str], str],
    make_settings: MakeSettings,
    body: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")  # does not affect this process; the other process gets 1
    settings = make_settings(write(body), module={"check_repeatable": True})
    with pytest.raises(UserError, match=message) as error:
        prepare(settings, 1)
    assert error.value.setting == "data.source"
    assert not Path(settings.store).exists()


def test_the_function_is_called_twice_only_on_request(
    write: Callable[[str], str], make_settings: MakeSettings, tmp_path: Path
) -> None:
    log = tmp_path / "calls"
    body = f"open({str(log)!r}, 'a').write('+')\nfor n in range(30): yield {{'image': image(n), 'label': n % 2}}"
    source = write(body)
    once = prepare(make_settings(source), 1)
    calls = len(log.read_text())
    log.unlink()
    checked = prepare(make_settings(source, module={"check_repeatable": True}, store=str(tmp_path / "checked")), 1)
    # The separate process also opens the source, which reads the first example.
    assert len(log.read_text()) == calls + 2
    assert checked.manifest.fingerprint == once.manifest.fingerprint


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return []", "yields no examples"),
        ("return 5", "raised TypeError"),
        ("raise SystemExit('enough')", r"raised SystemExit: enough \(own_data_\d+\.py, line 8\)"),
        ("raise KeyboardInterrupt", r"raised KeyboardInterrupt \(own_data_\d+\.py, line 8\)"),
        ("os._exit(0)", r"called os\._exit\(0\) \(own_data_\d+\.py, line 8\)"),
        ("for n in range(30): yield {'image': image(n), 'label': 'a', 'key': str(n) if n < 20 else os._exit(7)}",
         r"^own_data_\d+:examples called os\._exit\(7\) \(own_data_\d+\.py, line 8\)"),
        ("yield 5", "is not a dict with label; it is a int"),
        ("yield {'photo': image(1), 'label': 'a'}", "has no image, but photo looks like one"),
        ("yield {'photo': 'a.png', 'image': 1}", "is not a dict with label; it has photo, image"),
        ("yield {'words': ['a'], 'label': 'a'}", r"neither images nor features for the network; it has words: text"),
        ("yield {'image': image(1), 'label': 'a', 'x': None}", "Cannot infer the kind of the feature x"),
        ("for n in range(9): yield {'image': image(n), 'label': 'a', 'key': str(n % 8)}",
         "yields the key 0 twice: examples 0 and 8"),
        ("for n in range(9): yield {'image': image(n), 'label': 'a'} | ({'split': 'test'} if n % 2 else {})",
         "others do not"),
        ("for n in range(9): yield {'image': image(n), 'label': 'a', 'split': 'test'}",
         "no example of the split train"),
        ("for n in range(9): yield {'image': 'none.png', 'label': 'a'}",
         r"9 of 9 images .* \(its image none.png cannot"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("processes")
def test_mistakes_are_named(write: Callable[[str], str], make_settings: MakeSettings, body: str, message: str) -> None:
    settings = make_settings(write(body), skip_corrupt=0.99)
    with pytest.raises(UserError, match=message) as error:
        prepare(settings, 1)
    assert error.value.setting == "data.source"
    assert len(str(error.value).splitlines()) <= 24
    assert not Path(settings.store).exists()


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("thread = threading.Thread(target=os._exit, args=(3,))", "failed with exit code 3"),
        ("thread = threading.Thread(target=os.kill, args=(os.getpid(), 9))", "was killed by SIGKILL"),
    ],
)
@pytest.mark.parametrize("examples", [0, 20], ids=["at once", "later"])
@pytest.mark.usefixtures("processes")
def test_a_process_that_has_ended_is_named(
    write: Callable[[str], str], make_settings: MakeSettings, end: str, message: str, examples: int
) -> None:
    source = write(f"""
        import threading
        for n in range({examples}): yield {{"image": image(n), "label": "a"}}
        {end}
        thread.start()
        thread.join()
    """)
    settings = make_settings(source)
    with pytest.raises(UserError, match=message):
        prepare(settings, 1)
    assert not Path(settings.store).exists()


def test_names_that_are_not_there_are_named(write: Callable[[str], str], make_settings: MakeSettings) -> None:
    source = write("yield {'image': image(1), 'label': 'a', 'age': 3}")
    with pytest.raises(UserError, match="has no function 'example'") as error:
        prepare(make_settings(source.removesuffix("s")), 1)
    assert (error.value.setting, error.value.nearest) == ("data.source", source)
    with pytest.raises(UserError, match="There is no module 'no_module'") as error:
        prepare(make_settings("no_module:examples"), 1)
    assert error.value.setting == "data.source"
    with pytest.raises(UserError, match="There is no module 'image'") as error:
        prepare(make_settings("image:photos"), 1)
    assert error.value.nearest == "images:photos"
    with pytest.raises(UserError, match="no feature ages") as error:
        prepare(make_settings(source, features={"ages": "number"}), 1)
    assert (error.value.setting, error.value.nearest) == ("data.features.ages", "age")


@pytest.mark.parametrize(
    "form",
    [
        "PIL.Image.fromarray(p)",
        "p.astype(np.int64)",
        "p.astype(np.float32)",
        "p / 255",
        "{'bytes': None, 'path': 'p.png'}",
    ],
)
def test_images_in_the_forms_that_people_have(
    write: Callable[[str], str], make_settings: MakeSettings, tmp_path: Path, form: str
) -> None:
    """Pillow's, arrays of any type, and the dicts of Hugging Face become the same PNG images."""
    shown = np.random.default_rng(7).integers(0, 256, (6, 5), np.uint8)
    Image.fromarray(shown).save(tmp_path / "p.png")
    source = write(f"""
        import PIL.Image
        for number in range(9):
            p = image(7)
            yield {{"image": {form}, "label": bool(number % 2)}}
    """)
    prepared = prepare(make_settings(source, duplicates="keep"), 1)
    assert prepared.manifest.classes == ["False", "True"]
    assert all((pixels(each["image"][0]) == shown).all() for each in stored(prepared).values())  # type: ignore[index]


def test_truth_values_are_black_and_white(write: Callable[[str], str], make_settings: MakeSettings) -> None:
    source = write("""
        for number in range(9):
            yield {"image": image(7) > 99, "label": number % 2}
    """)
    prepared = prepare(make_settings(source, duplicates="keep"), 1)
    shown = np.random.default_rng(7).integers(0, 256, (6, 5), np.uint8)
    expected = np.where(shown > 99, 255, 0)
    assert all((pixels(each["image"][0]) == expected).all() for each in stored(prepared).values())  # type: ignore[index]


def test_why_no_example_can_be_used_is_said(write: Callable[[str], str], make_settings: MakeSettings) -> None:
    source = write("""
        for number in range(9):
            yield {"image": image(7) + 300.5, "label": number % 2}
    """)
    with pytest.raises(UserError, match=r"9 of 9 images cannot be used: example 0 \(its image is an array float64"):
        prepare(make_settings(source), 1)
