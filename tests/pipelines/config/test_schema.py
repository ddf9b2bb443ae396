"""The JSON Schema of configuration files: what editors accept and refuse, and the files that they read it from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.config.schema import schema_text
from slipway.pipelines.platforms.vertex.schedules.settings import ScheduleSettings

SCHEMAS = {Path("configs"): RunConfig, Path("configs/schedules"): ScheduleSettings}
RUN = json.loads(schema_text(RunConfig))
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def is_a(value: Any, kind: str) -> bool:
    if kind in ("integer", "number"):
        return not isinstance(value, bool) and isinstance(value, int | float if kind == "number" else int)
    return isinstance(value, TYPES[kind])


def problems(value: Any, schema: Any, root: Any) -> list[str]:
    """Return the keywords of JSON Schema draft 7 that `value` breaks; of the keywords that our schemas use."""
    if "$ref" in schema:
        return problems(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    found = []
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    checks = {
        "type": not kinds or any(is_a(value, kind) for kind in kinds),
        "enum": value in schema.get("enum", [value]),
        "const": value == schema.get("const", value),
        "not": "not" not in schema or bool(problems(value, schema["not"], root)),
        "anyOf": "anyOf" not in schema or not all(problems(value, each, root) for each in schema["anyOf"]),
        "oneOf": "oneOf" not in schema or sum(not problems(value, each, root) for each in schema["oneOf"]) == 1,
    }
    if is_a(value, "number"):
        checks["minimum"] = value >= schema.get("minimum", value)
        checks["maximum"] = value <= schema.get("maximum", value)
        checks["exclusiveMinimum"] = value > schema.get("exclusiveMinimum", value - 1)
        checks["exclusiveMaximum"] = value < schema.get("exclusiveMaximum", value + 1)
    if isinstance(value, str):
        checks["pattern"] = re.search(schema.get("pattern", ""), value) is not None
        checks["maxLength"] = len(value) <= schema.get("maxLength", len(value))
    if isinstance(value, list):
        checks["minItems"] = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        found += [problem for each in value for problem in problems(each, schema.get("items", {}), root)]
    if isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        checks["required"] = set(schema.get("required", ())) <= set(value)
        checks["additionalProperties"] = rest is not False or set(value) <= set(known)
        for key, each in value.items():
            found += problems(each, known.get(key, rest if isinstance(rest, dict) else {}), root)
    return found + [keyword for keyword, holds in checks.items() if not holds]


@pytest.mark.parametrize("folder", SCHEMAS, ids=str)
@pytest.mark.extension
def test_files_and_schemas_in_the_repository_agree(folder: Path):
    """To update a schema: `slipway config schema > configs/schema.json`, or `… schema schedule`."""
    schema = (folder / "schema.json").read_text()
    assert schema == schema_text(SCHEMAS[folder])
    files = list(folder.glob("*.yaml"))
    assert files
    for path in files:
        assert path.read_text().partition("\n")[0] == "# yaml-language-server: $schema=schema.json"
        assert problems(yaml.safe_load(path.read_text()), json.loads(schema), json.loads(schema)) == []


MINIMAL: dict[str, Any] = {
    "name": "digits",
    "data": {"source": "digits"},
    "model": {"builder": "nets:build"},
    "train": {"epochs": 2},
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train": {"epochs": 2, "steps": None}},
        {"train": {"module": "my.job"}},
        {"hardware": "L4 x4 * 2+spot+timeout=1d"},
        {"hardware": "tpu-v5e-2x4"},
        {"hardware": "v5p-8"},
        {"hardware": "gpu"},
        {"hardware": "a100x8@a2-ultragpu-8g*2+reservation=any"},
        {"hardware": {"accelerator_type": "NVIDIA_L4", "accelerator_count": 1}},
        {"register": {"model": "numbers"}},
        {"data": {"source": "csv:a.csv", "image_size": [8, 8], "features": {"age": "integer"}}},
        {"train": {"epochs": 2, "class_weights": {"cat": 2.0}, "xla": False}},
    ],
)
def test_what_the_schema_accepts(changes: dict[str, Any]):
    assert problems(MINIMAL | changes, RUN, RUN) == []


@pytest.mark.parametrize(
    ("changes", "keyword"),
    [
        ({"modle": {}}, "additionalProperties"),
        ({"register_": {}}, "additionalProperties"),
        ({"data": {}}, "anyOf"),
        ({"name": "Digits 2"}, "pattern"),
        ({"name": "x" * 41}, "maxLength"),
        ({"hardware": "l4"}, "pattern"),
        ({"hardware": {"machine_tpye": "n1-standard-4"}}, "additionalProperties"),
        ({"train": {"epochs": 2, "batchsize": 3}}, "additionalProperties"),
        ({"train": {"epochs": 2, "batch_size": 0}}, "exclusiveMinimum"),
        ({"train": {"epochs": 2, "batch_size": "many"}}, "type"),
        ({"train": {"epochs": 2, "momentum": 1}}, "exclusiveMaximum"),
        ({"train": {"epochs": 2, "optimizer": "adma"}}, "anyOf"),
        ({"train": {"epochs": 2, "steps": 7}}, "oneOf"),
        ({"train": {"batch_size": 7}}, "oneOf"),
        ({"train": {"epochs": 2, "schedule": {"milestones": [{"epochs": 1, "steps": 2}]}}}, "oneOf"),
        ({"data": {"source": "digits", "image_size": [8]}}, "anyOf"),
        ({"model": {"builder": "nets.py"}}, "anyOf"),
    ],
)
def test_what_the_schema_refuses(changes: dict[str, Any], keyword: str):
    assert keyword in problems(MINIMAL | changes, RUN, RUN)


def test_the_schema_tells_editors_descriptions_and_defaults():
    train = RUN["$defs"]["TrainSettings"]["properties"]
    assert train["batch_size"]["default"] == 64
    assert train["batch_size"]["description"].startswith("Global batch size")
    assert "default" not in train["steps"]
    assert "prefixItems" not in json.dumps(RUN)  # draft 7 has none
