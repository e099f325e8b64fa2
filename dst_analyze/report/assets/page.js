"use strict";
// The page works without this script, which sorts and filters the table and links each layer's row and node.
// Text is set as textContent only, as names are not trusted.

const root = document.documentElement;
root.classList.add("scripting"); // rows are folded only where they can be unfolded
const find = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));

// --- light and dark ---------------------------------------------------------------------------------------------

function remembered(value) {
  try {
    if (value !== undefined) localStorage.setItem("dst-analyze-theme", value);
    return localStorage.getItem("dst-analyze-theme");
  } catch {
    return null; // some browsers have no storage for local files
  }
}

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function startTheme(button) {
  const name = () => (button.textContent = isDark() ? "Light page" : "Dark page");
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered(root.dataset.theme);
    name();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  name();
}

if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();

let strips = {}, stripAlphas = []; // of each layer: how much of its rows and columns is alive

function unfold(row, open) {
  const rest = row.nextElementSibling, found = strips[row.id.slice("layer=".length)];
  if (open && found && !find(".strips", rest)) drawStrips(find(".alive", rest), found);
  row.classList.toggle("open", open);
  row.nextElementSibling.classList.toggle("open", open);
  find(".unfold", row).setAttribute("aria-expanded", String(open));
}

// --- channels: a strip per alpha, a digit per cell: 0 where nothing is left, f where everything is -------------------------

function drawStrips(words, [rows, columns, goes]) {
  const place = document.createElement("div");
  place.className = "strips";
  words.after(place);
  for (const [side, strip] of [["rows", rows], ["columns", columns]]) {
    const lines = strip.map((digits, at) => [stripAlphas[at], digits, "alive"]);
    if (side === "rows" && goes) lines.push(["goes", goes, "gone"]);
    const grid = document.createElement("div"), head = document.createElement("b");
    grid.className = "strip-grid";
    head.textContent = side;
    grid.append(head);
    for (const [label, digits, kind] of lines) {
      const name = document.createElement("span");
      name.textContent = label;
      const svg = made("svg", { viewBox: `0 0 ${digits.length} 1`, preserveAspectRatio: "none", "aria-hidden": "true" });
      for (const run of digits.matchAll(/([1-9a-f])\1*/g))
        made("rect", { x: run.index, width: run[0].length, height: 1, class: kind, "fill-opacity": Math.sqrt(parseInt(run[1], 16) / 15).toFixed(2) }, svg);
      grid.append(name, svg);
    }
    place.append(grid);
  }
}

// --- the ranking: sort, filter and unfold ---------------------------------------------------------------------------------

function startTable(table, data) {
  const body = find("tbody", table);
  const rows = Array.from(body.rows).filter((row) => row.id);
  const rests = rows.map((row) => row.nextElementSibling); // what a row unfolds
  const heads = all("th[data-column]", table);
  let sorted = null, order = rows.map((_, at) => at);

  function sort(head) {
    const column = data.columns[head.dataset.column];
    const again = sorted === head && head.getAttribute("aria-sort");
    const up = again ? again === "descending" : head.dataset.first !== "down";
    order = rows.map((_, at) => at).sort((a, b) => {
      const one = column[a], other = column[b];
      if (one === null || other === null) return (one === null) - (other === null) || a - b; // gaps sort last
      return (up ? one - other : other - one) || a - b;
    });
    show();
    body.append(...order.flatMap((at) => [rows[at], rests[at]]));
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    sorted = head;
  }

  heads.forEach((head) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(head));
  });

  const texts = rows.map((row) => `${row.cells[0].textContent} ${row.nextElementSibling.textContent}`.toLowerCase());
  const labels = rows.map((row) => find(".tag", row).textContent);
  const words = find("#filter-words"), label = find("#filter-label"), count = find("#filter-count"), rest = find("#show-all");
  let most = rows.length > 300 ? 200 : rows.length; // laying out a thousand rows takes longer than sorting them
  function show() {
    const wanted = words.value.toLowerCase();
    let fitting = 0;
    order.forEach((at) => {
      const fits = texts[at].includes(wanted) && (!label.value || labels[at] === label.value);
      fitting += fits;
      rows[at].hidden = rests[at].hidden = !fits || fitting > most;
    });
    rest.hidden = fitting <= most;
    count.textContent = `${Math.min(fitting, most)} of ${rows.length} layers`;
  }
  function showAll() {
    most = rows.length;
    show();
  }
  rows.forEach((row) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "unfold";
    button.setAttribute("aria-expanded", "false");
    button.setAttribute("aria-label", `More on ${row.cells[0].textContent}`);
    row.cells[0].prepend(button);
    button.addEventListener("click", () => unfold(row, !row.classList.contains("open")));
    row.addEventListener("click", (event) => {
      if (!event.target.closest("a, button")) unfold(row, !row.classList.contains("open"));
    });
  });
  words.addEventListener("input", show);
  label.addEventListener("change", show);
  rest.addEventListener("click", showAll);
  show();
  return () => {
    words.value = label.value = "";
    showAll();
  };
}

// --- one layer, in the table and in the picture -------------------------------------------------------------------

function startPicking(showAll) {
  const rows = new Map(all(".ranking tbody tr[id]").map((row) => [row.id.slice("layer=".length), row]));
  const keyOf = (link) => link.getAttribute("href").slice("#layer=".length);
  const bar = find("#picked");

  function keyInAddress() {
    let hash = location.hash;
    try {
      hash = decodeURIComponent(hash);
    } catch {
      return null; // a broken escape names no layer
    }
    return hash.startsWith("#layer=") ? hash.slice("#layer=".length) : null;
  }

  function pick(key) {
    all(".picked").forEach((element) => element.classList.remove("picked"));
    const row = rows.get(key);
    bar.hidden = !row;
    if (!row) return;
    if (row.hidden) showAll();
    row.classList.add("picked");
    unfold(row, true);
    all(".canvas a[href]").filter((link) => keyOf(link) === key).forEach((link) => {
      link.classList.add("picked");
      intoView(link);
    });
    all("[data-layer]").filter((block) => block.dataset.layer === key).forEach((block) => block.classList.add("picked"));
    intoView(row);
    const said = [find(".name", row), find(".tag", row), find("p", row.nextElementSibling)].map((part) => part.textContent.trim());
    find("p", bar).textContent = `${said[0]}: ${said[1]}. ${said[2]}`;
    find("#to-row").href = `#layer=${key}`;
    const node = all(".canvas a.picked").find((link) => link.checkVisibility());
    find("#to-node").hidden = !node;
  }

  // Scroll within the frame only, not the page.
  function intoView(element) {
    const frame = element.closest(".canvas, .tall");
    if (!frame) return;
    const inner = element.getBoundingClientRect(), outer = frame.getBoundingClientRect();
    if (inner.top < outer.top + 40 || inner.bottom > outer.bottom)
      frame.scrollTop += inner.top - outer.top - outer.height / 2;
    if (element.tagName !== "TR" && (inner.left < outer.left || inner.right > outer.right))
      frame.scrollLeft += inner.left - outer.left - outer.width / 2;
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#layer="]:not(#to-row), [data-layer]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const key = link.dataset.layer ?? keyOf(link);
    history.pushState(null, "", `#layer=${key}`);
    pick(key);
  });
  find("#to-row").addEventListener("click", (event) => {
    event.preventDefault();
    const link = find("a", find(".ranking tr.picked"));
    link.scrollIntoView({ block: "center" });
    link.focus({ preventScroll: true });
  });
  find("#to-node").addEventListener("click", (event) => {
    event.preventDefault();
    const link = all(".canvas a.picked").find((one) => one.checkVisibility());
    link.closest(".canvas").scrollIntoView({ block: "nearest" });
    link.focus({ preventScroll: true });
    intoView(link);
  });
  find("#unpick").addEventListener("click", () => {
    history.pushState(null, "", "#ranking");
    pick(null);
  });
  addEventListener("hashchange", () => pick(keyInAddress()));
  addEventListener("popstate", () => pick(keyInAddress()));
  const first = keyInAddress();
  if (rows.has(first)) pick(first);
}

// --- the picture: zoom, keyboard, overview and folded blocks ------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";

function made(kind, attributes, parent) {
  const element = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  parent?.append(element);
  return element;
}

function startCanvas(canvas) {
  const svg = find("svg", canvas), controls = canvas.parentElement.previousElementSibling;
  const links = () => all("a[href], .fold", canvas);
  const steps = { in: () => zoom * 1.25, out: () => zoom / 1.25, whole: () => 1, fit: fitting };
  const keys = { "+": "in", "=": "in", "-": "out", 0: "fit" };
  const touches = new Map();
  let { width, height } = svg.viewBox.baseVal;
  let zoom = 1, chosen = false, apart = 0;

  // The point of the picture below (x, y) of the frame stays where it is.
  function show(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
    const before = zoom;
    zoom = Math.min(Math.max(factor, Math.min(0.25, fitting())), 4);
    const left = canvas.scrollLeft + x, top = canvas.scrollTop + y;
    svg.style.width = `${width * zoom}px`;
    canvas.scrollLeft = (left * zoom) / before - x;
    canvas.scrollTop = (top * zoom) / before - y;
    overview.show();
  }
  function fitting() {
    const most = parseFloat(getComputedStyle(canvas).maxHeight) || canvas.clientHeight;
    return Math.min(1.35, (canvas.clientWidth - 20) / width, (most - 20) / height);
  }
  function change(step, ...place) {
    chosen = true;
    show(steps[step](), ...place);
  }
  function within(event) {
    const frame = canvas.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  }
  function resized() {
    ({ width, height } = svg.viewBox.baseVal);
    chosen = true; // who unfolds a block wants to see it, not all the rest smaller
    overview.draw();
    overview.show();
  }

  const overview = startOverview(canvas, svg);
  startBlocks(svg, find(".unfold-all", controls), resized);
  overview.draw();
  all("[data-zoom]", controls).forEach((button) => button.addEventListener("click", () => change(button.dataset.zoom)));
  new ResizeObserver(() => {
    if (!chosen && canvas.clientWidth) show(fitting()); // the whole network, until somebody asks for a part of it
    else overview.show();
  }).observe(canvas);
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // a plain wheel scrolls the page
      event.preventDefault();
      change(event.deltaY < 0 ? "in" : "out", ...within(event));
    },
    { passive: false },
  );
  canvas.addEventListener("pointerdown", (event) => {
    touches.set(event.pointerId, event);
    apart = 0;
  });
  addEventListener("pointermove", (event) => {
    const before = touches.get(event.pointerId);
    if (!before) return;
    touches.set(event.pointerId, event);
    const [one, other] = touches.values();
    if (other) {
      const now = Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
      if (apart) {
        chosen = true;
        show((zoom * now) / apart, ...within(event));
      }
      apart = now;
    } else if (event.pointerType === "mouse") {
      canvas.scrollLeft -= event.clientX - before.clientX;
      canvas.scrollTop -= event.clientY - before.clientY;
    }
  });
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, (event) => touches.delete(event.pointerId));
  svg.addEventListener("dragstart", (event) => event.preventDefault());
  canvas.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    change(keys[event.key]);
  });

  const words = find(".find-layer", controls), found = find(".found", controls);
  words.addEventListener("input", () => {
    const wanted = words.value.toLowerCase();
    const layers = all("a[href]", canvas);
    const hits = layers.filter((link) => wanted && (link.getAttribute("aria-label") ?? link.textContent).toLowerCase().includes(wanted));
    layers.forEach((link) => link.classList.toggle("hit", hits.includes(link)));
    found.textContent = wanted ? `${new Set(hits.map((link) => link.getAttribute("href"))).size} found` : "";
    if (hits.length) {
      if (zoom < 0.8) change("whole");
      hits[0].scrollIntoView({ block: "nearest", inline: "nearest" });
    }
  });

  // One tab stop for all layers; arrow keys move between them.
  links().forEach((link, at) => link.setAttribute("tabindex", at ? "-1" : "0"));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    const stops = links(), at = stops.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    const next = stops[Math.min(Math.max(at + step, 0), stops.length - 1)];
    stops[at].setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
}

// A small copy of the picture, with the part that is in the frame, where the frame does not show all of it.
function startOverview(canvas, svg) {
  const box = document.createElement("div");
  box.className = "overview";
  box.hidden = true;
  box.setAttribute("aria-hidden", "true"); // the frame itself can be scrolled with keys
  canvas.after(box);
  let small = null, seen = null;

  function draw() {
    const { width, height } = svg.viewBox.baseVal;
    const side = Math.min(180 / width, 130 / height);
    box.replaceChildren();
    small = made("svg", { viewBox: `0 0 ${width} ${height}`, width: width * side, height: height * side });
    for (const rect of all("rect", svg)) {
      if (rect.closest("defs") || !rect.getAttribute("fill")) continue;
      const group = rect.closest("[transform]"), [, x = 0, y = 0] = /\((\S+)[ ,](\S+)\)/.exec(group?.getAttribute("transform") ?? "") ?? [];
      const at = (name) => Number(rect.getAttribute(name));
      made("rect", { x: at("x") + Number(x), y: at("y") + Number(y), width: at("width"), height: at("height"), fill: rect.getAttribute("fill") }, small);
    }
    seen = made("rect", { class: "seen" }, small);
    box.append(small);
  }
  function show() {
    if (!small) return;
    const { width } = svg.viewBox.baseVal, factor = svg.clientWidth / width || 1;
    box.hidden = canvas.scrollWidth <= canvas.clientWidth + 8 && canvas.scrollHeight <= canvas.clientHeight + 8;
    const frame = { x: canvas.scrollLeft / factor, y: canvas.scrollTop / factor, width: canvas.clientWidth / factor, height: canvas.clientHeight / factor };
    for (const [name, value] of Object.entries(frame)) seen.setAttribute(name, value);
  }
  function go(event) {
    if (!event.buttons) return;
    const frame = small.getBoundingClientRect();
    canvas.scrollLeft = ((event.clientX - frame.left) / frame.width) * canvas.scrollWidth - canvas.clientWidth / 2;
    canvas.scrollTop = ((event.clientY - frame.top) / frame.height) * canvas.scrollHeight - canvas.clientHeight / 2;
  }
  box.addEventListener("pointerdown", go);
  box.addEventListener("pointermove", go);
  canvas.addEventListener("scroll", show);
  return { draw, show };
}

// Rows of folded blocks unfold: the block is drawn below the rows, and what stands below moves down.
function startBlocks(svg, whole, resized) {
  const runs = all("g[data-across]", svg).map((group) => {
    const frame = find(".box", group), at = (name) => Number(frame.getAttribute(name));
    const drawing = find("defs > g", group);
    return {
      group, frame, drawing, left: Number(group.dataset.left), right: Number(group.dataset.right), x: at("x"), width: at("width"),
      bottom: at("y") + at("height"), height: at("height"), open: new Map(), grown: 0,
    };
  });
  if (!runs.length) return;
  const { width, height } = svg.viewBox.baseVal;
  const others = all("svg > g:not(.lines)", svg.parentElement).map((group) => {
    const rect = find("rect", group), at = (name) => Number(rect.getAttribute(name));
    return { group, x: at("x") + at("width") / 2, y: at("y") };
  });
  const paths = all("svg > .lines path", svg.parentElement).map((path) => [path, path.getAttribute("d")]);

  // How far a point moves down: by what the runs above it in its column have grown.
  function moved(x, y) {
    const above = runs.filter((run) => run.left <= x && x <= run.right && run.bottom <= y + 0.6);
    return above.reduce((sum, run) => sum + run.grown, 0);
  }
  function rewritten(text) {
    let x = 0;
    return text.replace(/([MLVC])([^MLVC]+)/g, (_, kind, given) => {
      const numbers = given.trim().split(/\s+/).map(Number);
      if (kind === "V") return `V${numbers[0] + moved(x, numbers[0])}`;
      const out = [];
      for (let at = 0; at < numbers.length; at += 2) {
        x = numbers[at];
        out.push(x, numbers[at + 1] + moved(x, numbers[at + 1]));
      }
      if (kind === "C") out[1] = out[3] = (out[5] + last[1]) / 2; // the curve bends half-way
      last = out.slice(-2);
      return `${kind}${out.join(" ")}`;
    });
  }
  let last = [0, 0];

  function arrange() {
    for (const run of runs) {
      let y = run.bottom;
      for (const [, block] of [...run.open].sort((a, b) => a[0] - b[0])) {
        block.setAttribute("transform", `translate(${run.x + (run.width - Number(block.dataset.width)) / 2} ${y + 18})`);
        y += Number(block.dataset.height) + 24;
      }
      run.grown = y - run.bottom;
      run.frame.setAttribute("height", run.height + run.grown);
    }
    for (const { group, x, y } of others) {
      const down = moved(x, y);
      if (down) group.setAttribute("transform", `translate(0 ${down})`);
      else group.removeAttribute("transform");
    }
    for (const [path, text] of paths) path.setAttribute("d", rewritten(text));
    const grown = Math.max(...runs.map((run) => moved(run.x + run.width / 2, Infinity)));
    svg.setAttribute("viewBox", `0 0 ${width} ${height + grown}`);
    svg.setAttribute("height", height + grown); // its ratio counts
    resized();
  }

  function unfolded(run, row, name) {
    const block = run.drawing.cloneNode(true), cells = all("a[href]", run.group).filter((link) => !link.closest(".unfolded"));
    block.setAttribute("class", "unfolded");
    made("text", { x: Number(block.dataset.width) / 2, y: -4, "text-anchor": "middle", class: "soft" }, block).textContent = name;
    for (const link of all("a", block)) {
      const cell = cells[row * Number(run.group.dataset.across) + Number(link.dataset.at)], texts = all("text", link);
      const mark = cell.getAttribute("aria-label").split(": ").at(-1);
      for (const attribute of ["href", "aria-label"]) link.setAttribute(attribute, cell.getAttribute(attribute));
      link.setAttribute("tabindex", "-1");
      find("rect", link).setAttribute("fill", find("rect", cell).getAttribute("fill"));
      texts.at(-1).textContent = texts.length > 1 ? mark : find("text", cell).textContent;
      for (const text of texts) text.setAttribute("class", find("text", cell).getAttribute("class") ?? "");
      link.classList.toggle("picked", cell.classList.contains("picked"));
    }
    return block;
  }

  const setters = [];
  whole.addEventListener("click", () => {
    const wanted = whole.getAttribute("aria-pressed") === "false";
    setters.forEach((set) => set(wanted));
    whole.setAttribute("aria-pressed", String(wanted));
    whole.textContent = wanted ? "Fold all blocks" : "Unfold all blocks";
    arrange();
  });
  for (const run of runs) {
    const rows = all("text.soft", run.group).filter((text) => !text.closest("defs") && text.getAttribute("text-anchor") !== "middle");
    rows.forEach((label, row) => {
      const name = label.textContent;
      const button = made("g", { role: "button", class: "fold", "aria-expanded": "false", "aria-label": `${name}: draw this block in full` });
      label.replaceWith(button);
      made("rect", { x: Number(label.getAttribute("x")) - 3, y: Number(label.getAttribute("y")) - 13, width: 6.7 * (name.length + 2) + 4, height: 17, rx: 3 }, button);
      button.append(label);
      function set(wanted) {
        const open = run.open.has(row);
        if (open === wanted) return;
        if (open) {
          run.open.get(row).remove();
          run.open.delete(row);
        } else {
          const block = unfolded(run, row, name);
          run.group.append(block);
          run.open.set(row, block);
        }
        button.setAttribute("aria-expanded", String(!open));
        label.textContent = `${open ? "▸" : "▾"} ${name}`;
      }
      function toggle() {
        set(!run.open.has(row));
        arrange();
        run.open.get(row)?.scrollIntoView({ block: "nearest", inline: "nearest" });
      }
      setters.push(set);
      label.textContent = `▸ ${name}`;
      button.addEventListener("click", toggle);
      button.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        toggle();
      });
    });
  }
}

// --- the heat map: folded by module ------------------------------------------------------------------------------

function startFolding(table) {
  all("tbody.block", table).forEach((block) => {
    const head = find(".sum th", block), button = document.createElement("button");
    button.type = "button";
    button.className = "unfold";
    button.setAttribute("aria-expanded", "false");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => button.setAttribute("aria-expanded", String(block.classList.toggle("open"))));
  });
}

// --- training: one alpha at a time --------------------------------------------------------------------------------

function startCourse(slider, data) {
  const courses = all(".course"), output = find("#alpha-shown");
  function show() {
    const at = Number(slider.value);
    courses.forEach((course, number) => (course.hidden = number !== at));
    output.textContent = `alpha ${data.alphas[at]}`;
    slider.setAttribute("aria-valuetext", output.textContent);
  }
  slider.addEventListener("input", show);
  show();
}

// A label says on hover what the glossary says of it.
function startLabels() {
  for (const tag of all(".tag")) tag.title = document.getElementById(`term-${tag.textContent.replaceAll(" ", "-")}`)?.lastElementChild.textContent ?? "";
}

function startCopy(button) {
  const code = document.getElementById(button.dataset.copy);
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Selected: copy with Ctrl+C"; // if the browser denies access to the clipboard
    }
  });
}

document.addEventListener("DOMContentLoaded", () => {
  const data = JSON.parse(find("#data").textContent);
  all(".scripted").forEach((element) => (element.hidden = false));
  startTheme(find("#theme"));
  startLabels();
  all(".canvas").forEach(startCanvas);
  all(".folding").forEach(startFolding);
  all("[data-copy]").forEach(startCopy);
  const table = find(".ranking"), slider = find("#alpha");
  strips = data.strips ?? {};
  stripAlphas = data.strip_alphas ?? [];
  if (table) startPicking(startTable(table, data));
  if (slider) startCourse(slider, data);
});
