"""Cloud Logging's rules for entries.list that the fake enforces, with Google's client."""

from __future__ import annotations

from typing import Any

import pytest

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import status_of
from tests.fakes.google import NUMBER, PROJECT, REGION, FakeGoogle

JOB = f"projects/{NUMBER}/locations/{REGION}/customJobs/7"


@pytest.fixture
def entries(google: FakeGoogle) -> Any:
    return Connection(PROJECT, REGION, google.endpoints).api("logging", "v2").entries()


def asked(**body: Any) -> dict[str, Any]:
    return {"body": {"resourceNames": [f"projects/{PROJECT}"], **body}}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"resourceNames": []}, "At least one resource name"),
        ({"orderBy": "severity"}, "Invalid order_by"),
        ({"filter": "severity >>= 3"}, "Unparseable filter"),
        ({"pageToken": "nonsense"}, "page_token is invalid"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_request_that_cannot_be_understood_is_status_400(entries, body, sentence):
    """Source (read): `ListLogEntriesRequest` in google/logging/v2/logging.proto."""
    with pytest.raises(Exception, match=sentence) as error:
        entries.list(**asked(**body)).execute()
    assert status_of(error.value) == 400


def test_a_page_has_at_most_1000_entries_oldest_first(google, entries):
    """Source (read): `ListLogEntriesRequest.page_size` and `order_by` in google/logging/v2/logging.proto."""
    for number in range(1001):
        google.log.write_job(JOB, "workerpool0-0", str(number))
    first = entries.list(**asked(pageSize=5000)).execute()
    assert [entry["jsonPayload"]["message"] for entry in first["entries"]] == [str(number) for number in range(1000)]
    rest = entries.list(**asked(pageSize=5000, pageToken=first["nextPageToken"])).execute()
    assert [entry["jsonPayload"]["message"] for entry in rest["entries"]] == ["1000"]
    assert "nextPageToken" not in rest


def test_reading_logs_requires_logging_log_entries_list(google, entries):
    """Source (read): https://cloud.google.com/logging/docs/access-control#permissions_and_roles"""
    google.world.owners.clear()
    with pytest.raises(Exception, match=r"logging\.logEntries\.list") as error:
        entries.list(**asked()).execute()
    assert status_of(error.value) == 403
