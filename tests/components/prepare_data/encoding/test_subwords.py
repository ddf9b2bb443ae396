"""Vocabularies of texts: learned by byte-pair encoding, and of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slipway.components.prepare_data.encoding.subwords import learn, read_vocabulary
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources import check_source
from slipway.core.errors import UserError
from slipway.core.words import divided

MakeSettings = Callable[..., DataSettings]
VOCABULARY = ["[PAD]", "[UNK]", "good", "bad", "##ly", "[CLS]", "[SEP]"]


def test_the_most_frequent_pairs_are_entries() -> None:
    counts = {"lower": 5, "low": 7, "newer": 4, "wider": 3, "x": 1}
    # er and ow (12), then low (12), lower and newer
    assert learn(counts, 100)[:1] == ["low"]
    assert {"lower", "newer", "wider", "##er"} <= set(learn(counts, 100))
    assert "x" not in learn(counts, 100)
    small = learn(counts, 13)
    assert len(small) == 13
    assert {"##ow", "##er"} <= set(small)
    assert divided("slower", frozenset(small)) == []
    assert "".join(each.removeprefix("##") for each in divided("wowed", frozenset(small))) == "wowed"


def test_the_vocabulary_of_a_file_is_part_of_the_data_set(tmp_path: Path, make_settings: MakeSettings) -> None:
    rows = [f"{'goodly' if row % 2 else 'bad'} word good,{row % 2}" for row in range(40)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    file = tmp_path / "my vocabulary.txt"
    file.write_text("\n".join(VOCABULARY) + "\n")

    def prepared(path: Path | None) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
        text = {"vocabulary": str(path) if path else None}
        settings = make_settings(f"csv:{tmp_path / 'texts.csv'}", features={"text": "text"}, text=text)
        found = prepare(settings, 1).manifest
        return found.fingerprint, found.inputs["text"].vocabulary, found.inputs["text"].shape

    fingerprint, entries, shape = prepared(file)
    assert entries == tuple(VOCABULARY)
    assert shape == (4,)  # three words, of which half the first are good ##ly: 3.5 entries
    moved = file.rename(tmp_path / "moved.txt")
    assert prepared(moved) == (fingerprint, entries, shape)
    moved.write_text("\n".join([*VOCABULARY, "word"]) + "\n")
    others = {fingerprint, prepared(moved)[0], prepared(None)[0]}
    assert len(others) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Line 1 of .* is empty"),
        (b"[UNK]\na\n\nb\n", "Line 3 of .* is empty"),
        (b"[UNK]\na\nb\na\n", "Lines 2 and 4 of .* have the same entry: a"),
        (b"[PAD]\na\n", r"has no entry \[UNK\]"),
        (b"[UNK]\n[CLS]\n##aB\n", "in lower case: ##aB"),
        (b"[UNK]\n\xff\n", "cannot be read: .*utf-8"),
        (None, "There is no file"),
    ],
)
def test_another_vocabulary_is_refused_at_once(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        read_vocabulary(str(path))
    assert (error.value.setting, error.value.value) == ("data.text.vocabulary", str(path))
    assert len(str(error.value).splitlines()) <= 5
    assert error.value.fix


def test_a_vocabulary_is_checked_before_a_run(tmp_path: Path, make_settings: MakeSettings) -> None:
    (tmp_path / "t.csv").write_text("text,label\na b c d,1\n")
    with pytest.raises(UserError, match="There is no file"):
        check_source(make_settings(f"csv:{tmp_path / 't.csv'}", text={"vocabulary": "vocab.txt"}))
