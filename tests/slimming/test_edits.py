"""Changes for a user's own source: valid statements, the line where each belongs, what a class cannot express."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from dst_analyze import couple_channels
from dst_analyze.model.loading.load import load_model
from dst_analyze.model.tracing.trace import TracedModel, trace_model
from dst_analyze.report.changes import read_changes
from dst_analyze.slimming.source.edits import changed_lines
from dst_analyze.slimming.surgery.build import slim

HEAD = "import torch\nfrom torch import nn\n\n\n"
CHAIN = (
    HEAD
    + """class Net(nn.Module):
    def __init__(self, wide: int = 16):
        super().__init__()
        self.conv1 = nn.Conv2d(1, wide, 3)
        self.norm, self.act = nn.BatchNorm2d(16), nn.ReLU()
        self.conv2 = nn.Conv2d(
            wide, 8, 3, bias=False)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(8 * 64, 24), nn.Linear(24, 10))

    def forward(self, x):
        return self.head(self.act(self.conv2(self.act(self.norm(self.conv1(x))))))
"""
)
BLOCKS = (
    HEAD
    + """class Block(nn.Module):
    def __init__(self, wide, inner):
        super().__init__()
        self.conv1 = nn.Conv2d(wide, inner, 3, padding=1)
        self.conv2 = nn.Conv2d(inner, inner, 3, padding=1)
        self.conv3 = nn.Conv2d(inner, wide, 1)
        self.mix = nn.Sequential(*[nn.Conv2d(wide, wide, 1) for _ in range(2)])

    def forward(self, x):
        return x + self.mix(self.conv3(self.conv2(self.conv1(x).relu()).relu()))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3)
        self.blocks = nn.Sequential(Block(16, 32), Block(16, 24))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))
"""
)


def found(source: str, folder: Path) -> tuple[Path, TracedModel]:
    file = folder / "model.py"
    file.write_text(source)
    return file, trace_model(load_model(str(file)).model, torch.randn(2, 1, 12, 12))


def lines(traced: TracedModel, widths: dict[str, int]) -> tuple[pd.DataFrame, Any]:
    """Return the changes for a model whose groups become this wide, by their first layer."""
    coupling = couple_channels(traced)
    removal = {g.name: range(widths.get(g.name, g.width), g.width) for g in coupling.removable}
    small = slim(traced, removal, coupling=coupling)
    return changed_lines(traced, small).set_index("layer"), small


def test_each_statement_can_take_the_place_of_its_line(tmp_path: Path) -> None:
    file, traced = found(CHAIN, tmp_path)
    table, small = lines(traced, {"conv1": 12, "conv2": 6, "head.1": 16})
    assert list(table.index) == ["conv1", "norm", "conv2", "head.1", "head.2"]
    for row in table.itertuples():
        ast.parse(row.line)
    assert table.loc["conv1", "line"] == "self.conv1 = nn.Conv2d(1, 12, 3)"
    assert table.loc["conv1", "place"] == f"Net.__init__, {file}:8"
    assert table.loc["norm", "place"].endswith(":9")
    assert (table.loc["head.1", "line"], table.loc["head.1", "remark"]) == ("nn.Linear(384, 16)", "item self.head[1]")
    edited = CHAIN
    for name, old in {
        "conv1": "self.conv1 = nn.Conv2d(1, wide, 3)",
        "conv2": "self.conv2 = nn.Conv2d(\n            wide, 8, 3, bias=False)",
        "head.1": "nn.Linear(8 * 64, 24)",
        "head.2": "nn.Linear(24, 10)",
    }.items():
        assert old in edited
        edited = edited.replace(old, table.loc[name, "line"])
    edited = edited.replace("nn.BatchNorm2d(16)", table.loc["norm", "after"])
    (tmp_path / "edited.py").write_text(edited)
    again = load_model(str(tmp_path / "edited.py")).model
    assert {n: p.shape for n, p in again.named_parameters()} == {n: p.shape for n, p in small.named_parameters()}


def test_what_a_class_cannot_express_is_said_with_the_argument(tmp_path: Path) -> None:
    _, traced = found(BLOCKS, tmp_path)
    groups = {group.name for group in couple_channels(traced).removable}
    assert {"blocks.0.conv1", "blocks.0.conv2"} <= groups
    table, _ = lines(traced, {"blocks.0.conv1": 8, "blocks.0.conv2": 12})
    remark = table.loc["blocks.0.conv2", "remark"]
    assert "Block cannot express it, since inner would be 8 (out_channels of conv1, in_channels of conv2)" in remark
    assert "and 12 (out_channels of conv2, in_channels of conv3)" in remark
    assert "an argument of its own for in_channels and out_channels of conv2" in remark
    assert table.loc["blocks.0.conv2", "place"].startswith("Block.__init__, ")


def test_an_argument_that_says_it_is_named_with_its_value(tmp_path: Path) -> None:
    _, traced = found(BLOCKS, tmp_path)
    table, _ = lines(traced, {"blocks.0.conv1": 8, "blocks.0.conv2": 8})
    assert list(table["remark"]) == ["inner=8 where blocks.0 is built"] * 3
    alike, _ = lines(traced, {"blocks.0.conv1": 8, "blocks.0.conv2": 8, "blocks.1.conv1": 8, "blocks.1.conv2": 8})
    assert alike.loc["blocks.0.conv2", "remark"] == "the same line builds blocks.1.conv2, which need the same"


def test_a_layer_whose_line_is_not_known_says_so(tmp_path: Path) -> None:
    _, traced = found(BLOCKS, tmp_path)
    table, _ = lines(traced, {"blocks.0.mix.0": 8})
    assert table.loc["blocks.0.mix.0", "place"] == ""
    assert "its line is not known" in table.loc["blocks.0.mix.0", "remark"]


def test_the_report_shows_changes_in_the_order_of_the_source(tmp_path: Path) -> None:
    _, traced = found(CHAIN, tmp_path)
    table, _ = lines(traced, {"conv1": 12, "conv2": 6, "head.1": 16})
    path = tmp_path / "changes.csv"
    table.reset_index().sort_values("layer", ascending=False).to_csv(path, index=False, lineterminator="\n")
    shown = "\n".join(change.text for change in read_changes(path).values()).split("\n")
    ast.parse("\n".join(shown))
    assert [line for line in shown if line.startswith("self.")][:2] == [
        "self.conv1 = nn.Conv2d(1, 12, 3)  # was nn.Conv2d(1, 16, 3)",
        "self.norm = nn.BatchNorm2d(12)  # was nn.BatchNorm2d(16)",
    ]
    assert shown[0].endswith("model.py:8, for conv1")
