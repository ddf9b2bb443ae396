"""The base class of all settings."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, JsonValue


class Settings(BaseModel):
    """Base class of all settings: immutable; rejects unknown keys, infinities and NaN.

    Untyped values are declared as `Untyped`, which applies the same rule. A number that is not finite is serialized as
    `Infinity`, which the reader rejects, rather than as null, which would turn the setting off.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="constants")

    def changed(self) -> list[str]:
        """Return the names of the settings whose values are not their defaults."""
        fields = type(self).model_fields
        return [
            name
            for name, field in fields.items()
            if getattr(self, name) != field.get_default(call_default_factory=True)
        ]


def _strict(value: JsonValue) -> JsonValue:
    json.dumps(value, allow_nan=False)  # a JsonValue read from JSON can contain NaN
    return value


Untyped = Annotated[JsonValue, AfterValidator(_strict)]
