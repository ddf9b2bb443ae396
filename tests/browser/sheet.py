"""The sheet of screenshots in docs/images: python -m tests.browser.sheet docs/images/pages.png"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from slipway.components.evaluate.report import render
from tests.browser import stub
from tests.browser.chromium import Browser, running
from tests.browser.pages import REPORTS, RUN, STATISTICS
from tests.browser.stub import DARK, Stub

SHOWN = {"two": "", "forty": "#confusion-matrix", "labels": "#per-label-metrics", "regression": "#residuals"}
LOOKS = ((360, False), (600, True), (1200, False))  # width, and whether dark
HEIGHT, SCALE, GAP = 1250, 0.45, 16


def row(browser: Browser, address: str, file: Path | None = None) -> Image.Image:
    """The first screens of a page at all widths, beside each other; a file is chosen on a server's page."""
    found = []
    for width, dark in LOOKS:
        with browser.page() as page:
            page.look(width, HEIGHT, dark=dark)
            page.open(address)
            if file:
                page.choose(file)
                page.says("Predicted by", "#state")
            found.append(Image.open(io.BytesIO(page.shot())).convert("RGB"))
    sheet = Image.new("RGB", (sum(each.width + GAP for each in found), HEIGHT), "white")
    left = 0
    for each in found:
        sheet.paste(each, (left, 0))
        left += each.width + GAP
    return sheet.resize((round(sheet.width * SCALE), round(HEIGHT * SCALE)), Image.Resampling.LANCZOS)


def rows(browser: Browser, folder: Path) -> Iterator[Image.Image]:
    for name, section in SHOWN.items():
        (folder / f"{name}.html").write_text(render(REPORTS[name](folder / name), RUN))
        yield row(browser, (folder / f"{name}.html").as_uri() + section)
    for name in ("table", "photographs"):
        yield row(browser, STATISTICS[name](folder / f"statistics {name}").as_uri())
    model, image = folder / "model", folder / "zero.png"
    model.mkdir()
    image.write_bytes(DARK)
    with Stub(stub.images(model), "digits/1").serving() as server:
        yield row(browser, server.url, image)


def main(target: Path) -> None:
    program = os.environ.get("SLIPWAY_CHROMIUM", "chromium")
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as profile,
        running(program, Path(profile)) as browser,
    ):
        found = list(rows(browser, Path(folder)))
    sheet = Image.new("RGB", (found[0].width, sum(each.height + GAP for each in found)), "white")
    for index, each in enumerate(found):
        sheet.paste(each, (0, index * (each.height + GAP)))
    sheet.quantize(256, Image.Quantize.MAXCOVERAGE).save(target, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
