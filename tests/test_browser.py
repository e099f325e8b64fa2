"""The report in a real browser: nothing leaves, nothing complains, strange names stay text."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_folder import STRANGE_NAMES, make_run

from dst_analyze.report.page import write_report


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_opens_quietly(browser, tmp_path: Path, scheme: str) -> None:
    make_run(tmp_path / "run", layers=STRANGE_NAMES)
    address = write_report(tmp_path / "run").as_uri()
    page = browser.new_page(color_scheme=scheme)
    requests, complaints = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append("dialog"), dialog.dismiss()))
    page.goto(address)
    page.wait_for_load_state("networkidle")
    assert requests == [address]
    assert complaints == []
    rows = page.locator("table").first.locator("tbody tr")
    assert rows.count() == len(STRANGE_NAMES)
    assert page.locator("figure svg").count() == 1
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    page.close()


def test_the_page_fits_a_phone(browser, tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(write_report(tmp_path / "run").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()
