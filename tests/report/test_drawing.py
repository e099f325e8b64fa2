"""The picture of a model: what is drawn, what is folded, and where it stands."""

import re
from dataclasses import replace
from itertools import pairwise

import matplotlib.pyplot as plt
import pytest
import torch
from runs import add_plan, chain, made_run
from torch import nn
from torch.nn import functional as F

from dst_analyze import read_run
from dst_analyze.analysis import Analysis
from dst_analyze.errors import FolderError, OptionError
from dst_analyze.model.loading.torchvision_compat import torchvision_module
from dst_analyze.model.tracing.trace import trace_model
from dst_analyze.ranking.rank import rank_layers
from dst_analyze.report.graph.columns import in_columns
from dst_analyze.report.graph.layout import layered
from dst_analyze.report.graph.structure import structure_of
from dst_analyze.report.page import read_picture, write_figures
from dst_analyze.run.record import GraphNode, ModelGraph, SkippedLayer
from dst_analyze.sweep.planning.description.graph_summary import summarize_graph
from dst_analyze.sweep.run_sweep import run_sweep


def outline(model, *shape):
    return summarize_graph(trace_model(model, torch.zeros(2, *shape)))


def vision(name, **options):
    with torch.device("meta"):
        model = torchvision_module().models.get_model(name, **options)
    return summarize_graph(trace_model(model, torch.zeros(2, 3, 64, 64, device="meta")))


class Odd(nn.Module):
    """Weights used by a function, a layer that is called inside a block, and a module of several weights."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.constant = nn.Parameter(torch.randn(8))
        self.block = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x):
        size = x.shape[0]
        x = F.linear(x, self.weight) + self.constant
        return self.lstm(torch.cat([x, self.block(x)], 1).view(size, -1, 8))[0]


def test_an_outline_knows_layers_scopes_and_paths():
    nodes = outline(Odd(), 3, 8).nodes
    assert [node.layers for node in nodes if node.layers] == [
        ("weight",), ("block.0",), ("lstm.weight_ih_l0", "lstm.weight_hh_l0"),
    ]  # fmt: skip
    layer = next(node for node in nodes if node.layers == ("block.0",))
    assert (layer.op, layer.scope) == ("Linear", "block.0")
    assert layer.place.startswith("test_drawing.py:")
    join = next(node for node in nodes if node.op == "cat")
    assert len(join.inputs) == 2
    assert all(source < at for at, node in enumerate(nodes) for source in node.inputs)
    assert not [node for node in nodes if node.op in ("getattr", "getitem") and not node.inputs]  # sizes are no paths


def test_a_model_without_a_graph_has_no_outline():
    traced = trace_model(nn.Linear(4, 4), torch.zeros(2, 4))
    assert summarize_graph(replace(traced, graph=replace(traced.graph, graph_module=None, rung=3))) is None


def test_only_layers_and_joins_are_drawn():
    structure = structure_of(outline(Odd(), 3, 8))
    assert [part.kind for part in structure.parts] == ["end", "layers", "layers", "join", "layers", "end"]
    assert [part.title for part in structure.parts][1:5] == ["weight", "block.0", "concat", "lstm"]
    assert structure.lines == ((0, 1), (1, 2), (1, 3), (2, 3), (3, 4), (4, 5))
    assert structure.parts[4].columns == ("weight_ih_l0", "weight_hh_l0")


def test_a_layer_left_out_is_drawn_as_such():
    graph = chain(["a", "b", "c"])
    nodes = [node.model_copy(update={"layers": ()}) if node.scope == "b" else node for node in graph.nodes]
    skipped = [SkippedLayer(name="b.weight", reason="left out by --exclude")]
    structure = structure_of(ModelGraph(schema_version=1, nodes=tuple(nodes)), skipped)
    assert [part.kind for part in structure.parts] == ["end", "layers", "other", "layers", "end"]


@pytest.mark.parametrize("reason", ["normalisation: in whatever words", "bias or scale"])
def test_a_norm_or_a_bias_that_is_skipped_is_not_drawn(reason):
    graph = chain(["a", "b", "c"])
    nodes = [node.model_copy(update={"layers": ()}) if node.scope == "b" else node for node in graph.nodes]
    structure = structure_of(
        ModelGraph(schema_version=1, nodes=tuple(nodes)), [SkippedLayer(name="b.weight", reason=reason)]
    )
    assert [part.title for part in structure.parts] == ["input", "a", "c", "output"]


def test_a_resnet_is_folded_and_keeps_its_shape():
    graph = vision("resnet50")
    folded, whole = structure_of(graph), structure_of(graph, fold=False)
    names = {layer for node in graph.nodes for layer in node.layers}
    assert folded.layers == whole.layers == names
    assert len(whole.parts) == 54 + 16 + 2
    assert len(folded.parts) < 40
    runs = {part.rows[0][0]: part for part in folded.parts if part.kind == "run"}
    assert runs["layer3.1"].columns == ("conv1", "conv2", "conv3")
    assert [row for row, _ in runs["layer3.1"].rows] == [f"layer3.{block}" for block in range(1, 6)]
    joins = [at for at, part in enumerate(folded.parts) if part.title == "+"]
    assert all(sum(target == join for _, target in folded.lines) == 2 for join in joins)  # residual paths are there


def test_a_transformer_of_24_blocks_is_folded():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    structure = structure_of(outline(nn.TransformerEncoder(layer, 24, enable_nested_tensor=False), 5, 8))
    (run,) = [part for part in structure.parts if part.kind == "run"]
    assert len(run.rows) == 23
    assert len(structure.parts) < 12
    assert len(structure.layers) == 24 * 4


def test_paths_out_of_blocks_keep_them_apart():
    """A U-Net: each step down leads to a concat of its own, which one box for all of them would hide."""
    down = [f"down.{at}.conv" for at in range(5)]
    nodes = [GraphNode(op="input")]
    nodes += [GraphNode(op="Conv2d", scope=name, layers=(name,), inputs=(at,)) for at, name in enumerate(down)]
    for at in range(4):
        nodes.append(GraphNode(op="cat", scope="", inputs=(len(nodes) - 1, 4 - at)))
        nodes.append(GraphNode(op="Conv2d", scope=f"up.{at}.conv", layers=(f"up.{at}.conv",), inputs=(len(nodes) - 1,)))
    structure = structure_of(ModelGraph(schema_version=1, nodes=tuple(nodes)))
    drawn = [part.title for part in structure.parts]
    joins = [at for at, title in enumerate(drawn) if title == "concat"]
    into = [{drawn[a] for a, b in structure.lines if b == join} & set(down[:4]) for join in joins]
    assert into == [{down[3]}, {down[2]}, {down[1]}, {down[0]}]


def test_a_folded_block_is_known_in_full():
    folded = structure_of(vision("resnet50"))
    run = next(part for part in folded.parts if part.kind == "run")
    assert [part.title for part in run.block.parts] == ["in", "conv1", "conv2", "conv3", "+", "out"]
    assert run.block.lines == ((0, 1), (0, 4), (1, 2), (2, 3), (3, 4), (4, 5))


def test_a_tall_picture_stands_in_columns():
    structure = structure_of(vision("resnet50"))
    sizes = [(200.0, 38.0) for _ in structure.parts]
    whole = layered(sizes, structure.lines)
    found = in_columns(whole, sizes, (1300.0, 680.0))
    assert len(found.columns) > 1
    assert len(found.turns) == len(found.columns) - 1
    assert min(1, 1300 / found.layout.width, 680 / found.layout.height) > 1.5 * 680 / whole.height
    boxes = [(x, y, x + 200, y + 38) for x, y in (found.layout.corners[at] for at in range(len(sizes)))]
    for at, (a, b, c, d) in enumerate(boxes):
        assert a >= -1e-6
        assert c <= found.layout.width + 1e-6
        assert d <= found.layout.height + 1e-6
        assert all(c <= e or g <= a or d <= f or h <= b for e, f, g, h in boxes[at + 1 :])
    for turn in found.turns:
        for (x0, y0), (x1, y1) in pairwise(turn[1:]):  # beside the boxes
            assert not any(a < max(x0, x1) and min(x0, x1) < c and b < max(y0, y1) and min(y0, y1) < d
                           for a, b, c, d in boxes)  # fmt: skip
    low = in_columns(whole, sizes, (300.0, 680.0))
    assert len(low.columns) == 1


def test_blocks_that_are_left_and_entered_again_stay_unfolded():
    """a.0 -> b.0 -> a.1 -> b.1 -> ...: folding the a's would make a circle of them and the b's."""
    nodes = [GraphNode(op="input")]
    for block in range(6):
        for name in (f"a.{block}", f"b.{block}"):
            nodes.append(GraphNode(op="Linear", scope=name, layers=(name,), inputs=(len(nodes) - 1,)))
    structure = structure_of(ModelGraph(schema_version=1, nodes=tuple(nodes)))
    runs = [part for part in structure.parts if part.kind == "run"]
    assert len(runs) <= 1
    assert all(a < b for a, b in structure.lines)
    assert len(structure.layers) == 12


def test_boxes_do_not_overlap_and_lines_lead_down():
    sizes = [(150.0, 38.0), (220.0, 38.0), (90.0, 24.0), (150.0, 60.0), (24.0, 24.0), (60.0, 24.0)]
    lines = [(0, 1), (0, 2), (0, 4), (1, 3), (2, 3), (3, 4), (4, 5), (0, 5)]
    layout = layered(sizes, lines)
    corners = [layout.corners[at] for at in range(6)]
    boxes = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(corners, sizes, strict=True)]
    for at, (a, b, c, d) in enumerate(boxes):
        assert a >= -1e-6
        assert c <= layout.width + 1e-6
        assert d <= layout.height + 1e-6
        for e, f, g, h in boxes[at + 1 :]:
            assert c <= e or g <= a or d <= f or h <= b
    for source, target in lines:
        points = layout.lines[source, target]
        heights = [y for _, y in points]
        assert heights == sorted(heights)
        for x, y in points[1:-1]:  # what passes a layer passes beside its boxes
            assert not any(a < x < c and b < y < d for a, b, c, d in boxes)


def test_a_picture_has_every_value_written(tmp_path):
    names = [f"blocks.{at}.conv" for at in range(60)]
    record = made_run(tmp_path / "run", names, graph=chain(names), readings=8)
    ranking = rank_layers(record)
    picture = read_picture(record, ranking)
    cells = [cell for box in picture.boxes for cell in box.cells]
    assert sorted(cell.layer for cell in cells) == sorted(names)
    values = dict(zip(ranking.table["layer"], ranking.table["redundancy"], strict=True))
    assert all(cell.words[-1].text.startswith(f"{values[cell.layer] + 0.0:+.2f}") for cell in cells)
    for box in picture.boxes:
        for cell in box.cells:
            assert box.x <= cell.x
            assert cell.x + cell.width <= box.x + box.width + 1e-6
            assert cell.y + cell.height <= box.y + box.height + 1e-6


def test_a_sweep_leaves_its_graph(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    data = torch.randn(64, 1, 4, 4), torch.randint(0, 4, (64,))
    record = run_sweep(model, data, alphas=(1e-3,), steps=4, out=tmp_path / "run")
    graph = ModelGraph.model_validate_json((tmp_path / "run" / "graph.json").read_text())
    assert [node.layers for node in graph.nodes if node.layers] == [("1",), ("3",)]
    (tmp_path / "run" / "graph.json").write_text("{}")
    with pytest.raises(FolderError, match=r"graph\.json differs"):
        read_run(record.folder)
    run_sweep(model, data, alphas=(1e-3,), steps=4, out=tmp_path / "run", resume=True)  # written again
    assert ModelGraph.model_validate_json((tmp_path / "run" / "graph.json").read_text()) == graph


# --- the figures from Python ---


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    names = ["conv1", "$broken^{math$", "fc"]
    record = made_run(tmp_path_factory.mktemp("plots") / "run", names, graph=chain(names), reset="fc", readings=8)
    add_plan(record.folder, names)
    return Analysis(None, record)


@pytest.mark.parametrize("name", ["plot_pattern", "plot_training", "plot_graph", "plot_widths"])
def test_figures_are_axes(analysis, name):
    axes = getattr(analysis, name)()
    axes.figure.canvas.draw()
    words = [text.get_text() for text in axes.figure.findobj(plt.Text)]
    assert any("conv1" in word for word in words)
    own = plt.figure().subplots()
    assert getattr(analysis, name)(axes=own) is own
    plt.close("all")


def test_an_alpha_that_was_not_swept_is_refused(analysis):
    with pytest.raises(OptionError, match="no alpha"):
        analysis.plot_training(alpha=0.5)


def test_a_run_without_a_graph_says_so(tmp_path):
    record = made_run(tmp_path / "run", ["a", "b"], readings=8)
    with pytest.raises(FolderError, match="no graph"):
        Analysis(None, record).plot_graph()
    assert read_picture(record, rank_layers(record)) is None


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_figures_are_written_and_the_same_every_time(analysis, tmp_path, kind):
    folder = analysis.record.folder
    paths = write_figures(folder, tmp_path / "one", kind)
    assert {path.stem for path in paths} >= {"pattern", "ratios", "widths", "graph", "training-1e-4", "curves-1e-3"}
    assert {path.suffix for path in paths} == {f".{kind}"}
    again = write_figures(folder, tmp_path / "two", kind)
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    columns = write_figures(folder, tmp_path / "columns", kind, 1)
    assert [path.name for path in columns] == [path.name for path in paths]
    if kind == "svg":
        wide = [float(re.search(r'width="([0-9.]+)pt"', path.read_text())[1]) for path in columns]
        assert all(width <= 72 * 3.5 + 0.5 for width in wide)
        text = (tmp_path / "columns" / "curves-1e-3.svg").read_text()
        sizes = {float(size) for size in re.findall(r"font(?:-size)?: ?([0-9.]+)px", text)}
        assert sizes <= {7.0, 8.0}
        assert sizes
    with pytest.raises(OptionError, match="no format"):
        write_figures(folder, tmp_path / "three", "gif")
