"""The inputs of a network: which features they are, and their statistics over the examples.

The sums behind a mean and a standard deviation are integers, so statistics of shards add up to the same numbers in any
order, whatever processes counted them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, cast

from slipway.components.prepare_data.encoding.features import BOX, TEXTS, Kind
from slipway.components.prepare_data.encoding.image import Inspector
from slipway.components.prepare_data.encoding.messages import values
from slipway.components.prepare_data.encoding.subwords import by_frequency, learn, read_vocabulary
from slipway.components.prepare_data.examples import Unusable, readable
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError, nearest
from slipway.core.manifest import Input
from slipway.core.values import stored_name
from slipway.core.words import divided

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from slipway.components.prepare_data.encoding.table_rows import Rows

Values = list[bytes] | list[float] | list[int]
MAX_CATEGORIES = 100_000
LARGEST_INTEGER = 2**31 - 1
MAX_SHOWN = 40
# The smallest float32 is 2**-149: every float32 is a multiple of it.
BITS = 149
# Numbers that are added at once, 2**13, and by how many powers of two their sizes may differ.
ADDED, SPREAD = 8192, 15
# Kinds of `features.json` that are inputs, by the kind that they are for the network.
SAME_AS = {
    "class": "integer", "float64": "number", "float16": "number", "bfloat16": "number",
    **dict.fromkeys(("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"), "integer"),
}  # fmt: skip
ALLOWED = "features of the kinds number, integer, category, date, text and image, and fixed shapes as in number[3]"
# At most this many different words of a text are counted in a shard and in a split.
MAX_WORDS = 500_000
# The network receives this fraction of the texts whole, if they have at most this many words and subwords.
WHOLE_TEXTS, MAX_LENGTH = 0.95, 256
# A date input has the days since 1970, and the sines and cosines of three positions.
DATE_FEATURES = 7


@dataclass
class InputStatistics:
    """Statistics of an input, or of a target, over some examples.

    Attributes:
        count: The number of examples that have a value.
        missing: The number of examples whose number or date is missing.
        invalid: The number of these that have another text instead of a date.
        sums: The sum of each element; of numbers, in units of 2**-149.
        squares: The sum of the squares of each element of a number, in units of 2**-298.
        minimum: The smallest element.
        maximum: The largest element.
        categories: The number of examples of each category, or how often each word occurs in texts.
        lengths: The number of texts that have each number of words.
        sizes: The first two different sizes [height, width] of images.
        color: Whether any image is not grayscale.
    """

    count: int = 0
    missing: int = 0
    invalid: int = 0
    sums: list[int] = field(default_factory=list)
    squares: list[int] = field(default_factory=list)
    minimum: float | None = None
    maximum: float | None = None
    categories: dict[str, int] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    color: bool = False

    def add_numbers(self, numbers: list[float], examples: int = 1) -> None:
        """Add the numbers of an example, or of several equal ones, which are finite."""
        self._add_sums([int(math.ldexp(number, BITS)) for number in numbers], numbers, examples, squares=True)

    def add_integers(self, integers: list[int], examples: int = 1) -> None:
        """Add the integers of an example, or of several equal ones."""
        self._add_sums(integers, integers, examples, squares=False)

    def _add_sums(self, units: list[int], elements: list[float] | list[int], examples: int, *, squares: bool) -> None:
        if not self.count:
            self.sums, self.squares = [0] * len(units), [0] * len(units) * squares
        self.count += examples
        for index, unit in enumerate(units):
            self.sums[index] += unit * examples
            if squares:
                self.squares[index] += unit * unit * examples
        self._extend(min(elements), max(elements))

    def _extend(self, minimum: float, maximum: float) -> None:
        self.minimum = minimum if self.minimum is None else min(self.minimum, minimum)
        self.maximum = maximum if self.maximum is None else max(self.maximum, maximum)

    def add_category(self, text: str, examples: int = 1) -> None:
        """Add the category of an example, or of several."""
        self.count += examples
        self.categories[text] = self.categories.get(text, 0) + examples

    def add_image(self, size: tuple[int, int], *, color: bool) -> None:
        """Add an example's image."""
        self.count += 1
        self.color |= color
        if size not in self.sizes:
            self.sizes = sorted([*self.sizes, size])[:2]

    def merge(self, other: InputStatistics) -> None:
        """Add the statistics of other examples."""
        self.missing += other.missing
        self.invalid += other.invalid
        if not other.count:
            return
        if not self.count:
            self.sums, self.squares = [0] * len(other.sums), [0] * len(other.squares)
        self.count += other.count
        self.sums = [value + other_value for value, other_value in zip(self.sums, other.sums, strict=True)]
        self.squares = [value + other_value for value, other_value in zip(self.squares, other.squares, strict=True)]
        if other.minimum is not None and other.maximum is not None:
            self._extend(other.minimum, other.maximum)
        for text, count in other.categories.items():
            self.categories[text] = self.categories.get(text, 0) + count
        for length, count in other.lengths.items():
            self.lengths[length] = self.lengths.get(length, 0) + count
        if self.lengths and len(self.categories) > MAX_WORDS:
            self.categories = dict(by_frequency(self.categories)[: MAX_WORDS // 2])
        self.sizes = sorted({*self.sizes, *other.sizes})[:2]
        self.color |= other.color

    @property
    def means(self) -> list[float]:
        """The mean of each element of a number."""
        return [float(Fraction(total, self.count << BITS)) for total in self.sums]

    @property
    def deviations(self) -> list[float]:
        """The standard deviation of each element of a number."""
        count, pairs = self.count, zip(self.sums, self.squares, strict=True)
        unit = count**2 << 2 * BITS
        return [math.sqrt(Fraction(count * square - total**2, unit)) for total, square in pairs]


Statistics = dict[str, InputStatistics]


def combine_statistics(shards: Iterable[Statistics]) -> Statistics:
    """Combine the statistics of several shards.

    Raises:
        UserError: An input has too many categories.
    """
    result: Statistics = {}
    for shard in shards:
        for name, input_statistics in shard.items():
            result.setdefault(name, InputStatistics()).merge(input_statistics)
            check_categories(name, result[name])
    return result


def check_categories(name: str, statistics: InputStatistics) -> None:
    """Refuse an input with too many categories.

    Raises:
        UserError: It has more than `MAX_CATEGORIES`.
    """
    if len(statistics.categories) > MAX_CATEGORIES and not statistics.lengths:
        raise UserError(
            f"The input {name} has more than {MAX_CATEGORIES:,} different categories.",
            setting="data.inputs",
            fix=f"declare it as a text, --set data.features.{name}=text, or name the inputs without it: "
            "--set 'data.inputs=[NAME, …]'",
        )


class InputCounter:
    """Checks and counts the inputs, and the target, of the examples of one shard.

    Args:
        kinds: The kinds of the inputs and, as `label`, of a target that is not a class.
        gaps: The inputs of which one number may be missing, as NaN.
    """

    def __init__(self, kinds: Mapping[str, Kind], *, gaps: Collection[str] = ()) -> None:
        self._gaps = {name for name in gaps if kinds[name] == Kind("number")}
        self._kinds = [(name, name.encode(), kind) for name, kind in kinds.items()]
        self._inspect = Inspector(whole=False).inspect
        self.statistics: Statistics = {name: InputStatistics() for name in kinds}

    def add(self, features: Iterable[tuple[bytes, bytes]]) -> None:
        """Count an example with these features: names and serialized Features.

        Raises:
            Unusable: An input is missing, not of its kind, not finite, or negative although an integer.
            UserError: An input has too many categories.
        """
        by_name = dict(features)
        inputs = [(name, kind, self._values(name, kind, by_name.get(key))) for name, key, kind in self._kinds]
        for name, kind, value in inputs:
            self._count(name, kind, value, 1)

    def _count(self, name: str, kind: Kind, value: Values, examples: int) -> None:
        """Count a value that several examples have."""
        counted = self.statistics[name]
        if not value:
            counted.missing += examples
        elif _is_read(kind):
            self._count_texts(name, kind, [cast("list[bytes]", value)[0].decode()] * examples)
        elif kind.name in ("number", "bounding_box"):
            counted.add_numbers(cast("list[float]", value), examples)
        elif kind.name == "integer":
            counted.add_integers(cast("list[int]", value), examples)
        elif kind.name == "category":
            counted.add_category(cast("list[bytes]", value)[0].decode(), examples)
            check_categories(name, counted)
        else:
            seen = self._inspect(cast("list[bytes]", value)[0])
            counted.add_image((seen.height, seen.width), color=not seen.gray)

    def _count_texts(self, name: str, kind: Kind, texts: Sequence[str]) -> None:
        counted = self.statistics[name]
        counted.merge(text_statistics(kind, texts))
        check_categories(name, counted)

    def add_rows(self, rows: Rows) -> None:
        """Count rows of a table.

        Raises:
            Unusable: Some cannot be used; none is counted.
            UserError: An input has too many categories.
        """
        numbers = [(name, rows.numbers[name]) for name, _, kind in self._kinds if kind == Kind("number")]
        if any(_are_unusable(column, gaps=name in self._gaps) for name, column in numbers):
            raise Unusable
        coded = [
            (name, kind, self._values(name, kind, feature), count)
            for name, _, kind in self._kinds
            if kind != Kind("number")
            for feature, count in rows.coded[name].counts()
        ]
        for name, column in numbers:
            self.statistics[name].merge(number_statistics(column))
        read: dict[tuple[str, Kind], list[str]] = {}
        for name, kind, value, count in coded:
            if value and _is_read(kind):
                read.setdefault((name, kind), []).extend([cast("list[bytes]", value)[0].decode()] * count)
            else:
                self._count(name, kind, value, count)
        for (name, kind), texts in read.items():
            self._count_texts(name, kind, texts)

    def _values(self, name: str, kind: Kind, feature: bytes | None) -> Values:
        """Return the values of an input; none if its number is missing."""
        parsed = values(feature) if feature is not None else []
        needed = elements(kind)
        if len(parsed) != needed:
            raise Unusable(f"it has {len(parsed) or 'no'} values of {name}; {kind} has {needed}" if parsed or needed > 1
                           else f"it has no {name}")  # fmt: skip
        for value in parsed:
            if name in self._gaps and isinstance(value, float) and math.isnan(value):
                return []
            if problem := _problem(kind, value):
                raise Unusable(
                    f"its {name}: {readable(value[:MAX_SHOWN]) if isinstance(value, bytes) else value} {problem}"
                )
        return parsed


def _are_unusable(column: NDArray[np.float32], *, gaps: bool) -> bool:
    import numpy as np

    return bool((np.isinf(column) if gaps else ~np.isfinite(column)).any())


def _is_read(kind: Kind) -> bool:
    """Whether values of the kind are texts of which words or days are counted, many at a time."""
    return kind.is_date or kind.name == "text"


def text_statistics(kind: Kind, column: Sequence[str]) -> InputStatistics:
    """Return the statistics of texts or dates."""
    import pyarrow

    from slipway.components.prepare_data.encoding.texts import count_words, days_of, missing_cells

    texts = pyarrow.array(column, pyarrow.string())
    if kind.is_date:
        statistics = number_statistics(days_of(texts, kind.order).astype("float32"))
        if statistics.missing:
            statistics.invalid = statistics.missing - (missing_cells(texts).true_count or 0)
        return statistics
    words, lengths = count_words(texts)
    return InputStatistics(len(column), categories=words, lengths=lengths)


def number_statistics(column: NDArray[np.float32]) -> InputStatistics:
    """Return the statistics of numbers: finite, or NaN if they are missing."""
    import numpy as np

    missing = int(np.isnan(column).sum())
    if missing:
        column = column[~np.isnan(column)]
    if not len(column):
        return InputStatistics(missing=missing)
    total = square = 0
    for start in range(0, len(column), ADDED):
        for part in _of_similar_size(column[start : start + ADDED].astype(np.float64)):
            part_sum, part_square = _exact_sums(part)
            total, square = total + part_sum, square + part_square
    return InputStatistics(
        count=len(column),
        missing=missing,
        sums=[total],
        squares=[square],
        minimum=float(column.min()),
        maximum=float(column.max()),
    )


def _of_similar_size(numbers: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """Yield the numbers in parts whose largest size is less than 2**SPREAD times their smallest, beside zeros."""
    import numpy as np

    sizes = np.abs(numbers)
    largest, smallest = sizes.max(), sizes.min(where=sizes > 0, initial=np.inf)
    if largest < smallest * 2.0**SPREAD:
        yield numbers
        return
    powers = np.frexp(sizes)[1] // SPREAD
    for power in np.unique(powers[sizes > 0]):
        yield numbers[(powers == power) & (sizes > 0)]


def _exact_sums(numbers: NDArray[np.float64]) -> tuple[int, int]:
    """Return the sums of up to `ADDED` float32 numbers of similar size and of their squares, in our units.

    All are exact, as each has at most 53 bits: 24 of a number, `SPREAD`, and 13 of their count. Of the squares, which
    have twice as many, the upper and the lower bits are added separately.
    """
    squares = numbers * numbers
    above = math.frexp(float(squares.max()))[1]
    rounding = math.ldexp(1.5, above + 13)  # what is added to it loses the bits below 2**(above - 39)
    upper = (squares + rounding) - rounding
    square = _in_units(upper.sum(), 2 * BITS) + _in_units((squares - upper).sum(), 2 * BITS)
    return _in_units(numbers.sum(), BITS), square


def _in_units(number: float, bits: int) -> int:
    numerator, denominator = float(number).as_integer_ratio()
    return (numerator << bits) // denominator


def _problem(kind: Kind, value: bytes | float | int) -> str | None:
    """Return why a value is not of its kind, or None."""
    if kind.name in ("image", *TEXTS):
        if not isinstance(value, bytes):
            return f"is not {'an image' if kind.name == 'image' else 'text'}"
        try:
            if kind.name != "image":
                value.decode()
        except UnicodeDecodeError:
            return "is not UTF-8"
    elif kind.name == "integer":
        if not isinstance(value, int):
            return "is not an integer"
        if not 0 <= value <= LARGEST_INTEGER:
            return f"is not from 0 to {LARGEST_INTEGER:,}, as an input of the kind integer is; declare it as a number"
    elif not isinstance(value, float) or not math.isfinite(value):
        return "is not a finite number"
    return None


def elements(kind: Kind) -> int:
    """Return the number of elements of a value of a fixed shape."""
    return BOX if kind.name == "bounding_box" else math.prod(kind.shape)


def kind_of(text: str) -> Kind | None:
    """Return the kind of a feature as an input, from its description; None if it cannot be an input."""
    match = re.fullmatch(r"(\w+)((?:\[.*\])?)", text)
    try:
        kind = Kind.parse(SAME_AS.get(match[1], match[1]) + match[2]) if match else None
    except ValueError:
        return None
    return None if kind is None or kind.is_list else kind


def choose_inputs(
    settings: DataSettings, features: Mapping[str, str], *, image: str | None, but: Collection[str] = ()
) -> dict[str, Kind]:
    """Return the inputs by the names under which they are stored, without the image.

    Args:
        settings: The user's settings.
        features: The kinds of the additional features by their names in the source.
        image: The name of the image in the source, if it has one.
        but: Features that are inputs only if data.inputs names them, such as the column of data.group_by.

    Raises:
        UserError: data.inputs names a feature that does not exist or cannot be an input, or not the image.
    """
    names = settings.inputs
    possible = {name: kind for name, text in features.items() if (kind := kind_of(text))}
    if names is None:
        chosen = {} if image else {name: kind for name, kind in possible.items() if name not in but}
        if not image and not chosen:
            listed = ", ".join(f"{name}: {text}" for name, text in features.items())
            raise _mistake(
                settings,
                f"The source {settings.source} has neither images nor features for the network; it has "
                f"{listed or 'only labels'}.",
                fix="name the image with data.image, or set the kinds of features: --set data.features.NAME=KIND",
            )
        return {stored_name(name): kind for name, kind in chosen.items()}
    image_names = (image, "image") if image else ()
    for name in names:
        if name in image_names or name in possible:
            continue
        if name in features:
            sized = features[name].replace("[]", "[SIZE]")
            known_size = re.fullmatch(r"(number|integer)\[\]", features[name])
            fix = f"--set 'data.features.{name}={sized}', if all have the same SIZE" if known_size else None
            raise _mistake(settings, f"The feature {name} cannot be an input: its kind is {features[name]}.", fix=fix)
        known = [*image_names[:1], *possible]
        is_label = name == (settings.label or "label")
        raise _mistake(
            settings,
            f"data.inputs names {name!r}, which is the label."
            if is_label
            else f"The source {settings.source} has no feature {name!r}.",
            allowed=", ".join(known),
            near=None if is_label else nearest(name, known),
        )
    if image and not set(image_names) & set(names):
        raise _mistake(
            settings, "The source has images, but data.inputs does not name them.",
            fix=f"--set 'data.inputs=[{', '.join([image, *names])}]'",
        )  # fmt: skip
    return {stored_name(name): possible[name] for name in names if name not in image_names}


def _mistake(
    settings: DataSettings, message: str, *, allowed: str = ALLOWED, near: str | None = None, fix: str | None = None
) -> UserError:
    named = settings.inputs is not None
    return UserError(
        message,
        setting="data.inputs" if named else "data.source",
        value=settings.inputs if named else settings.source,
        allowed=allowed,
        nearest=near,
        fix=fix,
    )


def as_input(
    name: str, kind: Kind, train: InputStatistics, everything: InputStatistics, settings: DataSettings
) -> Input:
    """Return the manifest's description of an input.

    Args:
        name: Its name.
        kind: Its kind.
        train: Its statistics over the training split.
        everything: Its statistics over all splits.
        settings: The user's settings.

    Raises:
        UserError: Images have several sizes.
    """
    if kind.name == "image":
        if settings.image_size is None and len(everything.sizes) > 1:
            first_size, other_size = (f"{height}x{width}" for height, width in everything.sizes)
            raise UserError(
                f"The images of {name} have several sizes: {first_size} and {other_size} (height x width).",
                setting="data.image_size",
                allowed="the [height, width] to which all images are resized",
                fix="--set 'data.image_size=[{}, {}]', or another size".format(*everything.sizes[0]),
            )
        size = settings.image_size or everything.sizes[0]
        channels = settings.channels or (3 if everything.color else 1)
        return Input(kind="image", shape=(*size, channels), resize=everything.sizes != [size])
    if kind.name == "category":
        return Input(kind="category", vocabulary=tuple(sorted(train.categories)))
    if kind.name == "text":
        return _as_text(train, settings)
    if kind.is_date:
        _check_dates(name, kind, everything, settings)
    if kind.name == "integer":
        return Input(kind="integer", shape=kind.shape, maximum=int(everything.maximum or 0))
    nullable = everything.missing > 0
    if kind.is_date:
        shape: tuple[int, ...] = (DATE_FEATURES + nullable,)
    else:
        shape = (2,) if nullable else (BOX,) if kind.name == "bounding_box" else kind.shape
    return Input(
        kind="date" if kind.is_date else "number",
        shape=shape,
        mean=tuple(train.means) or (0.0,),  # none, if all are missing
        deviation=tuple(deviation or 1.0 for deviation in train.deviations) or (1.0,),
        nullable=nullable,
        order=kind.order,
    )


def _as_text(train: InputStatistics, settings: DataSettings) -> Input:
    """Return the description of a text: its vocabulary, and how many words and subwords the network receives."""
    file = settings.text.vocabulary
    vocabulary = read_vocabulary(file) if file else learn(train.categories, settings.text.words)
    length, whole = 1, 0
    for length in sorted(train.lengths):
        whole += train.lengths[length]
        if whole >= WHOLE_TEXTS * train.count or length >= MAX_LENGTH:
            break
    entries = math.ceil(length * _entries_of_word(train.categories, frozenset(vocabulary)))
    length = settings.text.length or max(1, min(entries, MAX_LENGTH))
    return Input(kind="text", shape=(length,), vocabulary=tuple(vocabulary))


def _entries_of_word(counts: Mapping[str, int], vocabulary: Collection[str]) -> Fraction:
    """Return the number of entries into which a word is divided, the mean of all that occur."""
    total = sum(counts.values())
    return Fraction(sum(count * max(1, len(divided(word, vocabulary))) for word, count in counts.items()), total or 1)


def _check_dates(name: str, kind: Kind, stats: InputStatistics, settings: DataSettings) -> None:
    """Refuse a column of which most texts are no dates, or which has gaps although data.missing refuses them.

    Raises:
        UserError: It is such a column.
    """
    written = {"y": "year", "m": "month", "d": "day"}
    parts = "-".join(written[part] for part in kind.order)
    if stats.invalid > stats.count:
        raise UserError(
            f"Only {stats.count:,} of {stats.count + stats.invalid:,} texts of {name} are dates in the order {parts}.",
            setting=f"data.features.{name}",
            value=str(kind),
            allowed="date (2026-11-25), date_dmy (25.11.2026), date_mdy (11/25/2026), each also with a time; text; "
            "category",
            fix=f"--set data.features.{name}=category",
        )
    if stats.missing and not settings.has_gaps:
        raise UserError(
            f"{stats.missing:,} dates of {name} are missing.",
            setting="data.missing",
            value=settings.missing,
            fix="--set data.missing=mean",
        )
