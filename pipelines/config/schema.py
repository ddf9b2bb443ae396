"""JSON Schema of configuration files, for editors: completion, descriptions and checks of YAML files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import core_schema

DRAFT = "http://json-schema.org/draft-07/schema#"


class EditorSchema(GenerateJsonSchema):
    """Draft 7, the version that YAML editors support, without titles, null defaults and defaults of whole sections."""

    def tuple_schema(self, schema: core_schema.TupleSchema) -> JsonSchemaValue:
        """Return a list with one schema for its items (draft 7 has no `prefixItems`)."""
        described = super().tuple_schema(schema)
        items = described.pop("prefixItems", None)
        return {**described, "items": items[0]} if items else described

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Return the schema of a setting; an editor that completes a key inserts its default."""
        described = super().default_schema(schema)
        if described.get("default") is None or isinstance(described["default"], dict):
            described.pop("default", None)
        return described

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002
        """Return False: the title would only repeat the key."""
        return False


def schema_of(model: type[BaseModel]) -> JsonSchemaValue:
    """Return the JSON Schema of a settings class."""
    schema = model.model_json_schema(by_alias=True, schema_generator=EditorSchema)
    for section in (schema, *schema.get("$defs", {}).values()):
        section.pop("title", None)  # the name of the class, which editors would show above every description
    return schema


def schema_text(model: type[BaseModel]) -> str:
    """Return the JSON Schema of a settings class as text."""
    return json.dumps({"$schema": DRAFT, **schema_of(model)}, indent=2, ensure_ascii=False) + "\n"
