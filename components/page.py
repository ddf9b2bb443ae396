"""HTML pages of the steps: self-contained, without scripts, based on the template `page.html`."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup, escape


def render(template: Path, **content: object) -> str:
    """Render a template that extends `page.html`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        figure=_figure,
        short=lambda value: _figure(value, 3),
        count="{:,}".format,
        difference=lambda value: f"{value:+.4f}".replace("-", "−"),
        percent=lambda value, decimals=1: f"{value:.{decimals}%}",
        confidence=_confidence,
        breakable=_breakable,
        counted=_counted,
    )
    return environment.get_template(template.name).render(**content)


def _figure(value: float | None, decimals: int = 4) -> str:
    return "–" if value is None else f"{value:.{decimals}f}"


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
