"""Rows of a table, or lines of JSON, as a model's inputs: a column's values at once, those of doubt one by one."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.json
from numpy.typing import NDArray

from slipway.core.errors import UserError, nearest
from slipway.core.manifest import SignatureName
from slipway.core.tables.batch import regrouped
from slipway.core.tables.cells import plain_cells
from slipway.core.tables.csv_file import CsvFile
from slipway.serving.kinds import KINDS, LARGEST, BadRequest, Field, array_of, checked, of_cell
from slipway.serving.model import INSTANCES, Model

# What `of_cell` reads as a number and Arrow as well, to find the other texts of a column.
NUMBER = r"^-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
# Below, every integer is a float64.
EXACT = 2**53
# A column's values in the model's type, some of no meaning, or as a list; and why there is none, by row.
Values = tuple["NDArray[Any] | list[Any]", dict[int, str]]


def of_body(model: Model, body: bytes) -> dict[SignatureName, NDArray[Any]]:
    """Return the inputs of the rows of a CSV file in a request.

    Raises:
        BadRequest: It is not CSV, has no rows, or a value does not fit the model's inputs.
    """
    try:
        table = CsvFile(io.BytesIO(body), "the body", UserError, keep_faults=True)
        columns = columns_of(table.names, model, table.header)
        batches = list(table.batches())
    except UserError as error:
        near = f"; the closest is {error.nearest}" if error.nearest else ""
        raise BadRequest(error.message.rstrip(".") + near) from None
    if not batches:
        raise BadRequest("The body has no rows")
    (batch,) = regrouped(batches, sum(map(len, batches)))
    inputs, faults = arrays(
        model, {name: batch.columns[at] for name, at in columns.items()}, len(batch), batch.faults, _no_files
    )
    if faults:
        first = min(faults)
        problem = f"{faults[first].problem} (line {batch.lines[first]})"
        raise BadRequest(problem, first, faults[first].field)
    return inputs


def _no_files(_path: str) -> bytes:
    raise ValueError("An image has no path in a request; send JSON, or one image as it is")


def of_lines(
    model: Model, lines: Sequence[bytes], key: str | None
) -> tuple[dict[SignatureName, NDArray[Any]], list[str]] | None:
    """Return the inputs of lines of JSON and, with the field of the key, their keys.

    None if they have to be read one by one: one may not fit, or inputs are neither numbers nor texts.
    """
    fields, spelled = model.inputs, _spelled(model, lines[0])
    types = {spelled[name]: _arrow_type(input_field) for name, input_field in fields.items()}
    types |= {key: pyarrow.string()} if key else {}
    block = b"\n".join(lines)
    if (
        model.is_custom
        or None in types.values()
        or not all(line.strip()[:1] + line.strip()[-1:] == b"{}" for line in lines)
    ):
        return None
    try:
        block.decode()
        table = pyarrow.json.read_json(
            pyarrow.BufferReader(block),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            pyarrow.json.ParseOptions(pyarrow.schema([*types.items()]), unexpected_field_behavior="error"),
        ).combine_chunks()
    except (UnicodeDecodeError, pyarrow.ArrowInvalid):
        return None
    if table.num_rows != len(lines) or any(column.null_count for column in table.columns):
        return None
    values = {}
    for name, field in fields.items():
        column = table[spelled[name]].chunk(0)
        if field.dtype == object:
            values[name] = column.cast(pyarrow.binary()).to_numpy(zero_copy_only=False)
            continue
        numbers = column.to_numpy()
        limits = np.finfo(np.float32) if field.dtype.kind == "f" else np.iinfo(field.dtype)
        if not ((numbers >= limits.min) & (numbers <= limits.max)).all():
            return None
        values[name] = numbers.astype(field.dtype)
    return values, table[key].to_pylist() if key else []


def _spelled(model: Model, line: bytes) -> dict[SignatureName, str]:
    """Return the inputs' names as a line of JSON has them: the source's or the signature's."""
    try:
        names = json.loads(line)
    except (ValueError, RecursionError):  # reading the lines reports it
        names = {}
    if not isinstance(names, dict):  # of a custom model
        names = {}
    return {name: source if source in names else name for source, name in model.sources.items()}


def _arrow_type(field: Field) -> pyarrow.DataType | None:
    """Return the type of an input's values in JSON if Arrow reads them as `checked` does."""
    if field.shape or field.kind not in ("number", "integer", "category", "text"):
        return None
    return (
        pyarrow.string() if field.dtype == object else pyarrow.float64() if field.dtype.kind == "f" else pyarrow.int64()
    )


def columns_of(
    names: Sequence[str],
    model: Model,
    header: str,
    setting: str | None = None,
    value: str | None = None,
    key: str | None = None,
) -> dict[SignatureName, int]:
    """Return the position of the column of each of a model's inputs.

    Args:
        names: The columns of a table.
        model: The model; of one with a custom function, every column is an input.
        header: Where the names are, for the error.
        setting: The setting of the error.
        value: Its value.
        key: The column with the rows' keys, which a model with a custom function does not receive.

    Raises:
        UserError: A column is missing, or there are two.
    """
    positions = {SignatureName(name): position for position, name in enumerate(names)}
    if model.is_custom:
        return {name: position for name, position in positions.items() if name != key}
    by_input = {}
    for source, name in model.sources.items():
        kind = model.inputs[name].kind
        aliases = KINDS[kind].columns if source == kind else ()
        column = next(
            (SignatureName(candidate) for candidate in (source, name, *aliases) if candidate in positions), None
        )
        if column is None:
            near = nearest(source, names)
            raise UserError(
                f"{header} has no column {' or '.join(dict.fromkeys((source, *aliases)))}, an input of the model.",
                setting=setting,
                value=value,
                allowed=f"columns {', '.join(model.sources)}",
                nearest=near,
                fix=f"rename the column {near} to {source}" if near else None,
            )
        if list(names).count(column) > 1:
            raise UserError(
                f"{header} has two columns {column}.", setting=setting, value=value, fix="rename or remove one of them"
            )
        by_input[name] = positions[column]
    return by_input


def arrays(
    model: Model,
    columns: Mapping[SignatureName, pyarrow.StringArray],
    rows: int,
    faults: Mapping[int, str],
    read: Callable[[str], bytes],
) -> tuple[dict[SignatureName, NDArray[Any]], dict[int, BadRequest]]:
    """Return the inputs of the rows that have no fault, and the faults of the others.

    Args:
        model: The model.
        columns: The cells by input; of a model with a custom function, by column.
        rows: Their number.
        faults: The faults of rows that could not be read.
        read: Returns the content of a file whose path is a cell; its OSError is the fault of the row.

    Raises:
        BadRequest: Values of one input have different shapes.
    """
    row_faults = {index: BadRequest(fault, index) for index, fault in faults.items()}
    if model.is_custom:
        texts = {name: column.to_pylist() for name, column in columns.items()}
        values = [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
        return {INSTANCES: array_of(model.inputs[INSTANCES], _kept(values, row_faults))}, row_faults
    converted: dict[SignatureName, NDArray[Any] | list[Any]] = {}
    for name, field in model.inputs.items():
        converted[name], problems = _values(field, columns[name], read)
        for index, problem in problems.items():
            row_faults.setdefault(index, BadRequest(problem, index, model.source(name)))
    result = {}
    for name, field in model.inputs.items():
        try:
            result[name] = array_of(field, _kept(converted[name], row_faults))
        except ValueError:
            raise BadRequest("The instances have values of different shapes", rows - 1, model.source(name)) from None
    return result, row_faults


def _kept(values: Any, faults: Mapping[int, object]) -> Any:
    if not faults:
        return values
    if isinstance(values, list):
        return [value for index, value in enumerate(values) if index not in faults]
    return np.delete(values, list(faults), axis=0)


def _values(field: Field, column: pyarrow.StringArray, read: Callable[[str], bytes]) -> Values:
    if field.is_image:
        return _one_by_one(field, column, read)
    column = plain_cells(column, field.written, field.missing)
    if field.dtype == object and not field.shape and field.kind != "date":
        return column.cast(pyarrow.binary()).to_numpy(zero_copy_only=False), {}
    if field.dtype.kind in "fiu" and not field.shape:
        return _numbers(field, column)
    if field.dtype.kind in "fiu" and len(field.shape) == 1 and (size := field.shape[0]) is not None:
        parts = pyarrow.compute.split_pattern(pyarrow.compute.replace_substring(column, ";", " "), " ")
        if bool(pyarrow.compute.all(pyarrow.compute.equal(pyarrow.compute.list_value_length(parts), size)).as_py()):
            flat, problems = _numbers(Field(field.kind, field.dtype), parts.flatten())
            return np.reshape(flat, (-1, size)), {index // size: problem for index, problem in problems.items()}
    return _one_by_one(field, column, read)


def _numbers(field: Field, column: pyarrow.StringArray) -> Values:
    """Return numbers; each cell that may be none is read by itself."""
    try:
        numbers = pyarrow.compute.cast(column, pyarrow.float64()).to_numpy()
        doubtful = np.zeros(len(column), bool)
    except pyarrow.ArrowInvalid:
        plain = pyarrow.compute.match_substring_regex(column, NUMBER)
        numbers = pyarrow.compute.cast(pyarrow.compute.if_else(plain, column, "0"), pyarrow.float64()).to_numpy()
        doubtful = ~plain.to_numpy(zero_copy_only=False)
    doubtful |= ~(np.abs(numbers) <= LARGEST)
    if field.dtype.kind in "iu":
        limits = np.iinfo(field.dtype)
        doubtful |= (numbers != np.trunc(numbers)) | (np.abs(numbers) >= EXACT)
        doubtful |= (numbers < limits.min) | (numbers > limits.max)
    with np.errstate(invalid="ignore", over="ignore"):
        values = numbers.astype(field.dtype)
    problems = {}
    for index in np.flatnonzero(doubtful).tolist():
        try:
            values[index] = _value(field, column[index].as_py())
        except ValueError as error:
            problems[index] = str(error)
    return values, problems


def _one_by_one(field: Field, column: pyarrow.StringArray, read: Callable[[str], bytes]) -> Values:
    values: list[Any] = []
    problems = {}
    for index, text in enumerate(column.to_pylist()):
        try:
            values.append(checked(field, read(text), ()) if field.is_image else _value(field, text))
        except OSError as error:
            problems[index] = f"The file cannot be read: {error.strerror}"
        except ValueError as error:
            problems[index] = str(error)
        if index in problems:
            values.append(None)
    return values, problems


def _value(field: Field, text: str) -> Any:
    """Return the value of a cell.

    Raises:
        ValueError: It does not fit; the text says why.
    """
    try:
        value = of_cell(field, text)
    except ValueError:
        raise ValueError(f"{text!r:.80} is not a number") from None
    return checked(field, value, field.shape)
