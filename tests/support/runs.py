"""Run folders of any size, made up: what a sweep of a large model would leave, without training one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from dst_analyze import read_run
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.events import ignore_event
from dst_analyze.run.files.masks import pack_masks
from dst_analyze.run.files.paths import CHANGES, PLAN, VERIFICATION
from dst_analyze.run.header import RunHeader
from dst_analyze.run.record import (
    QUANTILE_COLUMNS,
    READING_COLUMNS,
    DataSummary,
    GraphNode,
    Manifest,
    ModelGraph,
    ModelSummary,
    SkippedLayer,
    SweepRecord,
    TrialOutput,
    TrialResult,
)
from dst_analyze.run.writer import open_run
from dst_analyze.slimming.planning.plan_types import FrozenGroup, GroupPlan, SlimPlan
from dst_analyze.slimming.proof.result import Entry, Verification

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "{{1234*567}}",
    "{% raw %}",
    "say \"hi\" 'there'",
    "a\u2028b\u2029c",
    "\u202eevil\u2066",
    "\x1b[31mred[bold]not[/bold]",
    "=cmd|' /C calc'!A0",
    "]]><!--",
    "$x_1$",
    "two\nlines",
    "%3Cimg%3E",
    "x" * 10_000,
]
"""Names that want to be something else."""


def made_run(
    path: Path,
    layers: list[str],
    *,
    alphas: tuple[float, ...] = (1e-4, 1e-3),
    seeds: int = 1,
    graph: ModelGraph | None = None,
    name: str = "made up",
    params: list[int] | None = None,
    failed: str = "",
    stand_in: bool = False,
    reset: str = "",
    skipped: tuple[SkippedLayer, ...] = (),
    readings: int = 40,
) -> SweepRecord:
    """A run in which some layers keep less than others at every alpha; ``reset`` and ``failed`` go wrong."""
    count, at = len(layers), np.linspace(0, 600, readings + 1)[1:].round().astype(int)
    sizes = params or [1000 + 10 * at for at in range(count)]
    config = SweepConfig.checked(model="made.py", alphas=alphas, seeds=seeds)
    facts = pd.DataFrame(
        {
            "layer": layers, "kind": "Conv2d", "parameter": [f"{layer}.weight" for layer in layers],
            "shape": "[10, 10]", "params": sizes, "macs": [9 * size for size in sizes], "macs_note": "",
            "output_shape": "[2, 10]", "rung": 1, "op": "conv2d",
        }
    )  # fmt: skip
    manifest = Manifest(
        versions={"dst-analyze": "0", "torch": "2"},
        model=ModelSummary(
            name=name, spec="made.py", sha256="0" * 64, params=sum(sizes), macs=9 * sum(sizes), rung=1,
            coverage="all of it", skipped=skipped,
        ),
        data=DataSummary(description="numbers", stand_in=stand_in, score="accuracy", scored_on="test", sha256="0"),
        steps=600,
        optimizer="SGD",
        threads=1,
    )  # fmt: skip
    strength = np.random.default_rng(0).normal(0, 0.8, count)
    with open_run(path, RunHeader(config, manifest, facts, graph), "refuse", ignore_event) as folder:
        for key in folder.look().missing:
            noise = np.random.default_rng(key.seed).normal(0, 0.05, count)
            rank = 0.0 if key.alpha is None else 1.0 + alphas.index(key.alpha)
            final = 1 / (1 + np.exp(strength + noise + 4 * rank / len(alphas) - 2))
            bad = bool(failed) and key.alpha == alphas[0] and key.seed == 0
            result = TrialResult(
                alpha=key.alpha, seed=key.seed, status="failed" if bad else "done", reason=failed if bad else "",
                steps=600, loss=None if bad else 0.1 * rank, score=None if bad else 0.97 - 0.02 * rank,
                remaining=None if bad or key.alpha is None else float(np.average(final, weights=sizes)),
                resets={reset: 2} if reset and key.alpha == alphas[-1] else {},
            )  # fmt: skip
            dense = pd.DataFrame(columns=READING_COLUMNS)
            read = dense if key.alpha is None else _readings(layers, final, reset, at)
            course = 1 - (1 - float(final.mean())) * at / 600
            steps = pd.DataFrame({"step": at, "loss": 2.3 / np.sqrt(at), "remaining": course})
            steps["score"] = np.where(at % 120 == 0, 0.9 - 40 / at, np.nan)
            masks = _masks(layers, final) if key.alpha is not None and not bad else None
            folder.write_trial(TrialOutput(result, read, steps, masks, 1.5))
    return read_run(path)


def _masks(layers: list[str], final: np.ndarray) -> bytes:
    """Masks of 64 rows, of which the first are wholly pruned."""
    draws = np.random.default_rng(0).random((64, 10))
    masks = {name: draws < share for name, share in zip(layers, final, strict=True)}
    for mask in masks.values():
        mask[:4] = False
    return pack_masks(masks)


def _readings(layers: list[str], final: np.ndarray, reset: str, at: np.ndarray) -> pd.DataFrame:
    """Ratios that fall from 1 to their last value within the first half."""
    fallen = np.minimum(at / 300, 1)[:, None]
    ratios = 1 - (1 - final[None, :]) * fallen
    frame = pd.DataFrame(
        {
            "step": np.repeat(at, len(layers)),
            "layer": layers * len(at),
            "remaining": ratios.round(6).ravel(),
            "rows": 10,
            "columns": 10,
            "resets": 0,
            "null": 0.6,
        }
    )
    for number, name in enumerate(QUANTILE_COLUMNS):
        frame[name] = ((1 - ratios) * (0.1 + 0.1 * number)).round(6).ravel()
    frame.loc[(frame["layer"] == reset) & (frame["step"] >= 300), "resets"] = 2
    return frame[list(READING_COLUMNS)]


def chain(layers: list[str]) -> ModelGraph:
    """A graph in which one layer follows the other."""
    nodes = [GraphNode(op="input")]
    nodes += [
        GraphNode(op="Conv2d", scope=name, layers=(name,), place="made.py:1", inputs=(at,))
        for at, name in enumerate(layers)
    ]
    return ModelGraph(schema_version=1, nodes=(*nodes, GraphNode(op="output", inputs=(len(layers),))))


def add_plan(folder: Path, layers: list[str], *, words: str = "as asked", proven: bool = True) -> SlimPlan:
    """A suggestion that halves every second layer, with lines to change and a proof."""
    groups = tuple(
        GroupPlan(
            group=name, layers=(name,), width=64, new_width=32 if at % 2 else 64, units=64, density=0.25,
            excess=2.5 if at % 2 else 0.5,
            removed=tuple(range(32)) if at % 2 else (), reason="" if at % 2 else words,
        )
        for at, name in enumerate(layers)
    )  # fmt: skip
    plan = SlimPlan(
        model=words, parameters={words: (1,)}, inputs=(), rule="density", asked={"params": 0.5}, groups=groups,
        frozen=(FrozenGroup(group=layers[-1], layers=(layers[-1],), reason=words),), params=1000, new_params=512,
        macs=9000, new_macs=4000, latency=0.7, notes=(words,),
    )  # fmt: skip
    (folder / PLAN).write_text(plan.model_dump_json())
    lines = pd.DataFrame({"layer": layers, "before": "nn.Conv2d(64, 64)", "after": f"nn.Conv2d(64, 32) {words}"})
    lines.iloc[1::2].to_csv(folder / CHANGES, index=False, lineterminator="\n")
    if proven:
        entries = tuple(
            Entry(name=name, about=words, params=512, macs=None, latency_ms=1.25, memory=10**6, scores=(0.5, score))
            for name, score in (("slim", 0.75), ("dense", None), ("uniform", 0.7))
        )
        proof = Verification(score="accuracy", steps=10, seeds=(0, 1), entries=entries)
        (folder / VERIFICATION).write_text(proof.model_dump_json())
    return plan
