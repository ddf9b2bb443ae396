"""The kinds and the numbers of a table's columns, from the texts of their cells."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.sources.images import is_image
from slipway.components.prepare_data.sources.values import is_number
from slipway.core.tables.batch import Batch, Mistake
from slipway.core.values import MISSING, is_missing

# A column with more different texts than this is a key or free text rather than a category, unless it is declared.
MAX_INFERRED = 1000


def infer_kinds(batches: Iterable[Batch], columns: Mapping[str, int], mistake: Mistake) -> dict[str, Kind]:
    """Infer the kinds of columns from all rows: number if every cell is a number or missing, else category.

    Args:
        batches: The rows.
        columns: The position of each column.
        mistake: Returns the error with a message, and `fix`.

    Raises:
        UserError: A column is neither.
    """
    numeric = dict.fromkeys(columns, True)
    some = dict.fromkeys(columns, False)
    texts: dict[str, dict[str, None]] = {name: {} for name in columns}
    for batch in batches:
        for name, index in columns.items():
            column = batch.columns[index]
            if numeric[name]:
                numeric[name], any_number = _are_numbers(column)
                some[name] |= any_number
            if len(texts[name]) <= MAX_INFERRED:
                texts[name].update(dict.fromkeys(column.unique().to_pylist()))
                texts[name] = dict.fromkeys(itertools.islice(texts[name], MAX_INFERRED + 1))
    found = {}
    for name in columns:
        if numeric[name] and some[name]:
            found[name] = Kind("number")
            continue
        given = texts[name].keys() - {""}
        if given and all(is_image(text.encode()) for text in given):
            raise mistake(
                f"The column {name} has paths of images.",
                fix=f"--set data.image={name}, or name the inputs without it: --set 'data.inputs=[COLUMN, …]'",
            )
        if len(texts[name]) > MAX_INFERRED:
            raise mistake(
                f"The column {name} has more than {MAX_INFERRED:,} different texts; a category has fewer.",
                fix=f"name the inputs without it, --set 'data.inputs=[COLUMN, …]', or "
                f"--set data.features.{name}=category",
            )
        found[name] = Kind("category")
    return found


def _are_numbers(column: pyarrow.StringArray) -> tuple[bool, bool]:
    """Return whether every cell is a number or missing, and whether any is a number."""
    numbers = _plain_numbers(column, gaps=True)
    if numbers is not None and np.isfinite(numbers).any() and not np.isinf(numbers).any():
        return True, True
    given = [cell for cell in column.unique().to_pylist() if not is_missing(cell)]
    return all(map(is_number, given)), bool(given)


def has_underscores(column: pyarrow.StringArray) -> bool:
    """Whether a cell has an underscore, which `float` accepts between digits."""
    return bool(pyarrow.compute.any(pyarrow.compute.match_substring(column, "_")).as_py())


def numbers_in(column: pyarrow.StringArray, *, gaps: bool = False) -> NDArray[np.float64] | None:
    """Return the cells as `float` reads them, or None if one is no number; with `gaps`, missing ones as NaN."""
    found = _plain_numbers(column, gaps=gaps)
    if found is None or np.isinf(found).any():  # Python accepts more, such as +1, 1_000 and ٣
        cells = column.to_pylist()
        try:
            return np.array([np.nan if gaps and is_missing(cell) else float(cell) for cell in cells], np.float64)
        except ValueError:
            return None
    return found


def _plain_numbers(column: pyarrow.StringArray, *, gaps: bool) -> NDArray[np.float64] | None:
    """Return the cells as Arrow reads them, or None if it cannot read one; it accepts less than `float`."""
    try:
        return pyarrow.compute.cast(column, pyarrow.float64()).to_numpy()
    except pyarrow.ArrowInvalid:
        if not gaps:
            return None
    missing = pyarrow.compute.is_in(pyarrow.compute.utf8_lower(column), pyarrow.array(sorted(MISSING)))
    try:
        given = pyarrow.compute.if_else(missing, None, column)
        return pyarrow.compute.cast(given, pyarrow.float64()).to_numpy(zero_copy_only=False)
    except pyarrow.ArrowInvalid:
        return None
