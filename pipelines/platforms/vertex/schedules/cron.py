"""Cron expressions with five fields: those that Vertex AI accepts, and their next run times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from slipway.core.errors import UserError

WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True)
class Field:
    """One of the five fields.

    Attributes:
        name: Its name in messages.
        least: The smallest value.
        largest: The largest value.
        names: The names that are also allowed.
        refused: Pattern of what cronsim accepts and Vertex AI does not.
    """

    name: str
    least: int
    largest: int
    names: str = ""
    refused: str = "$^"

    def explicit(self, text: str) -> str:
        """Return the field with both bounds of each range: cronsim combines the days differently after `*/2`, and in
        the days of the week, it ends 1/2 with 7.
        """
        text = text.upper().replace("?", "*")
        if text != "*":
            text = text.replace("*", f"{self.least}-{self.largest}")
        text = re.sub(r"(?<![\w-])(\w+)/", rf"\1-{self.largest}/", text)
        return re.sub(r"\b(\w+)-\1/0*[1-9]\d*", r"\1", text)


# By the names in cronsim's errors.
FIELDS = {
    "minute": Field("minute", 0, 59),
    "hour": Field("hour", 0, 23),
    "day-of-month": Field("day of the month", 1, 31, refused="L"),
    "month": Field("month", 1, 12, names=" or JAN-DEC"),
    "day-of-week": Field("day of the week", 0, 6, names=" or SUN-SAT", refused=r"L|#|(?<!/)\b0*7\b"),
}


def parse(text: str, setting: str) -> str:
    """Return a valid cron expression, with single spaces.

    Raises:
        UserError: The expression is invalid or never matches; names the field and its allowed values.
    """
    parts = text.split()
    first, rest = parts[0] if parts else "", " ".join(parts[1:]) or None
    if first.startswith("@"):
        word = WORDS.get(first.lower(), WORDS["@daily"])
        raise _error(f"Vertex AI does not support {first}.", setting, text, "five fields, such as 0 3 * * *", word)
    if first.upper().startswith(("TZ=", "CRON_TZ=")):
        zone = first.partition("=")[2]
        raise _error(f"Set the time zone separately: time_zone: {zone}.", setting, text, "five fields", rest)
    if len(parts) != len(FIELDS):
        near = rest if len(parts) == len(FIELDS) + 1 else None
        allowed = ", ".join(field.name for field in FIELDS.values())
        raise _error(f"A cron expression must have five fields; got {len(parts)}.", setting, text, allowed, near)
    for name, part in zip(FIELDS, parts, strict=True):
        if re.search(FIELDS[name].refused, part.upper()) or _bad_field({name: part}):
            raise _field_error(FIELDS[name], part, setting, text)
    if _bad_field(dict(zip(FIELDS, parts, strict=True))):
        message = "The cron expression never matches: no such month has such a day."
        raise _error(message, setting, text, "a day that exists in the month", None)
    return " ".join(parts)


def run_times(cron: str, after: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Yield the run times after `after` (timezone-aware) in UTC; the fields of the cron expression are in `zone`.

    Local times skipped by daylight saving time are omitted; of repeated ones only the first is used.
    """
    from cronsim import CronSim

    fields = dict(zip(FIELDS, cron.split(), strict=True))
    for local in CronSim(_explicit(fields), after.astimezone(zone).replace(tzinfo=None)):
        moment = local.replace(tzinfo=zone).astimezone(UTC)
        exists = moment.astimezone(zone).replace(tzinfo=None) == local
        if exists and moment > after:
            yield moment


def _bad_field(parts: dict[str, str]) -> bool:
    """Return whether cronsim refuses the fields; others are `*`."""
    from cronsim import CronSim, CronSimError

    try:
        CronSim(_explicit(parts), datetime.min)
    except CronSimError:
        return True
    return False


def _explicit(parts: dict[str, str]) -> str:
    return " ".join(field.explicit(parts.get(name, "*")) for name, field in FIELDS.items())


def _field_error(field: Field, part: str, setting: str, whole: str) -> UserError:
    near = None
    if field.name == "day of the week" and part == "7":
        near = "0 (Sunday)"
    elif part.isdigit():
        near = str(min(max(int(part), field.least), field.largest))
    message = f"{part!r} is not valid for the {field.name} field of the cron expression."
    allowed = f"* or {field.least}-{field.largest}{field.names}, as lists (1,3), ranges (1-5) and steps (*/2)"
    return _error(message, setting, whole, allowed, near)


def _error(message: str, setting: str, value: str, allowed: str, near: str | None) -> UserError:
    return UserError(message, setting=setting, value=value, allowed=allowed, nearest=near, fix='cron: "0 3 * * *"')
