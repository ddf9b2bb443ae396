"""Cron expressions: which are rejected and why, and the run times of valid ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.core.errors import UserError
from slipway.pipelines.platforms.vertex.schedules.cron import FIELDS, Field, parse, run_times

BERLIN = ZoneInfo("Europe/Berlin")


def times(text: str, after: datetime, zone: ZoneInfo, count: int = 3) -> list[str]:
    moments = islice(run_times(parse(text, "cron"), after, zone), count)
    return [moment.astimezone(zone).strftime("%m-%d %H:%M %Z") for moment in moments]


def test_a_nightly_schedule_keeps_local_time_when_daylight_saving_ends() -> None:
    assert times("0 3 * * *", datetime(2026, 10, 24, 12, tzinfo=UTC), BERLIN) == [
        "10-25 03:00 CET",
        "10-26 03:00 CET",
        "10-27 03:00 CET",
    ]


def test_a_skipped_local_time_starts_no_run_and_a_repeated_one_starts_one() -> None:
    assert times("30 2 * * *", datetime(2026, 3, 28, 12, tzinfo=UTC), BERLIN, 2) == [
        "03-30 02:30 CEST",
        "03-31 02:30 CEST",
    ]
    assert times("30 2 * * *", datetime(2026, 10, 24, 12, tzinfo=UTC), BERLIN, 2) == [
        "10-25 02:30 CEST",
        "10-26 02:30 CET",
    ]
    between = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 02:10 for the second time
    assert times("30 2 * * *", between, BERLIN, 1) == ["10-26 02:30 CET"]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("0 9 * * MON-FRI", "11-23 09:00 UTC"),  # 2026-11-21 is a Saturday
        ("0 0 1,15 * *", "12-01 00:00 UTC"),
        ("*/20 13 * * *", "11-21 13:00 UTC"),
        ("10/20 12 * * *", "11-21 12:10 UTC"),
        ("0 0 29 feb *", "02-29 00:00 UTC"),
        ("0 12 13 * 5", "11-27 12:00 UTC"),  # both days are given: the 13th, or a Friday
        ("0 12 ? * 0", "11-22 12:00 UTC"),
        ("0 12 */31 * MON", "11-23 12:00 UTC"),  # the first, or a Monday
        ("0 13 * * 1/3", "11-23 13:00 UTC"),  # Monday and Thursday, not Sunday
        ("0 13 22-22/2 * *", "11-22 13:00 UTC"),
    ],
)
def test_expressions_are_parsed(text: str, first: str) -> None:
    assert times(text, datetime(2026, 11, 21, 12, tzinfo=UTC), ZoneInfo("UTC"), 1) == [first]


def texts(field: Field) -> st.SearchStrategy[str]:
    """One field's texts: any, a value, a range, a step."""
    value = st.integers(field.least, field.largest)
    span = st.tuples(value, value).map(lambda pair: f"{min(pair)}-{max(pair)}")
    return st.one_of(st.just("*"), value.map(str), span, st.integers(2, 9).map(lambda step: f"*/{step}"))


def matches(text: str, field: Field, value: int) -> bool:
    """Whether a field's text matches a value, computed independently."""
    if text.startswith("*"):
        return (value - field.least) % int(text.removeprefix("*").removeprefix("/") or 1) == 0
    least, _, largest = text.partition("-")
    return int(least) <= value <= int(largest or least)


@settings(max_examples=40)
@given(st.tuples(*(texts(field) for field in FIELDS.values())), st.integers(0, 300))
def test_the_times_are_the_matching_minutes(parts: tuple[str, ...], day: int) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day, minutes=7 * day)
    expected = []
    for offset in range(1, 3 * 24 * 60):
        moment = start + timedelta(minutes=offset)
        values = (moment.minute, moment.hour, moment.day, moment.month, moment.isoweekday() % 7)
        minute, hour, in_month, month, in_week = (
            matches(text, field, value) for text, field, value in zip(parts, FIELDS.values(), values, strict=True)
        )
        on = in_month or in_week if "*" not in (parts[2], parts[4]) else in_month and in_week
        if minute and hour and month and on:
            expected.append(moment)
    try:
        cron = parse(" ".join(parts), "cron")
    except UserError as error:
        assert "never matches" in error.message
        assert not expected
        return
    found = list(islice(run_times(cron, start, ZoneInfo("UTC")), len(expected)))
    assert found == expected


@pytest.mark.parametrize(
    ("text", "said", "near"),
    [
        ("60 3 * * *", "minute field", "59"),
        ("0 25 * * *", "hour field", "23"),
        ("0 3 0 * *", "day of the month field", "1"),
        ("0 3 * JANUARY *", "month field", None),
        ("0 3 * * 7", "day of the week field", "0 (Sunday)"),
        ("0 3 * * 5-1", "day of the week field", None),
        ("0 3 * * 1-7", "day of the week field", None),
        ("0 3 * * 5L", "day of the week field", None),
        ("0 3 * * 1#2", "day of the week field", None),
        ("0 3 L * *", "day of the month field", None),
        ("*/0 3 * * *", "minute field", None),
        ("0,,5 3 * * *", "minute field", None),
        ("0 3 * *", "got 4", None),
        ("0 0 3 * * *", "got 6", "0 3 * * *"),
        ("@Weekly", "does not support", "0 0 * * 0"),
        ("@daily", "does not support", "0 0 * * *"),
        ("TZ=Europe/Berlin 0 3 * * *", "time_zone: Europe/Berlin", "0 3 * * *"),
        ("0 0 31 2,4 *", "never matches", None),
        ("", "got 0", None),
    ],
)
def test_an_invalid_expression_is_refused_with_the_field(text: str, said: str, near: str | None) -> None:
    with pytest.raises(UserError) as error:
        parse(text, "cron")
    assert said in error.value.message
    assert (error.value.setting, error.value.nearest) == ("cron", near)
