"""HTML pages of the steps: self-contained, without scripts, based on the template `page.html`."""

from __future__ import annotations

import base64
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from slipway.core import formatting

if TYPE_CHECKING:
    from jinja2 import Environment, Template

LONG_PAGE = 4  # headings
CONTENTS = "<!-- contents -->"
REGISTERED, COST = "<!-- registered -->", "<!-- cost -->"


def render(template: Path, **content: object) -> str:
    """Render a template that extends `page.html`; its headings have ids, and a contents above them if they are many."""
    titles: dict[str, str] = {}

    def with_id(match: re.Match[str]) -> str:
        name = re.sub(r"\W+", "-", match[1].lower()).strip("-")
        name = name if name not in titles else f"{name}-{len(titles)}"
        titles[name] = match[1]
        return f'<h2 id="{name}">{match[1]}</h2>'

    html = re.sub(r"<h2>(.*?)</h2>", with_id, load(template).render(**content))
    links = " ".join(f'<a href="#{name}">{title}</a>' for name, title in titles.items())
    contents = f'<nav aria-label="Contents">{links}</nav>' if len(titles) >= LONG_PAGE else ""
    return html.replace(CONTENTS, contents, 1)


def data_uri(encoding: str, image: bytes) -> str:
    """Return an encoded image as the address of an `img` element."""
    return f"data:image/{encoding};base64,{base64.b64encode(image).decode()}"


def completed(report: bytes, version: str, cost: str = "") -> bytes:
    """Return a report with what is known later: its model's registered `version`, and what the training cost."""
    registration = f", registered as <strong>{escape(version)}</strong>" if version else ""
    training_cost = f". The training cost {escape(cost)}" if cost else ""
    return report.replace(REGISTERED.encode(), registration.encode(), 1).replace(
        COST.encode(), training_cost.encode(), 1
    )


def load(template: Path) -> Template:
    """Compile a template, which `render` then need not do."""
    return _environment(template.parent).get_template(template.name)


@functools.cache
def _environment(folder: Path) -> Environment:
    """Return the environment of the templates in `folder`; it keeps compiled templates."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["meter"] = _meter
    environment.filters.update(
        number=formatting.number,
        short=lambda value: formatting.number(value, digits=3),
        brief=formatting.brief,
        interval=lambda ends, places=None: formatting.interval(ends[0], ends[1], places),
        size=formatting.size,
        count="{:,}".format,
        percent=lambda value, decimals=1: f"{value:.{decimals}%}",
        confidence=_confidence,
        breakable=_breakable,
        counted=_counted,
    )
    return environment


def _confidence(value: float) -> str:
    """Format a probability in percent; values just below 1 are not rounded to 100%."""
    return "> 99.9%" if 0.9995 <= value < 1 else f"{value:.1%}"


def _meter(fraction: float) -> Markup:
    """Return a bar whose length is a fraction of its cell's."""
    return Markup('<span class="meter" aria-hidden="true"><i style="width: {:.1f}%"></i></span>').format(fraction * 100)


def _breakable(name: str) -> Markup:
    """Return a name with line-break opportunities after underscores, dashes and slashes."""
    text = str(escape(name))
    for separator in "_-/":
        text = text.replace(separator, f"{separator}<wbr>")
    return Markup(text)


def _counted(count: int, noun: str) -> str:
    """Format a count with its noun: "1 image", "1,200 images"."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"
