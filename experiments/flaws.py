"""Networks with a flaw: does the plain sweep find it, what does it suggest, and does the suggestion hold?

    OMP_NUM_THREADS=1 python experiments/flaws.py [--only stem,gru] [--seeds 5] [--twins 5] [--runs DIR] [--table]
    OMP_NUM_THREADS=1 python experiments/flaws.py --prove [--proof-seeds 5] [--proof-steps 1500]
    OMP_NUM_THREADS=1 python experiments/flaws.py --sizes [--proof-seeds 3]

Each file of experiments/flaws is a small net as people draw them, flawed by default; its twin, built by another
argument, is repaired. Every net is swept as `dst-analyze FILE --alphas 1e-7,1e-6,1e-5` does, one seed a run, and ranked
and slimmed by the defaults. Runs are kept and not repeated; they are read again by today's rules each time. Shown, over
seeds: the flawed layers' place at the head of the ranking, their label, their excess, and the suggested width of the
flaw at the default target and at the twin's size. ``--prove`` trains the suggestion of seed 0 at the twin's
parameters beside rivals of as many parameters, and of as many MACs; each training is a line of
results/flaws_proof.jsonl. ``--sizes`` trains the suggestions of flawed nets and twins at the size that the sweep's
masks let one expect, by several powers of the share of single weights that is left at no loss
(slimming/planning/target.py); results/flaws_sizes.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rivals import rivals
from slim_proof import forget_trained, score_of

from dst_analyze import couple_channels, rank_layers, run_sweep, suggest_widths
from dst_analyze.channels.groups import Coupling, Group
from dst_analyze.ranking.result import Ranking
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.evidence import equal_evidence
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.planning.plan_widths import plan_of
from dst_analyze.slimming.planning.target import POWER, alpha_results
from dst_analyze.sweep.engines.resources import torch_threads
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.training.trial import Task

HERE = Path(__file__).parent
RESULTS, PROOFS = HERE / "results/flaws.jsonl", HERE / "results/flaws_proof.jsonl"
SIZES = HERE / "results/flaws_sizes.jsonl"
POWERS = (0.5, 0.75, 1.0)
ALPHAS = (1e-7, 1e-6, 1e-5)
WITHIN = 1.5
"""A suggested width is right if it is at most this multiple of the twin's, and at least its inverse."""


@dataclass(frozen=True)
class Flaw:
    """A flaw of a net; ``layers`` are those that it makes redundant, ``group`` the channels that are too many.

    ``group`` is "" where the flaw is no width. ``size`` is the flawed argument of `build_model`, ``twin`` the repaired.
    """

    about: str
    argument: str
    size: int
    twin: int
    layers: frozenset[str]
    group: str = ""


FLAWS = {
    "classifier": Flaw("hidden linear layer, 512 for 48", "width", 512, 48, frozenset({"fc1", "fc2"}), "fc1"),
    "middle": Flaw("middle stage, 128 for 32", "width", 128, 32, frozenset({"8", "11"}), "8"),
    "vit_mlp": Flaw(
        "MLPs of a ViT, 256 for 32", "width", 256, 32,
        frozenset(f"blocks.{block}.linear{one}" for block in (0, 1) for one in (1, 2)), "blocks.0.linear1",
    ),
    "embedding": Flaw("embedding, 128 for 12", "width", 128, 12, frozenset({"conv1"}), "tokens.weight"),
    "stage": Flaw(
        "a stage with a block too many", "blocks", 2, 1,
        frozenset(f"two.{block}.conv{one}" for block in (0, 1) for one in (1, 2)),
    ),
    "branch": Flaw("a branch that doubles another", "branches", 2, 1, frozenset({"branches.0", "branches.1"})),
    "stem": Flaw("stem, 128 for 12", "width", 128, 12, frozenset({"conv1", "conv2"}), "conv1"),
    "gru": Flaw(
        "hidden state of a GRU, 128 for 24", "width", 128, 24,
        frozenset({"gru.weight_hh_l0", "gru.weight_ih_l0", "fc1"}), "gru.weight_ih_l0",
    ),
}  # fmt: skip
KINDS = ("flawed", "twin")


def build_options(name: str, kind: str) -> dict[str, Any]:
    flaw = FLAWS[name]
    size = flaw.size if kind == "flawed" else flaw.twin
    return {"model": str(HERE / f"flaws/{name}.py"), "model_args": {flaw.argument: size}}


def swept(name: str, kind: str, seed: int, runs: Path) -> SweepRecord:
    out = runs / f"{name}-{kind}-{seed}"
    return run_sweep(**build_options(name, kind), alphas=ALPHAS, seeds=(seed,), out=out, resume=True, jobs=1)


# --- what a run says --------------------------------------------------------------------------------------------------


def reading(name: str, kind: str, seed: int, runs: Path) -> dict[str, Any]:
    """Return what the run of a net says: its ranking, its suggestion, and what orders without training would say."""
    flaw, record = FLAWS[name], swept(name, kind, seed, runs)
    ranking = rank_layers(record)
    task = plan_sweep(**build_options(name, kind), alphas=ALPHAS, seeds=(seed,), out=runs / "none").task
    coupling = couple_channels(task.traced)
    table = ranking.table.set_index("layer")
    row = {
        "net": name, "kind": kind, "seed": seed, "verdict": ranking.verdict.value,
        "labels": table["label"].to_dict(), "redundancy": table["redundancy"].round(4).to_dict(),
        "spare": table["spare"].round(3).to_dict(),
        "heads": {order: heads(ranking, order) in flaw.layers for order in ORDERS},
    }  # fmt: skip
    default = suggest_widths(task.traced, ranking, coupling=coupling)
    row |= {"asked": default.asked, "reached": rounded(default.reached), "widths": widths(default)}
    row |= {"excess": {group.group: round(group.excess, 2) for group in default.groups if group.excess}}
    row |= {"too_wide": [group.group for group in default.too_wide]}
    if kind == "flawed":
        share = twin_share(name, task, runs)
        row |= {"twin_share": round(share, 4)}
        row |= {"twin_widths": widths(suggest_widths(task.traced, ranking, coupling=coupling, target_params=share))}
    return row


ORDERS: dict[str, Callable[[pd.DataFrame], pd.Series]] = {
    "sweep": lambda table: table["redundancy"],
    "size": lambda table: table["params"],
    "initial weights": lambda table: table["null_redundancy"],
    "depth": lambda table: table["position"],
}


def called(row: dict[str, Any]) -> bool:
    """True if one of the flaw's layers is called redundant."""
    return any(row["labels"].get(layer) == "redundant" for layer in FLAWS[row["net"]].layers)


def heads(ranking: Ranking, order: str) -> str:
    table = ranking.table
    return str(table.loc[ORDERS[order](table).astype(float).idxmax(), "layer"])


def twin_share(name: str, task: Task, runs: Path) -> float:
    twin = plan_sweep(**build_options(name, "twin"), alphas=ALPHAS, seeds=(0,), out=runs / "none").task
    return parameters(twin) / parameters(task)


def parameters(task: Task) -> int:
    return sum(parameter.numel() for parameter in task.traced.model.parameters())


def widths(plan: SlimPlan) -> dict[str, int]:
    return {group.group: group.new_width for group in plan.groups}


def rounded(shares: dict[str, float]) -> dict[str, float]:
    return {name: round(share, 4) for name, share in shares.items()}


# --- the proof --------------------------------------------------------------------------------------------------------


def candidates(name: str, task: Task, coupling: Coupling, runs: Path) -> Iterator[tuple[str, SlimPlan | None]]:
    """Yield the models of a proof at the twin's number of parameters, all by the suggestion's own rule."""
    record = swept(name, "flawed", 0, runs)
    asked = {"params": twin_share(name, task, runs)}
    plan = suggest_widths(task.traced, rank_layers(record), coupling=coupling, target_params=asked["params"])
    yield "dense", None
    yield "suggestion", plan
    if FLAWS[name].group:
        groups, equal = coupling.removable, equal_evidence(coupling)
        repaired = {group.name: FLAWS[name].twin if is_flawed(name, group) else group.width for group in groups}
        params = {"params": plan.reached["params"]}
        yield "twin", plan_of(task.traced, coupling, repaired, equal, rule="twin", asked=params, limits=plan.limits)
    yield from rivals(task, coupling, record, plan)


def is_flawed(name: str, group: Group) -> bool:
    """True for the groups of channels that are too many: as wide as the flaw, and made by its layers."""
    made = {group.name, *group.layers("produces")}
    return group.width * group.per_unit == FLAWS[name].size and bool(made & {FLAWS[name].group, *FLAWS[name].layers})


def prove(name: str, options: argparse.Namespace) -> None:
    forget_trained()
    asked = build_options(name, "flawed")
    task = plan_sweep(**asked, alphas=ALPHAS, seeds=(0,), steps=options.proof_steps, out=options.runs / "none").task
    coupling = couple_channels(task.traced)
    known = read(PROOFS)
    for candidate, plan in candidates(name, task, coupling, options.runs):
        sizes = {} if plan is None else {"reached": rounded(plan.reached), "widths": widths(plan)}
        for seed in range(options.proof_seeds):
            key = {"net": name, "steps": options.proof_steps, "candidate": candidate, "seed": seed}
            if any(key.items() <= row.items() for row in known):
                continue
            with torch_threads(task.threads):
                score = score_of(task, coupling, candidate, plan, seed)
            add(PROOFS, {**key, **sizes, "score": score})


def try_sizes(name: str, kind: str, options: argparse.Namespace) -> None:
    """Train the suggestion of a net's first seed at the sizes that several powers of what is left would expect."""
    ranking = rank_layers(swept(name, kind, 0, options.runs))
    free = [result.remaining for result in alpha_results(ranking) if result.free]
    if not free:
        print(f"{name} {kind}: no alpha without a loss")
        return
    task = plan_sweep(**build_options(name, kind), alphas=ALPHAS, seeds=(0,), out=options.runs / "none").task
    coupling, left, known = couple_channels(task.traced), min(free), read(SIZES)
    for power, axes in ((None, 0), *((power, 1) for power in POWERS), (POWER, 2)):
        plan, key = None, {"net": name, "kind": kind, "left": round(left, 4), "power": power, "axes": axes}
        if power is not None:
            share = min(max(left**power, 0.02), 0.98)
            targets = {"target_params": share, **({"target_macs": share} if axes == 2 else {})}
            plan = suggest_widths(task.traced, ranking, coupling=coupling, **targets)
            key |= {"reached": rounded(plan.reached), "widths": widths(plan)}
        for seed in range(options.proof_seeds):
            if any((key | {"seed": seed}).items() <= row.items() for row in known):
                continue
            with torch_threads(task.threads):
                score = score_of(task, coupling, str(power), plan, seed)
            add(SIZES, key | {"seed": seed, "score": score})


# --- tables -----------------------------------------------------------------------------------------------------------


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(row, flush=True)


def show_found(rows: list[dict[str, Any]]) -> None:
    """Print what the runs say; rows of an older version have no excess, and widths by older rules."""
    print("| flaw | runs | at the head: sweep | size | initial weights | depth | redundant |")
    print("|---|---|---|---|---|---|---|")
    for name, flaw in FLAWS.items():
        mine = [row for row in rows if row["net"] == name and row["kind"] == "flawed"]
        head = " | ".join(str(sum(row["heads"][order] for row in mine)) for order in ORDERS)
        print(f"| {flaw.about} | {len(mine)} | {head} | {sum(map(called, mine))} |")
    rows = [row for row in rows if "excess" in row]
    print("\n| flaw | runs | too wide | excess | twin: redundant | any too wide | largest excess |")
    print("|---|---|---|---|---|---|---|")
    for name, flaw in FLAWS.items():
        flawed, twin = ([row for row in rows if row["net"] == name and row["kind"] == kind] for kind in KINDS)
        wide = sum(bool(flawed_groups(name, row["too_wide"])) for row in flawed)
        excess = numbers(max(row["excess"][group] for group in flawed_groups(name, row["excess"])) for row in flawed)
        accused, largest = sum(bool(row["too_wide"]) for row in twin), (max(row["excess"].values()) for row in twin)
        runs = f"{len(flawed)}, {len(twin)}"
        said = f"{sum(map(called, twin))} | {accused} | {numbers(largest)}"
        print(f"| {flaw.about} | {runs} | {wide} | {excess} | {said} |")
    print("\n| flaw | flawed | repaired | at the twin's size | at the default size |\n|---|---|---|---|---|")
    for name, flaw in FLAWS.items():
        mine = [row for row in rows if row["net"] == name and row["kind"] == "flawed"]
        if flaw.group:
            at = [numbers(row[size][flaw.group] for row in mine) for size in ("twin_widths", "widths")]
            print(f"| {flaw.about} | {flaw.size} | {flaw.twin} | {at[0]} | {at[1]} |")


def flawed_groups(name: str, groups: Iterable[str]) -> list[str]:
    """Return those of some groups that the flaw of a net makes too wide."""
    return [group for group in groups if group == FLAWS[name].group or group in FLAWS[name].layers]


def numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def show_proofs(rows: list[dict[str, Any]]) -> None:
    frame = pd.DataFrame(rows)
    if frame.empty:
        return
    frame["score"] *= 100
    pairs = frame.pivot_table(index=["net", "steps", "seed"], columns="candidate", values="score")
    against = pairs.rsub(pairs["suggestion"], axis=0).groupby(["net", "steps"])
    table = against.mean().round(2).astype(str) + " ± " + against.sem().round(2).astype(str)
    print("\npoints of accuracy of the suggestion above each rival, mean ± standard error of the pairs")
    print(table.assign(suggestion=pairs["suggestion"].groupby(["net", "steps"]).mean().round(2)).T.to_string())


def show_sizes(rows: list[dict[str, Any]]) -> None:
    frame = pd.DataFrame(rows)
    if frame.empty:
        return
    frame = frame.assign(power=frame["power"].fillna(0), score=100 * frame["score"])
    pairs = frame.pivot_table(index=["net", "kind", "left", "seed"], columns=["axes", "power"], values="score")
    lost = pairs.sub(pairs[0, 0.0], axis=0).drop(columns=[(0, 0.0)]).groupby(["net", "kind", "left"])
    print("\npoints of accuracy above the dense net at the share left to a power, of the parameters or of both axes,")
    print("mean ± standard error of the pairs")
    print((lost.mean().round(2).astype(str) + " ± " + lost.sem().round(2).astype(str)).to_string())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("reports/flaws"))
    parser.add_argument("--only", default=",".join(FLAWS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--twins", type=int, default=5, help="seeds of the repaired twins")
    parser.add_argument("--prove", action="store_true")
    parser.add_argument("--proof-seeds", type=int, default=5)
    parser.add_argument("--proof-steps", type=int, default=1500)
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--table", action="store_true", help="train nothing")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    names = options.only.split(",")
    if options.prove:
        for name in names:
            prove(name, options)
    elif options.sizes:
        for name in names:
            for kind in KINDS:
                try_sizes(name, kind, options)
    elif not options.table:
        runs = [(seed, name, kind) for seed in range(options.seeds) for name in names for kind in KINDS]
        runs = [(seed, name, kind) for seed, name, kind in runs if kind == "flawed" or seed < options.twins]
        rows = []
        for seed, name, kind in runs:
            rows.append(reading(name, kind, seed, options.runs))
            print(rows[-1], flush=True)
            others = [row for row in read(RESULTS) if (row["net"], row["kind"], row["seed"]) != (name, kind, seed)]
            RESULTS.write_text("".join(json.dumps(row) + "\n" for row in [*others, rows[-1]]))
    show_found(read(RESULTS))
    show_proofs(read(PROOFS))
    show_sizes(read(SIZES))


if __name__ == "__main__":
    main()
