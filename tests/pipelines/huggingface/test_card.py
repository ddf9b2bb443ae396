"""The model card: its metadata in the hub's schema, and what it says of metrics, data, limits and provenance."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway.components.register_model.registry import Version
from slipway.core.manifest import Manifest
from slipway.pipelines.huggingface.card import render
from slipway.pipelines.huggingface.facts import Facts
from tests.fakes.huggingface.hub import card_errors

METADATA = {
    "run_id": "shades-1", "created": "2026-11-30T10:00:00+00:00", "data_fingerprint": "f" * 64,
    "metrics": {"examples": 40.0, "accuracy": 0.9, "macro_f1": 0.89, "expected_calibration_error": 0.2},
    "intervals": {"accuracy": [0.76, 0.97]}, "weights_checksum": "a" * 64, "files_checksum": "b" * 64,
}  # fmt: skip
MODEL = {"task": "classification", "classes": ["dark", "bright"], "image_size": [8, 8], "engine": "jax", "inputs": {}}
EVALUATION = {
    "metric": "accuracy",
    "baseline_metrics": {"accuracy": 0.5},
    "slices": {
        "year: 2020": {"metrics": {"accuracy": 0.95}, "intervals": {}},
        "year: 2021": {"metrics": {"accuracy": 0.6}, "intervals": {"accuracy": [0.4, 0.8]}},
    },
}
DATA = {
    "name": "shades", "fingerprint": "f" * 64, "source": "hf:org/shades/small@main", "revision": "c" * 40,
    "settings": {}, "classes": ["dark", "bright"], "image_size": (8, 8), "channels": 1, "resize": False,
    "encodings": ["png"], "notes": ["The classes dark and Dark are nearly equal."],
    "splits": {name: {"examples": n, "classes": {}, "shards": []} for name, n in (("train", 160), ("test", 40))},
}  # fmt: skip


def facts(tmp_path: Path, **changed: Any) -> Facts:
    values = {
        "version": Version("shades", 2, tmp_path, METADATA), "model": MODEL, "evaluation": EVALUATION,
        "made_with": {"commit": "d" * 40, "packages": {"jax": "0.10.2"}, "files": {"model.py": "0123456789ab"}},
        "data": Manifest.model_validate(DATA), "confusion": [[20, 0], [4, 16]],
    }  # fmt: skip
    return Facts(**{**values, **changed})


def metadata(card: str) -> dict[str, Any]:
    assert not card_errors(card)
    match = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    assert match
    read: dict[str, Any] = yaml.safe_load(match[1])
    return read


def test_the_metadata_have_the_form_of_the_hub(tmp_path: Path) -> None:
    card = metadata(render(facts(tmp_path), "org/shades-model", "mit"))
    assert card["license"] == "mit"
    assert card["datasets"] == ["org/shades"]
    assert card["pipeline_tag"] == "image-classification"
    assert {"slipway", "jax", "classification"} == {*card["tags"]}
    [model] = card["model-index"]
    [result] = model["results"]
    assert model["name"] == "shades-model"
    assert result["dataset"] == {
        "type": "org/shades", "name": "shades", "config": "small", "split": "test", "revision": "c" * 40,
    }  # fmt: skip
    accuracy, f1, _ = result["metrics"]
    assert accuracy == {
        "type": "accuracy", "value": 0.9, "name": "accuracy", "args": {"confidence_interval_95": [0.76, 0.97]},
    }  # fmt: skip
    assert (f1["type"], f1["args"]) == ("f1", {"average": "macro"})


@pytest.mark.parametrize(
    "line",
    [
        "| accuracy | 0.9000 | 0.7600 to 0.9700 | 0.5000 |",
        "Measured on the test split of 40 examples",
        f"- source: `hf:org/shades/small@main`, revision `{'c' * 40}`",
        f"- fingerprint (SHA-256): `{'f' * 64}`",
        "- train: 160 images",
        "- Of the 20 test examples of bright, it recognizes 80.0%.",
        "- year: 2021: its accuracy is 0.6000 (95% confidence interval 0.4000 to 0.8000).",
        "do not use them as frequencies",
        "- Data: The classes dark and Dark are nearly equal.",
        "was not tested on data from other sources",
        "- run: `shades-1`",
        f"- code: commit `{'d' * 40}`",
        "model.py `0123456789ab`",
        "slipway predict model/model image.png",
    ],
)
def test_the_text_says_what_users_should_know(tmp_path: Path, line: str) -> None:
    assert line in render(facts(tmp_path), "org/model", None)


def test_classes_without_an_error_are_no_limit(tmp_path: Path) -> None:
    assert "test examples of dark" not in render(facts(tmp_path), "org/model", None)


def test_a_version_whose_run_and_data_were_deleted_has_what_the_registry_has(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    known = Facts.of(Version("shades", 2, tmp_path, {**METADATA, "run_id": "deleted"}))
    assert (known.evaluation, known.data, known.confusion) == ({}, None, [])
    text = render(known, "org/model", None)
    assert "| accuracy | 0.9000 | 0.7600 to 0.9700 | – |" in text
    assert "- It was not measured on groups of examples (slices)" in text
    assert metadata(text)["model-index"][0]["results"][0]["dataset"] == {
        "name": "shades",
        "type": "shades",
        "split": "test",
    }


def test_another_programs_model_has_a_card(tmp_path: Path) -> None:
    record = {"run_id": "r", "metrics": {"score": 3}, "unchecked": "The gate has no limit."}
    known = facts(
        tmp_path, model={}, version=Version("own", 1, tmp_path, record), evaluation={}, data=None, confusion=[]
    )
    text = render(known, "org/own", None)
    assert "trained by a custom program" in text
    assert "- It was registered unchecked: The gate has no limit." in text
    assert metadata(text)["model-index"][0]["results"][0]["task"]["type"] == "other"


@pytest.mark.parametrize(
    ("model", "tag"),
    [
        ({"task": "regression", "inputs": {"x": {"kind": "number"}}}, "tabular-regression"),
        ({"task": "classification", "inputs": {"x": {"kind": "text"}}}, "text-classification"),
        ({"task": "multilabel", "inputs": {"x": {"kind": "number"}, "y": {"kind": "text"}}}, "tabular-classification"),
    ],
)
def test_the_hubs_name_of_the_task(tmp_path: Path, model: dict[str, Any], tag: str) -> None:
    assert metadata(render(facts(tmp_path, model=model, confusion=[]), "org/model", None))["pipeline_tag"] == tag
