"""docs/configuration.md is complete and current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from slipway.components.setup_access.settings import AccessSettings
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.config.errors import _all_names, _field, _model_at
from slipway.pipelines.platforms.vertex.schedules.settings import ScheduleSettings
from slipway.trainer.config import JobConfig
from tests.docs.configuration import page

PAGE = Path("docs/configuration.md")


def test_the_page_is_current():
    """To update it: `python -m tests.docs.configuration > docs/configuration.md`."""
    assert PAGE.read_text() == page()


def test_every_setting_has_a_row_and_every_link_a_heading():
    text = PAGE.read_text()
    run = text.partition("## Run configuration")[2]
    headings = {re.sub(r"[^a-z_]", "", line) for line in re.findall(r"^### (.+)$", text, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(.+?)\)", text)) <= headings
    for name in _all_names(RunConfig):
        section, _, key = name.rpartition(".")
        table = run.partition(f"### {section}\n")[2] if section else run
        assert f"| `{key}` |" in table.partition("\n### ")[0], name


@pytest.mark.parametrize("model", [RunConfig, ScheduleSettings, JobConfig, AccessSettings])
def test_every_setting_is_described_in_sentences(model: type[BaseModel]):
    for name in _all_names(model):
        *parents, key = name.split(".")
        field = _field(_model_at(model, tuple(parents)), key)
        assert field is not None
        assert re.match(r"[A-Z\d\[].{8,}", field.description or ""), name


def test_the_example_is_a_configuration():
    [text] = re.findall(r"<<'END'\n(.+?)END\n", page(), re.DOTALL)
    assert RunConfig.model_validate(yaml.safe_load(text)).train.epochs == 5
