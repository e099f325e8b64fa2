"""How the report's cost grows with the number of layers: writing the page, loading it and sorting its table.

    python benchmarks/report_speed.py [--repeats 3] [--chromium PATH]

A page of 1,000 layers and one of 100 are taken in turn, so that a slow moment of a shared machine hits both; the median
of the ratios is printed. Ten is linear. Without a browser (`--chromium`) only the writing is measured.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dst_analyze import write_report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from runs import chain, made_run

SIZES = (100, 1000)
ALPHAS = tuple(float(f"{base}e-{power}") for power in (6, 5, 4, 3, 2) for base in (1, 3))
SORT = """() => { const times = [];
    for (const button of document.querySelectorAll("th[data-column] button")) {
        const start = performance.now();
        button.click();
        document.body.offsetHeight;
        times.push(performance.now() - start);
    }
    return times.sort((a, b) => a - b)[Math.floor(times.length / 2)]; }"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    given = parser.parse_args()
    found: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folders = {size: made(Path(scratch) / str(size), size) for size in SIZES}
        for _ in range(given.repeats):
            for size, folder in folders.items():
                for what, seconds in measure(folder, given.chromium).items():
                    found.setdefault((what, size), []).append(seconds)
    small, large = SIZES
    print(f"{'':>8} {small:>12,} {large:>12,} {'ratio':>8}")
    for what in dict.fromkeys(name for name, _ in found):
        ratio = statistics.median(b / a for a, b in zip(found[what, small], found[what, large], strict=True))
        medians = [statistics.median(found[what, size]) for size in SIZES]
        print(f"{what:>8} {medians[0]:10.3f} s {medians[1]:10.3f} s {ratio:8.1f}")


def made(folder: Path, size: int) -> Path:
    """Write a run of so many layers."""
    layers = [f"blocks.{number // 10}.conv{number % 10}" for number in range(size)]
    return made_run(folder, layers, alphas=ALPHAS, seeds=3, graph=chain(layers), readings=4).folder


def measure(folder: Path, chromium: str | None) -> dict[str, float]:
    """Return the seconds that writing the page, loading it and sorting its table take."""
    started = time.process_time()
    page = write_report(folder)
    taken = {"write": time.process_time() - started}
    return taken if chromium is None else {**taken, **in_browser(page, chromium)}


def in_browser(page: Path, chromium: str) -> dict[str, float]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab: Any = browser.new_page()
        tab.goto(page.as_uri())
        load = tab.evaluate("performance.getEntriesByType('navigation')[0].loadEventStart")
        sort = tab.evaluate(SORT)
        browser.close()
    return {"load": load / 1000, "sort": sort / 1000}


if __name__ == "__main__":
    main()
