"""The page docs/configuration.md, from the settings classes: `python -m tests.docs.configuration`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pydantic.json_schema import JsonSchemaValue

from slipway.components.deploy.settings import EndpointSettings
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.config.schema import schema_of
from slipway.pipelines.platforms.vertex.schedules.settings import ScheduleSettings

PAGE = """\
<!-- Generated from the settings classes: python -m tests.docs.configuration > docs/configuration.md -->
# Configuration reference

A run is configured by one YAML file. This one trains on scikit-learn's digits in a few seconds:

```bash
cat > my.yaml <<'END'
name: my-digits
data:
  source: digits
model:
  builder: slipway.trainer.models.digits:build
train:
  epochs: 5
END
slipway config show -c my.yaml --set train.batch_size=32   # every setting, and where its value comes from
slipway run -c my.yaml --set train.batch_size=32
```

`--set KEY=VALUE` overrides a setting of the file; the value is YAML, and the option can be repeated. `--hardware`
overrides `hardware`. Unknown keys and values outside the limits below are errors, reported before anything starts.

`slipway config schema` prints the JSON Schema of the file, with which editors complete and check settings. The files in
`configs/` refer to it in their first line, for editors that use the
[YAML language server](https://github.com/redhat-developer/yaml-language-server), such as VS Code with its YAML
extension. To use it for a file of your own:

```bash
slipway config schema > schema.json
sed -i '1i # yaml-language-server: $schema=schema.json' my.yaml
```

In the tables, a setting without a default is required, and `null` is the YAML value for "not set".

## Run configuration
"""
SCHEDULE = """
## Schedule

The settings of a file in `configs/schedules/`; see [Schedule runs](vertex.md#schedule-runs).
`slipway config schema schedule` prints its JSON Schema.
"""
ENDPOINT = """
## Endpoint

The settings of a file in `configs/endpoints/`; see
[Deploy a model to an endpoint](vertex.md#deploy-a-model-to-an-endpoint).
`slipway config schema endpoint` prints its JSON Schema.
"""
# Keywords of JSON Schema, in words.
LIMITS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "length ≥ {}",
    "maxLength": "length ≤ {}",
    "minProperties": "entries ≥ {}",
    "pattern": "`{}`",
}
# Longer patterns explain less than the description.
LONGEST_PATTERN = 60
TYPES = {"object": "mapping", "array": "list"}


def page() -> str:
    """Return docs/configuration.md."""
    kinds = ((PAGE, RunConfig), (SCHEDULE, ScheduleSettings), (ENDPOINT, EndpointSettings))
    return "".join(text for heading, settings in kinds for text in (heading, *_tables(schema_of(settings))))


def _tables(schema: JsonSchemaValue) -> Iterator[str]:
    """Yield the table of the settings outside sections, then each section with its heading and table."""
    yield _table(schema, "", schema)
    for name, section in _sections(schema, "", schema):
        yield f"\n### {name}\n\n{section['description']}\n{_table(section, name, schema)}"


def _sections(section: JsonSchemaValue, name: str, schema: JsonSchemaValue) -> Iterator[tuple[str, JsonSchemaValue]]:
    """Yield the dotted name and the schema of each section inside `section`."""
    for key, setting in section["properties"].items():
        inner = _section_of(setting, schema)
        if inner is not None:
            yield f"{name}.{key}".strip("."), inner
            yield from _sections(inner, f"{name}.{key}".strip("."), schema)


def _section_of(setting: JsonSchemaValue, schema: JsonSchemaValue) -> JsonSchemaValue | None:
    """Return the schema of the section that a setting is, or of those in a list or mapping; None for a value."""
    for form in _forms(setting):
        inner = form.get("items") or form.get("additionalProperties")
        inner = inner if isinstance(inner, dict) else form
        target = schema.get("$defs", {}).get(inner.get("$ref", "").rpartition("/")[2], {})
        if "properties" in target:
            return dict(target)
    return None


def _forms(setting: JsonSchemaValue) -> list[JsonSchemaValue]:
    """Return the schemas that a value may match, without that of null."""
    return [form for form in setting.get("anyOf", [setting]) if form.get("type") != "null"]


def _table(section: JsonSchemaValue, name: str, schema: JsonSchemaValue) -> str:
    rows = ["", "| key | type | allowed values | default | meaning |", "|---|---|---|---|---|"]
    for key, setting in section["properties"].items():
        inner = _section_of(setting, schema)
        kinds = [_kind(form) for form in _forms(setting)]
        link = f"[section](#{f'{name}{key}'.replace('.', '')})"
        cells = (
            f"`{key}`",
            " or ".join(dict.fromkeys(kinds)) if inner is None else kinds[0].replace("section", link),
            "; ".join(filter(None, map(_allowed, _forms(setting)))),
            "" if key in section.get("required", ()) else _default(setting, is_section=inner is not None),
            setting.get("description") or (inner or {})["description"],
        )
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), '<br>') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def _kind(form: JsonSchemaValue) -> str:
    """Return a form's type in words."""
    if "$ref" in form:
        return "any" if form["$ref"].endswith("JsonValue") else "section"
    if form.get("type") == "array":
        return f"list of {_kind(form['items'])}s"
    kind = form.get("type", "any")
    inner = form.get("additionalProperties")
    if isinstance(inner, dict):
        return "mapping to section" if _kind(inner) == "section" else "mapping"
    return " or ".join(TYPES.get(each, each) for each in ([kind] if isinstance(kind, str) else kind))


def _allowed(form: JsonSchemaValue) -> str:
    """Return the values that a form allows, in words; "" if its type says all."""
    if "enum" in form or "const" in form:
        return ", ".join(f"`{value}`" for value in form.get("enum", [form.get("const")]))
    if form.get("minItems") == form.get("maxItems") is not None:
        return f"{form['minItems']} values, each {_allowed(form['items'])}"
    values = {word: value if isinstance(value, str) else f"{value:,}" for word, value in form.items() if word in LIMITS}
    return ", ".join(LIMITS[word].format(value) for word, value in values.items() if len(value) <= LONGEST_PATTERN)


def _default(setting: JsonSchemaValue, *, is_section: bool) -> str:
    """Return a setting's default as YAML; "" for a section, whose settings have their own."""
    if "default" in setting:
        return f"`{json.dumps(setting['default'])}`" if setting["default"] != "" else '`""`'
    if {"type": "null"} in setting.get("anyOf", ()):
        return "`null`"
    if is_section:
        return ""
    return "`[]`" if setting.get("type") == "array" else "`{}`"


if __name__ == "__main__":
    print(page(), end="")
