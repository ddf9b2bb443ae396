"""A pytest plugin in the copy's site-packages: tells the switch which test is running, and records results.

MUTANT_RESULTS names the file of the results, in JSON lines. MUTANT_TESTS names a file with the tests to run, in their
order; otherwise all run.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest


def _write(**record: Any) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ["MUTANT_RESULTS"]).open("a") as file:
            print(json.dumps(record), file=file)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if names := os.environ.get("MUTANT_TESTS"):
        by_name = {item.nodeid: item for item in items}
        items[:] = [by_name[name] for name in json.loads(Path(names).read_text()) if name in by_name]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Function) -> Generator[None, Any, Any]:
    """Name the test, and its fixtures of a wider scope than the test, whose results other tests use."""
    for name, module in list(sys.modules.items()):
        if name.startswith("slipway."):  # what another test has cached is computed, and recorded, again
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
    definitions = [last for *_, last in item._fixtureinfo.name2fixturedefs.values()]
    item.user_properties.append(("shared", [_name(fixture) for fixture in definitions if fixture.scope != "function"]))
    os.environ["MUTANT_TEST"] = item.nodeid
    try:
        return (yield)
    finally:
        del os.environ["MUTANT_TEST"]


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    """Add the name of a fixture of a wider scope to the test's while it is set up."""
    if fixturedef.scope == "function":
        return (yield)
    outer = os.environ["MUTANT_TEST"]
    os.environ["MUTANT_TEST"] = f"{outer}\t{_name(fixturedef)}"
    try:
        return (yield)
    finally:
        os.environ["MUTANT_TEST"] = outer


def _name(fixture: pytest.FixtureDef[Any]) -> str:
    return f"{fixture.baseid}::{fixture.argname}"


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(test=nodeid, outcome="started")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    shared = dict(report.user_properties).get("shared", [])
    _write(test=report.nodeid, outcome=report.outcome, seconds=report.duration, shared=shared)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(test=report.nodeid, outcome="failed", seconds=0.0, shared=[])
