"""Sentences of Google's services and libraries, each with its source, are recognized as known errors."""

from __future__ import annotations

import re

import pytest
from google.api_core.exceptions import Forbidden, ServiceUnavailable, from_grpc_status

from slipway.components.cloud.connection import SERVICES, Connection
from slipway.components.cloud.explanation import REPLICA
from slipway.components.cloud.known_errors.table import KNOWN_ERRORS, recognize, recognize_program, recognize_status
from slipway.components.cloud.refusals import is_disabled, refusal
from slipway.components.cloud.tracebacks import without_process
from tests.fakes.world import title_of
from tests.fidelity.error_sentences import PROGRAMS
from tests.fidelity.error_sentences import SERVICES as SAID


@pytest.mark.parametrize(("name", "source", "sentence"), SAID, ids=[f"{row[0]} {n}" for n, row in enumerate(SAID)])
def test_a_services_sentence_is_recognized(name, source, sentence):
    """A sentence that a service has said is the known error whose fix applies.

    Source (reported): beside each sentence, some of which were recorded or read.
    """
    assert source.startswith(("recorded: ", "read: ", "reported: "))
    found = recognize(sentence, of_job=True) or recognize_status(sentence)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("name", "source", "sentence"), PROGRAMS, ids=[f"{row[0]} {n}" for n, row in enumerate(PROGRAMS)]
)
def test_what_ends_a_program_is_recognized(name, source, sentence):
    """An exception, or a line of a library's format, is the known error whose fix applies; it never moves a run.

    Source (reported): beside each sentence, most of which were read in the libraries' sources.
    """
    assert source.startswith(("read: ", "reported: "))
    text = without_process(sentence)
    found = recognize_program([text], text.splitlines())
    assert found is not None
    assert found.name == name
    assert not found.moves


def alternatives(pattern: str) -> list[str]:
    """Return the alternatives of a regular expression that are not in a group."""
    depth, found = 0, [""]
    for part in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|.", pattern):
        depth += (part == "(") - (part == ")")
        found = [*found, ""] if part == "|" and not depth else [*found[:-1], found[-1] + part]
    return found


@pytest.mark.parametrize(
    ("name", "words"), [(known.name, each) for known in KNOWN_ERRORS for each in alternatives(known.pattern.pattern)]
)
def test_every_known_error_has_been_said(name, words):
    """No alternative of a known error rests on a guess.

    Source (read): the table above.
    """
    assert any(re.search(words, sentence, re.DOTALL) for said, _, sentence in (*SAID, *PROGRAMS) if said == name)


def test_out_of_memory_names_the_pool():
    """Vertex AI names the worker pool, not the replica, that is low on memory, with the code RESOURCE_EXHAUSTED.

    Source (reported): google/agents-cli#43 and nine more public reports from 2025-11 to 2026-07.
    """
    sentence = next(text for name, _, text in SAID if name == "memory" and text.startswith("Replicas"))
    found = recognize(str(from_grpc_status(8, sentence)))
    assert found is not None
    assert found.sentence == "workerpool0 ran out of memory."
    named = REPLICA.search(sentence)
    assert named is not None
    assert named["replica"] == "workerpool0"


def test_a_deployment_without_free_machines_ends_with_unavailable():
    """The operation's code is 14, which elsewhere means that a repeated call may succeed at once.

    Source (reported): "503 … 14: Machine type temporarily unavailable, …" in the tests of PerfKitBenchmarker.
    """
    error = from_grpc_status(14, "Machine type temporarily unavailable, please deploy with a different machine type.")
    assert isinstance(error, ServiceUnavailable)
    found = recognize(str(error), {"region": "europe-west4"})
    assert found is not None
    assert "no free machines of this kind for serving in europe-west4" in found.sentence


@pytest.mark.parametrize("service", sorted({*SERVICES} - {"docker"}))  # a registry, without a title
def test_a_disabled_api_is_named_by_its_title(service):
    """The refusal begins with the API's title, which may have parentheses or a slash: "(IAM) API", "Pub/Sub API".

    Source (recorded): k8s-config-connector, devicestreamingsession-minimal; the titles are read from the discovery
    documents in google-api-python-client.
    """
    title = title_of(f"{service}.googleapis.com")
    sentence = (
        f"{title} has not been used in project 123456789012 before or it is disabled. Enable it by visiting "
        f"https://console.developers.google.com/apis/api/{service}.googleapis.com/overview?project=123456789012 then "
        "retry. If you enabled this API recently, wait a few minutes for the action to propagate to our systems and "
        "retry."
    )
    for text in (sentence, f"googleapi: Error 403: {sentence}", f"403 {sentence}"):
        found = recognize(text)
        assert found is not None
        assert found.sentence == f"The {title} is not enabled in the project 123456789012."
    error = Forbidden(sentence)
    assert is_disabled(error)
    assert f"the API {service}.googleapis.com is not enabled in p" in refusal(error, Connection("p", "r"), "x").message
