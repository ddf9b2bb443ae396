"""Folders of small images for the tests of prepare_data."""

from __future__ import annotations

import io
import pickle
import random
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from slipway.components.prepare_data.encoding.messages import features_of
from slipway.components.prepare_data.encoding.records import stored_parts
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.workers import Tick, WorkerFailed, Workers
from slipway.core.errors import UserError


@pytest.fixture(autouse=True)
def tasks_in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the tasks of workers in this process, unless the test has the fixture `processes`.

    Four forks of a process with TensorFlow in it would be nine tenths of the work of preparing a small data set.
    """
    if "processes" not in request.fixturenames:
        monkeypatch.setattr(Workers, "run", run_in_this_process)


@pytest.fixture
def processes() -> None:
    """Let workers be processes."""


def run_in_this_process(
    workers: Workers[Any, Any],
    tasks: Sequence[Any],
    tick: Tick | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> Iterator[tuple[int, Any]]:
    """Run tasks as `Workers.run` does, which sends copies of tasks and results."""
    if tasks and meanwhile:
        meanwhile()
    for index, task in enumerate(tasks):
        try:
            result = workers._work(pickle.loads(pickle.dumps(task)), tick or (lambda _: None))
        except (UserError, OSError):
            raise
        except Exception:
            raise WorkerFailed(traceback.format_exc()) from None
        yield index, pickle.loads(pickle.dumps(result))


def encoded_image(seed: int, size: tuple[int, int] = (6, 5), mode: str = "L", encoding: str = "PNG") -> bytes:
    """Return an encoded image of random pixels; `size` is (height, width)."""
    height, width = size
    bands = len(Image.new(mode, (1, 1)).getbands())
    pixels = random.Random(seed).randbytes(height * width * bands)
    buffer = io.BytesIO()
    Image.frombytes(mode, (width, height), pixels).save(buffer, encoding)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def encoded() -> Callable[..., bytes]:
    """The function `encoded_image`."""
    return encoded_image


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """Creates a source folder with the given number of images in each subfolder."""

    def make(folders: Mapping[str, int], name: str = "image_folder", **image: object) -> Path:
        root = tmp_path / name
        for index, (folder, count) in enumerate(folders.items()):
            (root / folder).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                (root / folder / f"image {number}.png").write_bytes(encoded_image(index * 10_000 + number, **image))  # type: ignore[arg-type]
        return root

    return make


@pytest.fixture
def make_settings(tmp_path: Path) -> Callable[..., DataSettings]:
    """Creates settings for a folder of images, with a store in the test's folder."""

    def make(source: Path | str, **settings: object) -> DataSettings:
        reference = source if isinstance(source, str) else f"images:{source}"
        return DataSettings.model_validate(
            {"source": reference, "store": str(tmp_path / "store"), "workers": 2, **settings}
        )

    return make


def example_parts(message: bytes) -> tuple[bytes, bytes, int]:
    """Return the image, key and class of an encoded example."""
    image, key, (label,) = stored_parts(features_of(message))
    assert isinstance(label, int)
    return image, key, label
