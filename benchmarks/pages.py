"""How long pages take to appear in Chromium: Slipway's reports beside the pages of other tools, in one run.

    python -m benchmarks.pages runs/latest/report.html runs/latest/statistics.html evidently.html http://127.0.0.1:5000/...

Each page is opened `--rounds` times in turn, in a new tab without a cache. The time is that of the largest contentful
paint (https://web.dev/articles/lcp), after which nothing larger appears: an application that draws its page by script
is ready long after its document is loaded.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from tests.browser.chromium import Browser, running

QUIET_SECONDS = 1.0  # without another paint
PAINTED = """
new Promise(done => new PerformanceObserver(list => done(list.getEntries().at(-1).startTime))
    .observe({type: 'largest-contentful-paint', buffered: true}))
"""
BYTES = "performance.getEntries().reduce((sum, entry) => sum + (entry.encodedBodySize || 0), 0)"


def opened(browser: Browser, address: str) -> tuple[float, int, float]:
    """Open a page and return the milliseconds to its largest paint, its number of requests, and its kilobytes."""
    with browser.page() as page:
        page.look(1200)
        page.call("Network.setCacheDisabled", cacheDisabled=True)
        page.open(address)
        last, since = -1.0, time.monotonic()
        while time.monotonic() - since < QUIET_SECONDS:
            painted = page.run(PAINTED)
            if painted != last:
                last, since = painted, time.monotonic()
            time.sleep(0.1)
        return last, max(1, len(page.requests)), page.run(BYTES) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", help="HTML files and addresses")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    found: dict[str, list[tuple[float, int, float]]] = {page: [] for page in options.pages}
    with (
        tempfile.TemporaryDirectory() as profile,
        running(os.environ.get("SLIPWAY_CHROMIUM", "chromium"), Path(profile)) as browser,
    ):
        for _ in range(options.rounds):
            for page, rounds in found.items():
                file = Path(page)
                rounds.append(opened(browser, file.absolute().as_uri() if file.is_file() else page))
    print("| page | milliseconds, median | least | requests | kB |")
    print("|---|---|---|---|---|")
    for page, rounds in found.items():
        times = [each[0] for each in rounds]
        size = Path(page).stat().st_size / 1000 if Path(page).is_file() else rounds[-1][2]
        print(f"| {page} | {statistics.median(times):.0f} | {min(times):.0f} | {rounds[-1][1]} | {size:.0f} |")


if __name__ == "__main__":
    main()
