"""Commands in a company's network, where a proxy with an own authority is the only way to Google; and without any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.fakes.proxy import DOMAIN, Proxy
from tests.installed.case import Case, Project, Services

pytestmark = pytest.mark.timeout(1800)  # its commands have time limits

BUILT = "--set vertex.image=null --set vertex.serving_image=null"
CLOSED = "localhost:1"
THROUGH_PROXY = (
    Case("doctor", "doctor --target vertex", text="✓ first job", absent="✗"),
    Case("setup", "setup --target vertex", text="Everything that a run needs exists"),
    Case(
        "build",
        f"config build --target vertex {BUILT}",
        text="with cloud-build .* image .*/slipway/serving-cpu@sha256:",
    ),
    Case("run", "run --target vertex", text="verdict promote"),
    Case("logs", "logs --step train", text="the step train of run demo-.* has no log lines; its status is succeeded"),
    Case("prices", "config prices -o prices.json", text="prices.json"),
    Case("tpu list", "runs tpu list"),
    Case("setup of a TPU", "setup --target tpu", text="items checked"),
)
FIX = r"fix: +check this machine's network, proxy \(HTTPS_PROXY"
DEAD = r"proxy http://127\.0\.0\.1:9: connection refused\. " + FIX
BLAMES_GOOGLE = "Google kept|status.cloud.google.com|Traceback"
WITHOUT_NETWORK = tuple(
    Case(f"{command} through a dead proxy", command, code, DEAD, BLAMES_GOOGLE, environment={"NO_PROXY": ""})
    for command, code in (
        ("setup --target vertex", 2),
        ("setup --target tpu", 2),
        ("run --target vertex --no-wait", 2),
        ("run --target vertex --no-wait --no-check", 2),
        ("doctor --target vertex", 1),
        ("config prices", 2),
        ("batch demo --target vertex --input gs://b/a.jsonl --output gs://b/out", 2),
        ("endpoints list -c slipway.yaml", 2),
        ("runs tpu list", 2),
    )
)
REFUSED = (
    Case(
        "an address where nobody listens",
        f"run --target vertex --no-wait --no-check --set vertex.endpoints.aiplatform={CLOSED}",
        2,
        r"could not submit the run: cannot reach localhost:1: connection refused\. " + FIX,
        BLAMES_GOOGLE,
    ),
    Case("and no run is left", "list", text="No runs yet", forked=True),
)


@pytest.fixture
def company(services: Services, make_project: Callable[..., Project]) -> Project:
    """A project in which the services have names below DOMAIN."""
    sections = {name: dict(services.sections[name]) for name in ("vertex", "tpu")}
    for section in sections.values():
        inside = {
            service: f"{service}.{DOMAIN}:{address.rpartition(':')[2]}"
            for service, address in section["endpoints"].items()
            if service != "docker"  # a registry on loopback is called without TLS
        }
        section["endpoints"] = section["endpoints"] | inside
    return make_project(**sections)


def test_all_of_googles_services_are_called_through_the_proxy(company: Project) -> None:
    """A connection that goes around the proxy fails, because only the proxy knows the names of the services."""
    company.commit()
    authorities = company.services.environment["SSL_CERT_FILE"]
    with Proxy() as proxy:
        environment = {
            "HTTPS_PROXY": proxy.address,
            "NO_PROXY": "localhost",  # the login server's
            "SSL_CERT_FILE": authorities,
            "REQUESTS_CA_BUNDLE": "",
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": "",
        }
        company.check(replace(case, environment=environment, forked=True) for case in THROUGH_PROXY)
    called = {"aiplatform", "artifactregistry", "cloudbilling", "cloudbuild", "cloudresourcemanager", "iam", "logging"}
    assert {*proxy.connections} >= called | {"serviceusage", "storage", "tpu"}


def test_without_a_network_every_command_says_what_cannot_be_reached(company: Project) -> None:
    company.check(WITHOUT_NETWORK)


def test_an_address_where_nobody_listens_is_named(make_project: Callable[..., Project]) -> None:
    make_project("vertex").check(REFUSED)
