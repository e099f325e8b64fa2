"""What a notebook shows: values as tables with every name inert, progress as HTML that needs no widgets."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dst_analyze import analyze, couple_channels, mask_model, run_sweep, trace_model
from dst_analyze.slimming.proof.result import Entry, Verification

EVIL = "<img src=x onerror=alert(1)>\x1b[31m\u202e"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add_module(EVIL, nn.Linear(64, 24))
        self.last = nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self._modules[EVIL](x.flatten(1)).relu())  # type: ignore[misc]
        return scores


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 1, 8, 8, generator=generator), torch.randint(0, 10, (64,), generator=generator)


def inert(html: str) -> str:
    for bad in ("<img", "<script", "\x1b", "\u202e"):
        assert bad not in html
    assert "&lt;img src=x" in html
    return html


def test_every_value_has_html_and_escapes_names(tmp_path: Path) -> None:
    model, (x, y) = Net(), data()
    traced = trace_model(model, x[:2])
    assert "Net: 2 layers, 1,810 parameters" in inert(traced._repr_html_())
    assert "Net, masked: 100.0% of its weights remain" in inert(mask_model(traced)._repr_html_())
    assert "1 of 3 groups of channels may be narrowed" in inert(couple_channels(traced)._repr_html_())
    found = analyze(model, (x, y), alphas=(1e-2, 3e-2), steps=20, out=tmp_path / "run")
    assert "Verdict: " in inert(found._repr_html_())
    assert repr(found) == f"Analysis('Net', '{found.ranking.verdict}', '{tmp_path / 'run'}')"
    plan = found.suggest_widths(target_params=0.6, write=False)
    assert "parameters 1.81k → " in inert(plan._repr_html_())


def test_a_proof_has_html() -> None:
    entries = (
        Entry(name="slim", about=EVIL, params=5, macs=None, latency_ms=1, memory=1, scores=(0.9, 0.92)),
        Entry(name="dense", about="all", params=9, macs=3, latency_ms=1, memory=1, scores=(0.8, None)),
    )
    html = Verification(score="accuracy", steps=7, seeds=(0, 1), entries=entries)._repr_html_()
    assert "each trained for 7 steps, with seeds 0, 1" in inert(html)
    assert "<td>91</td>" in html
    assert "above the dense model" in html


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """IPython with a kernel, as far as progress asks for it; what it was told to show, in order."""
    shown: list[str] = []

    class Handle:
        def update(self, html: str) -> None:
            shown.append(html)

    def display(html: str, *, display_id: bool) -> Handle:
        shown.append(html)
        return Handle()

    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.HTML, ipython.display.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    return shown


def test_progress_in_a_notebook_leaves_no_times_behind(kernel: list[str], tmp_path: Path) -> None:
    heard: list[object] = []
    run_sweep(Net(), data(), alphas=(1e-3,), steps=4, out=tmp_path / "run", listener=heard.append)
    assert kernel[0] == ""
    drawn = [html for html in kernel if "<pre" in html]
    assert any("alpha 0.001, seed 0" in html or "alpha 1e-3, seed 0" in html for html in drawn)
    assert "the data given: 64 samples" in kernel[-1]
    assert "2 trials of 4 steps" in kernel[-1]
    assert "<pre" not in kernel[-1]
    assert " s</p>" not in kernel[-1]
    assert any("this takes" in html for html in drawn)
    assert "this takes" not in kernel[-1]
    assert heard


def test_progress_can_be_switched_off_and_on(
    kernel: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"alphas": (1e-3,), "steps": 2}
    run_sweep(Net(), data(), out=tmp_path / "silent", progress=False, **options)
    assert kernel == []
    monkeypatch.delitem(sys.modules, "IPython")
    run_sweep(Net(), data(), out=tmp_path / "script", **options)
    assert capsys.readouterr().err == ""
    run_sweep(Net(), data(), out=tmp_path / "asked", progress=True, **options)
    assert "2 trials of 2 steps" in capsys.readouterr().err
