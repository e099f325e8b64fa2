"""Folders made to cost their reader: refused in seconds and a gigabyte, by all commands that run no model's code."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from run_folders import make_run
from runs import add_plan, chain, made_run

from dst_analyze.baselines.values import Baselines, Measurement
from dst_analyze.cli.main import main
from dst_analyze.run.files.atomic_io import SUMS, sums_of

ROOT = Path(__file__).parents[2]
SECONDS, KILOBYTES = 10, 1 << 20
LAYERS = ["conv1", "conv2", "fc"]
TRIAL = "trials/alpha=0.001,seed=0"
STEPS = "step,loss,score,remaining\n"
PLAN_GROUP = {"group": "conv1", "layers": ["conv1"], "width": 8, "new_width": 4, "units": 8}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original") / "run"
    made_run(folder, LAYERS, alphas=(1e-4, 1e-3, 1e-2), graph=chain(LAYERS), readings=4)
    add_plan(folder, LAYERS)
    ways = [Measurement(method="magnitude", setting=0.5, seed=0, values=dict.fromkeys(LAYERS, 0.5))]
    (folder / "baselines.json").write_text(Baselines(steps=1, samples=1, measured=tuple(ways)).model_dump_json())
    (folder / "groups.csv").write_text("layer,group\nconv1,a\nconv2,a\n")
    return folder


@pytest.fixture
def run(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "run"))


def seal(run, name):
    """The checksums beside a file, as whoever made the folder would write them."""
    file = run / name
    sums = file.parent / SUMS
    if sums.exists():
        names = {line.partition("  ")[2] for line in sums.read_text().splitlines()}
        if file.name in names:
            sums.write_bytes(sums_of({name: (file.parent / name).read_bytes() for name in names}))


def put(run, name, data):
    (run / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    seal(run, name)


def change(run, name, **fields):
    put(run, name, json.dumps(json.loads((run / name).read_text()) | fields))


def command(*args):
    """Run a command; return its exit code, its messages, and what it took: seconds of a processor, kilobytes."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    words, peak = [sys.executable, "-m", "dst_analyze", *map(str, args)], 0
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=said, env=env)
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            peak = max(peak, high_water(process.pid))
            time.sleep(0.01)
        process.returncode = os.waitstatus_to_exitcode(ended[1])
        said.seek(0)
        return process.returncode, said.read(), ended[2].ru_utime + ended[2].ru_stime, peak


def high_water(pid):
    """Return the most kilobytes that a process has held; its rusage begins with those of the process it came from."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)


def columns(name):
    text = {"layers.csv": "layer,kind,parameter,shape,params,macs,macs_note,output_shape,rung,op"}
    text["groups.csv"], text["changes.csv"] = "layer,group", "layer,before,after"
    return text[name] + "\n"


def layers(count):
    return columns("layers.csv") + "".join(f"l{at},Linear,l{at}.weight,[],1,1,,[],1,linear\n" for at in range(count))


def graph(nodes, inputs):
    """A graph of so many nodes, each reading from so many before it."""
    made = [
        {"op": "Linear", "layers": ["conv1"], "inputs": list(range(max(0, at - inputs), at))} for at in range(nodes)
    ]
    return json.dumps({"schema_version": 1, "nodes": made})


COSTLY = {
    "10^7 commas in the first line of layers.csv": ("layers.csv", lambda: "," * 10**7, "its columns are ',,,"),
    "10^7 commas below it": ("layers.csv", lambda: columns("layers.csv") + "," * 10**7, "line 2 has"),
    "10^6 layers": ("layers.csv", lambda: layers(10**6), "more than 5,000 rows"),
    "3·10^7 commas in groups.csv": ("groups.csv", lambda: "," * (3 * 10**7), "its columns are ',,,"),
    "3·10^7 commas below": ("groups.csv", lambda: columns("groups.csv") + "," * (3 * 10**7), "line 2 has"),
    "2·10^7 changes": ("changes.csv", lambda: columns("changes.csv") + ",,\n" * (2 * 10**7), "more than"),
    "10^6 alphas": ("config.json", lambda: {"alphas": [at + 1 for at in range(10**6)]}, "are more than 2000"),
    "10^6 alphas without a seed": (
        "config.json", lambda: {"alphas": [at + 1 for at in range(10**6)], "seeds": []}, "are more than 2000",
    ),
    "10^6 first alphas": ("manifest.json", lambda: {"first_alphas": [1.0] * 10**6}, "first_alphas"),
    "2·10^7 empty lists": ("config.json", lambda: '{"model_args": {"a": [' + "[]," * 2 * 10**7, "more values"),
    "10^7 columns of readings": (f"{TRIAL}/record.csv", lambda: "," * 10**7, "its columns are"),
    "10^7 values in one reading": (f"{TRIAL}/steps.csv", lambda: STEPS + "," * 10**7, "steps.csv"),
    "10^7 values beside a quote": (
        f"{TRIAL}/steps.csv", lambda: STEPS + '"1"' + "," * 10**7, "more than 10,000 values",
    ),
    "10^7 readings": (f"{TRIAL}/steps.csv", lambda: STEPS + ",,,\n" * 10**7, "2,000,000 rows"),
    "3,000 nodes of 300 inputs": ("graph.json", lambda: graph(3000, 300), "edges, more than"),
    "3·10^5 groups": (
        "plan.json", lambda: {"groups": [PLAN_GROUP] * 3 * 10**5},
        "more values",
    ),
    "10^5 measurements": (
        "baselines.json", lambda: {"measured": [{"setting": 1, "seed": 0, "values": {}}] * 10**5},
        "more values",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COSTLY)
def test_costly_folders_are_refused_in_seconds(run, name):
    file, made, said = COSTLY[name]
    data = made()
    if isinstance(data, dict):
        change(run, file, **data)
    else:
        put(run, file, data)
    head = file in ("layers.csv", "config.json", "manifest.json") or file.startswith("trials")
    code, error, seconds, size = command(*(["compare", run, run] if head and "layers" in file else ["report", run]))
    assert code == 2, error
    assert said in error
    assert "hint: " in error
    assert len(error) < 2000
    assert seconds < SECONDS
    assert size < KILOBYTES


def test_files_that_take_no_room_on_the_disk_are_not_summed(run):
    names = [f"m{at}.bin" for at in range(40)]
    for name in names:
        with (run / TRIAL / name).open("wb") as file:
            file.truncate(1 << 30)
    sums = run / TRIAL / SUMS
    sums.write_text(sums.read_text() + "".join(f"{'0' * 64}  {name}\n" for name in names))
    code, error, seconds, _ = command("rank", run)
    assert (code, seconds < SECONDS) == (2, True)
    assert "the trials of the run folder have 40,960 MB" in error
    for name in names[3:]:
        (run / TRIAL / name).unlink()
    code, error, seconds, _ = command("rank", run)
    assert (code, seconds < SECONDS) == (2, True)


@pytest.mark.parametrize(("nodes", "inputs", "drawn"), [(3000, 30, False), (1000, 2, True), (20_000, 1, False)])
def test_a_graph_too_large_for_a_picture_is_left_out(run, nodes, inputs, drawn):
    put(run, "graph.json", graph(nodes, inputs))
    code, error, seconds, size = command("report", run)
    assert code == 0, error
    assert (seconds < SECONDS, size < KILOBYTES) == (True, True)
    page = (run / "report.html").read_text()
    assert ("the graph is too large to be drawn" in page) != drawn


def test_the_largest_run_that_is_read_takes_seconds(tmp_path):
    """As many layers as there may be, and many alphas."""
    names = [f"l{at}" for at in range(5000)]
    made_run(tmp_path / "run", names, alphas=tuple((at + 1) * 1e-4 for at in range(5)), readings=1, graph=chain(names))
    code, error, seconds, size = command("rank", tmp_path / "run")
    assert code == 0, error
    assert (seconds < SECONDS, size < KILOBYTES) == (True, True)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (lambda: "layer,alpha,remaining" + "," * 10**7 + "\n", "10,000,003 names"),
        (lambda: "layer,alpha,remaining\n" + "a,1,0.5\n" * 10**6, "more than 500,000 rows"),
        (lambda: "layer,alpha,remaining\n" + "".join(f"{at},1,0.5\n" for at in range(10**5)), "layers are more than"),
        (lambda: "layer,alpha,remaining\n" + "".join(f"a,{at + 1},0.5\n" for at in range(10**5)), "trials are more"),
    ],
)
def test_so_are_costly_tables(tmp_path, table, said):
    (tmp_path / "ratios.csv").write_text(table())
    code, error, seconds, size = command("rank", tmp_path / "ratios.csv")
    assert code == 2, error
    assert said in error
    assert (seconds < SECONDS, size < KILOBYTES) == (True, True)


# --- numbers that make no sense ---------------------------------------------------------------------------------------

HUGE = 10**400
RUNG = {"share": 0.5, "widths": {"conv1": 4}, "params": 100}


def entry(name, **fields):
    known = {"name": name, "about": "", "params": 1, "macs": 1, "latency_ms": 1.0, "memory": 1, "scores": [0.5, 0.6]}
    return {**known, **fields}


def entries(**fields):
    return {"entries": [entry("slim", **fields), entry("dense"), entry("uniform")]}


NONSENSE = {
    "plan, params 0": ("plan.json", {"params": 0}, "params"),
    "plan, params 10^400": ("plan.json", {"params": HUGE}, "params"),
    "plan, new params 10^400": ("plan.json", {"new_params": HUGE}, "new_params"),
    "plan, macs negative": ("plan.json", {"macs": -1}, "macs"),
    "plan, width 0": ("plan.json", {"groups": [{**PLAN_GROUP, "width": 0}]}, "width"),
    "plan, width 10^400": ("plan.json", {"groups": [{**PLAN_GROUP, "width": HUGE}]}, "width"),
    "plan, latency 0": ("plan.json", {"latency": 0}, "latency"),
    "plan, ladder": ("plan.json", {"ladder": [{**RUNG, "params": HUGE}]}, "ladder"),
    "proof, latency 0": ("verification.json", entries(latency_ms=0), "latency_ms"),
    "proof, uneven scores": ("verification.json", entries(scores=[0.5]), "slim has not one score for each of 2"),
    "proof, memory 10^400": ("verification.json", entries(memory=HUGE), "memory"),
    "proof, score 1e308": ("verification.json", entries(scores=[1e308, 1e308]), "scores"),
    "proof, without dense": ("verification.json", {"entries": [entry("slim")]}, "its models are slim"),
    "proof, twice": ("verification.json", {"entries": [entry("slim"), *[entry("dense")] * 2]}, "its models"),
    "proof, no seeds": ("verification.json", {"seeds": [], **entries(scores=[])}, "seeds"),
    "baselines, setting 0": (
        "baselines.json", {"measured": [{"method": "magnitude", "setting": 0, "seed": 0, "values": {}}]}, "setting",
    ),
    "graph, a node that reads itself": ("graph.json", {"nodes": [{"op": "a", "inputs": [0]}]}, "node 0 reads"),
    "graph, a circle": ("graph.json", {"nodes": [{"op": "a", "inputs": [1]}, {"op": "a", "inputs": [0]}]}, "node 0"),
    "graph, an input before the first": ("graph.json", {"nodes": [{"op": "a"}, {"op": "a", "inputs": [-1]}]}, "node 1"),
    "graph, modules without end": ("graph.json", {"nodes": [{"op": "a", "scope": "a." * 5000}] * 2}, "modules"),
    "manifest, steps 0": ("manifest.json", {"steps": 0}, "steps"),
    "manifest, threads 0": ("manifest.json", {"threads": 0}, "threads"),
    "config, steps 10^400": ("config.json", {"steps": HUGE}, "steps"),
    "trial, steps 10^400": (f"{TRIAL}/trial.json", {"steps": HUGE}, "steps"),
    "trial, remaining 2": (f"{TRIAL}/trial.json", {"remaining": 2}, "remaining"),
    "trial, score 1e308": (f"{TRIAL}/trial.json", {"score": 1e308, "error": 1e308}, "score"),
    "trial, resets negative": (f"{TRIAL}/trial.json", {"resets": {"conv1": -1}}, "resets"),
}  # fmt: skip


@pytest.mark.parametrize("name", NONSENSE)
def test_numbers_that_make_no_sense_are_errors_of_their_file(run, name, capsys):
    file, fields, said = NONSENSE[name]
    change(run, file, **fields)
    assert main(["report", str(run)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert Path(file).name in error or file.startswith("trials")
    assert "hint: " in error


def test_a_model_without_weights_is_an_error_of_the_manifest(run, capsys):
    model = json.loads((run / "manifest.json").read_text())["model"]
    change(run, "manifest.json", model={**model, "params": 0})
    assert main(["report", str(run)]) == 2
    assert "manifest.json cannot be used: model.params" in capsys.readouterr().err


@pytest.mark.parametrize("cell", ["0", "1e999", "-1", "9" * 400])
def test_so_are_those_of_tables(run, capsys, cell):
    rows = (run / "layers.csv").read_text().splitlines()
    cells = rows[1].replace("[10, 10]", "x").replace("[2, 10]", "y").replace('"', "").split(",")
    cells[4] = cell
    put(run, "layers.csv", "\n".join([rows[0], ",".join(cells), *rows[2:]]) + "\n")
    assert main(["rank", str(run)]) == 2
    assert "layers.csv cannot be used" in capsys.readouterr().err


# --- runs of many trials ----------------------------------------------------------------------------------------------


def test_many_alphas_are_ranked_all_and_drawn_in_part(tmp_path):
    alphas = tuple(round(1e-4 * (at + 1), 7) for at in range(30))
    made_run(tmp_path / "run", LAYERS, alphas=alphas, readings=4)
    assert main(["report", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count('aria-label="Training at alpha') == 8
    assert "Drawn for 8 of 30 alphas" in page
    head = (tmp_path / "run" / "table.csv").read_text().splitlines()[0]
    assert head.count("remaining at") == 30


def test_names_with_line_breaks_are_read_in_every_trial(tmp_path):
    names = ('two\nlines, "quoted"', "NA", "0")
    record = make_run(tmp_path / "run", layers=names, alphas=(1e-4, 1e-3), seeds=2)
    assert record.frame.groupby(["alpha", "seed"])["layer"].unique().map(list).tolist() == [list(names)] * 4
