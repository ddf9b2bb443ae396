"""A model to predict with in Python: arrays, images, files, tables and texts in, a DataFrame out."""

from __future__ import annotations

import datetime
import decimal
import functools
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.core.dates import written
from slipway.core.errors import UserError
from slipway.pipelines.api.errors import public
from slipway.pipelines.api.notebook import show_line
from slipway.trainer.engines.installed import verify_extra

if TYPE_CHECKING:
    import pandas

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
    def predict(self, inputs: Any) -> pandas.DataFrame:
        """Predict on examples.

        Args:
            inputs: One or several of what the model's inputs are. Images: paths, bytes of image files, PIL images, or
                arrays of uint8, [height, width] or [height, width, channels], and [examples, …] for several. Tables: a
                DataFrame with a column per input (others are ignored), or a list of dicts. A single input: a list or
                an array of its values, such as texts.

        Returns:
            A row per example, with the index of a DataFrame: `label` and the probability of each class, `labels` and
            the probability of each label, `prediction`, or for other models the outputs by name.

        Raises:
            UserError: An example does not fit the model, such as a missing value; names it.
        """
        from slipway.pipelines.prediction import parts, prediction
        from slipway.pipelines.prediction.unknown import UnknownValues
        from slipway.serving.instances import in_words

        verify_extra("notebook")
        import pandas

        model = self._loaded
        index = inputs.index if isinstance(inputs, pandas.DataFrame | pandas.Series) else None
        instances = self._instances(inputs)
        rows: list[dict[str, Any]] = []
        unknown = UnknownValues()
        for start in range(0, len(instances), BATCH):
            examples = [(str(start + n), each) for n, each in enumerate(instances[start : start + BATCH])]
            chunk = parts.chunk_of(model, examples)
            for answers in prediction.predict(model, iter([chunk])):
                for example, error in sorted(answers.errors.items()):
                    raise UserError(f"Example {answers.keys[example]}: {error.rstrip('.')}.")
                rows += [_row(model, each) for each in in_words(model, answers.outputs)]
                unknown.add(len(answers), answers.unknown)
        for line in unknown.lines():
            show_line(line)
        return pandas.DataFrame(rows, index=index)

    def _instances(self, inputs: Any) -> list[Any]:
        """Return examples as the server's instances."""
        import pandas

        model = self._loaded
        if model.is_custom:
            return _listed(inputs)
        if isinstance(inputs, Mapping):
            inputs = [inputs]
        if isinstance(inputs, pandas.DataFrame):
            missing = [name for name in model.inputs if name not in inputs.columns]
            if missing:
                raise UserError(
                    f"The table has no column {', '.join(missing)}.",
                    setting="inputs",
                    value=", ".join(map(str, inputs.columns)),
                    allowed=f"a column for each input: {', '.join(model.inputs)}",
                )
            inputs = inputs[list(model.inputs)].to_dict("records")
        only = next(iter(model.inputs.values())) if len(model.inputs) == 1 else None
        if only is not None and only.is_image:
            return [self._image(each) for each in _images(inputs)]
        return [self._values(each) for each in _listed(inputs)]

    def _image(self, value: Any) -> Any:
        name = next(iter(self._loaded.inputs))
        if isinstance(value, Mapping):
            value = value[name]
        return {name: _encoded(value)}

    def _values(self, value: Any) -> Any:
        """Return an example of other inputs with plain values; images among them are encoded."""
        if not isinstance(value, Mapping):
            return _plain(value, next(iter(self._loaded.inputs.values())))
        fields = self._loaded.inputs
        return {
            name: _encoded(each) if name in fields and fields[name].is_image else _plain(each, fields.get(name))
            for name, each in value.items()
        }


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
        return [_plain(each, field) for each in value]
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
