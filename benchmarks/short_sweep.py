"""How much of a long run's ranking does a short sweep see? Recipes on several nets against long references.

    python benchmarks/short_sweep.py --shared ../shared --refs refs --out short.jsonl [--net vgg] [--recipe default]
    python benchmarks/short_sweep.py --refs refs --out short.jsonl --table

From the project's root, as a run names its model's file as it is named here. A reference is a run of full length with
thresholds on the weights' own clock, in a run folder of its own under ``--refs``: made once, resumed where it was
stopped. Those of `vgg` and `wide_resnet` are the runs of benchmarks/paper/run.py, those of `lenet_5` and `lstm` the
trainings that benchmarks/paper/at_ratio.py has written to ``--table-1``. A recipe is a sweep of a tenth of its samples
(of its steps, but for smaller batches), with options that users have. Each gives a line of the results; what stands
there is not repeated.

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

import numpy as np
import pandas as pd
import torch

from dst_analyze.ranking.rank import rank_layers
from dst_analyze.ranking.statistics import kendalls_tau
from dst_analyze.sweep.grid import run_sweep
from dst_analyze.sweep.recipe import DEFAULT_STEPS
from dst_analyze.sweep.record import DEFAULT_BATCH_SIZE, SweepRecord

NETS_FILE = "benchmarks/nets.py"
CIFAR = "npz:{shared}/data/cifar10-20k.npz"


@dataclass(frozen=True)
class Net:
    """A net, its data, and its reference: so many steps at strengths that leave a clear pattern."""

    model: str
    data: str
    steps: int
    alphas: tuple[float, ...]
    seeds: int = 2
    options: dict[str, Any] = field(default_factory=lambda: {"lr": 0.05})  # of the reference and the sweeps alike
    table_1: str = ""  # the net of benchmarks/paper/at_ratio.py whose trainings are the reference


_BATCHES_OF_100 = {"batch_size": 100, "exclude": ["out"]}
NETS = {
    "demo": Net("example:demo", "digits", 3000, (3e-4,)),
    "vgg": Net(f"{NETS_FILE}:vgg", CIFAR, 9400, (1e-6, 1e-5, 1e-4), seeds=1),
    "wide_resnet": Net(f"{NETS_FILE}:wide_resnet", CIFAR, 3100, (3e-6, 3e-5, 3e-4), seeds=1),
    "lenet_5": Net("benchmarks/paper/lenets.py:lenet_5", "mnist", 18760, (8e-4,), 3, {}, "lenet-5-caffe"),
    "lstm": Net("example:lstm-a", "mnist", 12000, (6e-4,), 3, _BATCHES_OF_100, "lstm-a"),
    "resnet": Net(f"{NETS_FILE}:small_resnet", CIFAR, 9400, (1e-5, 1e-4)),
    "vit": Net(f"{NETS_FILE}:vit", CIFAR, 9400, (1e-5,)),
}


@dataclass(frozen=True)
class Recipe:
    """Options of a sweep of a tenth of the reference; ``batch`` divides its batches, ``part`` is of its samples.

    ``steps`` is a length of its own, whatever the reference's.
    """

    options: dict[str, Any] = field(default_factory=dict)
    batch: int = 1
    part: float = 0.1
    steps: int | None = None


RECIPES = {
    "default": Recipe(),
    "as users run it": Recipe(steps=DEFAULT_STEPS),
    "shuffled labels": Recipe({"control": "shuffled-labels"}),
    "onecycle": Recipe({"schedule": "onecycle"}),
    "clock 1": Recipe({"threshold_clock": 1}),
    "batches of 16": Recipe(batch=4),
    "a quarter": Recipe(part=0.25),
    "half": Recipe(part=0.5),
}


def sweep(net: Net, shared: str, out: Path, **options: Any) -> SweepRecord:
    data, root = net.data.format(shared=shared), f"{shared}/data"
    return run_sweep(
        net.model, data, data_root=root, out=out, resume=True, jobs=1, device="cpu", **{**net.options, **options}
    )


def reference(name: str, options: argparse.Namespace) -> pd.DataFrame:
    """What remained of each layer in a run of full length: alpha, seed, step, layer, remaining."""
    net = NETS[name]
    if net.table_1:
        lines = [row for row in rows(options.table_1) if row["net"] == net.table_1 and row["alpha"] in net.alphas]
        return pd.DataFrame(
            {"alpha": row["alpha"], "seed": row["seed"], "step": at["step"], "layer": layer, "remaining": ratio}
            for row in lines
            for at in row["course"]
            for layer, ratio in at["layers"].items()
        )
    long = sweep(
        net, options.shared, options.refs / name, steps=net.steps, alphas=list(net.alphas), seeds=net.seeds,
        threshold_clock=1,
    )  # fmt: skip
    return long.frame[["alpha", "seed", "step", "layer", "remaining"]]


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
    long = reference(name, options)
    steps = recipe.steps or round(net.steps * recipe.part) * recipe.batch
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


def curve(name: str, options: argparse.Namespace) -> pd.DataFrame:
    """Tau of the reference's own order, step by step, to its end: how soon a run of full length knows."""
    long, found = reference(name, options), []
    start = long["step"].max() * 3 // 4
    end = long[long["step"] > start].groupby(["alpha", "layer"])["remaining"].median()
    for (alpha, step), frame in long.groupby(["alpha", "step"]):
        ratios = frame.groupby("layer")["remaining"].mean()
        found.append((alpha, step, tau(ratios, end[alpha])))
    return pd.DataFrame(found, columns=["alpha", "step", "tau"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", default="../shared")
    parser.add_argument("--refs", type=Path, required=True)
    parser.add_argument("--table-1", type=Path, default=Path("table-1.jsonl"), help="what at_ratio.py has written")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--net", choices=NETS, action="append")
    parser.add_argument("--recipe", choices=RECIPES, action="append")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="only show what is there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = {(row["net"], row["recipe"], row["seeds"]) for row in rows(options.out)}
    for name in [] if options.table else options.net or NETS:
        for recipe in options.recipe or RECIPES:
            if (name, recipe, options.seeds) not in known:
                row = measure(name, recipe, options)
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(row, flush=True)
    print(pd.DataFrame(rows(options.out)).to_string())
    for name in options.net or NETS:
        if (options.refs / name / "trials").exists():
            table = curve(name, options).pivot(index="step", columns="alpha", values="tau").to_string()
            print(f"\n{name}: tau of the reference to its own end, by step\n{table}")


if __name__ == "__main__":
    main()
