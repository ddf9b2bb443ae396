"""The lines that `slipway predict` and `slipway batch` write: JSON, or CSV with a column per class or label."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from slipway import extensions
from slipway.core.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slipway.pipelines.prediction.prediction import Answers
    from slipway.serving.model import Model, Outputs

# A label of a multilabel model is predicted from this probability on.
PREDICTED = 0.5
# What a formula begins with in a spreadsheet, as OWASP lists it: https://owasp.org/www-community/attacks/CSV_Injection
FORMULA = ("=", "+", "-", "@", "\t", "\r")


ENCODER = json.JSONEncoder(ensure_ascii=False)


class Format(StrEnum):
    """The format of the output."""

    jsonl = "jsonl"
    csv = "csv"


class Destination(Protocol):
    """Where a batch writes its predictions other than to a folder, from which they are copied when all are made."""

    @property
    def folder(self) -> Path:
        """The folder of this machine that has them until then, so that a batch that was stopped is continued."""

    def write(self, folder: Path) -> str:
        """Copy the predictions of a complete batch, and its errors; return what was written.

        Raises:
            UserError: They cannot be written.
        """


def destination(output: str) -> Destination | None:
    """Return where the predictions go if it is no folder.

    Raises:
        UserError: They cannot be written there.
    """
    opens: Callable[[str], Destination] | None = extensions.by_prefix("outputs", output)
    return opens(output) if opens else None


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


def lines(answers: Answers, kind: Format, model: Model, *, errors: bool = True) -> str:
    """Return the lines of a chunk's answers; see `header`."""
    predicted = iter(_json_lines(answers, model) if kind is Format.jsonl else _csv_lines(answers, model, errors=errors))
    if not answers.errors:
        return "".join(predicted)
    texts = []
    for index, key in enumerate(answers.keys):
        if (error := answers.errors.get(index)) is None:
            texts.append(next(predicted))
        elif errors and kind is Format.jsonl:
            texts.append(_encode({"input": key, "error": error}) + "\n")
        elif errors:
            texts.append(_csv([[_cell(key), *("" for _ in _columns(model)), _cell(error)]]))
    return "".join(texts)


def header(kind: Format, model: Model, *, errors: bool = True) -> str:
    """Return what the file begins with; the model's names are known after the first prediction.

    Args:
        kind: The file's format.
        model: The model, after a prediction.
        errors: Whether the file also has the inputs with an error.
    """
    if kind is not Format.csv:
        return ""
    return _csv([["input", *map(_cell, _columns(model)), *(["error"] if errors else [])]])


def _columns(model: Model) -> list[str]:
    if model.task in ("classification", "multilabel"):
        return ["label" if model.task == "classification" else "labels", *model.names]
    return ["prediction"]


def _predicted_keys(answers: Answers) -> list[str]:
    if not answers.errors:
        return answers.keys
    return [key for index, key in enumerate(answers.keys) if index not in answers.errors]


def _json_lines(answers: Answers, model: Model) -> list[str]:
    """Return the line of each example with a prediction."""
    if not answers.outputs:
        return []
    # Within a text, JSON has a backslash before a quotation mark.
    keys = _encode(_predicted_keys(answers))[2:-2].split('", "')
    predictions = _json_predictions(answers.outputs, model)
    return [
        f'{{"input": "{key}", "prediction": {prediction}}}\n' for key, prediction in zip(keys, predictions, strict=True)
    ]


def _json_predictions(outputs: Outputs, model: Model) -> list[str]:
    """Return the predictions as JSON: those of `instances.in_words`, all of a chunk at once."""
    from slipway.serving import instances

    names = _encode(model.names)
    if not instances.additional_outputs(model, outputs):
        match model.task:
            case "classification" if model.names:
                starts = [f'{{"label": {_encode(name)}, "classes": {names}, "probabilities": [' for name in model.names]
                best = model.best(outputs["probabilities"]).tolist()
                rows = _json_rows(outputs["probabilities"])
                return [f"{starts[top]}{row}]}}" for top, row in zip(best, rows, strict=True)]
            case "multilabel" if model.names:
                rows = _json_rows(outputs["probabilities"])
                return [f'{{"labels": {names}, "probabilities": [{row}]}}' for row in rows]
            case "regression":
                return [f'{{"prediction": {value!r}}}' for value in outputs["prediction"].reshape(-1).tolist()]
    return [_encode(prediction) for prediction in instances.in_words(model, outputs)]


def _json_rows(matrix: NDArray[Any]) -> list[str]:
    """Return the numbers of each row as JSON, without brackets."""
    return _encode(matrix.tolist())[2:-2].split("], [")


def _csv_lines(answers: Answers, model: Model, *, errors: bool) -> list[str]:
    """Return the line of each example with a prediction."""
    if not answers.outputs:
        return []
    keys = map(_cell, _predicted_keys(answers))
    rows = zip(keys, *_csv_columns(answers.outputs, model), strict=True)
    if not answers.errors:
        return [_csv((*row, "") for row in rows) if errors else _csv(rows)]
    return [_csv([(*row, "") if errors else row]) for row in rows]


def _csv_columns(outputs: Outputs, model: Model) -> list[Sequence[Any]]:
    """Return the columns of the predictions."""
    from slipway.serving import instances

    match model.task:
        case "classification":
            names = [_cell(name) for name in model.names]
            best = model.best(outputs["probabilities"]).tolist()
            return [[names[top] for top in best], *outputs["probabilities"].T.tolist()]
        case "multilabel":
            rows = (outputs["probabilities"] >= PREDICTED).tolist()
            labels = ["|".join(itertools.compress(model.names, row)) for row in rows]
            return [[*map(_cell, labels)], *outputs["probabilities"].T.tolist()]
        case "regression":
            return [outputs["prediction"].reshape(-1).tolist()]
    return [[_cell(_encode(prediction)) for prediction in instances.in_words(model, outputs)]]


def _encode(value: Any) -> str:
    """Return a value as JSON.

    Raises:
        UserError: It is not JSON; only a custom model's prediction may be such a value.
    """
    try:
        return ENCODER.encode(value)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"A prediction is not JSON: {error}.",
            setting="serve.module",
            fix="convert it in the function, such as NumPy's values with .tolist()",
        ) from None


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
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
