"""The lines that `slipway predict` and `slipway batch` write: JSON, or CSV with a column per class or label."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from slipway.core.errors import UserError

if TYPE_CHECKING:
    from slipway.pipelines.prediction.prediction import Answer
    from slipway.serving.model import Model

# A label of a multilabel model is predicted from this probability on.
PREDICTED = 0.5
# What a formula begins with in a spreadsheet, as OWASP lists it: https://owasp.org/www-community/attacks/CSV_Injection
FORMULA = ("=", "+", "-", "@", "\t", "\r")


class Format(StrEnum):
    """The format of the output."""

    jsonl = "jsonl"
    csv = "csv"


@contextlib.contextmanager
def opened(path: Path | None) -> Iterator[IO[str]]:
    """Return a context with the file to write, which appears only once it is complete; stdout without a path.

    A device, a FIFO or a symbolic link is written through as the predictions are made, and never replaced.
    """
    if path is None:
        yield sys.stdout
        return
    if path.is_symlink() or (path.exists() and not path.is_file()):
        with _writer(path) as file:
            yield file
        return
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _writer(unfinished) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            unfinished.unlink()
        raise


def _writer(path: Path) -> IO[str]:
    # A file name may not be UTF-8; its bytes are written as \udcXX, which JSON reads.
    return path.open("w", encoding="utf-8", errors="backslashreplace", newline="")


def lines(answers: list[Answer], kind: Format, model: Model, *, errors: bool = True) -> str:
    """Return the lines of a chunk's answers; see `header`."""
    if kind is Format.jsonl:
        found = [{"prediction": each.prediction} if each.error is None else {"error": each.error} for each in answers]
        return "".join(_json({"input": each.key, **one}) + "\n" for each, one in zip(answers, found, strict=True))
    return _csv([[*_row(answer, model), *([answer.error or ""] if errors else [])] for answer in answers])


def header(kind: Format, model: Model, *, errors: bool = True) -> str:
    """Return what the file begins with; the model's names are known after the first prediction.

    Args:
        kind: The file's format.
        model: The model, after a prediction.
        errors: Whether the file also has the inputs with an error.
    """
    return _csv([["input", *_columns(model), *(["error"] if errors else [])]]) if kind is Format.csv else ""


def _columns(model: Model) -> list[str]:
    if model.task in ("classification", "multilabel"):
        return ["label" if model.task == "classification" else "labels", *model.names]
    return ["prediction"]


def _row(answer: Answer, model: Model) -> list[Any]:
    if answer.error is not None:
        return [answer.key, *("" for _ in _columns(model))]
    found = answer.prediction
    match model.task:
        case "classification":
            values = [found["label"], *found["probabilities"]]
        case "multilabel":
            pairs = zip(model.names, found["probabilities"], strict=True)
            values = ["|".join(name for name, value in pairs if value >= PREDICTED), *found["probabilities"]]
        case "regression":
            values = [found["prediction"]]
        case _:
            values = [_json(found)]
    return [answer.key, *values]


def _json(value: Any) -> str:
    """Return a value as JSON.

    Raises:
        UserError: It is not JSON; only a custom model's prediction may be such a value.
    """
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"A prediction is not JSON: {error}.",
            setting="serve.module",
            fix="convert it in the function, such as NumPy's values with .tolist()",
        ) from None


def _csv(rows: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[_cell(value) for value in row] for row in rows])
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return a value as a cell; one that a spreadsheet would execute as a formula is quoted, and stays text."""
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
