"""Additional features with optional kinds in data.features: columns of a CSV file, or fields that a function yields."""

from __future__ import annotations

from collections.abc import Mapping

from slipway.components.prepare_data.encoding import features
from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.source import OWN
from slipway.core.errors import UserError, nearest


def further_kinds(settings: DataSettings) -> dict[str, Kind]:
    """Return the kinds in data.features, by name.

    Raises:
        UserError: data.features is not a mapping of names to kinds.
    """
    described = settings.features
    if described is None:
        return {}
    if not isinstance(described, Mapping):
        raise UserError(
            f"For the source {settings.source}, data.features must be a mapping from names to kinds.",
            setting="data.features",
            value=described,
            allowed=features.ALLOWED,
            fix="--set 'data.features={age: integer, weight: number}'",
        )
    found: dict[str, Kind] = {}
    for name, text in described.items():
        try:
            found[name] = Kind.parse(str(text))
        except ValueError as error:
            raise UserError(
                f"data.features.{name} is invalid: {error}.",
                setting=f"data.features.{name}",
                value=text,
                allowed=features.ALLOWED,
                nearest=nearest(str(text), features.NAMES),
            ) from None
    return found


def stored_name(name: str) -> str:
    """Return the name under which an additional feature is stored; names that clash with ours get a prefix."""
    return f"source_{name}" if name in OWN else name
