"""Is the suggestion better than what anybody would draw without it? Four nets, their sizes, eight rivals, paired seeds.

    OMP_NUM_THREADS=1 python experiments/wins.py [--only lenet-5,small-vit] [--seeds 5] [--runs DIR]
    python experiments/wins.py --table

Each net of `NETS` is swept by the plain command without a flag; the run is kept and not repeated. At each size of
`SIZES` the suggestion by the default rule is trained from scratch beside rivals of that size (experiments/rivals.py)
with the same seeds: same data in the same order, so that differences are paired. Each training is a line of
results/wins.jsonl; what stands there is not repeated. Seeds are the outer loop: stopped at any time, all nets have as
many. A rival of the very same widths as one before it has its scores (``like``).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rivals import random_rival, rivals, uniform_rivals
from scipy import stats
from showcase import RUNS
from slim_proof import forget_trained, score_of

from dst_analyze import couple_channels, rank_layers, read_run, suggest_widths
from dst_analyze.channels.groups import Coupling
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.proof.candidates import LONGER_DENSE
from dst_analyze.slimming.proof.trainings import CandidateRun, train_and_score
from dst_analyze.sweep.engines.resources import torch_threads
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.training.trial import Task

HERE = Path(__file__).parent
RESULTS = HERE / "results/wins.jsonl"
NETS = ("lenet-5", "small-vit", "resnet-14", "vgg-16-narrow")
SIZES = ("params=0.1", "macs=0.25", "params=0.25", "params=0.5")
EXPECTED, ALONE, ALIKE = DEFAULTS = "expected", "expected, parameters alone", "expected, both axes alike"
"""The default size, its share of the parameters alone, and of both axes alike. Rivals are the uniform nets."""
SUGGESTION, RANDOM = "suggestion", "random"
LEVEL = 0.5
"""Points of accuracy: an interval of a difference inside them is level."""


@dataclass
class Proof:
    """A net with its run, and the models that are trained at each size."""

    name: str
    task: Task
    coupling: Coupling
    plans: dict[str, dict[str, SlimPlan]]
    like: dict[tuple[str, str], str] = field(default_factory=dict)

    def models(self, seed: int) -> Iterator[tuple[str, str, SlimPlan | None]]:
        """Yield the size, name and plan of each model that is trained with a seed."""
        yield "all", "dense", None
        for size, plans in self.plans.items():
            for name, plan in plans.items():
                if (size, name) not in self.like and plan.reached["params"] < 1:
                    yield size, name, plan
            if size in DEFAULTS:
                continue
            axis = size.split("=")[0]
            yield size, RANDOM, random_rival(self.task, self.coupling, plans[SUGGESTION], axis, seed)
        if seed == 0:
            yield "all", LONGER_DENSE.name, None


def arguments_of(name: str, data: str) -> list[str]:
    return shlex.split(RUNS[name].format(data=data))


def made(name: str, options: argparse.Namespace) -> Path:
    """Return the run folder of a net, made by the plain command."""
    folder: Path = options.runs / name
    words = [*arguments_of(name, options.data), "--out", str(folder)]
    if not (folder / "report.html").exists():
        again = ["--resume"] if (folder / "manifest.json").exists() else []
        subprocess.run([sys.executable, "-m", "dst_analyze", *words, *again], check=True, cwd=HERE.parent)
    return folder


def task_of(name: str, options: argparse.Namespace) -> Task:
    """Return what the net's plain command trains."""
    model, *words = arguments_of(name, options.data)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    given = dict(pairs)
    model_args = dict(pair.split("=") for flag, pair in pairs if flag == "--model-arg")
    model_args = {name: json.loads(value) for name, value in model_args.items()}
    return plan_sweep(
        model=model, model_args=model_args, data=given["--data"], data_root=given.get("--data-root", options.data),
        out=options.runs / "none",
    ).task  # fmt: skip


def proof_of(name: str, options: argparse.Namespace) -> Proof:
    record, task = read_run(made(name, options)), task_of(name, options)
    ranking, coupling = rank_layers(record), couple_channels(task.traced)
    forget_trained()
    found = Proof(name, task, coupling, {})
    for size in options.sizes.split(";"):
        if size in DEFAULTS:
            plan = suggest_widths(task.traced, ranking, coupling=coupling)
            share = plan.asked["params"]
            asked: dict[str, dict[str, Any]] = {
                ALONE: {"target_params": share},
                ALIKE: {"target_params": share, "target_macs": share},
            }
            if size in asked:
                plan = suggest_widths(task.traced, ranking, coupling=coupling, **asked[size])
            found.plans[size] = {SUGGESTION: plan, **dict(uniform_rivals(task, coupling, plan))}
            continue
        axis, share = size.split("=")
        target: dict[str, Any] = {f"target_{axis}": float(share)}
        plan = suggest_widths(task.traced, ranking, coupling=coupling, **target)
        plans = {SUGGESTION: plan, **dict(rivals(task, coupling, record, plan, axis))}
        plans.pop("size")  # experiments/flaws.py has it
        first: dict[str, str] = {}
        for rival, each in plans.items():
            like = first.setdefault(json.dumps(widths(each)), rival)
            if like != rival:
                found.like[size, rival] = like
        found.plans[size] = plans
    forget_trained()
    return found


def widths(plan: SlimPlan) -> dict[str, int]:
    return {group.group: group.new_width for group in plan.groups}


def prove(proof: Proof, seed: int, models: str) -> None:
    known = read()
    for size, name, plan in proof.models(seed):
        if not fnmatch(name, models):
            continue
        key = {"net": proof.name, "size": size, "model": name, "seed": seed}
        made = {} if plan is None else {"widths": widths(plan)}
        if any((key | made).items() <= row.items() for row in known):
            continue
        with torch_threads(proof.task.threads):
            if name == LONGER_DENSE.name:
                run = CandidateRun(LONGER_DENSE, seed, coupling=proof.coupling)
                score = train_and_score(proof.task, proof.coupling, run).score
            else:
                score = score_of(proof.task, proof.coupling, name, plan, seed)
        shares = {} if plan is None else {axis: round(plan.reached[axis], 4) for axis in ("params", "macs")}
        add({**key, **made, **shares, "steps": proof.task.steps, "score": score})
    for (size, name), like in proof.like.items() if models == "*" else ():
        key = {"net": proof.name, "size": size, "model": name, "seed": seed}
        [score] = [
            row["score"]
            for row in read()
            if {**key, "model": like, "widths": widths(proof.plans[size][like])}.items() <= row.items()
        ]
        row = {**key, "like": like, "widths": widths(proof.plans[size][name]), "score": score}
        if row not in known:
            add(row)


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def add(row: dict[str, Any]) -> None:
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print({key: value for key, value in row.items() if key != "widths"}, flush=True)


# --- tables -----------------------------------------------------------------------------------------------------------


def show(rows: list[dict[str, Any]]) -> None:
    """Print points of accuracy of the suggestion above each model, with the interval of the pairs."""
    frame = pd.DataFrame(rows)
    if frame.empty:
        return
    longer = frame["model"] == LONGER_DENSE.name
    frame = frame[~frame["size"].isin(DEFAULTS) & ~longer].copy()
    frame["score"] = 100 * frame["score"].astype(float)
    dense = frame[frame["model"] == "dense"].drop(columns="size").merge(pd.DataFrame({"size": SIZES}), how="cross")
    frame = pd.concat([frame[frame["model"] != "dense"], dense])
    pairs = frame.pivot_table(index=["net", "size", "seed"], columns="model", values="score")
    gains = pairs.rsub(pairs[SUGGESTION], axis=0).drop(columns=SUGGESTION)
    by = gains.groupby(["net", "size"])
    half = by.sem() * by.count().map(lambda count: stats.t.ppf(0.975, max(count - 1, 1)))
    mean = by.mean()
    text = mean.map("{:.2f}".format) + half.map(" ± {:.2f}".format)
    print(text.assign(seeds=by.size()).T.to_string())
    rows_of = mean.describe().loc[["mean", "min"]].T
    rows_of["sem"] = mean.sem()
    rows_of["ahead"] = (mean - half > 0).sum()
    rows_of["level"] = ((mean - half <= 0) & (mean.abs() + half < LEVEL)).sum()
    rows_of["behind"] = (mean + half < 0).sum()
    print("\nover rows: mean and its standard error, least, rows ahead, level, behind\n" + rows_of.round(2).to_string())
    show_expected(rows)
    show_longer(rows)
    scores = pairs.groupby(["net", "size"]).mean().round(2)
    print("\naccuracy, mean over seeds\n" + scores.T.to_string())


def show_longer(rows: list[dict[str, Any]]) -> None:
    """Print what the dense net of the first seed reaches, and what it reaches in a longer training."""
    first = pd.DataFrame([row for row in rows if row["size"] == "all" and row["seed"] == 0])
    print("\ndense, and trained longer\n" + first.pivot_table(index="net", columns="model", values="score").to_string())


def show_expected(rows: list[dict[str, Any]]) -> None:
    """Print points of accuracy of the suggestion at its default sizes above the dense net and the uniform ones."""
    frame = pd.DataFrame(rows).assign(score=lambda frame: 100 * frame["score"].astype(float))
    dense = frame[frame["model"] == "dense"].set_index(["net", "seed"])["score"]
    for size, found in frame[frame["size"].isin(DEFAULTS)].groupby("size"):
        pairs = found.pivot_table(index=["net", "seed"], columns="model", values="score").join(dense.rename("dense"))
        lead = pairs.rsub(pairs[SUGGESTION], axis=0).drop(columns=SUGGESTION).groupby("net")
        kept = found[found["model"] == SUGGESTION].groupby("net")[["params", "macs"]].first()
        table = lead.mean().map("{:+.2f}".format) + lead.sem().map(" ± {:.2f}".format)
        print(f"\n{size}\n" + table.assign(seeds=lead.size()).join(kept).to_string())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("reports/wins"), help="where the run folders are kept")
    parser.add_argument("--data", default="../shared/data", help="folder of MNIST/ and cifar10-20k.npz")
    parser.add_argument("--only", default=",".join(NETS))
    parser.add_argument("--models", default="*", help="only those whose name matches a shell pattern")
    parser.add_argument("--sizes", default=";".join(SIZES), help="separated by semicolons")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--plans", action="store_true", help="show the widths that would be trained")
    parser.add_argument("--table", action="store_true", help="train nothing")
    options = parser.parse_args()
    options.runs = options.runs.resolve()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    if not options.table:
        proofs = [proof_of(name, options) for name in options.only.split(",")]
        for proof in proofs if options.plans else []:
            for size, name, plan in proof.models(0):
                print(proof.name, size, name, plan and (plan.reached, widths(plan)), proof.like)
        for seed in range(0 if options.plans else options.seeds):
            for proof in proofs:
                prove(proof, seed, options.models)
    show(read())


if __name__ == "__main__":
    main()
