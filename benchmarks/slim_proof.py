"""Does a suggestion hold? Slim nets of several sizes against the dense net and nets thinned without its evidence.

    python benchmarks/slim_proof.py --net lenet_5 --out proof.jsonl [--shared ../shared] [--seeds 3] [--sizes ...]

For one net: a sweep (kept beside the results, resumed), then every contender of every size trained from scratch with
every seed. Each training is a line of the results; what stands there is not repeated, so it can be stopped at any time.
``--table`` only shows what is there. Contenders:

    density, sqrt, units   the sweep's evidence by the three rules of slimming/budget.py
    beyond-null            density over what the initial weights alone would have kept
    fan-in                 that alone
    uniform, random        no evidence
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from dst_analyze.slimming.budget import RULES, Limits
from dst_analyze.slimming.contenders import Contender
from dst_analyze.slimming.coupling import couple
from dst_analyze.slimming.density import Evidence, GroupEvidence
from dst_analyze.slimming.groups import Coupling
from dst_analyze.slimming.plan import null_evidence, plan_widths, sweep_evidence
from dst_analyze.slimming.verify import trained_score
from dst_analyze.sweep.grid import chosen_engine, run_plan
from dst_analyze.sweep.plan import plan_sweep
from dst_analyze.sweep.record import SweepRecord
from dst_analyze.sweep.threads import torch_threads

NETS = {
    "demo": ("dst_analyze/examples/demo.py", None),
    "lenet_5": ("benchmarks/nets.py:lenet_5", "mnist"),
    "vgg": ("benchmarks/nets.py:vgg", "npz:{shared}/data/cifar10-20k.npz"),
    "resnet": ("benchmarks/nets.py:small_resnet", "npz:{shared}/data/cifar10-20k.npz"),
}
SIZES = ("params=0.5", "params=0.25", "params=0.1", "macs=0.5")
ROOT = Path(__file__).parents[1]


def evidences(coupling: Coupling, record: SweepRecord) -> dict[str, tuple[str, Evidence]]:
    """Contender → rule and evidence."""
    masks, null = sweep_evidence(coupling, record), null_evidence(coupling, record)
    rng = np.random.default_rng(0)

    def flat(densities: Mapping[str, float]) -> Evidence:
        return {g.name: GroupEvidence.equal(g.width, densities[g.name]) for g in coupling.removable}

    beyond = {name: masks[name].density / null[name].density for name in masks}
    return {
        **{rule: (rule, masks) for rule in RULES},
        "beyond-null": ("density", flat(beyond)),
        "fan-in": ("density", null),
        "uniform": ("density", flat(dict.fromkeys(masks, 1.0))),
        "random": ("density", flat({name: float(rng.uniform(0.1, 1)) for name in masks})),
    }


def prove(net: str, out: Path, shared: str, seeds: int, steps: int, sizes: list[str], only: list[str]) -> None:
    spec, data = NETS[net]
    folder = out.with_name(f"{out.stem}-{net}-{steps}")
    plan = plan_sweep(
        str(ROOT / spec), data.format(shared=shared) if data else None,
        data_root=f"{shared}/data", steps=steps, seeds=2, out=folder, existing="resume",
    )  # fmt: skip
    with chosen_engine(plan, "local", 1) as engine:
        record = run_plan(plan, engine=engine)
    task, coupling = plan.task, couple(plan.task.traced)
    print(net, {alpha: record.remaining(alpha) for alpha in record.alphas}, flush=True)
    done = {(row["net"], row["steps"], row["size"], row["contender"], row["seed"]) for row in rows(out)}
    found = evidences(coupling, record)
    jobs = [("dense", "dense", seed) for seed in range(seeds)]
    jobs += [
        (size, name, seed) for seed in range(seeds) for size in sizes for name in found if name in only or not only
    ]
    for size, name, seed in jobs:
        if (net, steps, size, name, seed) in done:
            continue
        chosen = None
        if size != "dense":
            what, share = size.split("=")
            rule, evidence = found[name]
            chosen = plan_widths(
                task.traced, coupling, evidence, rule=rule, limits=Limits(1), asked={what: float(share)}
            )
        with torch_threads(task.threads):
            score = trained_score(task, coupling, Contender(name, "", chosen), seed)
        row = {"net": net, "steps": steps, "size": size, "contender": name, "seed": seed, "score": score}
        if chosen is not None:
            row |= {"params": chosen.new_params / chosen.params, "macs": (chosen.new_macs or 0) / (chosen.macs or 1)}
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)


def rows(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def show(out: Path) -> None:
    frame = pd.DataFrame(rows(out))
    table = frame.groupby(["net", "steps", "size", "contender"])["score"].agg(["mean", "std", "count"])
    print((100 * table[["mean", "std"]]).round(2).assign(seeds=table["count"]).to_string())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=NETS, action="append", default=None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shared", default="../shared")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--sizes", nargs="*", default=list(SIZES))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for net in [] if options.table else options.net or NETS:
        prove(net, options.out, options.shared, options.seeds, options.steps, options.sizes, options.only)
    show(options.out)


if __name__ == "__main__":
    main()
