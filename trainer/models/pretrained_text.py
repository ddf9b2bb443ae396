"""Encoders of KerasHub with a new head, for texts: BERT and others with a WordPiece vocabulary.

Others are DistilBERT and ELECTRA, for example.
A preset is a folder with config.json, weights, and assets/tokenizer/vocabulary.txt, which `data.text.vocabulary` names.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import keras
from keras import ops

from slipway.core.errors import UserError
from slipway.core.manifest import Input
from slipway.core.paths import local_path

CONFIG, VOCABULARY = "config.json", "assets/tokenizer/vocabulary.txt"
# Entries of the vocabulary: after a text, for unknown words, and around a text.
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
INSTALL = "pip install --no-deps keras-hub regex tokenizers"  # no other dependency is needed for encoders


def build(inputs: Mapping[str, Input], outputs: int, *, preset: str, dropout: float = 0.1) -> keras.Model:
    """Return the encoder of a preset, with its weights, and a dense layer `head` on its output for [CLS].

    Args:
        inputs: The only input, a text whose vocabulary is the preset's.
        outputs: Number of outputs; 1 for regression.
        preset: The preset's folder, in the working directory or on Python's path.
        dropout: Fraction of the encoder's output that training drops.

    Raises:
        UserError: keras-hub is not installed, the folder has no such encoder, or the input is not a text for it.
    """
    encoder = _encoder(preset)
    name, text = _only_text(inputs, encoder, preset)
    padding, unknown, first, last = (text.vocabulary.index(entry) for entry in SPECIAL)
    ids = keras.Input(text.shape, dtype=text.dtype, name=None if "/" in name else name)
    entries = ops.pad(ops.where(ids > 1, ids - text.first_position, unknown), ((0, 0), (1, 1)))
    position = ops.cumsum(ops.ones_like(entries), axis=1) - 1
    end = ops.sum(ops.cast(ids > 0, "int32"), axis=1, keepdims=True) + 1
    tokens = ops.where(position < end, ops.where(position > 0, entries, first), padding)
    tokens = ops.where(ops.equal(position, end), last, tokens)
    known = {
        "token_ids": tokens,
        "padding_mask": ops.cast(position <= end, "int32"),
        "segment_ids": ops.zeros_like(tokens),
    }
    encoded = encoder({key: known[key] for key in encoder.input})
    sequence = encoded["sequence_output"] if isinstance(encoded, dict) else encoded
    head = keras.layers.Dense(outputs, name="head")
    return keras.Model({name: ids}, head(keras.layers.Dropout(dropout)(sequence[:, 0])))


def _encoder(preset: str) -> keras.Model:
    try:
        import keras_hub
    except ImportError as error:
        raise UserError(f"keras-hub cannot be imported: {error}", setting="model.builder", fix=INSTALL) from None
    folders = [folder / local_path(preset) for folder in (Path.cwd(), *map(Path, sys.path))]
    folder = next((candidate for candidate in folders if (candidate / CONFIG).is_file()), None)
    if folder is None:  # KerasHub would take it for the name of a preset to download
        raise _wrong(preset, f"There is no folder {preset} with {CONFIG}.", "copy the preset into the project's folder")
    try:
        encoder = keras_hub.models.Backbone.from_preset(str(folder))
    except Exception as error:  # KerasHub has no class for it
        raise _wrong(preset, f"KerasHub cannot load {preset}: {error}", "download the preset again") from None
    named = set(encoder.input) if isinstance(encoder.input, dict) else set()
    if not {"token_ids", "padding_mask"} <= named <= {"token_ids", "padding_mask", "segment_ids"}:
        raise _wrong(preset, f"{preset} is no encoder of texts, but {type(encoder).__name__}.", "name another preset")
    return encoder


def _only_text(inputs: Mapping[str, Input], encoder: keras.Model, preset: str) -> tuple[str, Input]:
    """Return the name and the description of the only input, which must have the encoder's vocabulary."""
    texts = [name for name, feature in inputs.items() if feature.kind == "text"]
    if len(inputs) > 1 or not texts:
        raise UserError(
            f"The network accepts one text; the inputs are {', '.join(inputs)}.",
            setting="data.inputs",
            value=list(inputs),
            fix=f"--set 'data.inputs=[{texts[0] if texts else 'TEXT'}]'",
        )
    name, text = texts[0], inputs[texts[0]]
    size = encoder.vocabulary_size
    if len(text.vocabulary) != size or not set(SPECIAL) <= set(text.vocabulary):
        raise UserError(
            f"The vocabulary of {name} has {len(text.vocabulary):,} entries, and is not that of {preset}, which has "
            f"{size:,}.",
            setting="data.text.vocabulary",
            fix=f"--set {shlex.quote(f'data.text.vocabulary={preset}/{VOCABULARY}')}",
        )
    most = getattr(encoder, "max_sequence_length", None)
    if most is not None and text.shape[0] + 2 > most:
        raise UserError(
            f"{preset} accepts texts of at most {most:,} entries, with [CLS] and [SEP].",
            setting="data.text.length",
            value=text.shape[0],
            fix=f"--set data.text.length={most - 2}",
        )
    return name, text


def _wrong(preset: str, message: str, fix: str) -> UserError:
    allowed = "a folder that KerasHub's save_to_preset wrote, or a copy of a published preset"
    return UserError(message, setting="model.arguments.preset", value=preset, allowed=allowed, fix=fix)
