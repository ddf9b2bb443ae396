"""HTML pages of the steps: self-contained, without scripts, based on the template `page.html`."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from jinja2 import Environment, Template


def render(template: Path, **content: object) -> str:
    """Render a template that extends `page.html`."""
    return load(template).render(**content)


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
    environment.filters.update(
        number=number,
        short=lambda value: number(value, 3),
        count="{:,}".format,
        percent=lambda value, decimals=1: f"{value:.{decimals}%}",
        confidence=_confidence,
        breakable=_breakable,
        counted=_counted,
    )
    return environment


def number(value: float | None, decimals: int = 4) -> str:
    """Format a number with so many decimals, with fewer if it is large, and with as many digits if it is tiny."""
    if value is None or math.isnan(value):
        return "–"
    if 0 < abs(value) < 0.5 * 10**-decimals:
        return f"{value:.{decimals}g}"
    return f"{value:,.{decimals if abs(value) < 1000 else 1 if abs(value) < 100_000 else 0}f}"


def _confidence(value: float) -> str:
    """Format a probability in percent; values just below 1 are not rounded to 100%."""
    return "> 99.9%" if 0.9995 <= value < 1 else f"{value:.1%}"


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
