"""Tables and queries of BigQuery as inputs of `slipway predict`, `batch` and `drift`, copied to this user's cache.

A table with the column request_payload is the log of an endpoint of Vertex AI: its inputs are the instances that were
sent. https://cloud.google.com/vertex-ai/docs/predictions/online-prediction-logging#request-response-log-table
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.components.prepare_data.bigquery.names import PREFIX
from slipway.components.prepare_data.settings import BigQuerySettings, DataSettings
from slipway.core.errors import UserError
from slipway.core.formatting import binary_size
from slipway.core.paths import in_project
from slipway.pipelines.options import DEFAULT_CONFIGURATION
from slipway.pipelines.runs.copies import cached
from slipway.pipelines.terminal import progress_bar

if TYPE_CHECKING:
    from slipway.components.prepare_data.bigquery.selection import Selection

PAYLOAD, TEXTS = "request_payload", "ARRAY<STRING>"
INSTANCES = "instances"


def settings_of() -> BigQuerySettings:
    """Return the settings of the project's configuration, or else the defaults."""
    from slipway.components.cloud.settings import CloudSettings
    from slipway.pipelines.config.config import load

    file = in_project(Path(DEFAULT_CONFIGURATION))
    if not file.is_file():
        return BigQuerySettings()
    config = load(file)
    data = config.prepared or DataSettings(source="digits")
    section = config.section(CloudSettings)
    return (section.reading(data) if section else data).bigquery


def fetch(uri: str, say: Callable[[str], None]) -> Path:
    """Return the file with the rows of a table or query, read again only if it has changed.

    Raises:
        UserError: It cannot be read, or BigQuery would bill too much.
    """
    from slipway.components.prepare_data.bigquery.selection import select_all, why_refused
    from slipway.components.prepare_data.bigquery.service import warehouse_of
    from slipway.components.prepare_data.bigquery.spool import MAX_STREAMS, write_rows
    from slipway.core.atomic import replace_file

    argument = uri.removeprefix(PREFIX)
    settings = DataSettings(source=uri, bigquery=settings_of())
    warehouse = warehouse_of(argument, settings.bigquery)
    selection = select_all(warehouse, argument, settings)
    is_log = selection.columns.get(PAYLOAD) == TEXTS
    columns = {name: kind for name, kind in selection.columns.items() if not why_refused(kind)}
    selection = replace(selection, columns={PAYLOAD: TEXTS} if is_log else columns)
    if not selection.columns:
        raise UserError(f"{uri} has no columns that can be inputs.", setting="INPUT", value=uri)
    file = _file_of(selection, ".jsonl" if is_log else ".parquet")
    about = file.with_suffix(".json")
    if selection.is_repeatable and file.is_file() and about.is_file() and about.read_text() == selection.identity:
        return file
    session = selection.open_session(warehouse, settings, MAX_STREAMS)
    say(f"reading {binary_size(session.estimated_total_bytes_scanned)} of {uri} as of {selection.time}")
    file.parent.mkdir(parents=True, exist_ok=True)
    about.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".") as folder:
        rows = Path(folder, "rows.parquet")
        with progress_bar() as bar:
            task = bar.add_task(argument, total=None)
            write_rows(
                warehouse, session, rows, argument, lambda done, total: bar.update(task, completed=done, total=total)
            )
        if is_log:
            lines = Path(folder, "lines.jsonl")
            with lines.open("w", encoding="utf-8") as written:
                written.writelines(f"{line}\n" for line in _instances(rows))
            rows = lines
        rows.replace(file)
    replace_file(about, selection.identity.encode())
    return file


def _file_of(selection: Selection, ending: str) -> Path:
    title = str(Path(selection.title).resolve()) if selection.table is None else selection.title
    return cached(f"bigquery/{re.sub(r'[^A-Za-z0-9.-]+', '_', title).strip('._')}{ending}")


def _instances(path: Path) -> Iterator[str]:
    """Yield the instances in the payloads of a log, each as JSON; a raw request has several in one payload."""
    import pyarrow.parquet

    for batch in pyarrow.parquet.ParquetFile(path).iter_batches(columns=[PAYLOAD]):
        for payload in (text for texts in batch.column(0).to_pylist() for text in texts or ()):
            try:
                value = json.loads(payload)
            except ValueError:
                yield " ".join(payload.split())  # whoever reads the line says that it is not JSON
                continue
            is_request = isinstance(value, dict) and isinstance(value.get(INSTANCES), list)
            for instance in value[INSTANCES] if is_request else [value]:
                yield json.dumps(instance, ensure_ascii=False)
