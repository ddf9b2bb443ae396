"""The evaluation's report, shown inline by a notebook."""

from __future__ import annotations

import html
from pathlib import Path

HEIGHT = 640


class Report:
    """The HTML report of an evaluation; `path` is its file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"<Report {self.path}>"

    @property
    def html(self) -> str:
        """The page's HTML."""
        return self.path.read_text(encoding="utf-8")

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own: its styles and scripts cannot touch the notebook."""
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(self.html)}" title="Evaluation report" '
            f'style="width:100%;height:{HEIGHT}px;border:1px solid #8884"></iframe>'
        )
