"""data.group_by: all examples of a group are in one split."""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import ValidationError

from slipway.components.prepare_data.encoding.records import read_records
from slipway.components.prepare_data.examples import SPLITS, Group
from slipway.components.prepare_data.listing import entries
from slipway.components.prepare_data.listing.groups import Bundles, bundle_in, bundle_reader
from slipway.components.prepare_data.listing.index import Listing
from slipway.components.prepare_data.listing.lists import deal, list_path, read_list
from slipway.components.prepare_data.listing.parts import list_part
from slipway.components.prepare_data.listing.split import all_blocks
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.source import Entry, ListedRows
from slipway.core.errors import UserError
from tests.components.prepare_data.conftest import example_parts

MakeFolder = Callable[..., Path]
MakeSettings = Callable[..., DataSettings]
PATTERN = r"/(p\d+)_"


class FakeSource:
    """Its one part is a list of entries."""

    task = "classification"
    has_image = False
    item = "example"

    def entries(self, part: list[Entry], ignored: object, scratch: Path) -> list[Entry]:
        return part

    def rows(self, part: list[Entry], ignored: object, scratch: Path) -> None:
        pass

    def groups(self, found: list[Group]) -> dict[Group, Group]:
        return {group: group for group in found}


def divided(folder: Path, bundles: list[dict[str, int]], seed: int = 0) -> dict[str, list[str]]:
    """Return the keys of each split, given each bundle's number of examples of each class."""
    entries: list[Entry] = [
        (f"{label}/p{number}_{index}".encode(), label, None, 1, 1, 0, b"")
        for number, counts in enumerate(bundles)
        for label, count in counts.items()
        for index in range(count)
    ]
    settings = DataSettings(source="digits", group_by=PATTERN, seed=seed)
    source: object = FakeSource()
    part = list_part(source, entries, seed, folder / "part", functools.partial(bundle_in, PATTERN))  # type: ignore[arg-type]
    listing = Listing(source, [part], folder / "listing", settings)  # type: ignore[arg-type]
    found = Bundles(listing, settings)
    labels = sorted({label for _, label in listing.groups})
    lists = folder / "lists"
    lists.mkdir()
    deal(listing, all_blocks(found.divided, None), dict.fromkeys(SPLITS, 1), labels, lists, bundled=True)
    dealt = {split: [key.decode() for key, *_ in read_list(list_path(lists, split, 0))] for split in SPLITS}
    for split, keys in dealt.items():
        assert Counter(key[0] for key in keys) == Counter(
            {label: counts[split] for (_, label), counts in found.divided.items() if split in counts}
        )
    return dealt


class FakeTable(FakeSource):
    """The same entries as rows of a table."""

    def rows(self, part: list[Entry], ignored: object, scratch: Path) -> Iterator[ListedRows]:
        for start in range(0, len(part), 7):
            keys, labels, splits, sizes, _, offsets, bundles = zip(*part[start : start + 7], strict=True)
            groups, values = sorted({*zip(splits, labels, strict=True)}), sorted({*bundles})
            numbers = [[groups.index(each) for each in zip(splits, labels, strict=True)], sizes, offsets]
            group, size, offset = np.array(numbers, np.int64)
            digests = np.array([int(key[4:20], 16) for key in keys], np.uint64)
            bundle = np.array([values.index(each) for each in bundles])
            yield ListedRows(digests, groups, group, size, offset, values, bundle, frozenset())


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_a_table_are_divided_as_examples_listed_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(entries, "PIECE_BYTES", 1 << 10)
    rng = random.Random(seed)
    owners = {f"owner {number}".encode(): rng.choice(["train", "train", "test"]) for number in range(60)}
    part: list[Entry] = []
    for number in range(700):
        owner = rng.choice([*owners])
        key = f"row {rng.getrandbits(64):016x}".encode()
        part.append((key, rng.choice("ab"), owners[owner], rng.randrange(9), 0, number, owner))
    settings = DataSettings(source="digits", group_by="column:owner", seed=seed)
    results = []
    for source in (FakeSource(), FakeTable()):
        folder = tmp_path / type(source).__name__
        (folder / "lists").mkdir(parents=True)
        listed = list_part(source, part, seed, folder / "part", bundle_reader(settings))  # type: ignore[arg-type]
        listing = Listing(source, [listed], folder / "listing", settings)  # type: ignore[arg-type]
        removed = listing.remove({key for key, *_ in part[::50]})
        found = Bundles(listing, settings)
        blocks = all_blocks(found.divided, None)
        deal(listing, blocks, dict.fromkeys(SPLITS, 3), ["a", "b"], folder / "lists", bundled=True)
        paths = [list_path(folder / "lists", split, number) for split in SPLITS for number in range(3)]
        shards = [[*read_list(path)] for path in paths]
        results.append((removed, found.divided, shards, listing.shape, listing.summary().amounts))
    assert results[0] == results[1]
    assert all(len(shard) > 9 for shard in results[0][2])


def bundle(key: str) -> str:
    found = re.search(PATTERN, key)
    assert found
    return found[1]


pure = st.builds(lambda label, count: {label: count}, st.sampled_from("abc"), st.integers(1, 9))
mixed = st.dictionaries(st.sampled_from("abc"), st.integers(1, 9), min_size=1)


@given(
    bundles=st.lists(pure | mixed, max_size=60).map(
        lambda some: [*some, *({label: 1} for label in "abc" for _ in range(3))]
    ),
    seed=st.integers(0, 5),
)
def test_no_bundle_is_in_two_splits(tmp_path_factory, bundles: list[dict[str, int]], seed: int) -> None:
    """No example is lost, every class is in every split, and the result is reproducible."""
    try:
        dealt = divided(tmp_path_factory.mktemp("one"), bundles, seed)
    except UserError:  # one bundle may be the last of two classes that are missing in different splits
        assume(all(len(counts) == 1 for counts in bundles))
        raise
    again = divided(tmp_path_factory.mktemp("two"), bundles, seed)
    assert dealt == again
    names = {split: {bundle(key) for key in keys} for split, keys in dealt.items()}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not names[one] & names[other]
    assert sorted(itertools.chain(*dealt.values())) == sorted(
        f"{label}/p{number}_{index}"
        for number, counts in enumerate(bundles)
        for label, count in counts.items()
        for index in range(count)
    )


@pytest.mark.slow
@given(
    bundles=st.lists(st.dictionaries(st.sampled_from("ab"), st.integers(1, 5), min_size=1), min_size=150, max_size=200)
)
@hypothesis_settings(max_examples=20)
def test_fractions_are_met_as_well_as_bundles_allow(tmp_path_factory, bundles: list[dict[str, int]]) -> None:
    bundles += [{label: 1} for label in "ab" for _ in range(3)]
    dealt = divided(tmp_path_factory.mktemp("share"), bundles)
    for label in "ab":
        total = sum(counts.get(label, 0) for counts in bundles)
        for split, share in (("train", 0.8), ("validation", 0.1), ("test", 0.1)):
            found = sum(key.startswith(label) for key in dealt[split])
            assert abs(found - share * total) <= 10 + 0.02 * total  # two bundles


def keys(prepared: Prepared) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for split, about in prepared.manifest.splits.items():
        for shard in about.shards:
            with (prepared.folder / shard.file).open("rb") as file:
                found[split] += [example_parts(message)[1].decode() for message in read_records(file)]
    return found


def patients(make_folder: MakeFolder, folders: dict[str, range]) -> Path:
    """Four images of each patient in each folder."""
    root = make_folder({folder: 4 * len(numbers) for folder, numbers in folders.items()})
    for folder, numbers in folders.items():
        names = [f"p{number}_{index}.png" for number in numbers for index in range(4)]
        for path, name in zip(sorted((root / folder).iterdir()), names, strict=True):
            path.rename(path.with_name(name))
    return root


@pytest.mark.slow
def test_a_set_has_each_group_in_one_split(make_folder: MakeFolder, make_settings: MakeSettings) -> None:
    root = patients(make_folder, {"a": range(40), "b": range(30, 60)})
    (root / "a" / "p7_2.png").write_bytes(b"")  # skipped; all shards are written again
    (root / "b" / "p44_1.png").write_bytes((root / "a" / "p3_3.png").read_bytes())
    settings = make_settings(root, group_by=PATTERN, skip_corrupt=0.01, duplicates="drop")
    prepared = prepare(settings, 3)
    found = keys(prepared)
    assert sum(map(len, found.values())) + prepared.manifest.skipped_count == 280
    names = {split: {bundle(key) for key in some} for split, some in found.items()}
    assert sum(map(len, names.values())) == 60
    assert 22 <= len(found["test"]) <= 34
    assert prepare(settings, 3).reused
    assert prepared.manifest.settings["group_by"] == PATTERN
    assert not prepare(settings.model_copy(update={"group_by": r"(p\d)"}), 3).reused


def test_validation_is_taken_from_train_by_groups(make_folder: MakeFolder, make_settings: MakeSettings) -> None:
    root = patients(make_folder, {"train/a": range(30), "test/a": range(30, 35)})
    found = keys(prepare(make_settings(root, group_by=PATTERN), 1))
    assert {bundle(key) for key in found["test"]} == {f"p{number}" for number in range(30, 35)}
    assert not {bundle(key) for key in found["train"]} & {bundle(key) for key in found["validation"]}
    assert len(found["validation"]) in (12, 16)


def test_a_group_in_two_of_the_sources_splits_is_named(make_folder: MakeFolder, make_settings: MakeSettings) -> None:
    root = patients(make_folder, {"train/a": range(30), "test/a": range(29, 35)})
    with pytest.raises(UserError, match="The group 'p29' is in 2 splits of the source") as error:
        prepare(make_settings(root, group_by=PATTERN), 1)
    assert "train/a/p29_0.png (train)" in re.sub("_[1-3]", "_0", error.value.message)
    assert error.value.setting == "data.group_by"


def test_a_class_with_too_few_groups_is_named(make_folder: MakeFolder, make_settings: MakeSettings) -> None:
    root = patients(make_folder, {"a": range(30), "b": range(2)})
    with pytest.raises(UserError, match="'b' has no image for the split") as error:
        prepare(make_settings(root, group_by=PATTERN), 1)
    assert "too few groups" in (error.value.fix or "")


def test_a_key_without_a_group_is_named(make_folder: MakeFolder, make_settings: MakeSettings) -> None:
    with pytest.raises(UserError, match=r"data.group_by does not match a/image \d\.png"):
        prepare(make_settings(make_folder({"a": 9}), group_by=PATTERN), 1)


@pytest.mark.parametrize("pattern", ["(", "abc", "(a)(b)"])
def test_a_pattern_has_one_group(pattern: str) -> None:
    with pytest.raises(ValidationError, match="regular expression"):
        DataSettings(source="digits", group_by=pattern)
