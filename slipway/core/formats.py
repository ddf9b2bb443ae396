"""The format of the files that outlive the version of Slipway that wrote them.

These are a data set's manifest.json, a run's run.json, a checkpoint's checkpoint.json, a model's model.json, and a
registered version's metadata.json. A change after which an earlier version would read one of them wrongly increases
FORMAT; each version reads all formats from 1 on.
"""

from __future__ import annotations

import json
from pathlib import Path

from slipway.core.errors import UserError

FORMAT = 1
KEY = "format"


def check(content: object, path: Path) -> None:
    """Check the format of a file with the JSON value `content`; a file without one has the first.

    Raises:
        UserError: A newer version of Slipway wrote it.
    """
    format_number = content.get(KEY, 1) if isinstance(content, dict) else 1
    if isinstance(format_number, int) and format_number > FORMAT:
        raise UserError(
            f"A newer version of Slipway wrote {path}: it has the format {format_number}.",
            setting=KEY,
            value=format_number,
            allowed=f"at most {FORMAT}",
            fix="pip install --upgrade slipway-ml",
        )


def check_text(text: bytes, path: Path) -> None:
    """Check the format of a file that cannot be read as one of this version; see `check`."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return
    check(content, path)
