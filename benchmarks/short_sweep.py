"""How much of a long run's ranking does a short sweep see? Recipes on several nets against long references.

    python benchmarks/short_sweep.py --shared ../shared --refs refs --out short.jsonl [--net vgg] [--recipe default]
    python benchmarks/short_sweep.py --refs refs --out short.jsonl --table

From the project's root, as a run names its model's file as it is named here. A reference is a run of full length with
thresholds on the weights' own clock, in a run folder of its own under ``--refs``: made once, resumed where it was
stopped (those of `vgg` and `wide_resnet` are the paper's runs of benchmarks/paper/run.py). A recipe is a sweep of a tenth of its samples (of its steps,
but for smaller batches), with options that users have. Each gives a line of the results; what stands there is not
repeated. For every recipe: Kendall's tau of its ranking to the reference's and to the null's, which is what the initial
weights alone would say. Floors are the null's own tau to the reference, that of the layers by their number of weights,
and that of a sweep on shuffled labels; the ceiling, where a reference has two seeds, is the tau between them.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from dst_analyze.ranking.rank import rank_layers
from dst_analyze.ranking.statistics import kendalls_tau
from dst_analyze.sweep.grid import run_sweep
from dst_analyze.sweep.reading import read_run
from dst_analyze.sweep.record import SweepRecord

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


_DECADES = (1e-6, 1e-5, 1e-4)
NETS = {
    "demo": Net("example:demo", "digits", 3000, (3e-4,)),
    "lenet_5": Net(f"{NETS_FILE}:lenet_5", "mnist", 9380, (3e-5, 3e-4)),
    "lstm": Net("example:lstm-a", "mnist", 9380, (3e-4,), options={"exclude": ["out"]}),  # Adam, as its file says
    "vgg": Net(f"{NETS_FILE}:vgg", CIFAR, 9400, _DECADES, seeds=1),
    "wide_resnet": Net(f"{NETS_FILE}:wide_resnet", CIFAR, 4700, _DECADES, seeds=1),
    "resnet": Net(f"{NETS_FILE}:small_resnet", CIFAR, 9400, (1e-5, 1e-4)),
    "vit": Net(f"{NETS_FILE}:vit", CIFAR, 9400, (1e-5,)),
}


@dataclass(frozen=True)
class Recipe:
    """Options of a sweep of a tenth of the reference; ``batch`` divides its batches, ``part`` is of its samples."""

    options: dict[str, Any] = field(default_factory=dict)
    batch: int = 1
    part: float = 0.1


RECIPES = {
    "default": Recipe(),
    "shuffled labels": Recipe({"control": "shuffled-labels"}),
    "onecycle": Recipe({"schedule": "onecycle"}),
    "clock 1": Recipe({"threshold_clock": 1}),
    "batches of 16": Recipe(batch=4),
    "a quarter": Recipe(part=0.25),
    "half": Recipe(part=0.5),
}
BATCH = 64


def sweep(net: Net, shared: str, out: Path, **options: Any) -> SweepRecord:
    data, root = net.data.format(shared=shared), f"{shared}/data"
    return run_sweep(
        net.model, data, data_root=root, out=out, resume=True, jobs=1, device="cpu", **{**net.options, **options}
    )


def reference(name: str, shared: str, refs: Path) -> SweepRecord:
    net = NETS[name]
    return sweep(
        net, shared, refs / name, steps=net.steps, alphas=list(net.alphas), seeds=net.seeds, threshold_clock=1
    )


def order(record: SweepRecord, *, control: bool = False, seed: int | None = None) -> pd.Series:
    """Each layer's redundancy over the trials of a record, on real or shuffled labels; or over one seed's."""
    frame = record.frame[record.frame["control"] == control].assign(control=False)
    if seed is not None:
        frame = frame[frame["seed"] == seed]
    table = rank_layers(frame.merge(record.layers[["layer", "params"]], on="layer")).table
    return table.set_index("layer")["redundancy"]


def null(record: SweepRecord) -> pd.Series:
    return rank_layers(record).table.set_index("layer")["null_redundancy"]


def sizes(record: SweepRecord) -> pd.Series:
    """Largest first: what a ranking has to know more than."""
    return record.layers.set_index("layer")["params"]


def tau(one: pd.Series, other: pd.Series) -> float:
    return round(kendalls_tau(one.to_numpy(), other.reindex(one.index).to_numpy()), 3)


def measure(name: str, recipe_name: str, options: argparse.Namespace) -> dict[str, Any]:
    net, recipe = NETS[name], RECIPES[recipe_name]
    long = reference(name, options.shared, options.refs)
    steps = round(net.steps * recipe.part) * recipe.batch
    started = time.perf_counter()
    short = sweep(
        net, options.shared, options.refs / f"{name},{recipe_name.replace(' ', '-')}", steps=steps,
        batch_size=BATCH // recipe.batch, seeds=options.seeds, **recipe.options,
    )  # fmt: skip
    found = order(short, control="control" in recipe.options)
    single = [order(long, seed=seed) for seed in long.config.seeds]
    return {
        "net": name, "recipe": recipe_name, "steps": steps, "batch": BATCH // recipe.batch, "seeds": options.seeds,
        "alphas": list(short.alphas), "remaining": [round(short.remaining(a) or np.nan, 4) for a in short.alphas],
        "tau": tau(found, order(long)), "tau to null": tau(found, null(short)),
        "null": tau(null(long), order(long)), "by size": tau(sizes(long), order(long)), "ceiling": tau(*single) if len(single) == 2 else None,
        "training seconds": round(short.seconds, 1), "wall": round(time.perf_counter() - started, 1),
    }  # fmt: skip


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def curve(name: str, refs: Path) -> pd.DataFrame:
    """Tau of the reference's own order, step by step, to its end: how soon a run of full length knows."""
    record = read_run(refs / name)
    end, found = order(record), []
    for step, frame in record.frame.groupby("step"):
        ratios = frame.groupby("layer")["remaining"].mean()
        found.append((step, tau(-ratios, end)))
    return pd.DataFrame(found, columns=["step", "tau"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", default="../shared")
    parser.add_argument("--refs", type=Path, required=True)
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
    for name in NETS:
        if (options.refs / name / "trials").exists():
            table = curve(name, options.refs).to_string(index=False)
            print(f"\n{name}: tau of the reference to its own end, by step\n{table}")


if __name__ == "__main__":
    main()
