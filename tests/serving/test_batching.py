"""Dynamic batching with a slow model: sizes, limits, time-outs, faults that stay with their request, and draining."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slipway.serving.batching import Batcher, Busy, Stopping
from slipway.serving.instances import ModelFailed
from slipway.serving.kinds import BadRequest, Field
from slipway.serving.model import Model
from slipway.serving.settings import Limits
from tests.serving.conftest import assert_predictions_equal


class Slow:
    """A model that doubles numbers, `seconds` per batch, and counts its batches; negative numbers are an error.

    While `release` is cleared, it is busy with its first batch.
    """

    def __init__(self, seconds: float = 0.05) -> None:
        self.sizes: list[int] = []
        self.started, self.release = threading.Event(), threading.Event()
        self.release.set()
        self.seconds = seconds
        self.model = Model(
            Path("slow"), "regression", {"x": Field("number", np.dtype(np.float32))}, ("prediction",), {}, self._predict
        )

    def _predict(self, arrays: Any) -> Any:
        self.started.set()
        assert self.release.wait(60)
        self.sizes.append(len(arrays["x"]))
        time.sleep(self.seconds)
        if (arrays["x"] < 0).any():
            raise RuntimeError("negative")
        return None, {"prediction": arrays["x"] * 2}

    async def busy_with(self, batcher: Batcher, value: float) -> asyncio.Task[Any]:
        """Return the request that it is busy with until `release` is set."""
        self.release.clear()
        first = asyncio.create_task(batcher.predict(self.model, self.request(value)))
        await asyncio.to_thread(self.started.wait)
        return first

    def request(self, *values: float) -> dict[str, Any]:
        return {"x": np.array(values, np.float32)}


def run(limits: Limits, scenario: Callable[[Batcher], Awaitable[Any]]) -> Any:
    """Run a scenario with a batcher, which must end by itself."""

    async def whole() -> Any:
        batcher = Batcher(limits, lambda _examples, _seconds: None)
        batcher.start()
        try:
            return await scenario(batcher)
        finally:
            await asyncio.wait_for(batcher.stop(), 60)
            assert batcher.waiting == 0

    return asyncio.run(whole())


def test_requests_that_arrive_while_the_model_is_busy_are_predicted_together() -> None:
    slow = Slow()

    async def scenario(batcher: Batcher) -> list[Any]:
        first = await slow.busy_with(batcher, 0)
        others = [asyncio.create_task(batcher.predict(slow.model, slow.request(n))) for n in range(1, 21)]
        await asyncio.sleep(0)
        slow.release.set()
        return [answer for (answer,) in await asyncio.gather(first, *others)]

    found = run(Limits(max_batch=8), scenario)
    assert found == [{"prediction": 2.0 * n} for n in range(21)]
    assert slow.sizes == [1, 8, 8, 4]


def test_a_lone_client_does_not_wait_for_others() -> None:
    slow = Slow(0)

    async def scenario(batcher: Batcher) -> float:
        started = time.monotonic()
        for n in range(5):
            await batcher.predict(slow.model, slow.request(n))
        return time.monotonic() - started

    assert run(Limits(max_delay=120.0), scenario) < 60
    assert slow.sizes == [1] * 5


def test_clients_that_return_are_waited_for_up_to_the_delay() -> None:
    slow = Slow()

    async def scenario(batcher: Batcher) -> None:
        async def client(delay: float) -> None:
            await batcher.predict(slow.model, slow.request(1))
            await asyncio.sleep(delay)
            await batcher.predict(slow.model, slow.request(1))

        first = await slow.busy_with(batcher, 0)
        clients = [asyncio.create_task(client(0.01 * n)) for n in range(4)]
        await asyncio.sleep(0)
        slow.release.set()
        await asyncio.gather(first, *clients)

    run(Limits(max_delay=60.0), scenario)
    assert slow.sizes == [1, 4, 4]


def test_a_large_request_is_split_and_answered_in_order() -> None:
    slow = Slow(0)

    async def scenario(batcher: Batcher) -> Any:
        return await batcher.predict(slow.model, slow.request(*range(10)))

    assert run(Limits(max_batch=4), scenario) == [{"prediction": 2.0 * n} for n in range(10)]
    assert slow.sizes == [4, 4, 2]


def test_a_full_queue_refuses_and_a_stopping_one_finishes() -> None:
    slow = Slow()

    async def scenario(batcher: Batcher) -> list[Any]:
        tasks = [await slow.busy_with(batcher, 1)]
        tasks += [asyncio.create_task(batcher.predict(slow.model, slow.request(n))) for n in range(2, 7)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await batcher.predict(slow.model, slow.request(9))
        stopped = asyncio.create_task(batcher.stop())
        await asyncio.sleep(0)
        with pytest.raises(Stopping):
            await batcher.predict(slow.model, slow.request(9))
        slow.release.set()
        found = await asyncio.gather(*tasks)
        await stopped
        return found

    found = run(Limits(max_batch=2, max_queue=5), scenario)
    assert [answer for (answer,) in found] == [{"prediction": 2.0 * n} for n in range(1, 7)]


def test_a_request_that_waited_for_too_long_fails_alone() -> None:
    slow = Slow(0)

    async def scenario(batcher: Batcher) -> list[Any]:
        first = await slow.busy_with(batcher, 1)
        late = asyncio.create_task(batcher.predict(slow.model, slow.request(2)))
        await asyncio.sleep(1.1)
        slow.release.set()
        return await asyncio.gather(first, late, return_exceptions=True)

    first, late = run(Limits(timeout=1.0), scenario)
    assert first == [{"prediction": 2.0}]
    assert isinstance(late, TimeoutError)
    assert slow.sizes == [1]


def test_a_failing_request_fails_alone() -> None:
    slow = Slow(0.01)

    async def scenario(batcher: Batcher) -> list[Any]:
        first = asyncio.create_task(batcher.predict(slow.model, slow.request(0)))
        await asyncio.to_thread(slow.started.wait)
        others = [batcher.predict(slow.model, slow.request(n)) for n in (1, -1, 2)]
        return await asyncio.gather(first, *others, return_exceptions=True)

    _, one, failed, two = run(Limits(), scenario)
    assert (one, two) == ([{"prediction": 2.0}], [{"prediction": 4.0}])
    assert isinstance(failed, ModelFailed)
    assert str(failed) == "negative"


def test_models_are_not_mixed_in_a_batch() -> None:
    slow, other = Slow(), Slow(0)

    async def scenario(batcher: Batcher) -> None:
        first = await slow.busy_with(batcher, 0)
        models = [slow, slow, other, other, other]
        tasks = [asyncio.create_task(batcher.predict(each.model, each.request(1))) for each in models]
        await asyncio.sleep(0)
        slow.release.set()
        await asyncio.gather(first, *tasks)

    run(Limits(), scenario)
    assert (slow.sizes, other.sizes) == ([1, 2], [3])


@pytest.mark.slow
def test_a_damaged_image_fails_its_own_request_only(classifier: Model) -> None:
    def jpeg(value: int) -> bytes:
        file = io.BytesIO()
        Image.new("L", (8, 8), value).save(file, "JPEG")
        return file.getvalue()

    def request(*images: bytes) -> dict[str, Any]:
        array = np.empty(len(images), object)
        array[:] = images
        return {"image_bytes": array}

    async def scenario(batcher: Batcher) -> list[Any]:
        whole = jpeg(200)
        sound, bad = request(jpeg(1), jpeg(2)), request(jpeg(3), whole[: len(whole) // 2])
        return await asyncio.gather(
            *(batcher.predict(classifier, each) for each in (sound, bad, sound, sound)), return_exceptions=True
        )

    one, failed, two, three = run(Limits(), scenario)
    assert_predictions_equal(one, two)
    assert_predictions_equal(one, three)
    assert len(one) == 2
    assert isinstance(failed, BadRequest)
    assert (failed.instance, failed.field) == (1, "image")


def test_a_request_of_many_parts_lets_others_go_first_after_each() -> None:
    slow = Slow(0.2)

    async def scenario(batcher: Batcher) -> Any:
        large = asyncio.create_task(batcher.predict(slow.model, slow.request(*range(10))))
        await asyncio.to_thread(slow.started.wait)
        small = await batcher.predict(slow.model, slow.request(50, 60, 70))
        assert not large.done()
        return small, await large

    small, large = run(Limits(max_batch=2, max_queue=4), scenario)
    assert small == [{"prediction": 2.0 * n} for n in (50, 60, 70)]
    assert large == [{"prediction": 2.0 * n} for n in range(10)]


def test_large_images_fill_a_batch_by_their_pixels(tmp_path: Path) -> None:
    sizes: list[int] = []

    def function(arrays: Any) -> Any:
        sizes.append(len(arrays["photo"]))
        return None, {"prediction": np.zeros(len(arrays["photo"]), np.float32)}

    def png(width: int, height: int) -> bytes:
        file = io.BytesIO()
        Image.new("1", (width, height)).save(file, "PNG")
        return file.getvalue()

    model = Model(tmp_path, "regression", {"photo": Field("image", np.dtype(object))}, ("prediction",), {}, function)
    photos = np.empty(6, object)
    photos[:] = [png(8, 8), png(2000, 1000), png(1000, 1000), png(6000, 1000), png(8, 8), png(8, 8)]
    found = run(Limits(max_batch=4), lambda batcher: batcher.predict(model, {"photo": photos}))
    assert len(found) == 6
    assert sizes == [3, 1, 2]
