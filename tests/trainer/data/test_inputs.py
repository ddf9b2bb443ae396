"""The input pipeline: content, order and repetitions of the examples that a worker reads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from slipway.core import manifest as manifests
from slipway.core.errors import UserError
from slipway.trainer.data.assignment import ShardAssignment, verify

pytestmark = pytest.mark.usefixtures("tensorflow")


def share_of(folder: Path, rank: int = 0, workers: int = 1) -> ShardAssignment:
    return ShardAssignment(folder, manifests.read(folder), rank, workers)


def names(images: Any) -> list[bytes]:
    """Return a value that is unique to each image."""
    return [image.tobytes() for image in np.asarray(images)]


def take(dataset: Any, count: int) -> list[list[bytes]]:
    return [names(images) for images, _ in dataset.take(count).as_numpy_iterator()]


def test_decoded_examples_are_what_was_written(tiny: Path, make_image: Any) -> None:
    from slipway.trainer.data import inputs

    training = inputs.training(share_of(tiny), batch=8, steps_per_epoch=75, seed=0)
    assert isinstance(training, inputs.MemoryTraining)
    assert training.inputs.shape == (600, 8, 8, 1)
    assert training.inputs.dtype == np.uint8
    for number in (0, 149, 150, 599):
        np.testing.assert_array_equal(training.inputs[number, :, :, 0], make_image(number % 3, number))
        assert training.labels[number] == number % 3


def test_every_epoch_has_each_example_once_in_another_order(tiny: Path) -> None:
    from slipway.trainer.data import inputs

    training = inputs.training(share_of(tiny), batch=8, steps_per_epoch=75, seed=3)
    epochs = [training.order(75 * epoch, 75) for epoch in range(3)]
    for order in epochs:
        assert order.shape == (75, 8)
        assert sorted(order.ravel()) == list(range(600))
    assert not np.array_equal(epochs[0], epochs[1])
    other_seed = inputs.training(share_of(tiny), batch=8, steps_per_epoch=75, seed=4)
    assert not np.array_equal(epochs[0], other_seed.order(0, 75))


def test_the_order_of_a_step_does_not_depend_on_the_calls(tiny: Path) -> None:
    from slipway.trainer.data import inputs

    training = inputs.training(share_of(tiny), batch=8, steps_per_epoch=75, seed=3)
    whole = training.order(0, 200)
    np.testing.assert_array_equal(training.order(70, 90), whole[70:160])
    np.testing.assert_array_equal(np.concatenate([training.order(step, 1) for step in range(74, 78)]), whole[74:78])


def test_an_epoch_is_shuffled_once_for_all_its_steps(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slipway.trainer.data import inputs

    shuffled = []
    shuffle = inputs._permutation

    def counted(seed: int, epoch: int, *others: int) -> NDArray[np.int64]:
        shuffled.append(epoch)
        return shuffle(seed, epoch, *others)

    monkeypatch.setattr(inputs, "_permutation", counted)
    training = inputs.training(share_of(tiny), batch=8, steps_per_epoch=75, seed=1234)
    shuffled.clear()  # the examples are decoded in the first epoch's order
    inputs._epoch_order.cache_clear()
    for step in range(70, 90):
        training.order(step, 1)
    assert shuffled == [0, 1]


def test_workers_read_different_shards_and_as_many_batches(tiny: Path) -> None:
    from slipway.trainer.data import inputs

    # Workers 0, 1 and 2 of 3 have 300, 149 and 151 examples, and all run 50 steps of 4 examples per epoch.
    seen = []
    for rank, examples in enumerate((300, 149, 151)):
        training = inputs.training(share_of(tiny, rank, 3), batch=4, steps_per_epoch=50, seed=1)
        assert isinstance(training, inputs.MemoryTraining)
        assert len(training.labels) == examples
        order = training.order(0, 50)
        assert order.shape == (50, 4)
        counts = np.bincount(order.ravel(), minlength=examples)
        assert counts.max() - counts.min() <= 1
        seen.append(set(names(training.inputs)))
    assert not seen[0] & seen[1]
    assert not seen[1] & seen[2]
    assert len(seen[0] | seen[1] | seen[2]) == 600


def test_a_set_beyond_the_memory_budget_is_streamed_and_says_so(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    from slipway.trainer.data import inputs

    caplog.set_level("INFO")
    assert isinstance(inputs.training(share_of(tiny), 8, 75, 0, budget=600 * 64 - 1), inputs.StreamTraining)
    assert "streaming 600 training examples" in caplog.text
    assert isinstance(inputs.training(share_of(tiny), 8, 75, 0, budget=600 * 64), inputs.MemoryTraining)
    assert "decoded in memory" in caplog.text


def test_a_stream_is_the_same_from_any_step_on(tiny: Path) -> None:
    from slipway.trainer.data import inputs

    stream = inputs.training(share_of(tiny), batch=8, steps_per_epoch=75, seed=3, budget=0)
    whole = take(stream.batches(0), 160)
    for step in (1, 74, 75, 140):
        assert take(stream.batches(step), 3) == whole[step : step + 3]
    for epoch in (whole[:75], whole[75:150]):
        assert len({name for batch in epoch for name in batch}) == 600
    assert whole[:75] != whole[75:150]


def test_a_worker_with_too_few_examples_repeats_its_stream(tiny: Path) -> None:
    from slipway.trainer.data import inputs

    stream = inputs.training(share_of(tiny, 1, 3), batch=4, steps_per_epoch=50, seed=3, budget=0)
    batches = take(stream.batches(0), 100)
    first, second = ([name for batch in part for name in batch] for part in (batches[:50], batches[50:]))
    for epoch in (first, second):
        assert len(set(epoch[:149])) == 149
        assert set(epoch[149:]) <= set(epoch[:149])
    assert first[:51] != first[149:]
    assert take(stream.batches(48), 5) == batches[48:53]


def test_workers_stream_different_shards_and_as_many_batches(tiny: Path) -> None:
    from slipway.trainer.data import inputs

    seen: list[set[bytes]] = []
    for rank, examples in enumerate((300, 149, 151)):
        stream = inputs.training(share_of(tiny, rank, 3), batch=4, steps_per_epoch=50, seed=1, budget=0)
        batches = take(stream.batches(0), 2 * 50)  # endless: two epochs are there for each
        assert [len(batch) for batch in batches] == [4] * 100
        whole = {name for batch in take(stream.batches(0), 12 * 50) for name in batch}
        assert len(whole) == examples
        seen.append(whole)
    assert len(seen[0] | seen[1] | seen[2]) == 600


@pytest.mark.parametrize(
    "batch", [pytest.param(64, marks=pytest.mark.long), 65, pytest.param(100, marks=pytest.mark.long), 300]
)
def test_a_batch_larger_than_what_is_decoded_together_has_the_same_examples(tiny: Path, batch: int) -> None:
    """The group size affects only the speed, not the order of the streamed records."""
    from slipway.trainer.data import inputs

    def examples(batch: int, steps: int, step: int = 0) -> list[bytes]:
        stream = inputs.training(share_of(tiny), batch=batch, steps_per_epoch=600 // batch, seed=2, budget=0)
        return [name for names in take(stream.batches(step), steps) for name in names]

    steps = 600 // batch
    assert examples(batch, steps) == examples(1, steps * batch)
    assert examples(batch, 3, step=steps - 1) == examples(batch, steps + 2)[-3 * batch :]
    evaluation = inputs.evaluation(share_of(tiny), "train", batch, budget=0)
    assert sum(weights.sum() for _, _, weights in evaluation.batches()) == 600


def test_the_decoded_set_is_given_to_tensorflow_without_a_copy(tiny: Path) -> None:
    from slipway.trainer.data import inputs

    training = inputs.training(share_of(tiny), batch=8, steps_per_epoch=75, seed=0)
    assert isinstance(training, inputs.MemoryTraining)
    images, labels = training.tensors()
    np.testing.assert_array_equal(labels, training.labels)
    np.testing.assert_array_equal(images, training.inputs)
    training.inputs[7] = 123
    assert (images[7].numpy() == 123).all()


def test_a_shuffle_buffer_is_bounded_by_bytes(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slipway.trainer.data import inputs

    assignment = share_of(tiny)
    assert inputs.shuffled_together(assignment) == inputs.SHUFFLE_EXAMPLES
    written = sum(shard.bytes for shard in assignment.shards("train"))
    monkeypatch.setattr(inputs, "SHUFFLE_BYTES", written // 6)
    assert 95 <= inputs.shuffled_together(assignment) <= 100
    monkeypatch.setattr(inputs, "SHUFFLE_BYTES", 1)
    assert inputs.shuffled_together(assignment) == 1


@pytest.mark.parametrize("budget", [0, 10**9])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_evaluation_counts_every_example_once_on_equally_many_batches(tiny: Path, workers: int, budget: int) -> None:
    from slipway.trainer.data import inputs

    images: list[bytes] = []
    steps = set()
    for rank in range(workers):
        assignment = share_of(tiny, rank, workers)
        evaluation = inputs.evaluation(assignment, "validation", batch=16, budget=budget)
        batches = list(evaluation.batches())
        assert len(batches) == evaluation.steps
        steps.add(evaluation.steps)
        for pixels, labels, weights in batches:
            assert pixels.shape == (16, 8, 8, 1)
            assert (labels.shape, weights.shape) == ((16,), (16,))
            images += [name for name, weight in zip(names(pixels), weights, strict=True) if weight]
    assert len(steps) == 1
    assert len(images) == 50
    assert len(set(images)) == 50


def test_images_of_another_size_are_resized(data_sets: Any, tmp_path: Path) -> None:
    from slipway.trainer.data import inputs

    manifest = data_sets.write(tmp_path / "jpeg", train=[12], size=(6, 10), written_size=(30, 50), kind="jpeg")
    training = inputs.training(ShardAssignment(tmp_path / "jpeg", manifest, 0, 1), batch=4, steps_per_epoch=3, seed=0)
    assert isinstance(training, inputs.MemoryTraining)
    assert training.inputs.shape == (12, 6, 10, 1)
    halves = training.inputs[:, :, :4].mean(axis=(1, 2, 3)) - training.inputs[:, :, 6:].mean(axis=(1, 2, 3))
    assert (halves[training.labels == 0] > 50).all()  # bright on the left
    assert (halves[training.labels == 1] < -50).all()


def test_data_read_in_the_background_are_the_same(tiny: Path) -> None:
    from slipway.trainer.data import inputs

    assignment = share_of(tiny)
    training, validation = inputs.start_reading(assignment, 8, 75, 3).result()
    assert isinstance(training, inputs.MemoryTraining)
    alone = inputs.training(assignment, 8, 75, 3)
    assert isinstance(alone, inputs.MemoryTraining)
    assert (training.inputs == alone.inputs).all()
    assert (training.order(70, 10) == alone.order(70, 10)).all()
    assert validation is not None
    assert sum(weights.sum() for _, _, weights in validation.batches()) == assignment.examples("validation")


def test_an_error_while_reading_in_the_background_is_raised(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slipway.trainer.data import inputs

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("Transport endpoint is not connected")

    monkeypatch.setattr(inputs, "Decoding", fail)
    with pytest.raises(OSError, match="endpoint"):
        inputs.start_reading(share_of(tiny), 8, 75, 3).result()


def test_a_damaged_shard_is_named_before_anything_is_trained(data_sets: Any, tmp_path: Path) -> None:
    manifest = data_sets.write(tmp_path / "set", train=[10, 10], validation=[5])
    verify(ShardAssignment(tmp_path / "set", manifest, 1, 2))
    path = tmp_path / "set" / manifest.splits["train"].shards[1].file
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged") as caught:
        verify(ShardAssignment(tmp_path / "set", manifest, 1, 2))
    assert path.name in caught.value.message
    assert caught.value.fix
    verify(ShardAssignment(tmp_path / "set", manifest, 0, 2))  # reads the other one


def test_more_workers_than_shards_are_refused(tiny: Path) -> None:
    with pytest.raises(UserError, match="leave none for worker 4 of 5"):
        verify(share_of(tiny, 4, 5))


@pytest.mark.parametrize("damaged", ["length", "content"])
@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("budget", [0, 2**31], ids=["streamed", "in memory"])
def test_a_bit_that_flips_after_the_shards_were_verified_ends_the_run(
    tiny: Path, tmp_path: Path, budget: int, split: str, damaged: str
) -> None:
    """Some examples decode as well with a flipped bit, such as one of a label, and train other weights."""
    from slipway.trainer import failures
    from slipway.trainer.data import inputs

    assignment = share_of(Path(shutil.copytree(tiny, tmp_path / "copy")))
    verify(assignment)
    shard = Path(assignment.paths(split)[-1])
    content = bytearray(shard.read_bytes())
    # The label is the last feature of each record, before the checksum of 4 bytes.
    content[-5 if damaged == "content" else 0] ^= 1
    shard.write_bytes(content)
    with pytest.raises(Exception) as caught:
        if split == "train":
            read = inputs.training(assignment, 8, 75, seed=0, budget=budget)
            read.order(0, 75) if isinstance(read, inputs.MemoryTraining) else take(read.batches(0), 75)
        else:
            list(inputs.evaluation(assignment, split, 8, budget=budget).batches())
    error = (
        caught.value if isinstance(caught.value, UserError) else failures.of_library(caught.value, assignment.folder)
    )
    assert error is not None
    assert "damaged" in error.message
    assert error.fix is not None
    assert "prepare_data" in error.fix, "the copy is no folder that Slipway wrote: no command deletes it"
    assert str(shard if budget else assignment.folder) in error.message
