"""The on-disk list of examples: order, digest, and dealing to shards."""

from __future__ import annotations

import errno
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.components.prepare_data.examples import Group
from slipway.components.prepare_data.listing import entries as entries_module
from slipway.components.prepare_data.listing import parts as listing_parts
from slipway.components.prepare_data.listing.index import Listing
from slipway.components.prepare_data.listing.lists import deal, list_path, read_list
from slipway.components.prepare_data.listing.parts import list_part
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sorting import database
from slipway.components.prepare_data.sources.source import Entry, Ignored


class FakeSource:
    """Parts that are lists of entries."""

    name = reference = "fake"
    task = "classification"
    has_image = False
    item = "example"

    def parts(self) -> list[list[Entry]]:
        raise NotImplementedError

    def reader(self) -> None:
        raise NotImplementedError

    def entries(self, part: list[Entry], ignored: Ignored, scratch: Path) -> Iterator[Entry]:
        yield from part

    def rows(self, part: list[Entry], ignored: Ignored, scratch: Path) -> None:
        pass

    def groups(self, found: Iterable[Group]) -> dict[Group, Group]:
        return {group: group for group in found}


def entries(count: int, labels: str = "abc", split: str | None = None) -> list[Entry]:
    return [
        (b"key %d" % number, labels[number % len(labels)], split, number, 7, 2 * number, b"") for number in range(count)
    ]


def listing(folder: Path, *parts: list[Entry], seed: int = 0) -> Listing:
    folder.mkdir(exist_ok=True)
    source = FakeSource()
    listed = [list_part(source, part, seed, folder / str(n)) for n, part in enumerate(parts)]  # type: ignore[arg-type]
    settings = DataSettings(source="digits", seed=seed)
    return Listing(source, listed, folder / "listing", settings)  # type: ignore[arg-type]


def dealt_keys(
    folder: Path, found: Listing, counts: dict[str, int], shards: dict[str, int]
) -> dict[str, list[list[bytes]]]:
    """Return the keys of each split's shards, with each group divided by `counts` (0: the rest)."""
    divided = {}
    for group, amount in found.groups.items():
        rest = amount.examples - sum(counts.values())
        divided[group] = [(split, count or rest) for split, count in counts.items()]
    lists = folder / "lists"
    lists.mkdir()
    deal(found, divided, shards, sorted({label for _, label in found.groups}), lists)
    return {
        split: [[key for key, _, _, _ in read_list(list_path(lists, split, number))] for number in range(shards[split])]
        for split in shards
    }


def test_the_order_of_the_source_and_its_parts_do_not_matter(tmp_path: Path) -> None:
    one = entries(500)
    other = random.Random(5).sample(one, len(one))
    dealt = [
        dealt_keys(
            tmp_path / str(number),
            listing(tmp_path / str(number), *parts),
            {"test": 20, "train": 0},
            {"test": 2, "train": 5},
        )
        for number, parts in enumerate([[one], [other], [other[:200], other[200:]]])
    ]
    assert dealt[0] == dealt[1] == dealt[2]
    assert listing(tmp_path / "3", one).digest == listing(tmp_path / "4", other).digest


def test_blocks_of_fewer_examples_are_refused_before_a_list_is_written(tmp_path: Path) -> None:
    """The others would be those of the next group's split."""
    with pytest.raises(ValueError, match="fewer examples than the listing"):
        dealt_keys(tmp_path, listing(tmp_path, entries(30)), {"train": 9}, {"train": 1})
    assert not list((tmp_path / "lists").iterdir())


def test_pieces_on_disk_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the order nor what is removed, given one rank, or dropped as a copy."""
    shards = []
    keys = [key for key, *_ in entries(300)]
    for size in (1 << 23, 1 << 10):
        monkeypatch.setattr(listing_parts, "ENTRIES_LISTED", size >> 7)
        monkeypatch.setattr(entries_module, "ROWS_READ", size >> 6)
        monkeypatch.setattr(entries_module, "PIECE_BYTES", size)
        folder = tmp_path / str(size)
        merged = listing(folder, entries(200), entries(300)[200:])
        assert (len(merged.pieces) > 9) == (size == 1 << 10)
        assert sum(merged.remove({*keys[:30]}).values()) == 270
        merged.merge([keys[100:110], [b"another"]])
        merged.merge([[keys[105], keys[200]]])
        assert [count for _, counts in merged.runs() for count in counts.tolist() if count > 1] == [3, 4, 4]
        (folder / "lists").mkdir()
        blocks = {group: [("test", 20), ("train", 70)] for group in merged.groups}
        deal(merged, blocks, {"train": 3, "test": 2}, ["a", "b", "c"], folder / "lists", {*keys[50:60]})
        paths = [
            list_path(folder / "lists", *shard) for shard in [("train", 0), ("train", 1), ("train", 2), ("test", 1)]
        ]
        shards.append([[*read_list(path)] for path in paths])
    assert shards[0] == shards[1]
    assert sum(map(len, shards[0])) in range(210, 250)
    assert not {*keys[:30], *keys[50:60]} & {key for shard in shards[0] for key, *_ in shard}


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4])
def test_the_digest_depends_on_everything_that_is_listed(tmp_path: Path, offset: int) -> None:
    before = entries(20, labels="a")
    changed = list(before[3])
    changed[offset] = [b"other", "b", "train", 999, 8][offset]
    after = [*before[:3], tuple(changed), *before[4:]]
    assert listing(tmp_path / "one", before).digest != listing(tmp_path / "two", after).digest  # type: ignore[arg-type]


def test_the_seed_changes_the_order_and_the_split(tmp_path: Path) -> None:
    dealt = [
        dealt_keys(
            tmp_path / str(seed),
            listing(tmp_path / str(seed), entries(300), seed=seed),
            {"test": 20, "train": 0},
            {"test": 1, "train": 1},
        )
        for seed in (0, 1)
    ]
    assert set(dealt[0]["test"][0]) != set(dealt[1]["test"][0])
    assert dealt[0]["train"] != dealt[1]["train"]


def test_a_shard_is_shuffled(tmp_path: Path) -> None:
    """Neither classes nor keys are sorted, nor is one a rotation of the other."""
    (keys,) = dealt_keys(tmp_path, listing(tmp_path, entries(3000)), {"train": 0}, {"train": 1})["train"]
    numbers = [int(key.split()[1]) for key in keys]
    rising = sum(one < two for one, two in itertools.pairwise(numbers))
    assert 1400 < rising < 1600
    classes = Counter((one % 3, two % 3) for one, two in itertools.pairwise(numbers))
    assert all(250 < classes[pair] < 420 for pair in [(a, b) for a in range(3) for b in range(3)])


def test_what_a_reader_needs_comes_through(tmp_path: Path) -> None:
    found = listing(tmp_path, entries(50))
    dealt_keys(tmp_path, found, {"train": 0}, {"train": 1})
    for key, label, size, offset in read_list(list_path(tmp_path / "lists", "train", 0)):
        number = int(key.split()[1])
        assert (label, size, offset) == (number % 3, number, 2 * number)


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4), shards=st.integers(1, 9), left=st.integers(0, 20))
def test_shards_are_equal_and_nothing_is_lost(tmp_path_factory, sizes: list[int], shards: int, left: int) -> None:
    folder = tmp_path_factory.mktemp("deal")
    given_entries = [
        (b"%d %d" % (label, number), str(label), None, 1, 1, 0, b"")
        for label, size in enumerate(sizes)
        for number in range(size)
    ]
    skipped = frozenset(key for key, *_ in random.Random(0).sample(given_entries, min(left, len(given_entries) - 1)))
    found = listing(folder, given_entries)
    counts = found.remove(skipped)
    divided = {group: [("train", count)] for group, count in counts.items() if count}
    lists = folder / "lists"
    lists.mkdir()
    deal(found, divided, {"train": shards}, [str(label) for label in range(len(sizes))], lists)
    paths = [list_path(lists, "train", number) for number in range(shards)]
    dealt = [list(read_list(path)) if path.exists() else [] for path in paths]
    keys = sorted(key for shard in dealt for key, _, _, _ in shard)
    assert keys == sorted(key for key, *_ in given_entries if key not in skipped)
    lengths = [len(shard) for shard in dealt]
    assert max(lengths) - min(lengths) <= 1
    for label in range(len(sizes)):
        of_class = [sum(found == label for _, found, _, _ in shard) for shard in dealt]
        assert max(of_class) - min(of_class) <= 1


def test_a_full_disk_is_an_error_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full") as caught, database(tmp_path / "rows") as rows:
        rows.execute("PRAGMA max_page_count = 3")
        rows.execute("CREATE TABLE rows (row BLOB)")
        rows.executemany("INSERT INTO rows VALUES (?)", [(bytes(1000),)] * 100)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "rows"))
