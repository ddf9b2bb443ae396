"""A model to predict with in Python: arrays, images, files, tables and texts in, a DataFrame out."""

from __future__ import annotations

import datetime
import decimal
import functools
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slipway.core.dates import written
from slipway.core.errors import UserError
from slipway.pipelines.api.errors import public
from slipway.pipelines.api.notebook import show_line
from slipway.trainer.engines.installed import verify_extra

if TYPE_CHECKING:
    import pandas

    from slipway.core.manifest import SignatureName
    from slipway.pipelines.prediction.models import Chosen
    from slipway.serving import model as served
    from slipway.serving.kinds import Field

BATCH = 256
REGISTRY = Path("models")


class Model:
    """A trained model; it is loaded at the first prediction."""

    def __init__(self, chosen: Chosen) -> None:
        self._chosen = chosen

    @classmethod
    def find(cls, name: str | None) -> Model:
        """Return the model that `name` names; see `slipway.model`.

        Raises:
            UserError: There is none on this machine.
        """
        from slipway.pipelines.prediction import models

        return cls(models.find(name, REGISTRY, lazy=True))

    def __repr__(self) -> str:
        return f"<Model {self._chosen}>"

    @property
    def name(self) -> str:
        """Its name in the registry, or the run's id."""
        return self._chosen.name

    @property
    def version(self) -> int | None:
        """Its version, if it is registered."""
        return self._chosen.version

    @property
    def folder(self) -> Path:
        """The folder with its files; of a model in a bucket, the one that `download` writes."""
        return self._chosen.folder

    @property
    def uri(self) -> str | None:
        """Where it is, if it is in a bucket: the first prediction, or `download`, copies it to this machine."""
        return self._chosen.uri

    @public
    def download(self) -> Path:
        """Copy a model in a bucket to this machine, unless it is there; return the folder with its files.

        Raises:
            UserError: It may not be read, or the disk is full.
        """
        from slipway.pipelines.prediction import models

        models.fetch(self._chosen, show_line)
        return self.folder

    @functools.cached_property
    def _loaded(self) -> served.Model:
        from slipway.pipelines.prediction import models
        from slipway.trainer.engines import quick_import

        self.download()
        quick_import.use_plain_imports()
        return models.ready(self._chosen)

    @public
    def predict(self, inputs: Any, errors: Literal["raise", "keep"] = "raise") -> pandas.DataFrame:
        """Predict on examples.

        Args:
            inputs: One or several of what the model's inputs are. Images: paths, bytes of image files, PIL images, or
                arrays of uint8, [height, width] or [height, width, channels], and [examples, …] for several. Tables: a
                DataFrame with the source's columns, a row of one, a dict, or a list of dicts; what these have besides
                the inputs is ignored. A single input: a list or an array of its values, such as texts.
            errors: Whether an example that does not fit the model fails the call, or has an empty row with the reason
                in the column `error`.

        Returns:
            A row per example, with the index of a DataFrame: `label` and the probability of each class, `labels` and
            the probability of each label, `prediction`, or for other models the outputs by name.

        Raises:
            UserError: An example does not fit the model, such as a missing value, and `errors` is "raise"; names it.
        """
        from slipway.pipelines.prediction import parts, prediction
        from slipway.pipelines.prediction.unknown import UnknownValues
        from slipway.serving.instances import in_words

        verify_extra("notebook")
        import pandas

        model = self._loaded
        instances = self._instances(inputs)
        is_indexed = isinstance(inputs, pandas.DataFrame | pandas.Series) and len(inputs) == len(instances)
        index = inputs.index if is_indexed and not self._is_row(inputs) else None
        rows: list[dict[str, Any]] = []
        unknown = UnknownValues()
        for start in range(0, len(instances), BATCH):
            examples = [(str(start + n), instance) for n, instance in enumerate(instances[start : start + BATCH])]
            chunk = parts.chunk_of(model, examples)
            for answers in prediction.predict(model, iter([chunk])):
                if answers.errors and errors == "raise":
                    first, error = min(answers.errors.items())
                    raise UserError(
                        f"Example {answers.keys[first]}: {error.rstrip('.')}.",
                        fix='correct it, or predict(…, errors="keep") for a row with the reason in the column error',
                    )
                predicted = iter(in_words(model, answers.outputs))
                rows += [
                    {"error": answers.errors[at]} if at in answers.errors else _row(model, next(predicted))
                    for at in range(len(answers))
                ]
                unknown.add(answers)
        for line in unknown.lines():
            show_line(line)
        names = dict.fromkeys(name for row in rows for name in row)
        columns = sorted(names, key=lambda name: errors == "keep" and name == "error")
        return pandas.DataFrame(rows, index=index, columns=columns)

    def _instances(self, inputs: Any) -> list[Any]:
        """Return examples as the server's instances."""
        import pandas

        from slipway.serving.tables import columns_of

        model = self._loaded
        if model.is_custom:
            return _listed(inputs)
        if isinstance(inputs, pandas.DataFrame):
            columns = columns_of([str(name) for name in inputs.columns], model, "The table", "inputs")
            rows = zip(*(inputs.iloc[:, at] for at in columns.values()), strict=True)
            return [{name: self._value(name, value) for name, value in zip(columns, row, strict=True)} for row in rows]
        if self._is_row(inputs):
            inputs = inputs.to_dict()
        if isinstance(inputs, Mapping):
            inputs = [inputs]
        only = next(iter(model.inputs.values())) if len(model.inputs) == 1 else None
        return [self._instance(example) for example in (_images if only and only.is_image else _listed)(inputs)]

    def _is_row(self, inputs: Any) -> bool:
        """Return whether a Series is a row of a table, not a column."""
        import pandas

        return isinstance(inputs, pandas.Series) and not self._loaded.accepted.keys().isdisjoint(inputs.index)

    def _instance(self, value: Any) -> Any:
        """Return an example with plain values and encoded images; what a dict has besides the inputs is ignored."""
        model = self._loaded
        if isinstance(value, Mapping):
            known = {key: feature for key, feature in value.items() if key in model.accepted}
            if known or len(model.inputs) > 1:
                return {key: self._value(model.accepted[key], feature) for key, feature in known.items()} or value
        return self._value(next(iter(model.inputs)), value) if len(model.inputs) == 1 else _plain(value)

    def _value(self, name: SignatureName, value: Any) -> Any:
        field = self._loaded.inputs[name]
        return _encoded(value) if field.is_image else _plain(value, field)


def _listed(inputs: Any) -> list[Any]:
    """Return the examples as a list: of an array its rows; a single text is one example."""
    if isinstance(inputs, str | bytes) or not isinstance(inputs, Iterable):
        return [inputs]
    return list(inputs)


def _images(inputs: Any) -> list[Any]:
    """Return images as a list: an array with one dimension more than an image is several."""
    import numpy as np

    if isinstance(inputs, np.ndarray):
        several = inputs.ndim == 4 or (inputs.ndim == 3 and inputs.shape[-1] not in (1, 3, 4))
        return list(inputs) if several else [inputs]
    if isinstance(inputs, str | bytes | os.PathLike) or hasattr(inputs, "save"):
        return [inputs]
    return list(inputs)


def _encoded(value: Any) -> bytes:
    """Return an image as the bytes of a file.

    Raises:
        UserError: It is no image.
    """
    import numpy as np
    from PIL import Image

    match value:
        case bytes():
            return value
        case {"bytes": bytes(data)}:  # of Hugging Face's data sets
            return data
        case {"path": str(path)}:
            return _encoded(path)
        case str() | os.PathLike():
            try:
                return Path(value).expanduser().read_bytes()
            except OSError as error:
                raise UserError(f"Cannot read the image {value}: {error.strerror}.", value=str(value)) from None
        case Image.Image():
            image = value
        case np.ndarray():
            if value.dtype != np.uint8:
                raise UserError(
                    f"The image is an array of {value.dtype}.",
                    setting="inputs",
                    value=f"{value.dtype}{list(value.shape)}",
                    allowed="uint8, [height, width] or [height, width, channels], from 0 (black) to 255",
                    fix="convert it, such as (255 * image).astype('uint8') if its values are 0 to 1",
                )
            image = Image.fromarray(value[..., 0] if value.ndim == 3 and value.shape[-1] == 1 else value)
        case _:
            raise UserError(
                f"The image is {type(value).__name__}.",
                setting="inputs",
                allowed="a path, the bytes of an image file, a PIL image, or an array of uint8",
            )
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _plain(value: Any, field: Field | None = None) -> Any:
    """Return a value without the types of NumPy and pandas, a date as the training data has them.

    A missing value is None, which models refuse that were trained without gaps.
    """
    import numpy as np
    import pandas

    if isinstance(value, np.datetime64):
        value = pandas.Timestamp(value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(element, field) for element in value]
    if value is None or value is pandas.NA or value is pandas.NaT or value != value:
        return None
    if isinstance(value, datetime.date):
        return written(value, field.order if field else "ymd")
    if isinstance(value, decimal.Decimal):
        return str(value) if field and field.kind == "category" else float(value)
    return value


def _row(model: served.Model, prediction: Any) -> dict[str, Any]:
    """Return a prediction as a row, with the columns of `slipway predict --format csv`."""
    from slipway.pipelines.prediction.output import PREDICTED

    match model.task:
        case "classification":
            chances = dict(zip(prediction["classes"], prediction["probabilities"], strict=True))
            return {"label": prediction["label"], **chances}
        case "multilabel":
            chances = dict(zip(prediction["labels"], prediction["probabilities"], strict=True))
            return {"labels": [name for name, value in chances.items() if value >= PREDICTED], **chances}
    return dict(prediction) if isinstance(prediction, Mapping) else {"prediction": prediction}
