"""Pictures of the report for five models: light, dark, on a phone and on paper.

    make screenshots                                   all of them, into docs/screenshots/made
    python docs/screenshots/take.py cnn --out FOLDER   of one model

README's picture, docs/report.png, is the first screen of a run in reports/, and made with them. The sweeps are real
but short; they are kept in a temporary folder, so that a second call only makes the pages anew.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

HERE = Path(__file__).parent
SWEEPS = {
    "cnn": "example:demo --alphas 1e-6,1e-5,1e-4 --steps 150 --seeds 2 --verify --verify-seeds 2",
    "gpt2": f"{HERE / 'gpt2.py'} --alphas 1e-6,1e-5,1e-4 --steps 40",
    "bert": f"{HERE / 'bert.py'} --alphas 1e-6,1e-5,1e-4 --steps 60 --seeds 2",
    "vit": f"{HERE / 'vit.py'} --alphas 1e-5,1e-4,1e-3 --steps 100 --seeds 2",
    "resnet50": f"{HERE / 'resnet50.py'} --alphas 1e-6,1e-5,1e-4 --steps 100",
}
SIZES = {"light": (1440, 1000), "dark": (1440, 1000), "phone": (390, 844)}
SECTIONS = ("verdict", "pattern", "architecture", "ranking", "course", "slim")
SHOWN, README_HEIGHT = "reports/resnet-14", 1040
KEPT = Path(tempfile.gettempdir()) / "dst-analyze-screenshots"


def main() -> None:
    """Make the sweeps that are missing, their pages, and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[[], *SWEEPS], default=[])
    parser.add_argument("--out", type=Path, default=HERE / "made")
    asked = parser.parse_args()
    for name in asked.models or SWEEPS:
        take(name, page_of(name), asked.out)
    if not asked.models:
        take_readme(HERE.parent / "report.png")


def page_of(name: str) -> Path:
    """Return the report of a model, made by this version from its sweep."""
    run, unfinished = KEPT / name, KEPT / f"{name}-unfinished"
    if not run.exists():
        run_command(*SWEEPS[name].split(), "--out", str(unfinished), "--force", "--quiet")
        unfinished.rename(run)
    run_command("report", str(run))
    return run / "report.html"


def run_command(*words: str) -> None:
    """Run dst-analyze with these arguments."""
    subprocess.run([sys.executable, "-m", "dst_analyze", *words], check=True)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser, and stop it."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def take_readme(out: Path) -> None:
    """Take README's picture: the first screen of a run that the repository holds."""
    with chromium() as browser:
        opened = browser.new_page(viewport={"width": 1280, "height": README_HEIGHT}, color_scheme="light")
        opened.goto((HERE.parents[1] / SHOWN / "report.html").as_uri())
        opened.screenshot(path=out)


def take(name: str, page: Path, out: Path) -> None:
    """Take the pictures of one report."""
    out.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for kind, (width, height) in SIZES.items():
            scheme = "dark" if kind == "dark" else "light"
            opened = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            opened.goto(page.as_uri())
            for section in SECTIONS:
                opened.evaluate(
                    "id => document.querySelector(`section[aria-labelledby=${id}]`).scrollIntoView()"
                    if section != SECTIONS[0]
                    else "id => scrollTo(0, 0)",
                    section,
                )
                opened.screenshot(path=out / f"{name}-{kind}-{section}.png")
            if kind == "light":
                opened.pdf(path=out / f"{name}-print.pdf", format="A4")
            opened.close()


if __name__ == "__main__":
    main()
