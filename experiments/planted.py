"""Planted redundancy: is the planted layer found, seed by seed, and its un-planted control not?

    OMP_NUM_THREADS=1 python experiments/planted.py [--runs DIR] [--only wide,neck] [--seeds 10] [--fresh 13,14]

Trains the nets of tests/support/planted.py on the embedded digits with the default recipe and two alphas. Shown:
on how many seeds, each ranked by itself, the planted layer stands at its end of the ranking by redundancy and by
redundancy beyond the null, on how many one of the planted layers has the label it should have, and the labels of all
layers with all seeds. Then how far a ranking of few of the seeds agrees with that of all: labels that all seeds do not
confirm, and rank intervals that miss the rank of all seeds. ``--fresh`` names seeds beyond those, each of which is
ranked by itself and compared with all of the others together: the settings of the rule were not chosen on them. With
``--seeds 0`` only those are trained, without controls, and the planted layers counted that have their label. Runs are
kept in DIR and not repeated; ``--read`` trains nothing and reads those that are there.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from planted import PLANTINGS, Planting

from dst_analyze import SweepRecord, rank_layers, read_run, run_sweep
from dst_analyze.ranking.input.frame_input import checked_frame
from dst_analyze.sweep.data.digits import load_digits

SUBSETS = 20
ALPHAS = (1e-6, 1e-5)
ENDS = ("redundant", "needed")


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
    wanted = "needed" if planting.needed else "redundant"
    found = sum((table[table["layer"].isin(planting.layers)]["label"] == wanted).any() for table in tables)
    together = rank_layers(frame).table.sort_values("position")
    labels = ", ".join(f"{layer} {label}" for layer, label in zip(together["layer"], together["label"], strict=True))
    print(f"{name:12} {kind:8} {heads[0]:>13} {heads[1]:>11} {found:>6}   {labels}", flush=True)


def few_seeds(frames: list[pd.DataFrame], seeds: int) -> None:
    rng, found = np.random.default_rng(0), []
    for frame in frames:
        full = rank_layers(frame).table.set_index("layer")
        for size in (1, 2, 3, 5):
            subsets = list(itertools.combinations(range(seeds), size))
            for at in rng.permutation(len(subsets))[:SUBSETS]:
                table = rank_layers(frame[frame["seed"].isin(subsets[at])], draws=200).table.set_index("layer")
                rank = full["rank"].reindex(table.index)
                label = full["label"].reindex(table.index)
                sure = table["label"] != "unclear"
                turned = table["label"].isin(ENDS) & label.isin(ENDS) & (table["label"] != label)
                found.append(
                    {
                        "seeds": size,
                        "labelled": sure.mean(),
                        "not confirmed": (sure & (table["label"] != label)).mean(),
                        "turned round": turned.mean(),
                        "interval holds": ((table["rank_low"] <= rank) & (rank <= table["rank_high"])).mean(),
                        "rank correlation": table["rank"].corr(rank, method="spearman"),
                    }
                )
    print(f"\nfew seeds against all {seeds}, {len(frames)} networks, shares of layers:")
    print(pd.DataFrame(found).groupby("seeds").mean().round(3).to_string())


def fresh_seeds(known: dict[tuple[str, str], pd.DataFrame], fresh: dict[tuple[str, str], pd.DataFrame]) -> None:
    """Show how far each fresh seed by itself agrees with all of the known seeds together."""
    found = []
    for network, frame in fresh.items():
        full = rank_layers(known[network]).table.set_index("layer")["label"]
        for seed, part in frame.groupby("seed"):
            label = rank_layers(part, draws=50).table.set_index("layer")["label"]
            sure, other = label != "unclear", full.reindex(label.index)
            turned = label.isin(ENDS) & other.isin(ENDS) & (label != other)
            found.append({"seed": seed, "layers": len(label), "labelled": sure.sum()})
            found[-1] |= {"not confirmed": (sure & (label != other)).sum(), "turned round": turned.sum()}
    table = pd.DataFrame(found).groupby("seed").sum()
    print(f"\nfresh seeds, each by itself against the known ones together, {len(fresh)} networks, layers:")
    print(pd.concat([table, table.sum().to_frame("all").T]).to_string())


def found_on_fresh_seeds(fresh: dict[tuple[str, str], pd.DataFrame]) -> None:
    """Show on how many fresh seeds, each by itself, a planted layer has the label it should have."""
    planted = []
    for (name, kind), frame in fresh.items():
        planting = PLANTINGS[name]
        wanted = "needed" if planting.needed else "redundant"
        for _, part in frame.groupby("seed"):
            label = rank_layers(part, draws=50).table.set_index("layer")["label"]
            has = (label[label.index.isin(planting.layers)] == wanted).any()
            planted.append({"network": name, "kind": kind, "found": has})
    print("\non how many fresh seeds the planted layer has its label:")
    print(pd.DataFrame(planted).groupby(["network", "kind"], sort=False)["found"].agg(["sum", "count"]).to_string())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("reports/planted"))
    parser.add_argument("--only", default=",".join(PLANTINGS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--fresh", default="", help="more seeds, to judge by: 13,14,15")
    parser.add_argument("--read", action="store_true", help="train nothing")
    options = parser.parse_args()
    images, labels = load_digits()
    data = (images[:1437], labels[:1437]), (images[1437:], labels[1437:])
    print(f"{'network':12} {'':8} {'by redundancy':>13} {'beyond null':>11} {'label':>6}   labels with all seeds")
    more = tuple(int(seed) for seed in options.fresh.split(",") if seed)

    def swept(name: str, kind: str, seeds: int | tuple[int, ...], folder: str) -> pd.DataFrame:
        planting, out = PLANTINGS[name], options.runs / folder
        asked = {"alphas": ALPHAS, "seeds": seeds, "exclude": planting.exclude, "backend": "compiled"}
        build = planting.build(kind == "planted")
        return frame_of(read_run(out) if options.read else run_sweep(build, data, out=out, resume=True, **asked))

    known, fresh = {}, {}
    kinds = ("planted", "control") if options.seeds else ("planted",)
    for name, kind in itertools.product(options.only.split(","), kinds):
        folder = f"{name.replace(' ', '_')}-{kind}"
        if options.seeds:
            known[name, kind] = swept(name, kind, options.seeds, folder)
            seed_by_seed(name, kind, known[name, kind])
        if more:
            fresh[name, kind] = swept(name, kind, more, f"{folder}-fresh")
    if options.seeds:
        few_seeds(list(known.values()), options.seeds)
    if options.seeds and more:
        fresh_seeds(known, fresh)
    if more:
        found_on_fresh_seeds(fresh)


if __name__ == "__main__":
    main()
