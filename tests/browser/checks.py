"""What tests of all pages check in the browser: each is JavaScript that returns the elements at fault, as texts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.browser.chromium import Chromium

# Texts with less contrast to the nearest opaque background than 4.5:1, https://www.w3.org/TR/WCAG22/#contrast-minimum
PALE = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = color => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) =>
    0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const found = [];
  for (const element of document.querySelectorAll('body, body *')) {
    const hasText = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!(hasText || element.value) || !element.checkVisibility()) continue;
    if (['SCRIPT', 'title'].includes(element.tagName)) continue;
    let behind = element;
    while (rgb(getComputedStyle(behind).backgroundColor)[3] < 255) behind = behind.parentElement;
    const style = getComputedStyle(element), front = element.namespaceURI.includes('svg') ? style.fill : style.color;
    const values = [front, getComputedStyle(behind).backgroundColor].map(rgb).map(luminance);
    const ratio = (Math.max(...values) + 0.05) / (Math.min(...values) + 0.05);
    if (ratio < 4.5) found.push(`${element.tagName} ${element.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return found;
})()"""

# Boxes whose content is wider than they are, the page itself included, and cells whose text is cut.
CUT = """[document.documentElement, ...document.querySelectorAll('.box, td, th, pre, p, dd')]
  .filter(each => each.checkVisibility() && each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 1)
  .map(each => `${each.tagName} ${each.className} by ${each.scrollWidth - each.clientWidth}: ${each.innerText}`)
"""

# What is folded up and cannot be seen.
FOLDED = """[...document.querySelectorAll('details:not(.values)')]
  .filter(each => each.querySelector('table').getBoundingClientRect().height < 20)
  .map(each => each.innerText)"""

# Names of rows or columns in one table that look the same.
SAME_NAMES = """[...document.querySelectorAll('table:not(.values table)')].flatMap(table =>
  ['tbody th', 'thead th'].flatMap(kind => {
    const visible = [...table.querySelectorAll(kind)].filter(each => each.checkVisibility());
    const names = visible.map(each => each.innerText.trim());
    return names.filter((name, index) => names.indexOf(name) !== index);
  }))"""

# What a screen reader cannot name: images, charts, tables, frames and headers without a text; a header without a scope;
# ids that are not unique; a page without one main, one h1 and a language; headings that skip a level.
UNNAMED = """(() => {
  const all = selector => [...document.querySelectorAll(selector)], found = [];
  const report = (elements, fault) =>
    elements.forEach(each => found.push(`${fault}: ${each.outerHTML.slice(0, 120)}`));
  report(all('img:not([alt])'), 'no alt');
  report(all('svg:not([role=img][aria-label])'), 'no label');
  report(all('table').filter(each => !each.caption?.textContent.trim()), 'no caption');
  report(all('iframe:not([title])'), 'no title');
  report(all('th').filter(each => !each.textContent.trim()), 'empty header');
  report(all('th:not([scope])'), 'no scope');
  report(all('a, summary, button').filter(each => !each.textContent.trim()), 'no text');
  report(all('[id]').filter(each => all(`[id="${each.id}"]`).length > 1), 'id twice');
  if (all('main').length !== 1 || all('h1').length !== 1) found.push('main, h1');
  if (!document.documentElement.lang || !document.title) found.push('lang, title');
  let level = 0;
  for (const each of all('h1, h2, h3, h4')) {
    if (+each.tagName[1] > level + 1) found.push(`skips a level: ${each.outerHTML}`);
    level = +each.tagName[1];
  }
  return found;
})()"""

AXE = "axe.run().then(result => result.violations.map(each => "
AXE += "`${each.id}: ${each.nodes.slice(0, 3).map(node => node.html.slice(0, 200))}`))"


def check_with_axe(page: Chromium) -> None:
    """Check the open page by the rules of axe-core, of which SLIPWAY_AXE names the file axe.min.js, at two widths."""
    script = os.environ.get("SLIPWAY_AXE")
    if not script:
        pytest.skip("SLIPWAY_AXE does not name axe.min.js of the npm package axe-core")
    page.run(Path(script).read_text() + "; 0")
    for width in (400, 1200):
        for dark in (False, True):
            page.look(width, dark=dark)
            assert (width, dark, page.run(AXE)) == (width, dark, [])
