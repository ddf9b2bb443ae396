"""Division of examples among splits and shards."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slipway.components.prepare_data.listing.split import Amount, Fold, blocks, divide, portions, shard_count
from slipway.components.prepare_data.settings import SplitFractions
from slipway.core.errors import UserError

shares = st.dictionaries(st.text(max_size=3), st.floats(0.01, 1), min_size=1, max_size=4)


@given(shares, st.integers(1, 10_000))
def test_portions_are_as_near_as_whole_numbers_come(shares: dict[str, float], count: int) -> None:
    assume(count >= len(shares))
    result = portions(count, shares)
    assert list(result) == list(shares)
    assert sum(result.values()) == count
    assert min(result.values()) >= 1
    whole = sum(shares.values())
    for name, share in shares.items():
        exact = count * share / whole
        # A portion differs from its share by more than one only if another portion would be empty otherwise.
        assert abs(result[name] - exact) < 1 or exact < 1 or any(count * s / whole < 1 for s in shares.values())


def test_a_source_without_splits_is_divided_by_class() -> None:
    divided = divide({(None, "cat"): 100, (None, "dog"): 10}, SplitFractions())
    assert divided == {
        (None, "cat"): {"validation": 10, "test": 10, "train": 80},
        (None, "dog"): {"validation": 1, "test": 1, "train": 8},
    }


def test_validation_is_taken_from_train_by_its_fraction_of_both() -> None:
    groups = {("train", "cat"): 90, ("test", "cat"): 7}
    divided = divide(groups, SplitFractions())
    assert divided == {("train", "cat"): {"validation": 10, "train": 80}, ("test", "cat"): {"test": 7}}


def test_a_sources_own_splits_are_kept() -> None:
    groups = {("train", "cat"): 5, ("validation", "cat"): 4, ("test", "cat"): 3}
    assert divide(groups, SplitFractions()) == {
        ("train", "cat"): {"train": 5},
        ("validation", "cat"): {"validation": 4},
        ("test", "cat"): {"test": 3},
    }


@pytest.mark.parametrize("count", [1, 2])
def test_a_class_with_too_few_images_is_named(count: int) -> None:
    with pytest.raises(UserError) as error:
        divide({(None, "cat"): 50, (None, "lynx"): count}, SplitFractions())
    assert "'lynx'" in error.value.message
    assert "at least 3 images" in str(error.value)


@pytest.mark.parametrize("lacking", ["train", "validation", "test"])
def test_a_class_that_a_split_lacks_is_named(lacking: str) -> None:
    groups = {(split, "cat"): 9 for split in ("train", "validation", "test")}
    groups |= {(split, "lynx"): 9 for split in ("train", "validation", "test") if split != lacking}
    with pytest.raises(UserError, match=f"'lynx' has no image for the split {lacking}"):
        divide(groups, SplitFractions())


@given(st.integers(1, 10**7), st.integers(1, 10**12), st.integers(1, 64))
def test_shards_reach_the_replicas_and_none_is_empty(examples: int, size: int, replicas: int) -> None:
    count = shard_count(Amount(examples, size), replicas, 128)
    assert 1 <= count <= examples
    assert count >= min(replicas, examples)
    assert size / count <= 128e6 or count == examples


def test_shards_have_the_target_size() -> None:
    assert shard_count(Amount(1_000_000, 100 * 128_000_000), 1, 128) == 100
    assert shard_count(Amount(1000, 1_000_000), 1, 128) == 1


def test_a_set_that_would_fill_few_shards_has_several_for_several_cores() -> None:
    assert shard_count(Amount(60_000, 16_000_000), 1, 128) == 16
    assert shard_count(Amount(4000, 86_000_000), 1, 128) == 16
    assert shard_count(Amount(1000, 22_000_000), 1, 128) == 5


@given(st.integers(2, 12), st.integers(12, 400))
def test_each_example_is_in_the_test_split_of_one_fold(folds: int, count: int) -> None:
    tested = []
    for number in range(folds):
        fold = Fold(of=folds, number=number)
        parts = divide({(None, "cat"): count}, SplitFractions(), fold)[None, "cat"]
        order = [split for split, size in blocks(parts, fold) for _ in range(size)]
        assert {split: order.count(split) for split in parts} == parts
        assert abs(parts["validation"] - (count - parts["test"]) / 9) <= 1
        tested += [position for position, split in enumerate(order) if split == "test"]
    assert tested == [*range(count)]


def test_a_source_with_a_test_split_has_no_folds() -> None:
    fold = Fold(of=5, number=1)
    with pytest.raises(UserError, match="cannot be one of several folds") as error:
        divide({("test", "cat"): 9, ("train", "cat"): 90}, SplitFractions(), fold)
    assert error.value.setting == "--folds"
    assert divide({("train", "cat"): 90}, SplitFractions(), fold)["train", "cat"]["test"] == 18
