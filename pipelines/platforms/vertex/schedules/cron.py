"""Cron expressions with five fields: validation and next run times."""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from slipway.core.errors import UserError

MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# February 29 occurs at least once in eight years, so a date that does not occur in nine never does.
YEARS = 9


@dataclass(frozen=True)
class Field:
    """One of the five fields: smallest and largest value; `names` are aliases for values from `least` on."""

    name: str
    least: int
    largest: int
    names: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """Describe the allowed values."""
        names = f" or {self.names[0]}-{self.names[-1]}" if self.names else ""
        return f"* or {self.least}-{self.largest}{names}, as lists (1,3), ranges (1-5) and steps (*/2)"


FIELDS = (
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    Field("day of the month", 1, 31),
    Field("month", 1, 12, MONTHS),
    Field("day of the week", 0, 6, DAYS),
)


@dataclass(frozen=True)
class Cron:
    """The values of each field. `any_day`, `any_weekday`: the field is `*`; if neither is, either may match."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def after(self, time: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        """Yield the run times after `time` (timezone-aware) in UTC; the fields are in `zone`.

        Local times skipped by daylight saving time are omitted; of repeated ones only the first is used.
        """
        day = time.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        for _ in range(366 * YEARS):
            if self._on(day):
                for hour in sorted(self.hours):
                    for minute in sorted(self.minutes):
                        local = day.replace(hour=hour, minute=minute, tzinfo=zone)
                        moment = local.astimezone(UTC)
                        exists = moment.astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None)
                        if exists and moment > time:
                            yield moment
            day += timedelta(days=1)

    def _on(self, day: datetime) -> bool:
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, (day.weekday() + 1) % 7 in self.weekdays
        return in_month and in_week if self.any_day or self.any_weekday else in_month or in_week


def parse(text: str, setting: str) -> Cron:
    """Parse and validate a cron expression.

    Raises:
        UserError: The expression is invalid or never matches; names the field and its allowed values.
    """
    stripped = text.strip()
    if stripped.lower() in WORDS or stripped.startswith("@"):
        near = WORDS.get(stripped.lower(), WORDS["@daily"])
        raise _error(f"Vertex AI does not support {stripped}.", setting, text, "five fields, such as 0 3 * * *", near)
    if stripped.upper().startswith(("TZ=", "CRON_TZ=")):
        rest = stripped.partition(" ")[2].strip()
        zone = stripped.partition(" ")[0].partition("=")[2]
        raise _error(f"Set the time zone separately: time_zone: {zone}.", setting, text, "five fields", rest or None)
    parts = stripped.split()
    if len(parts) != len(FIELDS):
        raise _error(
            f"A cron expression must have five fields; got {len(parts)}.",
            setting,
            text,
            ", ".join(field.name for field in FIELDS),
            " ".join(parts[1:]) if len(parts) == 6 else None,
        )
    minutes, hours, days, months, weekdays = (
        _values(field, part, setting, text) for field, part in zip(FIELDS, parts, strict=True)
    )
    any_day, any_weekday = (part in ("*", "?") for part in (parts[2], parts[4]))
    cron = Cron(" ".join(parts), minutes, hours, days, months, weekdays, any_day, any_weekday)
    if cron.any_weekday and not any(_comes(day, month) for month in cron.months for day in cron.days):
        raise _error(
            "The cron expression never matches: no such month has such a day.",
            setting,
            text,
            "a day that exists in the month",
            None,
        )
    return cron


def _comes(day: int, month: int) -> bool:
    return day <= calendar.monthrange(2028, month)[1]  # a leap year


def _values(field: Field, text: str, setting: str, whole: str) -> frozenset[int]:
    """Parse one field."""
    values: set[int] = set()
    for item in text.split(","):
        span, slash, step_text = item.partition("/")
        step = int(step_text) if step_text.isdigit() else 0
        if slash and step < 1:
            raise _field_error(field, item, setting, whole)
        if span in ("*", "?"):
            least, largest = field.least, field.largest
        else:
            first, dash, last = span.partition("-")
            least = _value(field, first, item, setting, whole)
            largest = _value(field, last, item, setting, whole) if dash else (field.largest if slash else least)
            if least > largest:
                raise _field_error(field, item, setting, whole)
        values.update(range(least, largest + 1, step or 1))
    return frozenset(values)


def _value(field: Field, text: str, item: str, setting: str, whole: str) -> int:
    if text.upper() in field.names:
        return field.least + field.names.index(text.upper())
    if not text.isdigit() or not field.least <= int(text) <= field.largest:
        raise _field_error(field, item, setting, whole)
    return int(text)


def _field_error(field: Field, item: str, setting: str, whole: str) -> UserError:
    near = None
    if field.names is DAYS and item == "7":
        near = "0 (Sunday)"
    elif item.isdigit():
        near = str(min(max(int(item), field.least), field.largest))
    message = f"{item!r} is not valid for the {field.name} field of the cron expression."
    return _error(message, setting, whole, field.allowed, near)


def _error(message: str, setting: str, value: str, allowed: str, near: str | None) -> UserError:
    return UserError(message, setting=setting, value=value, allowed=allowed, nearest=near, fix='cron: "0 3 * * *"')
