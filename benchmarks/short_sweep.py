"""How much of a long run's ranking does a short sweep see? Recipes on several nets against long references.

    python benchmarks/short_sweep.py --shared ../shared --refs refs --out short.jsonl [--net vgg] [--recipe "a tenth"]
    python benchmarks/short_sweep.py --refs refs --out short.jsonl --figure docs/short-sweeps.png

From the project's root, as a run names its model's file as it is named here. A reference is a sweep of full length with
default options, alphas apart: its thresholds are on the weights' own clock. It has a run folder of its own under
``--refs``, made once, resumed where it was stopped; those of `vgg` and `wide_resnet` are the runs of
benchmarks/paper/run.py. A recipe is a sweep of a part of its samples (of its steps, but for other batches), with
options that users have. Each gives a line of the results; what stands there is not repeated.

For every recipe: Kendall's tau of its ranking to the reference's and to the null's, which is what the initial weights
alone would say. Floors are the null's own tau to the reference, that of the layers by their number of weights, and that
of a sweep on shuffled labels; the ceiling, where a reference has several seeds, is the mean tau between them.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from dst_analyze.ranking.rank import rank_layers
from dst_analyze.ranking.statistics import kendalls_tau
from dst_analyze.sweep.grid import run_sweep
from dst_analyze.sweep.record import DEFAULT_BATCH_SIZE, SweepRecord

NETS_FILE = "benchmarks/nets.py"
CIFAR = "npz:{shared}/data/cifar10-20k.npz"


@dataclass(frozen=True)
class Net:
    """A net, its data, and its reference: so many steps at strengths that leave a clear pattern."""

    title: str
    model: str
    data: str
    steps: int
    alphas: tuple[float, ...]
    seeds: int = 2
    options: dict[str, Any] = field(default_factory=lambda: {"lr": 0.05})  # of the reference and the sweeps alike


_BATCHES_OF_100 = {"batch_size": 100, "exclude": ["out"]}
NETS = {
    "demo": Net("the demo net", "example:demo", "digits", 3000, (3e-4,)),
    "vgg": Net("VGG-16, narrow", f"{NETS_FILE}:vgg", CIFAR, 9400, (1e-6, 1e-5, 1e-4), seeds=1),
    "wide_resnet": Net("WideResNet-16-2", f"{NETS_FILE}:wide_resnet", CIFAR, 3100, (3e-6, 3e-5, 3e-4), seeds=1),
    "resnet": Net("ResNet-14", f"{NETS_FILE}:small_resnet", CIFAR, 9400, (1e-6, 1e-5, 1e-4), seeds=1),
    "lenet_5": Net("LeNet-5", "benchmarks/paper/lenets.py:lenet_5", "mnist", 9400, (1e-4, 3e-4, 1e-3), options={}),
    "lstm": Net("LSTM, two layers", "example:lstm-a", "mnist", 9400, (3e-5, 1e-4, 3e-4), 1, _BATCHES_OF_100),
}


@dataclass(frozen=True)
class Recipe:
    """A sweep of a ``part`` of the reference's samples; ``batch`` divides its batches."""

    options: dict[str, Any] = field(default_factory=dict)
    batch: int = 1
    part: float = 0.1


LENGTHS = {"a tenth": Recipe(), "a quarter": Recipe(part=0.25), "half": Recipe(part=0.5)}
RECIPES = LENGTHS | {
    "shuffled labels": Recipe({"control": "shuffled-labels"}),
    "clock 1": Recipe({"threshold_clock": 1}),
    "batches of 16": Recipe(batch=4),
}
FLOORS = {"null": "initial weights alone", "by size": "layers by size"}


def sweep(net: Net, shared: str, out: Path, **options: Any) -> SweepRecord:
    data, root = net.data.format(shared=shared), f"{shared}/data"
    return run_sweep(
        net.model, data, data_root=root, out=out, resume=True, jobs=1, device="cpu", **{**net.options, **options}
    )


def reference(name: str, options: argparse.Namespace) -> SweepRecord:
    """The run of full length."""
    net = NETS[name]
    return sweep(
        net, options.shared, options.refs / name, steps=net.steps, alphas=list(net.alphas), seeds=net.seeds,
        threshold_clock=1,
    )  # fmt: skip


def order(frame: pd.DataFrame, sizes: pd.Series) -> pd.Series:
    """Each layer's redundancy over the trials of a frame."""
    table = rank_layers(frame.assign(params=frame["layer"].map(sizes))).table
    return table.set_index("layer")["redundancy"]


def trials(record: SweepRecord, *, control: bool) -> pd.DataFrame:
    return record.frame[record.frame["control"] == control].assign(control=False)


def null(record: SweepRecord) -> pd.Series:
    return rank_layers(record).table.set_index("layer")["null_redundancy"]


def tau(one: pd.Series, other: pd.Series) -> float:
    return round(kendalls_tau(one.to_numpy(), other.reindex(one.index).to_numpy()), 3)


def measure(name: str, recipe_name: str, options: argparse.Namespace) -> dict[str, Any]:
    net, recipe = NETS[name], RECIPES[recipe_name]
    long = trials(reference(name, options), control=False)
    steps = round(net.steps * recipe.part) * recipe.batch
    size = net.options.get("batch_size", DEFAULT_BATCH_SIZE) // recipe.batch
    started = time.perf_counter()
    short = sweep(
        net, options.shared, options.refs / f"{name},{recipe_name.replace(' ', '-')}", steps=steps,
        batch_size=size, seeds=options.seeds, **recipe.options,
    )  # fmt: skip
    sizes = short.layers.set_index("layer")["params"]  # largest first: what a ranking has to know more than
    found = order(trials(short, control="control" in recipe.options), sizes)
    end = order(long, sizes)
    single = [order(part, sizes) for _, part in long.groupby("seed")]
    ceiling = [tau(one, other) for one, other in combinations(single, 2)]
    return {
        "net": name, "recipe": recipe_name, "steps": steps, "batch": size, "seeds": options.seeds,
        "alphas": list(short.alphas), "remaining": [round(short.remaining(a) or np.nan, 4) for a in short.alphas],
        "tau": tau(found, end), "tau to null": tau(found, null(short)), "null": tau(null(short), end),
        "by size": tau(sizes, end), "ceiling": round(float(np.mean(ceiling)), 3) if ceiling else None,
        "training seconds": round(short.seconds, 1), "wall": round(time.perf_counter() - started, 1),
    }  # fmt: skip


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def course(name: str, options: argparse.Namespace) -> pd.Series:
    """Tau of the reference's ranking, had it ended at a step, to that of its end: how soon a long run knows."""
    long = reference(name, options)
    sizes = long.layers.set_index("layer")["params"]
    frame = trials(long, control=False)
    end = order(frame, sizes)
    steps = sorted(frame["step"].unique())
    return pd.Series({step: tau(order(frame[frame["step"] <= step], sizes), end) for step in steps})


def figure(options: argparse.Namespace) -> Figure:
    """For every net tau against the share of the full length: sweeps, the long run's own course, floors, ceiling."""
    found = pd.DataFrame(rows(options.out))
    names = [name for name in options.net or NETS if name in set(found["net"])]
    chart, axes = plt.subplots(1, len(names), figsize=(3.2 * len(names), 3.2), sharey=True, squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        of_net, full = found[found["net"] == name], NETS[name].steps
        own = course(name, options)
        axis.plot(own.index / full, own, color="0.6", label="the long run, had it ended here")
        lengths = of_net[of_net["recipe"].isin(LENGTHS)].groupby("steps")["tau"].mean()
        axis.plot(lengths.index / full, lengths, "o-", color="C0", label="default sweep of this length")
        for floor, colour in (("null", "C1"), ("by size", "C2")):
            axis.axhline(of_net[floor].mean(), ls="--", lw=1, color=colour, label=FLOORS[floor])
        shuffled = of_net[of_net["recipe"] == "shuffled labels"]
        axis.plot(shuffled["steps"] / full, shuffled["tau"], "x", color="C3", label="sweep on shuffled labels")
        if of_net["ceiling"].notna().any():
            axis.axhline(of_net["ceiling"].mean(), lw=1, color="C4", label="between seeds of the long run")
        axis.set(title=NETS[name].title, xlabel=f"share of {full:,} steps", xscale="log", ylim=(-0.45, 1.05))
    axes[0][0].set_ylabel("Kendall's tau to the long run")
    handles = {
        label: handle for axis in axes[0] for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    chart.legend(handles.values(), handles, loc="lower center", ncols=3, frameon=False)
    chart.tight_layout(rect=(0, 0.16, 1, 1))
    return chart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", default="../shared")
    parser.add_argument("--refs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--net", choices=NETS, action="append")
    parser.add_argument("--recipe", choices=RECIPES, action="append")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--figure", type=Path, help="train nothing, draw what is there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = {(row["net"], row["recipe"], row["seeds"]) for row in rows(options.out)}
    for name in [] if options.figure else options.net or NETS:
        for recipe in options.recipe or RECIPES:
            if (name, recipe, options.seeds) not in known:
                row = measure(name, recipe, options)
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(row, flush=True)
    print(pd.DataFrame(rows(options.out)).to_string())
    if options.figure:
        figure(options).savefig(options.figure, dpi=110)


if __name__ == "__main__":
    main()
