"""How much of a long run's ranking does a short sweep see? Sweeps of several lengths and recipes against long runs.

    python experiments/short_sweep.py [--shared ../shared] [--net vgg] [--recipe "a tenth"]
    python experiments/short_sweep.py --figure docs/short-sweeps.png

The reference of a net is a sweep of full length: masks from the start, thresholds in one unit and on the weights' own
clock. A recipe is a shorter sweep, with options that users have; its alphas (literal) leave 70, 30 and 10 % at its
length, unless strength is what is tried. Steps are those with masks; a warm-up has as many, once for each seed. What is
read of each trial is kept under ``--readings``, in one table for each net, so that all of this can be stopped at any
time, and a new recipe needs no new references. The lines of ``--out`` are made anew from what is there, and say so
(`kept`). Others stay, from when readings were not kept: those of VGG and ResNet-14 are by other long runs. The
references of `vgg` and of `wide_resnet` with seed 0 are the trials of experiments/paper/run.py; what was trained for
this alone is in bfloat16 where that is faster.

For every recipe: Kendall's tau of its ranking to the reference's, over all of the reference's alphas and seeds and at
its strongest alpha alone. Floors are the tau of the null's ranking, which is what the initial weights alone would say,
of the layers by their number of weights, of the layers from last to first, and of a sweep on shuffled labels; the
ceiling is the tau between two seeds of the reference. *beyond null* is the tau of the two rankings after what the null
says has been taken from both.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.figure import Figure

from dst_analyze.ranking.rank import rank_layers
from dst_analyze.ranking.statistics.measures import kendalls_tau
from dst_analyze.run.events import ignore_event
from dst_analyze.run.record import TrialKey, last_quarter
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.training.trial import Task, run_trial, train_warm_up
from dst_analyze.sweep.training.warm_start import missing_starts

RESULTS = Path(__file__).parent / "results"
CIFAR = "npz:{shared}/data/cifar10-20k.npz"
KEPT = ["recipe", "alpha", "seed", "step", "layer", "remaining", "resets", "null"]
SIXTH = "a sixth"  # today's default length
LONG, SHUFFLED = "the long run", "a quarter, labels shuffled"
THIRD, EIGHTH = "a quarter, trials of a third", "an eighth"  # trials of a third of the warm-up; as long as it


@dataclass(frozen=True)
class Net:
    title: str
    model: str
    data: str
    options: dict[str, Any] = field(default_factory=dict)


NETS = {
    "vgg": Net("VGG-16, narrow", "experiments/nets.py:vgg", CIFAR, {"lr": 0.05}),
    "wide_resnet": Net("WideResNet-16-2", "experiments/nets.py:wide_resnet", CIFAR, {"lr": 0.05}),
    "resnet": Net("ResNet-14, small", "experiments/nets.py:small_resnet", CIFAR, {"lr": 0.05}),
    "vit": Net("a small ViT", "experiments/small_vit.py:vit", "mnist"),
    "demo": Net("the demo net", "example:demo", "digits"),
    "lenet_5": Net("LeNet-5", "experiments/paper/lenets.py:lenet_5", "mnist"),
}


@dataclass(frozen=True)
class Sweep:
    """One sweep: of a net by a recipe."""

    net: str
    recipe: str
    steps: int
    alphas: tuple[float, ...]
    seeds: tuple[int, ...] = (0,)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def shuffled(self) -> bool:
        """Whether labels are, so that there is nothing to learn."""
        return self.recipe == SHUFFLED


_ONE = {"threshold_scale": "one"}
_PLAIN = {**_ONE, "warm_up": 0}
_LONG = {**_PLAIN, "threshold_clock": 1}
_LONG_BFLOAT16 = {**_LONG, "amp": True}
_SMALL_BATCHES = {**_PLAIN, "batch_size": 16}
_HIGH_RATE = {**_PLAIN, "lr": 0.15}
SWEEPS = (
    Sweep("vgg", LONG, 9400, (1e-6, 1e-5, 1e-4), (0, 1), options=_LONG_BFLOAT16),
    Sweep("vgg", "a tenth", 940, (1e-5, 5e-5, 1.5e-4)),
    Sweep("vgg", SIXTH, 1500, (7e-6, 4e-5, 1.5e-4)),
    Sweep("vgg", "a quarter", 2350, (5e-6, 4e-5, 1.5e-4)),
    Sweep("vgg", "half", 4700, (5e-6, 3.5e-5, 1.4e-4)),
    Sweep("vgg", SHUFFLED, 2350, (5e-6, 4e-5, 1.5e-4)),
    Sweep("vgg", THIRD, 783, (5e-6, 4e-5, 1.5e-4), options={"warm_up": 2350}),
    Sweep("vgg", EIGHTH, 1175, (5e-6, 4e-5, 1.5e-4)),
    Sweep("vgg", "a tenth, one unit", 940, (1e-5, 5e-5, 1.5e-4), options=_ONE),
    Sweep("vgg", "a tenth, one unit, three seeds", 940, (1e-5, 5e-5, 1.5e-4), (0, 1, 2), options=_ONE),
    Sweep("vgg", "a quarter, one unit", 2350, (5e-6, 4e-5, 1.5e-4), options=_ONE),
    Sweep("vgg", "a tenth, no warm-up", 940, (1e-5, 5e-5, 1.5e-4), options=_PLAIN),
    Sweep("vgg", "a quarter, no warm-up", 2350, (5e-5, 1.2e-4), options=_PLAIN),
    Sweep("vgg", "a tenth, stronger", 940, (3e-4,), options=_PLAIN),
    Sweep("vgg", "a tenth, rate x3", 940, (3e-5, 1e-4), options=_HIGH_RATE),
    Sweep("vgg", "a tenth, batches of 16", 3760, (5e-5, 1.5e-4), options=_SMALL_BATCHES),
    Sweep("wide_resnet", LONG, 3100, (3e-6, 3e-5, 3e-4), (0, 1), options=_LONG_BFLOAT16),
    Sweep("wide_resnet", "a tenth", 310, (2e-5, 9e-5, 3e-4)),
    Sweep("wide_resnet", f"{SIXTH}, one long run", 517, (1.8e-5, 8e-5, 2.8e-4)),
    Sweep("wide_resnet", "a quarter", 775, (1.7e-5, 8e-5, 2.6e-4)),
    Sweep("wide_resnet", "half", 1550, (1.2e-5, 6e-5, 2.2e-4)),
    Sweep("wide_resnet", SHUFFLED, 775, (1.7e-5, 8e-5, 2.6e-4)),
    Sweep("wide_resnet", f"{THIRD}, one long run", 258, (1.7e-5, 8e-5, 2.6e-4), options={"warm_up": 775}),
    Sweep("wide_resnet", f"{EIGHTH}, one long run", 388, (1.7e-5, 8e-5, 2.6e-4)),
    Sweep("wide_resnet", "a tenth, one unit", 310, (3e-5, 1.5e-4, 4e-4), options=_ONE),
    Sweep("wide_resnet", "a quarter, one unit", 775, (2.2e-5, 1.5e-4, 4e-4), options=_ONE),
    Sweep("wide_resnet", "a quarter, one unit, two seeds", 775, (2.2e-5, 1.5e-4, 4e-4), (0, 1), options=_ONE),
    Sweep("wide_resnet", "a tenth, no warm-up", 310, (3e-5, 1.5e-4, 3e-4), options=_PLAIN),
    Sweep("wide_resnet", "a quarter, no warm-up", 775, (1.2e-5, 6e-5, 1.8e-4), options=_PLAIN),
    Sweep("wide_resnet", "half, no warm-up", 1550, (6e-6, 5e-5, 1.8e-4), options=_PLAIN),
    Sweep("wide_resnet", "a tenth, stronger", 310, (3e-4, 6e-4), options=_PLAIN),
    Sweep("wide_resnet", "a tenth, rate x3", 310, (1e-5, 5e-5, 1.2e-4, 2.4e-4), options=_HIGH_RATE),
    Sweep("wide_resnet", "a tenth, batches of 16", 1240, (8e-5, 2e-4), options=_SMALL_BATCHES),
    Sweep("resnet", LONG, 9400, (1e-5, 1e-4, 5e-4), (0, 1), options=_LONG_BFLOAT16),
    Sweep("resnet", "a tenth", 940, (3e-5, 1.6e-4, 6e-4)),
    Sweep("resnet", SIXTH, 1500, (3e-5, 1.6e-4, 6e-4)),
    Sweep("resnet", "a quarter", 2350, (3e-5, 1.6e-4, 6e-4)),
    Sweep("resnet", "half", 4700, (2e-5, 1.4e-4, 5.5e-4)),
    Sweep("resnet", SHUFFLED, 2350, (3e-5, 1.6e-4, 6e-4)),
    Sweep("resnet", THIRD, 783, (3e-5, 1.6e-4, 6e-4), options={"warm_up": 2350}),
    Sweep("resnet", EIGHTH, 1175, (3e-5, 1.6e-4, 6e-4)),
    Sweep("resnet", "a tenth, one unit", 940, (7e-5, 3.5e-4, 1e-3), options=_ONE),
    Sweep("resnet", "a quarter, one unit", 2350, (5e-5, 3e-4, 1e-3), options=_ONE),
    Sweep("resnet", "a tenth, no warm-up", 940, (7e-5, 3.5e-4, 1e-3), options=_PLAIN),
    Sweep("vit", LONG, 4700, (1e-4, 5e-4, 2.5e-3), (0, 1), options=_LONG),
    Sweep("vit", "a tenth", 470, (3e-4, 1e-3, 3e-3)),
    Sweep("vit", "a tenth, three seeds", 470, (3e-4, 1e-3, 3e-3), (0, 1, 2)),
    Sweep("vit", SIXTH, 783, (3e-4, 1e-3, 3e-3)),
    Sweep("vit", "a quarter", 1175, (3e-4, 1e-3, 3e-3)),
    Sweep("vit", "half", 2350, (2e-4, 8e-4, 3e-3)),
    Sweep("vit", THIRD, 392, (3e-4, 1e-3, 3e-3), options={"warm_up": 1175}),
    Sweep("vit", EIGHTH, 588, (3e-4, 1e-3, 3e-3)),
    Sweep("vit", "a tenth, one unit", 470, (3e-4, 1e-3, 3e-3), options=_ONE),
    Sweep("vit", "a tenth, one unit, three seeds", 470, (3e-4, 1e-3, 3e-3), (0, 1, 2), options=_ONE),
    Sweep("vit", "a quarter, one unit", 1175, (3e-4, 1e-3, 3e-3), options=_ONE),
    Sweep("vit", "a quarter, one unit, two seeds", 1175, (3e-4, 1e-3, 3e-3), (0, 1), options=_ONE),
    Sweep("vit", SHUFFLED, 1175, (3e-4, 1e-3, 3e-3)),
    Sweep("vit", "a tenth, no warm-up", 470, (3e-4, 1e-3, 3e-3), options=_PLAIN),
    Sweep("vit", "a tenth, no warm-up, three seeds", 470, (3e-4, 1e-3, 3e-3), (0, 1, 2), options=_PLAIN),
    Sweep("vit", "a quarter, no warm-up", 1175, (2e-4, 1e-3, 3e-3), options=_PLAIN),
    Sweep("vit", "a quarter, no warm-up, two seeds", 1175, (2e-4, 1e-3, 3e-3), (0, 1), options=_PLAIN),
    Sweep("vit", "half, no warm-up", 2350, (1.5e-4, 7e-4, 3e-3), options=_PLAIN),
    Sweep("vit", "a tenth, stronger", 470, (6e-3, 1.5e-2), options=_PLAIN),
    Sweep("vit", "a tenth, batches of 16", 1880, (3e-4, 1e-3), options=_SMALL_BATCHES),
    Sweep("demo", LONG, 3000, (1e-4, 3e-4), (0, 1), options=_LONG),
    Sweep("demo", "a tenth", 300, (1e-4, 5e-4, 2e-3)),
    Sweep("demo", SIXTH, 500, (1e-4, 4e-4, 1.4e-3)),
    Sweep("demo", "a quarter", 750, (1e-4, 3e-4, 1e-3)),
    Sweep("demo", "half", 1500, (1e-4, 3e-4, 1e-3)),
    Sweep("demo", THIRD, 250, (1e-4, 3e-4, 1e-3), options={"warm_up": 750}),
    Sweep("demo", EIGHTH, 375, (1e-4, 3e-4, 1e-3)),
    Sweep("demo", "a tenth, one unit", 300, (1e-4, 5e-4, 2e-3), options=_ONE),
    Sweep("demo", "a quarter, one unit", 750, (1e-4, 3e-4, 1e-3), options=_ONE),
    Sweep("demo", "a tenth, no warm-up", 300, (1e-4, 5e-4, 2e-3), options=_PLAIN),
    Sweep("demo", "a quarter, no warm-up", 750, (1e-4, 3e-4, 1e-3), options=_PLAIN),
    Sweep("lenet_5", LONG, 9400, (1e-4, 3e-4), (0, 1), options=_LONG),
    Sweep("lenet_5", "a tenth", 940, (1e-4, 4e-4, 1.2e-3)),
    Sweep("lenet_5", SIXTH, 1500, (9e-5, 3.5e-4, 1e-3)),
    Sweep("lenet_5", "a quarter", 2350, (8e-5, 3e-4, 8e-4)),
    Sweep("lenet_5", "half", 4700, (6e-5, 3e-4, 8e-4)),
    Sweep("lenet_5", THIRD, 783, (8e-5, 3e-4, 8e-4), options={"warm_up": 2350}),
    Sweep("lenet_5", EIGHTH, 1175, (8e-5, 3e-4, 8e-4)),
    Sweep("lenet_5", "a tenth, one unit", 940, (1e-4, 4e-4, 1.2e-3), options=_ONE),
    Sweep("lenet_5", "a quarter, one unit", 2350, (8e-5, 3e-4, 8e-4), options=_ONE),
    Sweep("lenet_5", SHUFFLED, 2350, (8e-5, 3e-4, 8e-4)),
    Sweep("lenet_5", "a tenth, no warm-up", 940, (1e-4, 4e-4, 1.2e-3), options=_PLAIN),
    Sweep("lenet_5", "a quarter, no warm-up", 2350, (8e-5, 3e-4, 8e-4), options=_PLAIN),
)
DRAWN = ("a tenth", EIGHTH, SIXTH, "a quarter", "half")  # of the figure: the default recipe
FLOORS = {"null": ("initial weights alone", "C1"), "by size": ("layers by size", "C2")}


def long_run(net: str) -> Sweep:
    return next(sweep for sweep in SWEEPS if (sweep.net, sweep.recipe) == (net, LONG))


def task_of(net: Net, shared: str, **options: Any) -> Task:
    """What its trials share."""
    plan = plan_sweep(
        net.model, net.data.format(shared=shared), data_root=f"{shared}/data", device="cpu", out="not-written",
        alpha_scale=1, on_collapse="reset", **{**net.options, **options},
    )  # fmt: skip
    return plan.task


@cache
def sizes_of(net: str, shared: str) -> pd.Series:
    """Weights by layer."""
    return pd.Series({layer.name: layer.params for layer in task_of(NETS[net], shared, alphas=[1e-4]).traced.layers})


# --- training -------------------------------------------------------------------------------------------------------


def kept_readings(sweep: Sweep, folder: Path) -> pd.DataFrame:
    """Return what is kept of a sweep's trials, from the table of its net; empty if there is nothing."""
    file = folder / f"{sweep.net}.csv"
    if not file.exists():
        return pd.DataFrame(columns=KEPT)
    table = pd.read_csv(file, dtype={"layer": str}, converters={"alpha": float})
    wanted = table["alpha"].isin(sweep.alphas) & table["seed"].isin(sweep.seeds)
    return table[(table["recipe"] == sweep.recipe) & wanted]


def keep_readings(sweep: Sweep, alpha: float, seed: int, frame: pd.DataFrame, folder: Path) -> None:
    """Append a trial to the table of its net, in one write so that a stopped script leaves no part of a trial."""
    file = folder / f"{sweep.net}.csv"
    folder.mkdir(parents=True, exist_ok=True)
    table = frame.assign(recipe=sweep.recipe, alpha=alpha, seed=seed)[KEPT].round({"remaining": 5, "null": 5})
    with file.open("a") as out:
        out.write(table.to_csv(index=False, header=not file.stat().st_size))


def keys(sweep: Sweep) -> Iterator[tuple[float, int]]:
    return ((alpha, seed) for alpha in sweep.alphas for seed in sweep.seeds)


def train(sweep: Sweep, shared: str, folder: Path) -> None:
    """What is missing of it."""
    there = set(kept_readings(sweep, folder)[["alpha", "seed"]].itertuples(index=False, name=None))
    missing = [key for key in keys(sweep) if key not in there]
    if not missing:
        return
    task = task_of(NETS[sweep.net], shared, steps=sweep.steps, alphas=list(sweep.alphas), **sweep.options)
    trials = [TrialKey(*key, control=sweep.shuffled) for key in missing]
    starts = missing_starts(trials, ()) if task.recipe.warm_up else []
    warmed = {start: train_warm_up(task, start, lambda step, loss: False).weights for start in starts}
    task = replace(task, warmed={start: weights for start, weights in warmed.items() if weights is not None})
    for key, trial in zip(missing, trials, strict=True):
        output = run_trial(task, trial, ignore_event)
        keep_readings(sweep, *key, output.readings, folder)
        print(f"{sweep.net}, {sweep.recipe}, {trial.name}: {output.result.status}, {output.seconds:.0f} s", flush=True)


# --- measuring ------------------------------------------------------------------------------------------------------


def readings(sweep: Sweep, folder: Path) -> pd.DataFrame | None:
    """All that was read of a sweep; None where trials are missing."""
    frame = kept_readings(sweep, folder)
    return frame if len(frame.groupby(["alpha", "seed"])) == len(list(keys(sweep))) else None


@dataclass(frozen=True)
class Order:
    """Redundancy by layer: as it was found, as the initial weights have it, and the one without the other."""

    found: pd.Series
    null: pd.Series

    @classmethod
    def of(cls, frame: pd.DataFrame, sizes: pd.Series) -> Order:
        table = rank_layers(frame.assign(params=frame["layer"].map(sizes))).table.set_index("layer")
        return cls(table["redundancy"], table["null_redundancy"])

    @property
    def beyond(self) -> pd.Series:
        return self.found - self.null


def tau(one: pd.Series, other: pd.Series) -> float:
    return round(kendalls_tau(one.to_numpy(), other.reindex(one.index).to_numpy()), 3)


def rows(net: str, shared: str, folder: Path) -> Iterator[dict[str, Any]]:
    """A line for each sweep of a net that is there, if its reference is."""
    of_net = [(sweep, frame) for sweep in SWEEPS if sweep.net == net and (frame := readings(sweep, folder)) is not None]
    reference = next(((sweep, frame) for sweep, frame in of_net if sweep.recipe == LONG), None)
    if reference is None:
        return
    sizes, (long, frame) = sizes_of(net, shared), reference
    end, strong = Order.of(frame, sizes), Order.of(frame[frame["alpha"] == max(long.alphas)], sizes)
    by_seed = [Order.of(part, sizes) for _, part in frame.groupby("seed")]
    ceiling = [tau(one.found, other.found) for one, other in combinations(by_seed, 2)]
    for sweep, frame in of_net:
        if sweep.recipe == LONG:
            continue
        order = Order.of(frame, sizes)
        yield {
            "net": net, "recipe": sweep.recipe, "steps": sweep.steps, "long": long.steps, "seeds": len(sweep.seeds),
            "layers": len(sizes), "alphas": sweep.alphas,
            "remaining": [left(part, sizes) for _, part in frame.groupby("alpha")],
            "tau": tau(order.found, end.found), "to the strongest": tau(order.found, strong.found),
            "beyond null": tau(order.beyond, end.beyond), "null": tau(end.null, end.found),
            "by size": tau(sizes, end.found), "by depth": tau(pd.Series(range(len(sizes)), sizes.index), end.found),
            "ceiling": mean(ceiling) if ceiling else None, "kept": True,
        }  # fmt: skip


def left(frame: pd.DataFrame, sizes: pd.Series) -> float:
    """What remains of the model over the last quarter, as read: a layer that was reset counts with what it got back."""
    ratios = last_quarter(frame).groupby("layer")["remaining"].median()
    return round(float((ratios * sizes).sum() / sizes.sum()), 3)


def course(net: str, shared: str, folder: Path) -> pd.Series | None:
    """Tau of the reference's ranking, had it ended at a step, to that of its end: how soon a long run knows."""
    sweep, sizes = long_run(net), sizes_of(net, shared)
    frame = readings(sweep, folder)
    if frame is None:
        return None
    end = Order.of(frame, sizes).found
    steps = sorted(frame["step"].unique())[1:]
    return pd.Series(
        {step / sweep.steps: tau(Order.of(frame[frame["step"] <= step], sizes).found, end) for step in steps}
    )


def figure(found: pd.DataFrame, shared: str, folder: Path) -> Figure:
    """For every net tau against the share of the full length: sweeps, the long run's own course, floors, ceiling."""
    names = [name for name in NETS if name in set(found["net"])]
    chart, grid = plt.subplots(2, 3, figsize=(9, 6), sharex=True, sharey=True)
    axes = grid.flat[: len(names)]
    for axis, name in zip(axes, names, strict=True):
        of_net = found[found["net"] == name]
        if (own := course(name, shared, folder)) is not None:
            axis.plot(own.index, own, color="0.7", label="the long run itself, so far")
        lengths = of_net[of_net["recipe"].isin(DRAWN)].sort_values("steps")
        axis.plot(lengths["steps"] / lengths["long"], lengths["tau"], "o-C0", label="sweep of this length")
        shuffled = of_net[of_net["recipe"] == SHUFFLED]
        axis.plot(shuffled["steps"] / shuffled["long"], shuffled["tau"], "xk", label="the same on shuffled labels")
        kept = of_net[of_net["kept"].eq(True)]
        bounds = (of_net if kept.empty else kept).iloc[0]  # the same for all lines by the same long runs
        for floor, (label, colour) in FLOORS.items():
            axis.axhline(bounds[floor], ls="--", lw=1.5, color=colour, label=label)
        if pd.notna(bounds["ceiling"]):
            axis.axhline(bounds["ceiling"], lw=1.5, color="C3", label="between two long runs")
        axis.set_title(f"{NETS[name].title} ({of_net['long'].iloc[0]:,} steps)", fontsize=10)
        axis.set(xlim=(0, 1), ylim=(-0.12, 1.03))
        axis.set_xticks([0, 1 / 6, 0.5, 1], ["0", "1/6", "1/2", "1"])
    for axis in grid[-1]:
        axis.set_xlabel("length, of the long run's")
    for axis in grid[:, 0]:
        axis.set_ylabel("tau to the long run")
    entries = [axis.get_legend_handles_labels() for axis in axes]
    handles = {label: handle for entry in entries for handle, label in zip(*entry, strict=True)}
    chart.legend(handles.values(), handles, loc="lower center", ncols=3, frameon=False)
    chart.tight_layout(rect=(0, 0.09, 1, 1))
    return chart


def lines(out: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """What stands in the results, by net and recipe."""
    there = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return {(row["net"], row["recipe"]): row for row in there}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", default="../shared")
    parser.add_argument("--readings", type=Path, default=RESULTS / "readings")
    parser.add_argument("--out", type=Path, default=RESULTS / "short_sweep.jsonl")
    parser.add_argument("--net", choices=NETS, action="append")
    parser.add_argument("--recipe", choices={sweep.recipe for sweep in SWEEPS}, action="append")
    parser.add_argument("--figure", type=Path, help="train nothing, draw what is there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for sweep in SWEEPS:
        wanted = sweep.net in (options.net or NETS) and sweep.recipe in (options.recipe or [sweep.recipe])
        if wanted and not options.figure:
            train(sweep, options.shared, options.readings)
    made = {(row["net"], row["recipe"]): row for net in NETS for row in rows(net, options.shared, options.readings)}
    found = list((lines(options.out) | made).values())
    options.out.write_text("".join(json.dumps(row) + "\n" for row in found))
    table = pd.DataFrame(found)
    print(table.to_string())
    if options.figure:
        figure(table, options.shared, options.readings).savefig(options.figure, dpi=160)


if __name__ == "__main__":
    main()
