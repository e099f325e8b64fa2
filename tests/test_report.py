"""The page: self-contained, deterministic, inert whatever the names, and made without torch."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_folder import STRANGE_NAMES, make_run

from dst_analyze.ranking.rank import rank_layers
from dst_analyze.ranking.table import by_reason
from dst_analyze.report.figures import pattern_svg
from dst_analyze.report.page import render, write_report
from dst_analyze.slimming.values import Entry, FrozenGroup, GroupPlan, SlimPlan, Verification
from dst_analyze.sweep.reading import read_run
from dst_analyze.sweep.record import SkippedLayer


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_stands_alone(tmp_path):
    make_run(tmp_path / "run")
    path = write_report(tmp_path / "run")
    html = path.read_text()
    page = Page(html)
    assert path == tmp_path / "run" / "report.html"
    assert not {"script", "link", "iframe", "img", "object"} & set(page.tags)
    assert not [value for name, value in page.attributes if name in ("src", "href", "xlink:href") and value[:1] != "#"]
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_the_page_shows_the_numbers(tmp_path):
    text = " ".join(" ".join(Page(render(make_run(tmp_path / "run", seeds=2))).text).split())
    for expected in ("conv1", "fc", "at 1e-4", "at 1e-3", "50.0", "16.7", "90.0 %", "then of 2 seeds"):
        assert expected in text
    for expected in ("normalisation : 1 tensor", "norm.weight", "aten::strange", "a note", "dense, seed 0", "SGD"):
        assert expected.replace(" :", ":") in text


def test_the_same_run_gives_the_same_bytes(tmp_path):
    record = make_run(tmp_path / "run")
    assert render(record) == render(record)
    write_report(tmp_path / "run")
    table = (tmp_path / "run" / "table.csv").read_bytes()
    write_report(tmp_path / "run")
    assert (tmp_path / "run" / "table.csv").read_bytes() == table
    assert table.decode().startswith("layer,kind,params,macs,remaining at 1e-4,remaining at 1e-3,label,rank,rank_low")


def test_names_are_inert(tmp_path):
    names = [*STRANGE_NAMES, "</script><script>alert(1)</script>", "{{ 7 * 7 }}", "\x1b[31mred", "‮evil", "x" * 5000]
    html = render(make_run(tmp_path / "run", layers=names))
    page = Page(html)
    assert not {"script", "img"} & set(page.tags)
    assert "{{ 7 * 7 }}" in "".join(page.text)
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_notes_are_loud(tmp_path):
    record = make_run(tmp_path / "run", stand_in=True, diverged=(1e-3,), resets={"<b>fc</b>": 2})
    html = render(record)
    notes = html[: html.index("<h2>")]
    assert "Stand-in data" in notes
    assert "no longer finite" in notes
    assert "&lt;b&gt;fc" in notes
    assert notes.count('class="note"') == 3


def test_the_figure_is_svg_in_the_pages_colours(tmp_path):
    record = make_run(tmp_path / "run", layers=["conv1", "$broken^{math$", "a" * 100])
    table = rank_layers(record).remaining()
    svg = pattern_svg(table)
    text = [element.text for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert "conv1" in text
    assert "$broken^{math$" in text
    assert "50" in text
    assert any(t and "…" in t and len(t) <= 44 for t in text)
    assert "currentColor" in svg
    assert not re.search(r"\d{4}-\d\d-\d\d", svg)


def test_a_run_in_which_everything_diverged_still_has_a_page(tmp_path):
    html = render(make_run(tmp_path / "run", diverged=(1e-4, 1e-3)))
    assert "nan" not in "".join(Page(html).text)


def test_reasons_are_gathered_by_weight():
    skipped = [SkippedLayer(name=n, reason=r, params=p) for n, r, p in (("a", "x", 1), ("b", "y", 5), ("c", "x", 2))]
    assert [(reason, len(group)) for reason, group in by_reason(skipped)] == [("y", 1), ("x", 2)]


@pytest.mark.parametrize(
    "command",
    [
        ["report", "run"],
        ["rank", "run"],
        ["compare", "run", "run2"],
        ["--help"],
        ["--version"],
        ["report", "nowhere"],
    ],
)
def test_the_cheap_half_does_not_import_torch(tmp_path, command):
    make_run(tmp_path / "run")
    make_run(tmp_path / "run2", seeds=2)
    code = f"import sys; from dst_analyze.cli import main; main({command}); print(sorted(sys.modules))"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    modules = done.stdout.splitlines()[-1]
    assert "'click'" in modules
    assert "'torch'" not in modules
    if command[0].startswith("--"):
        assert not [
            name for name in ("pandas", "seaborn", "matplotlib", "jinja2", "pydantic") if f"'{name}'" in modules
        ]
    if command == ["report", "run"]:
        assert (tmp_path / "run" / "report.html").exists()


HOSTILE = "</script><img src=x onerror=alert(1)>{{ 7 * 7 }}\x1b[31m"


def test_the_slim_architecture_and_its_proof_are_shown_and_inert(tmp_path):
    record = make_run(tmp_path / "run")
    group = GroupPlan(
        group=HOSTILE, layers=("conv1", HOSTILE), width=64, new_width=24, units=64, density=0.25, reason=HOSTILE
    )
    plan = SlimPlan(
        model="Net", parameters={HOSTILE: (1,)}, inputs=(), rule="density", asked={"params": 0.5}, groups=(group,),
        frozen=(FrozenGroup(group="fc", layers=("fc",), reason=HOSTILE),), params=1000, new_params=512, macs=9000,
        new_macs=4000, latency=0.7, notes=(HOSTILE,),
    )  # fmt: skip
    entries = tuple(
        Entry(name=name, about=HOSTILE, params=10, macs=None, latency_ms=1.25, memory=10**6, scores=(0.5, score))
        for name, score in (("slim", 0.75), ("dense", None))
    )
    proof = Verification(score="accuracy", steps=10, seeds=(0, 1), entries=entries)
    (record.folder / "plan.json").write_text(plan.model_dump_json())
    (record.folder / "verification.json").write_text(proof.model_dump_json())
    (record.folder / "changes.csv").write_text('layer,before,after\nconv1,"nn.Conv2d(1, 64)","<b>nn.Conv2d(1, 24)"\n')
    page = Page(render(record))
    text = " ".join(" ".join(page.text).split())
    for expected in ("1,000 → 512 parameters (51.2 %)", "9,000 → 4,000 MACs (44.4 %)", "70.0 % of the time", "62.5 %"):
        assert expected in text
    assert "<b>nn.Conv2d(1, 24)" in text
    assert not {"script", "img", "b"} & set(page.tags)
    assert "49" not in [cell.strip() for cell in page.text]
    assert read_run(record.folder).trials == record.trials  # it is still the run's folder
