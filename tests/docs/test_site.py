"""What the site has for language models: each page's Markdown, and the list of them."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.docs import site


def test_every_page_is_listed_with_a_sentence_and_exists():
    nav = yaml.safe_load((site.ROOT / "mkdocs.yml").read_text())["nav"]
    listed = re.findall(r"^- \[[^]]+\]\(([\w-]+\.md)\): (.+)$", site.llms_text(nav), re.MULTILINE)
    assert {page for page, _ in listed} == set(site.markdown_pages())
    assert all(len(sentence.split()) > 3 for _, sentence in listed), listed


@pytest.mark.parametrize("page", sorted({*site.PAGES, *(path.name for path in (site.ROOT / "docs").glob("*.md"))}))
def test_the_links_of_a_page_lead_to_pages(page: str):
    linked = re.findall(r"\]\((?!\w+:|#)([^)#\s]+\.md)", site.markdown_pages()[page])
    assert set(linked) <= set(site.markdown_pages())
