"""Names of tables in BigQuery, as data.source has them, and what is close to one."""

from __future__ import annotations

import re
from typing import NamedTuple

from slipway.components.prepare_data.examples import source_error

PREFIX = "bigquery:"
QUERY = ".sql"
ALLOWED = "bigquery:PROJECT.DATASET.TABLE or bigquery:FILE.sql"
# https://cloud.google.com/bigquery/docs/tables#table_naming; a project's id can begin with a domain.
PROJECT = r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]*"
NAME = re.compile(rf"({PROJECT})\.(\w+)\.([\w -]+)")
# As legacy SQL writes a table: https://cloud.google.com/bigquery/docs/reference/legacy-sql#from
LEGACY = re.compile(rf"\[?({PROJECT}):(\w+)\.([\w -]+)\]?")
NO_PROJECT = re.compile(r"(\w+)\.([\w -]+)")
# Partitions, versions and wildcards.
PART_OF_TABLE = re.compile(r"(.+?)(?:[$@].*|\*)")


class TableName(NamedTuple):
    """A table, by its project, dataset and name."""

    project: str
    dataset: str
    table: str

    def __str__(self) -> str:
        return f"{self.project}.{self.dataset}.{self.table}"

    @property
    def path(self) -> str:
        """The name in requests to the Storage Read API."""
        return f"projects/{self.project}/datasets/{self.dataset}/tables/{self.table}"

    @property
    def arguments(self) -> dict[str, str]:
        """The name in requests to BigQuery."""
        return {"projectId": self.project, "datasetId": self.dataset, "tableId": self.table}


def table_name(argument: str) -> TableName:
    """Return the table that data.source names after its prefix.

    Raises:
        UserError: It is written in another way.
    """
    if match := NAME.fullmatch(argument):
        return TableName(*match.groups())
    reference, plain = f"{PREFIX}{argument}", argument.strip("` ").replace("`", "")
    if plain != argument and NAME.fullmatch(plain):
        message, near = f"The name of a table has no backticks in data.source: {argument}.", plain
    elif match := LEGACY.fullmatch(plain):
        message, near = f"{argument} is a table in the form of legacy SQL.", ".".join(match.groups())
    elif (match := PART_OF_TABLE.fullmatch(plain)) and "." in match[1]:
        raise source_error(
            reference, f"{argument} is a part of a table or several tables, which only a query can read.",
            allowed=ALLOWED, fix="write query.sql, such as SELECT * FROM "
            f"`{match[1]}{'*' * plain.endswith('*')}` WHERE …, and --set data.source=bigquery:query.sql",
        )  # fmt: skip
    elif len(plain.split()) > 1 and plain.split()[0].upper() in ("SELECT", "WITH"):
        raise source_error(
            reference, "A query stands in a file.", allowed=ALLOWED,
            fix="write it to a file, such as query.sql, and --set data.source=bigquery:query.sql",
        )  # fmt: skip
    elif NO_PROJECT.fullmatch(plain):
        message, near = f"{argument} does not say which project has the dataset.", f"PROJECT.{plain}"
    else:
        raise source_error(reference, f"{argument} is not the name of a table.", allowed=ALLOWED)
    raise source_error(reference, message, allowed=ALLOWED, nearest=f"{PREFIX}{near}")
