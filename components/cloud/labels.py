"""Labels of Google Cloud's resources."""

from __future__ import annotations

import re
from collections.abc import Mapping

from slipway.core.errors import UserError


def check_labels(labels: Mapping[str, str], setting: str) -> None:
    """Raise UserError if Google Cloud rejects a label."""
    for key, value in labels.items():
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) or not re.fullmatch(r"[a-z0-9_-]{0,63}", value):
            raise UserError(
                f"{key}: {value} cannot be a label.",
                setting=setting,
                value=f"{key}: {value}",
                allowed="up to 63 lower-case letters, digits, dashes and underscores; a key begins with a letter",
            )
