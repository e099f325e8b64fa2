"""The page: self-contained, deterministic, inert whatever the names, and made without torch."""

import ast
import base64
import csv
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from commands import run_here
from run_folders import make_run
from runs import HOSTILE, add_plan, chain, made_run

from dst_analyze import read_run
from dst_analyze.cli.main import main
from dst_analyze.ranking.formats.table import by_reason
from dst_analyze.ranking.rank import rank_layers
from dst_analyze.report.changes import Change, change_lines, joined_names, read_changes
from dst_analyze.report.commands import commands
from dst_analyze.report.compare_page import write_comparison
from dst_analyze.report.figures import sized
from dst_analyze.report.figures.colours import ink_on, luminance, shade
from dst_analyze.report.figures.svg import shortened
from dst_analyze.report.page import SECTIONS, render, write_report
from dst_analyze.report.rows import keys_of
from dst_analyze.report.summary import summary_of
from dst_analyze.run.defaults import DEFAULT_STEPS
from dst_analyze.run.record import SkippedLayer
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.proof.result import Entry, Verification

ALPHAS = (1e-5, 1e-4, 1e-3)


class Page(HTMLParser):
    """The tags, attributes and text of a page; what scripts and styles say is no text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text, self.scripts, self.ids = [], [], [], [], []
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def assert_inert(html):
    """Nothing but our own script can run, and nothing is fetched."""
    page = Page(html)
    assert page.tags.count("script") == 2
    assert len(page.scripts) == 2
    digest = base64.b64encode(hashlib.sha256(page.scripts[0].encode()).digest()).decode()
    policy = next(value for name, value in page.attributes if name == "content" and "default-src" in value)
    assert "default-src 'none'" in policy
    assert re.findall(r"script-src ([^;]*);", policy) == [f"'sha256-{digest}'"]
    assert not {"link", "iframe", "img", "object", "base", "form"} & set(page.tags)
    links = [value for name, value in page.attributes if name in ("src", "href", "xlink:href", "action")]
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    json.loads(page.scripts[1])
    assert len(page.ids) == len(set(page.ids))
    return page


def test_the_page_is_self_contained(tmp_path):
    make_run(tmp_path / "run")
    path = write_report(tmp_path / "run")
    html = path.read_text()
    assert path == tmp_path / "run" / "report.html"
    assert_inert(html)
    assert len(Page(html).scripts[0]) < 60_000
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_the_sections_come_in_their_order(tmp_path):
    html = render(made_run(tmp_path / "run", ["a", "b", "c"], graph=chain(["a", "b", "c"])))
    found = re.findall(r'<h2 id="([a-z]+)">', html)
    assert found == ["verdict", "pattern", "architecture", "ranking", "course", "slim", "facts", "glossary"]
    assert [anchor for anchor, _ in SECTIONS] == found
    levels = [int(tag[1]) for tag in Page(html).tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_the_page_shows_the_numbers(tmp_path):
    text = Page(render(make_run(tmp_path / "run", seeds=2))).words
    for expected in ("conv1", "fc", "alpha 1e-4 1e-3", "50.0", "16.7", "90.0 %", "then of 2 seeds"):
        assert expected in text
    for expected in ("normalisation: 1 tensor", "norm.weight", "aten::strange", "a note", "dense, seed 0", "SGD"):
        assert expected in text
    assert "dst-analyze m.py --alphas 1e-4,1e-3 --seeds 2" in text


def test_the_same_run_gives_the_same_bytes(tmp_path):
    record = made_run(tmp_path / "run", ["conv1", "fc"], graph=chain(["conv1", "fc"]))
    add_plan(record.folder, ["conv1", "fc"])
    write_report(record.folder)
    names = ("report.html", "table.csv", "trials.csv", "widths.csv", "verdict.json", "summary.md")
    before = {name: (record.folder / name).read_bytes() for name in names}
    code = f"from dst_analyze.report.page import write_report; write_report({str(record.folder)!r})"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    assert {name: (record.folder / name).read_bytes() for name in names} == before
    head = "layer,kind,params,macs,remaining at 1e-4,remaining at 1e-3,label,rank,rank_low"
    assert before["table.csv"].decode().startswith(head)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A run in which every text that comes from elsewhere wants to be code."""
    skipped = tuple(SkippedLayer(name=text, reason=text, place=text, params=2) for text in HOSTILE)
    record = made_run(
        tmp_path_factory.mktemp("hostile") / "run", HOSTILE, graph=chain(HOSTILE), name=HOSTILE[0], failed=HOSTILE[1],
        stand_in=True, reset=HOSTILE[2], seeds=2, skipped=skipped,
    )  # fmt: skip
    add_plan(record.folder, HOSTILE, words="".join(HOSTILE[:-1]))
    write_report(record.folder)
    return record.folder


def test_hostile_texts_are_inert_in_the_page(hostile):
    html = (hostile / "report.html").read_text()
    page = assert_inert(html)
    assert "<img src=x onerror=alert(1)>" in page.words
    assert "{{1234*567}}" in page.words
    assert "699678" not in page.words
    assert not re.search("[\u2028\u2029\u202a-\u202e\u2066-\u2069\x1b]", page.words)
    assert "x" * 1001 not in html  # 10 kB are not spelt out


def test_hostile_texts_are_inert_in_csv(hostile):
    write_report(hostile)
    for name in ("layers.csv", "table.csv", "trials.csv", "widths.csv"):
        with (hostile / name).open(newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        texts = [cell for cell in cells if not re.fullmatch(r"[-+]?[\d.]+(e-?\d+)?", cell)]
        assert not [text for text in texts if text.startswith(("=", "+", "-", "@"))], name
        assert name == "trials.csv" or any(cell.startswith("'=cmd") for cell in cells), name
    assert list(read_run(hostile).layers["layer"]) == HOSTILE


@pytest.mark.parametrize("command", [["report"], ["rank"], ["compare", "another"]])
def test_hostile_texts_are_inert_in_the_terminal(hostile, command, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    shutil.copytree(hostile, tmp_path / "again")
    arguments = [*command[:1], *[str(tmp_path / "again")] * (len(command) - 1), str(hostile)]
    arguments += ["--html", str(hostile.parent / "both.html")] if command[0] == "compare" else []
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert not re.search("[\u2028\u2029\u202a-\u202e\u2066-\u2069]", printed)
    if command[0] != "report":
        assert "[bold]not[/bold]" in printed
        assert "<img src=x onerror=alert(1)>" in printed
    assert max(map(len, printed.splitlines())) < 1000


def test_two_runs_stand_side_by_side(hostile, tmp_path):
    made_run(tmp_path / "other", ["conv1", "fc"])
    made_run(tmp_path / "<b>third", ["conv1", "fc", "more"], stand_in=True)
    write_comparison(tmp_path / "one.html", [hostile, tmp_path / "other"])
    assert_inert((tmp_path / "one.html").read_text())
    compared = write_comparison(tmp_path / "two.html", [tmp_path / "other", tmp_path / "<b>third"])
    page = assert_inert((tmp_path / "two.html").read_text())
    assert "b" not in page.tags
    assert len(compared.table) == 2
    assert page.tags.count("figure") == 3  # the redundancies, and both networks
    assert page.attributes.count(("class", "heat")) == 2
    for expected in ("run 1", "run 2", "Stand-in data", "conv1", "97.0 %", "Without a counterpart"):
        assert expected in page.words


def test_a_comparison_takes_a_table_of_ratios(tmp_path):
    kept = {"conv1": 0.5, "fc": 0.1}
    rows = ["layer,alpha,remaining,params", *(f"{n},{a},{r},100" for n, r in kept.items() for a in ALPHAS)]
    (tmp_path / "ratios.csv").write_text("\n".join(rows) + "\n")
    made_run(tmp_path / "run", ["conv1", "fc"])
    page = tmp_path / "both.html"
    assert main(["compare", str(tmp_path / "ratios.csv"), str(tmp_path / "run"), "--html", str(page)]) == 0
    assert "ratios.csv" in assert_inert(page.read_text()).words


def verdict_of(html):
    return html[html.index('id="verdict"') : html.index('id="pattern"')]


def test_warnings_are_in_the_verdict(tmp_path):
    record = make_run(tmp_path / "run", stand_in=True, diverged=(1e-3,), resets={"<b>fc</b>": 2})
    verdict = verdict_of(render(record))
    for said in ("Stand-in data", "no longer finite", "&lt;b&gt;fc", "Not confirmed", "One trial shows an order"):
        assert said in verdict
    assert verdict.count('class="note"') == 3  # resets are no warning: they stand below
    assert "<strong>Resets.</strong>" in verdict
    lost = verdict_of(render(make_run(tmp_path / "lost", diverged=(1e-4, 1e-3))))
    for said in ("No ranking", "There is no trial to rank by", "does not show which layers"):
        assert said in lost


def test_the_verdict_names_the_layers_that_matter(tmp_path):
    names = [f"layer{number}" for number in range(14)]
    record = made_run(tmp_path / "run", names, alphas=ALPHAS, seeds=2)
    ranking = rank_layers(record)
    redundant = set(ranking.table.loc[ranking.table["label"] == "redundant", "layer"])
    needed = set(ranking.table.loc[ranking.table["label"] == "needed", "layer"])
    assert redundant
    assert needed
    said = summary_of(record, ranking, None, None)
    assert {found.layer for found in said.findings} <= redundant | needed
    assert said.headline.startswith(f"{len(redundant)} of 14 layers")
    assert "No slimmer architecture" in said.saving[0]
    assert said.warnings == []


def proof_of(**scores):
    entries = tuple(
        Entry(name=name, about=f"the {name} one", params=10, macs=5, latency_ms=4 if name == "dense" else 3, memory=1,
              scores=tuple(values))
        for name, values in scores.items()
    )  # fmt: skip
    return Verification(score="accuracy", steps=10, seeds=(0, 1, 2), entries=entries)


def test_the_verdict_says_what_slimming_saves_and_when_it_lost(tmp_path):
    record = made_run(tmp_path / "run", ["conv1", "fc"])
    plan = add_plan(record.folder, ["conv1", "fc"])
    ranking = rank_layers(record)
    won = proof_of(slim=(0.9, 0.91, 0.9), dense=(0.92, 0.92, 0.93), uniform=(0.5, 0.52, 0.5))
    said = summary_of(record, ranking, plan, won)
    text = " ".join(said.saving)
    assert "512 of 1,000 parameters (51.2%)" in text
    assert "3 ms instead of 4 ms (75%)" in text
    assert "below the dense" in text
    assert "better than uniform" in text
    assert not [note for note in said.warnings if note.title == "The suggestion lost"]
    lost = proof_of(slim=(0.5, 0.52, 0.5), dense=(0.92, 0.92, 0.93), uniform=(0.9, 0.91, 0.9))
    said = summary_of(record, ranking, plan, lost)
    assert [note.title for note in said.warnings][-1] == "The suggestion lost"
    assert "worse than uniform" in " ".join(said.saving)


def test_the_slim_architecture_and_its_proof_are_shown(tmp_path):
    record = make_run(tmp_path / "run")
    add_plan(record.folder, ["conv1", "fc"], words="<b>words</b>")
    page = assert_inert(render(record))
    assert "b" not in page.tags
    for expected in ("1,000 → 512 parameters (51.2 %)", "9,000 → 4,000 MACs (44.4 %)", "70.0 % of the time", "62.5 %"):
        assert expected in page.words
    assert "# fc # nn.Conv2d(64, 32) <b>words</b> # was nn.Conv2d(64, 64)" in page.words
    assert read_run(record.folder).trials == record.trials  # it is still the run's folder


@pytest.mark.parametrize("columns", [("before", "after"), ("before", "after", "line", "place", "remark")])
def test_changed_lines_are_valid_python(tmp_path, columns):
    rows = [
        ("8.conv1", "nn.Conv2d(8, 8, 1)", "nn.Conv2d(8, 4, 1)", "self.conv1 = nn.Conv2d(8, 4, 1)", "Net, m.py:3", ""),
        ("fc", "shape (8, 4)", "shape (4, 4)", "", "", "a parameter of\nits own"),
        *((name[:90], "a\nb", "c\nd", "e (\n", "f\ng", "h") for name in HOSTILE),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["layer", "before", "after", "line", "place", "remark"])
    table[["layer", *columns]].to_csv(tmp_path / "changes.csv", index=False)
    changes = list(read_changes(tmp_path / "changes.csv").values())
    ast.parse("\n".join(change.text for change in changes))
    tree = ast.parse("\n".join(change_lines(changes)))
    calls = [ast.unparse(node.value) for node in tree.body if isinstance(node, (ast.Assign, ast.Expr))]
    assert "nn.Conv2d(8, 4, 1)" in calls
    assert not any("shape" in call for call in calls)


def test_lines_that_build_blocks_alike_stand_together():
    place, remark = "Block.__init__, net.py:3", "Block is in an installed package: copy the class"
    changes = [
        Change(f"h.{at}.fc", f"self.fc = nn.Linear({96 if at == 4 else 64}, 8)", "nn.Linear(128, 8)", place, remark)
        for at in range(6)
    ]
    assert list(change_lines(changes)) == [
        f"# {place}: {remark}",
        "self.fc = nn.Linear(64, 8)  # was nn.Linear(128, 8), for h.{0-3,5}.fc",
        "self.fc = nn.Linear(96, 8)  # was nn.Linear(128, 8), for h.4.fc",
    ]
    assert joined_names(["a.x.fc", "a.y.fc"]) == "a.{x,y}.fc"
    assert joined_names(["a.0.fc", "b.1.fc"]) == "a.0.fc, b.1.fc"


def test_a_plan_without_a_proof_says_so(tmp_path):
    record = make_run(tmp_path / "run")
    add_plan(record.folder, ["conv1", "fc"], proven=False)
    assert "Not trained yet" in Page(render(record)).words


def test_figures_are_svg_in_the_pages_colours(tmp_path):
    record = make_run(tmp_path / "run", layers=["conv1", "$broken^{math$", "a" * 100])
    figure_set = sized.FigureSet()
    svg = figure_set.put("pattern", 'a "label"', sized.heatmap, rank_layers(record).remaining())
    text = [element.text for element in ET.fromstring(svg).iter("text")]
    assert "conv1" in text
    assert "$broken^{math$" in text
    assert "50" in text
    assert any(t and "…" in t and len(t) <= 44 for t in text)
    assert "var(--page)" in figure_set.styles.css
    inks = dict(re.findall(r"\.(s\d+)\{.*?fill:(#\w+)\}", figure_set.styles.css))
    written = {e.text: inks.get(e.get("class"), "the page's") for e in ET.fromstring(svg).iter("text")}
    assert (written["50"], written["conv1"]) == ("#000", "the page's")  # upon grey, in light and dark alike
    assert not re.search(r"\d{4}-\d\d-\d\d", svg)
    assert 'aria-label="a &#34;label&#34;"' in svg


def contrast(one, other):
    """As WCAG defines it: from 1 (the same) to 21 (black on white)."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_on_every_shade_has_enough_contrast():
    for given in (True, False):
        shades = [shade(step / 63, given=given) for step in range(64)]
        assert min(contrast(colour, ink_on(colour)) for colour in shades) >= 4.5
        lightness = [contrast(colour, "#000000") for colour in shades]
        assert lightness == sorted(lightness, reverse=not given)  # it reads in greyscale
    assert contrast(shade(float("nan"), given=True), ink_on(shade(float("nan"), given=True))) >= 4.5


def test_paths_are_shorter_and_the_same():
    square = "M 0.04 0 \nL 10 0 \nL 10 5.55 \nL 0.04 5.55 \nL 0.04 0 \nz \n"
    assert shortened(square) == "M0 0H10V5.5H0z" or shortened(square) == "M0 0H10V5.6H0z"
    assert shortened("M 0 0 L 1 1 L 1 1 L 2 3 M 5 5 L 6 6") == "M0 0L1 1L2 3M5 5L6 6"
    assert shortened("M 0 0 C 1 1 2 2 3.333 3") == "M 0 0 C 1 1 2 2 3.3 3"


def test_names_become_keys_of_links():
    names = ["layer1.0.conv1", "~2", "a b", "<x>", "x" * 500, "层"]
    assert list(keys_of(names).values()) == ["layer1.0.conv1", "~2", "~3", "~4", "~5", "~6"]


def test_a_run_in_which_everything_diverged_still_has_a_page(tmp_path):
    html = render(make_run(tmp_path / "run", diverged=(1e-4, 1e-3)))
    assert not re.search(r"\bnan\b", Page(html).words)
    assert "No trial ended well" in html


def test_reasons_are_gathered_by_weight():
    skipped = [SkippedLayer(name=n, reason=r, params=p) for n, r, p in (("a", "x", 1), ("b", "y", 5), ("c", "x", 2))]
    assert [(reason, len(group)) for reason, group in by_reason(skipped)] == [("y", 1), ("x", 2)]


def test_the_commands_reproduce_the_run(tmp_path):
    record = make_run(
        tmp_path / "a run", seeds=3, lr=0.1, until_stable=True, include=("conv*", "fc;rm -rf"), model_args={"n": 2}
    )
    plan = SlimPlan.load(record.folder / "plan.json") if (record.folder / "plan.json").exists() else None
    today = {"steps": DEFAULT_STEPS, "warm_up": DEFAULT_STEPS, "unit": "layer"}
    first, last = commands(_made_by(record, **today), plan, None)
    assert first == (
        "dst-analyze m.py --model-arg n=2 --alphas 1e-4,1e-3 --seeds 3 --until-stable --lr 0.1 "
        f"--include 'conv*' --include 'fc;rm -rf' --out '{record.folder}'"
    )
    assert last == f"dst-analyze report '{record.folder}'"


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ({"steps": 600, "warm_up": 0, "unit": "one"}, "--steps 600 --warm-up 0 --threshold-scale one"),
        ({"steps": DEFAULT_STEPS, "warm_up": 5, "unit": "layer"}, "--warm-up 5"),
        ({"steps": 9_000, "warm_up": 0, "unit": "one"}, "--steps 9000"),
    ],
)
def test_a_run_with_old_defaults_is_reproduced_with_them(tmp_path, made, named):
    first, *_ = commands(_made_by(make_run(tmp_path / "run"), **made), None, None)
    assert first == f"dst-analyze m.py --alphas 1e-4,1e-3 {named} --out {tmp_path / 'run'}"


def test_a_run_with_literal_alphas_is_reproduced_with_them(tmp_path):
    record = make_run(tmp_path / "run")  # as one from before there was a scale
    assert " --alpha-scale 1 " in commands(record, None, None)[0]
    paper = replace(record, config=record.config.model_copy(update={"recipe": "paper"}))
    assert "--alpha-scale" not in commands(paper, None, None)[0]


MODEL = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 2))

def train_data():
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    return x, (x.sum(1) > 0).long()
"""


def test_the_commands_of_the_page_make_the_run_again(tmp_path, inline):
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "net.py").write_text(MODEL)

    def run(command, place):
        done = run_here(tmp_path / place, *shlex.split(command)[1:])
        assert done.returncode == 0, done.stderr

    run(
        "dst-analyze net.py --steps 30 --alphas 1e-3,1e-2 --lr 0.1 --jobs 1 --out reports/a --target-params 0.6", "here"
    )
    page = (tmp_path / "here" / "reports" / "a" / "report.html").read_text()
    again = unescape(re.search(r'id="commands"[^>]*><code>(.*?)</code>', page, re.DOTALL)[1]).splitlines()
    assert len(again) == 3
    assert all("reports/a" in command for command in again)
    for command in again:
        run(command, "there")
    for name in ("table.csv", "plan.json", "report.html"):
        made = [(tmp_path / place / "reports" / "a" / name).read_text() for place in ("here", "there")]
        alike = [
            re.sub(r"(?s)<dt>cost.*?</dd>|<dt><a[^>]*>cost.*?</dd>|<dt>time</dt>.*?</dd>", "", text) for text in made
        ]
        assert alike[0] == alike[1], name


def _made_by(record, **defaults):
    return replace(
        record,
        manifest=record.manifest.model_copy(update={"on_collapse": "hold", **defaults}),
        config=record.config.scaled(28),
    )


# The cheapest first, all in one process: what one of them imports is there for the next.
CHEAP = (
    ["--help"],
    ["--version"],
    ["report", "nowhere"],
    ["rank", "run"],
    ["compare", "run", "run2"],
    ["report", "run"],
    ["report", "run", "--figures", "figures"],
    ["compare", "run", "run2", "--html", "both.html"],
)


def test_run_ranking_and_report_do_not_import_torch(tmp_path):
    made_run(tmp_path / "run", ["conv1", "fc"], graph=chain(["conv1", "fc"]))
    add_plan(tmp_path / "run", ["conv1", "fc"])
    make_run(tmp_path / "run2", seeds=2)
    code = f"""
import json, sys
from dst_analyze.cli.main import main
for command in {CHEAP}:
    code = main(command)
    print("MODULES", json.dumps([command, code, sorted(sys.modules)]))
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    said = [
        json.loads(line.removeprefix("MODULES ")) for line in done.stdout.splitlines() if line.startswith("MODULES")
    ]
    assert [command for command, _, _ in said] == [list(command) for command in CHEAP]
    for command, ended, modules in said:
        assert ended == (2 if "nowhere" in command else 0), command
        assert "click" in modules
        assert "torch" not in modules, command
        if command[0].startswith("--"):
            assert not {"pandas", "seaborn", "matplotlib", "jinja2", "pydantic"} & set(modules), command
    for made in ("run/report.html", "figures/graph.svg", "both.html"):
        assert (tmp_path / made).exists(), made


# --- how large ---


@pytest.mark.parametrize(("readings", "most"), [(10, 300_000), (40, 300_000), (200, 320_000)])
def test_a_page_for_resnet_50_is_light(tmp_path, readings, most):
    names, graph, sizes = resnet50()
    alphas = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
    record = made_run(tmp_path / "run", names, alphas=alphas, graph=graph, params=sizes, readings=readings)
    add_plan(record.folder, names)
    html = render(record)
    assert len(html.encode()) < most
    page = assert_inert(html)
    assert "layer3.5.conv3" in page.words


@functools.cache
def resnet50():
    import torch

    from dst_analyze.model.loading.torchvision_compat import torchvision_module
    from dst_analyze.model.tracing.trace import trace_model
    from dst_analyze.sweep.planning.description.graph_summary import summarize_graph

    with torch.device("meta"):
        model = torchvision_module().models.resnet50()
    traced = trace_model(model, torch.zeros(2, 3, 64, 64, device="meta"))
    return [layer.name for layer in traced.layers], summarize_graph(traced), [layer.params for layer in traced.layers]
