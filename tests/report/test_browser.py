"""The report in a real browser: nothing leaves, nothing complains, strange names stay text, and everything works."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from runs import HOSTILE, add_plan, chain, made_run

from dst_analyze.report.compare_page import write_comparison
from dst_analyze.report.page import write_report
from dst_analyze.run.record import GraphNode, ModelGraph

LAYERS = [f"blocks.{block}.{name}" for block in range(6) for name in ("conv1", "conv2")] + ["head"]
ALPHAS = (1e-5, 1e-4, 1e-3)


def residual() -> ModelGraph:
    """Six residual blocks of two convolutions, and a head."""
    nodes = [GraphNode(op="input")]
    for block in range(6):
        scope, last = f"blocks.{block}", len(nodes) - 1
        for name, source in (("conv1", last), ("conv2", last + 1)):
            layer = f"{scope}.{name}"
            nodes.append(GraphNode(op="Conv2d", scope=layer, layers=(layer,), place="net.py:7", inputs=(source,)))
        nodes.append(GraphNode(op="add", scope=scope, inputs=(last + 2, last)))
    nodes.append(GraphNode(op="Linear", scope="head", layers=("head",), inputs=(len(nodes) - 1,)))
    return ModelGraph(schema_version=1, nodes=(*nodes, GraphNode(op="output", inputs=(len(nodes) - 1,))))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report with everything in it."""
    record = made_run(
        tmp_path_factory.mktemp("whole") / "run", LAYERS, alphas=ALPHAS, seeds=2, graph=residual(), reset="head",
        stand_in=True, readings=12,
    )  # fmt: skip
    add_plan(record.folder, LAYERS)
    return write_report(record.folder).as_uri()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    record = made_run(
        tmp_path_factory.mktemp("hostile") / "run", HOSTILE, graph=chain(HOSTILE), name=HOSTILE[1], failed=HOSTILE[0],
        reset=HOSTILE[2], seeds=2, readings=12,
    )  # fmt: skip
    add_plan(record.folder, HOSTILE, words="".join(HOSTILE[:-1]))
    write_report(record.folder)
    return record.folder


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages, and holds against them whatever they asked for or complained of."""
    contexts: list[Any] = []
    requests: list[str] = []
    complaints: list[str] = []
    wanted: list[str] = []

    def open_page(address: str, **options: Any) -> Any:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append("dialog"), dialog.dismiss()))
        wanted.append(address.partition("#")[0])
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [url.partition("#")[0] for url in requests if not url.startswith("data:")] == wanted
    assert complaints == []


@contextmanager
def violations(page: Any) -> Iterator[None]:
    """No policy may have been violated meanwhile."""
    page.evaluate("() => { self.seen = []; addEventListener('securitypolicyviolation', e => seen.push(e.blockedURI)) }")
    yield
    assert page.evaluate("self.seen") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hostile_names_stay_text(opened: Any, hostile: Path, scheme: str) -> None:
    page = opened((hostile / "report.html").as_uri(), color_scheme=scheme)
    with violations(page):
        assert HOSTILE[1] in page.title()
        assert page.locator("h1").text_content() == HOSTILE[1]
        assert page.locator(".ranking tbody tr[id]").count() == len(HOSTILE)
        assert page.locator("img, iframe, object").count() == 0
        for link in page.locator(".ranking tbody a").all():
            link.click()
        assert page.locator(".ranking tr.picked").count() == 1
        page.locator("summary").first.click()
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def test_hostile_names_stay_text_in_a_comparison(opened: Any, hostile: Path, tmp_path: Path) -> None:
    shutil.copytree(hostile, tmp_path / HOSTILE[0])
    write_comparison(tmp_path / "both.html", [hostile, tmp_path / HOSTILE[0]])
    page = opened((tmp_path / "both.html").as_uri())
    with violations(page):
        page.locator("#theme").click()
        assert page.locator(".heat").count() == 2
        assert page.evaluate(OVERFLOWS) == []
    assert page.locator("#layers ~ .wide tbody tr").count() == len(HOSTILE)


def test_the_policy_stops_what_would_get_in(browser: Any, address: str) -> None:
    """The guard itself: a script, a handler and a request that somehow got onto the page do not run."""
    page = browser.new_page()
    page.goto(address)
    page.evaluate(
        """() => {
            self.ran = []; self.blocked = 0;
            addEventListener("securitypolicyviolation", () => blocked++);
            const script = document.createElement("script");
            script.textContent = "ran.push('script')";
            const box = document.createElement("div");
            box.setAttribute("onclick", "ran.push('handler')");
            document.body.append(script, box);
            box.click();
            new Image().src = "http://127.0.0.1:9/x.png";
            fetch("http://127.0.0.1:9/x").catch(() => 0);
        }"""
    )
    page.wait_for_function("self.blocked >= 4")
    assert page.evaluate("self.ran") == []
    page.close()


# --- what a reader does with it ---


def names(page: Any) -> list[str]:
    return page.locator(".ranking tbody tr[id]:visible th").all_text_contents()


def test_the_table_sorts(opened: Any, address: str) -> None:
    page = opened(address)
    ranked = names(page)
    page.get_by_role("button", name="layer", exact=True).click()
    assert names(page) == LAYERS
    page.get_by_role("button", name="layer", exact=True).click()
    assert names(page) == LAYERS[::-1]
    head = page.locator("th[data-column=layer]")
    assert head.get_attribute("aria-sort") == "descending"
    page.get_by_role("button", name="redundancy").click()
    assert names(page) == ranked
    assert head.get_attribute("aria-sort") is None
    page.get_by_role("button", name="parameters").click()
    assert names(page) == LAYERS[::-1]  # later ones are larger
    kept = [float(row.locator("td").nth(3).text_content()) for row in page.locator(".ranking tbody tr[id]").all()]
    page.locator("th[data-column=remaining] button").click()
    after = [float(row.locator("td").nth(3).text_content()) for row in page.locator(".ranking tbody tr[id]").all()]
    assert after == sorted(kept)
    firsts = page.evaluate("Array.from(document.querySelectorAll('.ranking .more'), r => r.previousElementSibling.id)")
    assert all(first.startswith("layer=") for first in firsts)  # what a row unfolds stays below it


def test_a_row_unfolds_what_is_known_of_its_layer(opened: Any, address: str) -> None:
    page = opened(address)
    more = page.locator('tr[id="layer=blocks.0.conv2"] + .more')
    button = page.locator('tr[id="layer=blocks.0.conv2"] .unfold')
    assert more.is_hidden()
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    for said in ("typical layer", "beyond null", "width 64 → 32", "nn.Conv2d(64, 32) as asked # was nn.Conv2d(64, 64)"):
        assert said in " ".join(more.inner_text().split())
    label = page.locator('tr[id="layer=blocks.0.conv2"] .tag')
    assert label.get_attribute("title").startswith("Label of a layer")  # what the glossary says
    label.click()
    assert more.is_hidden()


def test_the_heat_map_unfolds_its_blocks(opened: Any, tmp_path: Path) -> None:
    deep = [f"layers.{block}.{name}" for block in range(8) for name in ("query", "key", "value", "out")]
    page = opened(write_report(made_run(tmp_path / "run", deep, alphas=ALPHAS).folder).as_uri())
    rows = page.locator(".heat tbody tr:visible")
    assert rows.count() == 8
    first = page.locator(".heat tbody.block").first
    means = [float(cell) for cell in first.locator(".sum td").all_text_contents()]
    first.locator("button").click()
    assert rows.count() == 12
    below = [list(map(float, row.locator("td").all_text_contents())) for row in first.locator("tr:not(.sum)").all()]
    assert means == pytest.approx([sum(column) / 4 for column in zip(*below, strict=True)], abs=1)


def test_the_table_filters(opened: Any, address: str) -> None:
    page = opened(address)
    page.locator("#filter-words").fill("BLOCKS.3")
    assert sorted(names(page)) == ["blocks.3.conv1", "blocks.3.conv2"]
    assert page.locator("#filter-count").text_content() == "2 of 13 layers"
    page.locator("#filter-words").fill("conv2d")  # the kind counts too
    assert len(names(page)) == 13
    page.locator("#filter-words").fill("")
    page.locator("#filter-label").select_option("redundant")
    labels = page.locator(".ranking tbody tr[id]:visible .tag").all_text_contents()
    assert set(labels) == {"redundant"}
    page.locator("#filter-words").fill("no such layer")
    assert names(page) == []


def test_rows_and_nodes_select_each_other(opened: Any, address: str) -> None:
    page = opened(address)
    picked = page.locator(".ranking tr.picked th")
    node = page.locator('.canvas a[href="#layer=blocks.0.conv1"]').first
    node.click()
    assert picked.all_text_contents() == ["blocks.0.conv1"]
    assert page.url.endswith("#layer=blocks.0.conv1")
    assert "picked" in (node.get_attribute("class") or "")
    bar = page.locator("#picked")
    assert "blocks.0.conv1: " in bar.text_content()
    page.locator('.ranking a[href="#layer=blocks.4.conv2"]').click()
    assert picked.all_text_contents() == ["blocks.4.conv2"]
    marked = page.locator(".canvas").first.locator("a.picked")
    assert marked.count() == 1
    assert marked.get_attribute("href") == "#layer=blocks.4.conv2"
    page.locator("#to-node").click()
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#layer=blocks.4.conv2"
    page.go_back()
    page.wait_for_function("document.querySelector('.ranking tr.picked th').textContent === 'blocks.0.conv1'")
    page.locator("#unpick").click()
    assert bar.is_hidden()
    assert picked.count() == 0


def test_a_block_of_the_first_picture_selects_its_layer(opened: Any, address: str) -> None:
    page = opened(address)
    page.locator('.strip g[data-layer="blocks.2.conv2"] rect').last.click()
    assert page.locator(".ranking tr.picked th").all_text_contents() == ["blocks.2.conv2"]
    assert page.locator(".strip g.picked").count() == 1


def test_a_deep_link_shows_its_layer(opened: Any, address: str) -> None:
    page = opened(f"{address}#layer=blocks.3.conv1")
    assert page.locator(".ranking tr.picked th").all_text_contents() == ["blocks.3.conv1"]
    assert page.locator(".ranking tr.picked").is_visible()
    assert page.locator("#picked").is_visible()
    page.goto(f"{address}#layer=%F0nonsense")
    assert page.locator("#picked").is_hidden()


def test_a_deep_link_beyond_a_filter_lifts_it(opened: Any, address: str) -> None:
    page = opened(address)
    page.locator("#filter-words").fill("head")
    page.locator('.canvas a[href="#layer=blocks.0.conv1"]').first.click()
    assert page.locator(".ranking tr.picked").is_visible()
    assert len(names(page)) == 13


def test_the_slider_chooses_the_alpha(opened: Any, address: str) -> None:
    page = opened(address)
    assert page.locator(".course:visible h3").all_text_contents() == ["alpha 1e-3"]
    slider = page.locator("#alpha")
    slider.press("ArrowLeft")
    assert page.locator(".course:visible h3").all_text_contents() == ["alpha 1e-4"]
    assert page.locator("#alpha-shown").text_content() == "alpha 1e-4"
    assert slider.get_attribute("aria-valuetext") == "alpha 1e-4"
    assert page.locator(".course:visible svg").count() == 3
    slider.press("End")
    assert "head" in page.locator(".course:visible .note").text_content()  # it was reset


def test_the_theme_is_the_systems_until_it_is_chosen(opened: Any, address: str) -> None:
    page = opened(address, color_scheme="dark")

    def ground() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    dark = ground()
    assert page.locator("#theme").text_content() == "Light page"
    page.locator("#theme").click()
    assert ground() == "rgb(255, 255, 255)" != dark
    page.locator("#theme").click()
    assert ground() == dark
    page.emulate_media(color_scheme="light")
    assert ground() == dark  # chosen by hand


def test_the_graph_folds_and_zooms(opened: Any, address: str) -> None:
    page = opened(address)
    canvas = page.locator(".canvas").first
    assert "5 blocks alike" in canvas.text_content()
    assert canvas.locator("a[href]").count() == len(LAYERS)
    svg, frame = canvas.locator("svg"), canvas.bounding_box()

    def wide() -> float:
        return float(svg.bounding_box()["width"])

    fit = svg.bounding_box()
    assert fit["width"] <= frame["width"]
    assert fit["height"] <= frame["height"]  # the whole network is there on opening
    page.get_by_role("button", name="100 %").first.click()
    whole = wide()
    page.get_by_role("button", name="Larger").first.click()
    assert wide() == pytest.approx(1.25 * whole, rel=0.01)
    canvas.focus()
    page.keyboard.press("-")
    assert wide() == pytest.approx(whole, rel=0.01)
    canvas.hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_function(f"document.querySelector('.canvas svg').clientWidth > {1.2 * whole}")
    for _ in range(6):
        page.keyboard.press("+")
    top, at = canvas.evaluate("e => e.scrollTop"), canvas.bounding_box()
    page.mouse.move(at["x"] + 30, at["y"] + 200)
    page.mouse.down()
    page.mouse.move(at["x"] + 30, at["y"] + 100)
    page.mouse.up()
    assert canvas.evaluate("e => e.scrollTop") != top
    canvas.focus()
    page.keyboard.press("0")
    assert wide() == pytest.approx(fit["width"], rel=0.01)
    page.locator(".find-layer").first.fill("blocks.3")
    assert canvas.locator("a.hit").count() == 2
    assert page.locator(".found").first.text_content() == "2 found"
    page.get_by_role("button", name="Unfold all blocks").click()
    assert canvas.locator(".unfolded").count() == 5
    page.get_by_role("button", name="Fold all blocks").click()
    assert canvas.locator(".unfolded").count() == 0


def test_fingers_move_and_zoom_the_graph(opened: Any, address: str) -> None:
    page = opened(address, viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    canvas = page.locator(".canvas").first
    canvas.scroll_into_view_if_needed()
    fingers = page.context.new_cdp_session(page)
    at = canvas.bounding_box()
    x, y = at["x"] + at["width"] / 2, at["y"] + at["height"] / 2

    def touch(kind: str, *points: tuple[float, float]) -> None:
        touched = [{"x": x + right, "y": y + down, "id": finger} for finger, (right, down) in enumerate(points)]
        fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touched})

    before = canvas.evaluate("e => e.firstElementChild.clientWidth")
    touch("touchStart", (-20, 0), (20, 0))
    for apart in range(20, 90, 5):
        touch("touchMove", (-apart, 0), (apart, 0))
    touch("touchEnd")
    page.wait_for_function(f"document.querySelector('.canvas svg').clientWidth > {2 * before}")
    assert page.evaluate("visualViewport.scale") == 1  # the graph grew, not the page

    left = canvas.evaluate("e => e.scrollLeft")
    touch("touchStart", (60, 0))
    for moved in range(60, -90, -10):
        touch("touchMove", (moved, 0))
    touch("touchEnd")
    page.wait_for_function(f"document.querySelector('.canvas').scrollLeft > {left + 40}")


def test_blocks_unfold_one_by_one(opened: Any, address: str) -> None:
    page = opened(address)
    canvas = page.locator(".canvas").first
    last = canvas.locator('a[href="#layer=head"]')
    before, tall = last.bounding_box()["y"], canvas.locator("svg").evaluate("e => e.viewBox.baseVal.height")
    fold = canvas.locator(".fold").nth(2)
    assert "blocks.3" in fold.get_attribute("aria-label")
    fold.dispatch_event("click")
    drawn = canvas.locator(".unfolded")
    assert drawn.count() == 1
    assert drawn.locator("a").evaluate_all("all => all.map(a => a.getAttribute('href'))") == [
        "#layer=blocks.3.conv1", "#layer=blocks.3.conv2",
    ]  # fmt: skip
    row = page.locator('.ranking tr[id="layer=blocks.3.conv1"]')
    rank = row.locator("td").first.text_content()
    assert f"rank {rank}" in drawn.locator("a").first.text_content()
    assert drawn.locator("g.join").count() == 1  # its residual path
    assert canvas.locator("svg").evaluate("e => e.viewBox.baseVal.height") > tall
    drawn.locator("a").first.click()
    assert "picked" in row.get_attribute("class")
    assert canvas.locator('a.picked[href="#layer=blocks.3.conv1"]').count() == 2  # in the row of the table, too
    fold.focus()
    page.keyboard.press("Enter")
    assert drawn.count() == 0
    page.get_by_role("button", name="Whole network").first.click()
    assert canvas.locator("svg").evaluate("e => e.viewBox.baseVal.height") == tall
    assert last.bounding_box()["y"] - canvas.bounding_box()["y"] < before


def test_an_overview_shows_where_the_frame_is(opened: Any, address: str) -> None:
    page = opened(address)
    canvas, overview = page.locator(".canvas").first, page.locator(".overview").first
    assert overview.is_hidden()  # all of the picture is there
    canvas.focus()
    for _ in range(8):
        page.keyboard.press("+")
    assert overview.is_visible()
    assert overview.locator("rect").count() == len(LAYERS) + 1
    seen = overview.locator(".seen")
    assert float(seen.get_attribute("height")) < canvas.locator("svg").evaluate("e => e.viewBox.baseVal.height")
    overview.scroll_into_view_if_needed()
    box, top = overview.bounding_box(), canvas.evaluate("e => e.scrollTop")
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] - 8)
    assert canvas.evaluate("e => e.scrollTop") > top


def test_a_row_shows_which_channels_are_alive(opened: Any, address: str) -> None:
    page = opened(address)
    more = page.locator('tr[id="layer=blocks.0.conv2"] + .more')
    page.locator('tr[id="layer=blocks.0.conv2"] .unfold').click()
    said = " ".join(more.inner_text().split())
    assert "64 rows, alive 60 at 1e-5" in said
    assert re.search(r"the plan removes 32 rows, \d+ of them alive at 1e-3", said)
    strips = more.locator(".strip-grid svg")
    assert strips.count() == 2 * len(ALPHAS) + 1
    first = strips.first.locator("rect").first
    assert float(first.get_attribute("x")) == 4  # the first four rows are wholly pruned


def test_a_reset_is_explained_where_it_is_marked(opened: Any, address: str) -> None:
    page = opened(address)
    titles = page.locator(".course").last.locator("svg title").all_text_contents()
    assert any(title.startswith("head at step") and "set back to zero" in title for title in titles)


def test_the_whole_page_can_be_walked_with_the_tab_key(opened: Any, address: str) -> None:
    page = opened(address)
    stops = page.evaluate(
        """() => Array.from(document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']"))
            .filter(e => e.checkVisibility() && e.getAttribute("tabindex") !== "-1").length"""
    )
    seen: list[str] = []
    describe = """() => { const e = document.activeElement, s = getComputedStyle(e), r = e.querySelector?.("rect");
        const ring = s.outlineStyle !== "none" || (r && parseFloat(getComputedStyle(r).strokeWidth) >= 3);
        return [e.tagName, e.id || e.getAttribute("href") || e.textContent.trim().slice(0, 20), Boolean(ring)] }"""
    for _ in range(stops + 5):
        page.keyboard.press("Tab")
        tag, what, ring = page.evaluate(describe)
        if tag == "BODY":
            break
        assert ring, (tag, what)
        seen.append(f"{tag} {what}")
    assert len(seen) == stops
    for stop in ("A #main", "BUTTON theme", "A #ranking", "INPUT filter-words", "SELECT filter-label", "INPUT alpha"):
        assert stop in seen
    for layer in LAYERS:
        assert f"A #layer={layer}" in seen


def test_arrows_walk_the_graph(opened: Any, address: str) -> None:
    page = opened(address)
    links = page.locator(".canvas").first.locator("a")
    links.first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.getAttribute('href')") == links.nth(1).get_attribute("href")
    page.keyboard.press("Enter")
    assert page.locator(".ranking tr.picked").count() == 1


def test_lines_can_be_copied(opened: Any, address: str) -> None:
    page = opened(address, permissions=["clipboard-read", "clipboard-write"])
    button = page.locator('[data-copy="changed-lines"]')
    button.click()
    page.wait_for_function("document.querySelector('[data-copy=changed-lines]').textContent !== 'Copy'")
    copied = page.evaluate("getSelection().toString()")
    assert "# nn.Conv2d(64, 32) as asked  # was nn.Conv2d(64, 64), for blocks.{0-5}.conv2" in copied


# --- whoever reads it ---


def test_without_a_script_everything_is_there(opened: Any, address: str) -> None:
    page = opened(f"{address}#layer=blocks.3.conv1", java_script_enabled=False)
    assert page.locator(".ranking tbody tr[id]:visible").count() == len(LAYERS)
    assert page.locator(".ranking tbody .more:visible").count() == len(LAYERS)
    assert page.locator(".course:visible").count() == len(ALPHAS)
    assert page.locator("figure svg:visible").count() == 3 + 3 * len(ALPHAS)
    assert page.locator(".canvas svg").first.is_visible()
    assert page.locator("button:visible, input:visible, select:visible").count() == 0
    assert page.locator(".ranking tr:target th").all_text_contents() == ["blocks.3.conv1"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(opened: Any, address: str, hostile: Path, scheme: str) -> None:
    for at in (f"{address}#layer=head", (hostile / "report.html").as_uri()):
        page = opened(at, color_scheme=scheme)
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
        found = page.evaluate(
            "axe.run(document, {resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', "
            "'wcag22aa', 'best-practice']})"
        )
        serious = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
        assert [(v["id"], v["nodes"][0]["html"][:200]) for v in serious] == []


OVERFLOWS = """() => Array.from(document.body.querySelectorAll("*")).filter(element => {
    const style = getComputedStyle(element), box = element.getBoundingClientRect();
    if (!element.checkVisibility() || !box.width || element.closest("svg, .skip, .answer > h2")) return false;
    const scroller = element.closest(".wide, .canvas");  // these show a shadow where there is more
    if (scroller && (scroller.tabIndex !== 0 || getComputedStyle(scroller).overflowX !== "auto" ||
        !getComputedStyle(scroller).backgroundImage.includes("gradient"))) return true;
    if (scroller) return false;
    return box.right > innerWidth + 1 || box.left < -1 ||
        (style.display !== "inline" && element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0);
}).map(e => `${e.tagName}.${e.className} ${e.textContent.trim().slice(0, 40)}`)"""


def transformer() -> tuple[list[str], ModelGraph]:
    """Twelve blocks with an attention of two weights and two layers, each beside a residual path."""
    nodes, names = [GraphNode(op="input")], []
    for block in range(12):
        scope, last = f"transformer.encoder.layers.encoder_layer_{block}", len(nodes) - 1
        attention = tuple(f"{scope}.self_attention.{name}" for name in ("in_proj_weight", "out_proj"))
        nodes.append(GraphNode(op="attention", scope=f"{scope}.self_attention", layers=attention, inputs=(last,)))
        nodes.append(GraphNode(op="add", scope=scope, inputs=(last + 1, last)))
        for at, name in enumerate(("mlp.linear_1", "mlp.linear_2")):
            layer = (f"{scope}.{name}",)
            nodes.append(GraphNode(op="Linear", scope=layer[0], layers=layer, inputs=(last + 2 + at,)))
        nodes.append(GraphNode(op="add", scope=scope, inputs=(last + 4, last + 2)))
        names += [*attention, f"{scope}.mlp.linear_1", f"{scope}.mlp.linear_2"]
    return names, ModelGraph(schema_version=1, nodes=(*nodes, GraphNode(op="output", inputs=(len(nodes) - 1,))))


def u_net() -> tuple[list[str], ModelGraph]:
    """Four steps down and four up, joined by concatenations."""
    nodes, ends = [GraphNode(op="input")], []
    for at in range(5):
        layer = f"down.{at}.conv"
        nodes.append(GraphNode(op="Conv2d", scope=layer, layers=(layer,), inputs=(len(nodes) - 1,)))
        ends.append(len(nodes) - 1)
    for at in range(4):
        nodes.append(GraphNode(op="cat", scope="", inputs=(len(nodes) - 1, ends[3 - at])))
        layer = f"up.{at}.conv"
        nodes.append(GraphNode(op="Conv2d", scope=layer, layers=(layer,), inputs=(len(nodes) - 1,)))
    graph = ModelGraph(schema_version=1, nodes=(*nodes, GraphNode(op="output", inputs=(len(nodes) - 1,))))
    return [name for node in nodes for name in node.layers], graph


def recurrent() -> tuple[list[str], ModelGraph]:
    """An LSTM of three layers and a head."""
    gates = tuple(f"lstm.weight_{side}_l{at}" for at in range(3) for side in ("ih", "hh"))
    nodes = (
        GraphNode(op="input"), GraphNode(op="LSTM", scope="lstm", layers=gates, inputs=(0,)),
        GraphNode(op="Linear", scope="head", layers=("head",), inputs=(1,)), GraphNode(op="output", inputs=(2,)),
    )  # fmt: skip
    return [*gates, "head"], ModelGraph(schema_version=1, nodes=nodes)


def deep() -> tuple[list[str], ModelGraph]:
    """A hundred and twenty layers in a row."""
    names = [f"features.stage{at // 30}.block{at % 30}.conv" for at in range(120)]
    return names, chain(names)


@pytest.fixture(scope="module", params=["residual", "hostile", "transformer", "u-net", "recurrent", "deep"])
def any_model(
    request: pytest.FixtureRequest, address: str, hostile: Path, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The report of one kind of model."""
    made = {"transformer": transformer, "u-net": u_net, "recurrent": recurrent, "deep": deep}
    if request.param in made:
        names, graph = made[request.param]()
        record = made_run(tmp_path_factory.mktemp("kind") / "run", names, alphas=ALPHAS, graph=graph, readings=6)
        add_plan(record.folder, names)
        return write_report(record.folder).as_uri()
    return address if request.param == "residual" else (hostile / "report.html").as_uri()


def test_nothing_is_cut_without_a_sign_of_more(opened: Any, any_model: str) -> None:
    page = opened(any_model)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.evaluate("document.querySelectorAll('.ranking .unfold').forEach(b => b.click())")
    for width in (390, 1280, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(OVERFLOWS) == [], width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        table = page.locator(".wide:has(.ranking)")
        assert table.evaluate("e => e.scrollWidth - e.clientWidth") <= 0  # the important columns fit


def test_the_page_fits_a_phone_and_paper(opened: Any, address: str) -> None:
    page = opened(address, viewport={"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.emulate_media(media="print")
    assert page.locator("nav").is_hidden()
    assert page.locator(".course:visible").count() == len(ALPHAS)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


# --- how large ---


def test_two_hundred_of_a_thousand_rows_show_until_all_are_requested(opened: Any, tmp_path: Path) -> None:
    many = [f"blocks.{number // 10}.conv{number % 10}" for number in range(1000)]
    strengths = tuple(float(f"{base}e-{power}") for power in (6, 5, 4, 3, 2) for base in (1, 3))
    record = made_run(tmp_path / "run", many, alphas=strengths, seeds=3, graph=chain(many), readings=4)
    path = write_report(record.folder)
    assert path.stat().st_size < 2_000_000
    page = opened(path.as_uri())
    rows = page.locator(".ranking tbody tr[id]:visible")
    assert rows.count() == 200  # until somebody asks for all of them
    for button in page.locator("th[data-column] button").all():
        button.click()
        assert rows.count() == 200
    page.locator("th[data-column=redundancy] button").click()
    page.locator("#show-all").click()
    assert rows.count() == 1000
