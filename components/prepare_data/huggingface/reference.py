"""The form of `hf:ORG/NAME[/CONFIG][@REVISION]`, and its row in the table of sources."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from slipway.components.prepare_data.examples import source_error
from slipway.components.prepare_data.sources import SourceKind

PREFIX = "hf:"
FORM = "hf:ORG/NAME[/CONFIG][@REVISION]"
# Names: REPO_ID_REGEX in huggingface_hub/utils/_validators.py. A configuration is any text without a separator.
REFERENCE = re.compile(
    r"(?P<repo>[\w.-]{1,96}/[\w.-]{1,96})(?:/(?P<config>[^/@\s][^/@]*))?(?:@(?P<revision>[\w./+-]+))?"
)
COMMIT = re.compile(r"[0-9a-f]{40}")
DEFAULT_REVISION = "main"
# The branch where the hub keeps every data set that it can read as Parquet files, in CONFIG/SPLIT/.
CONVERTED = "refs/convert/parquet"


@dataclass(frozen=True)
class Reference:
    """A data set on the hub.

    Attributes:
        repo: Its repository, ORG/NAME.
        config: Its configuration (subset); None for the default one.
        revision: A branch, tag or commit; None if none is named.
    """

    repo: str
    config: str | None = None
    revision: str | None = None

    @classmethod
    def of(cls, source: str) -> Reference:
        """Return what `source`, a `data.source`, names.

        Raises:
            UserError: It has another form.
        """
        match = REFERENCE.fullmatch(source.removeprefix(PREFIX))
        if match is None:
            raise source_error(
                source, f"{source!r} is not a valid data set of the Hugging Face Hub.", allowed=FORM,
                fix="--set data.source=hf:ORG/NAME@REVISION",
            )  # fmt: skip
        return cls(**match.groupdict())

    def __str__(self) -> str:
        config, revision = self.config and f"/{self.config}", self.revision and f"@{self.revision}"
        return f"{PREFIX}{self.repo}{config or ''}{revision or ''}"

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which never changes."""
        return self.revision is not None and COMMIT.fullmatch(self.revision) is not None

    def at(self, revision: str) -> Reference:
        """Return the data set at another revision."""
        return replace(self, revision=revision)


_OPENER = "slipway.components.prepare_data.huggingface.source"
SOURCE = SourceKind(
    "hf", FORM, "hf:ORG/NAME@REVISION", f"{_OPENER}:open_hub", pending=f"{_OPENER}:pending", argument="ORG/NAME"
)
