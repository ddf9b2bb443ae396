"""How dates and times are written, and what of them is a number: days since 1970, and the position in cycles.

The patterns are of RE2, the regular expressions of TensorFlow and of Arrow. The functions compute with the arrays of
either library.
"""

from __future__ import annotations

import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

Order: TypeAlias = Literal["ymd", "dmy", "mdy"]

_YEAR, _PART, _MARK = r"(?P<{}>[0-9]{{4}})", r"(?P<{}>[0-9]{{1,2}})", "[-/.]"
_TIME = (
    r"(?:[ T]+(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.[0-9]+)?)?"
    r" ?(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2})?)?"
)
PARTS = ("year", "month", "day", "hour", "minute", "second")
_PARTS: dict[Order, tuple[str, str, str]] = {
    "ymd": ("year", "month", "day"), "dmy": ("day", "month", "year"), "mdy": ("month", "day", "year"),
}  # fmt: skip
# A text that is a date and optionally a time of day, by the order of its parts.
PATTERNS: dict[Order, str] = {
    order: rf"\s*{_MARK.join((_YEAR if part == 'year' else _PART).format(part) for part in parts)}{_TIME}\s*"
    for order, parts in _PARTS.items()
}
# The text that stands for a missing date where a text must be one.
EPOCH: dict[Order, str] = {"ymd": "1970-01-01", "dmy": "01.01.1970", "mdy": "01/01/1970"}
# How Python writes a date.
WRITTEN: dict[Order, str] = {"ymd": "%Y-%m-%d", "dmy": "%d.%m.%Y", "mdy": "%m/%d/%Y"}
MONTHS, DAYS, SECONDS = 12, 31, 86_400
_WEEK = 7
_DAYS_OF_CENTURIES = 146_097  # of 400 years
_YEAR_DAYS = 365.2425
_EPOCH_DAY = 719_468
_EPOCH_WEEKDAY = 3  # 1970 began on a Thursday


def written(value: datetime.date, order: Order) -> str:
    """Return the text of a date, with its time if it has one."""
    has_time = isinstance(value, datetime.datetime) and value.time() != datetime.time()
    return value.strftime(WRITTEN[order] + " %H:%M:%S" * has_time)


class Moment(NamedTuple):
    """Days since 1970, a whole number; the day of a year that begins in March; and the second of the day."""

    days: Any
    day_of_year: Any
    second: Any

    @property
    def cycles(self) -> tuple[tuple[Any, float], ...]:
        """The position in the year, the week and the day, as whole numbers, and the length of each."""
        weekday = (self.days + _EPOCH_WEEKDAY) % _WEEK
        return (self.day_of_year, _YEAR_DAYS), (weekday, _WEEK), (self.second, SECONDS)


def moment(year: Any, month: Any, day: Any, hour: Any, minute: Any, second: Any) -> Moment:
    """Return the moment of a date in the Gregorian calendar, from arrays of integers."""
    from_march = (month + 9) % MONTHS
    year = year - from_march // 10
    century, of_century = year // 400, year % 400
    day_of_year = (153 * from_march + 2) // 5 + day - 1
    days = century * _DAYS_OF_CENTURIES + of_century * 365 + of_century // 4 - of_century // 100 + day_of_year
    return Moment(days - _EPOCH_DAY, day_of_year, (hour * 60 + minute) * 60 + second)
