"""Planted redundancy: does the planted layer head the ranking, seed by seed, and its un-planted control not?

    OMP_NUM_THREADS=1 python benchmarks/planted.py [--runs DIR] [--only wide,neck] [--seeds 10]

Trains the networks of tests/planted.py on the embedded digits with the default recipe (600 steps, three alphas). Shown
for each: on how many seeds, each ranked by itself, the planted layer stands at its end of the ranking by redundancy
and by redundancy beyond the null, and its label there. Then how far a ranking of few of the seeds agrees with that of
all: labels that all seeds do not confirm, and rank intervals that miss the rank of all seeds. Runs are kept in DIR and
not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from planted import PLANTINGS, Planting

from dst_analyze import SweepRecord, rank_layers, run_sweep
from dst_analyze.ranking.frames import checked_frame
from dst_analyze.sweep.digits import load_digits

SUBSETS = 20
ALPHAS = (2.785e-6, 2.785e-5, 2.785e-4)
_SURE = ("redundant", "needed")


def frame_of(record: SweepRecord) -> pd.DataFrame:
    return checked_frame(record.frame.merge(record.layers[["layer", "params", "macs"]], on="layer"))


def at_the_end(table: pd.DataFrame, planting: Planting, by: str) -> bool:
    values = table.set_index("layer")[by].round(9)
    end = values.min() if planting.needed else values.max()
    return set(values.index[values == end]) <= planting.layers


def seed_by_seed(name: str, kind: str, frame: pd.DataFrame) -> None:
    planting = PLANTINGS[name]
    tables = [rank_layers(part, draws=200).table for _, part in frame.groupby("seed")]
    heads = [sum(at_the_end(table, planting, by) for table in tables) for by in ("redundancy", "beyond_null")]
    labels = Counter(table[table["layer"].isin(planting.layers)]["label"].iloc[0] for table in tables)
    together = rank_layers(frame)
    label = together.table[together.table["layer"].isin(planting.layers)]["label"].iloc[0]
    counts = ", ".join(f"{count} {what}" for what, count in labels.most_common())
    print(f"{name:12} {kind:8} {heads[0]:>7} {heads[1]:>12}   {counts:34} {label}", flush=True)


def few_seeds(frames: list[pd.DataFrame], seeds: int) -> None:
    rng, found = np.random.default_rng(0), []
    for frame in frames:
        full = rank_layers(frame).table.set_index("layer")
        for size in (1, 2, 3, 5):
            subsets = list(itertools.combinations(range(seeds), size))
            for at in rng.permutation(len(subsets))[:SUBSETS]:
                table = rank_layers(frame[frame["seed"].isin(subsets[at])], draws=200).table.set_index("layer")
                rank = full["rank"].reindex(table.index)
                sure = table["label"].isin(_SURE)
                found.append(
                    {
                        "seeds": size,
                        "labelled": sure.mean(),
                        "not confirmed": (sure & (table["label"] != full["label"].reindex(table.index))).mean(),
                        "interval holds": ((table["rank_low"] <= rank) & (rank <= table["rank_high"])).mean(),
                        "rank correlation": table["rank"].corr(rank, method="spearman"),
                    }
                )
    print(f"\nfew seeds against all {seeds}, {len(frames)} networks, shares of layers:")
    print(pd.DataFrame(found).groupby("seeds").mean().round(3).to_string())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("reports/planted"))
    parser.add_argument("--only", default=",".join(PLANTINGS))
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    images, labels = load_digits()
    data = (images[:1437], labels[:1437]), (images[1437:], labels[1437:])
    print(f"{'network':12} {'':8} {'by redundancy':>7} {'beyond null':>6}   labels, seed by seed; with all seeds")
    frames = []
    for name in options.only.split(","):
        for kind in ("planted", "control"):
            out = options.runs / f"{name.replace(' ', '_')}-{kind}"
            planting = PLANTINGS[name]
            asked = {"alphas": ALPHAS, "seeds": options.seeds, "exclude": planting.exclude, "operator": "compiled"}
            record = run_sweep(planting.build(kind == "planted"), data, out=out, resume=True, **asked)
            frames.append(frame_of(record))
            seed_by_seed(name, kind, frames[-1])
    few_seeds(frames, options.seeds)


if __name__ == "__main__":
    main()
