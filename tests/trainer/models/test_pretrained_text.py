"""Encoders of KerasHub: they receive their own positions between [CLS] and [SEP]; presets are tiny and random."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.core.errors import UserError
from slipway.core.manifest import Input

VOCABULARY = ("a", "[PAD]", "[UNK]", "##b", "[SEP]", "c", "[CLS]")
PADDING, UNKNOWN, LAST, FIRST = 1, 2, 4, 6
SIZE = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16, "max_sequence_length": 8}


@pytest.fixture
def pretrained_text(tensorflow: None) -> Any:
    """The module, which imports Keras: not while tests are collected."""
    from slipway.trainer.models import pretrained_text

    return pretrained_text


def text(length: int, vocabulary: tuple[str, ...] = VOCABULARY) -> dict[str, Input]:
    return {"review": Input(kind="text", shape=(length,), vocabulary=vocabulary)}


def write_preset(folder: Path, kind: str = "BertBackbone") -> Any:
    hub = pytest.importorskip("keras_hub")
    saved = getattr(hub.models, kind)(vocabulary_size=len(VOCABULARY), **SIZE)
    saved.set_weights([np.random.default_rng(0).normal(size=each.shape) for each in saved.get_weights()])
    saved.save_to_preset(str(folder))
    return saved


@pytest.mark.parametrize("kind", ["BertBackbone", "DistilBertBackbone"])
def test_an_encoder_receives_its_own_entries(
    pretrained_text: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras

    saved = write_preset(tmp_path / "my preset", kind)
    monkeypatch.chdir(tmp_path)
    made = pretrained_text.build(text(5), 3, preset="my preset")
    # "a", "##b", an unknown word; no text; a text that was cut
    given = np.array([[2, 5, 1, 0, 0], [0, 0, 0, 0, 0], [7, 7, 7, 7, 2]], "int32")
    tokens = np.array(
        [
            [FIRST, 0, 3, UNKNOWN, LAST, PADDING, PADDING],
            [FIRST, LAST, *[PADDING] * 5],
            [FIRST, 5, 5, 5, 5, 0, LAST],
        ],
        "int32",
    )
    features = {
        "token_ids": tokens,
        "padding_mask": (tokens != PADDING).astype("int32"),
        "segment_ids": np.zeros_like(tokens),
    }
    encoded = saved({name: features[name] for name in saved.input})
    encoded = encoded["sequence_output"] if isinstance(encoded, dict) else encoded
    expected = made.get_layer("head")(np.asarray(encoded)[:, 0])
    np.testing.assert_allclose(made({"review": given}), expected, rtol=1e-4, atol=1e-5)
    made.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded({"review": given}), made({"review": given}))


def test_another_text_is_refused(pretrained_text: Any, tmp_path: Path) -> None:
    preset = str(tmp_path / "my preset")
    write_preset(tmp_path / "my preset")
    vocabulary = f"--set 'data.text.vocabulary={preset}/assets/tokenizer/vocabulary.txt'"
    for inputs, setting, fix in (
        (text(5, ("[PAD]", "[UNK]", "a")), "data.text.vocabulary", vocabulary),
        (text(5, tuple("abcdefg")), "data.text.vocabulary", vocabulary),
        (text(7), "data.text.length", "--set data.text.length=6"),
        (text(5) | {"age": Input(kind="number")}, "data.inputs", "--set 'data.inputs=[review]'"),
    ):
        with pytest.raises(UserError) as error:
            pretrained_text.build(inputs, 2, preset=preset)
        assert (error.value.setting, error.value.fix) == (setting, fix)


def test_another_folder_is_refused(pretrained_text: Any, tmp_path: Path) -> None:
    pytest.importorskip("keras_hub")
    with pytest.raises(UserError, match=r"There is no folder bert_tiny_en_uncased with config\.json"):
        pretrained_text.build(text(5), 2, preset="bert_tiny_en_uncased")  # not downloaded
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="KerasHub cannot load"):
        pretrained_text.build(text(5), 2, preset=str(tmp_path))


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    pretrained_text: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    with pytest.raises(UserError, match="keras-hub cannot be imported") as error:
        pretrained_text.build(text(5), 2, preset="x")
    assert error.value.fix == "pip install --no-deps keras-hub regex tokenizers"
