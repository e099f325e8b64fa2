"""Does a suggestion hold? Slim nets of several sizes against the dense net and nets thinned without its evidence.

    python experiments/slim_proof.py --net lenet_5 --out proof.jsonl [--shared ../shared] [--seeds 3] [--sizes ...]

For one net: a sweep (kept beside the results, resumed), then every contender of every size trained from scratch with
every seed. Each training is a line of the results; what stands there is not repeated, so it can be stopped at any time.
``--table`` only shows what is there. ``--again`` trains nets that stand in the results with more seeds or steps, by the
widths that they have there: no sweep is made, and a contender that differs from seed to seed is refused. Contenders:

    balance, density, ...  the sweep's evidence by the rules of slimming/planning/budget.py
    cost                   the rule of balance without evidence: what costs little stays
    fan-in                 widths from what the initial weights alone would have kept
    beyond-null            density over that
    uniform, random        no evidence; random draws anew for every seed
    torch-pruning          the widths that its global magnitude pruning leaves of the dense model, trained first
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from dst_analyze import couple_channels
from dst_analyze.channels.groups import Coupling
from dst_analyze.ranking.rank import rank_layers
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.budget import RULES
from dst_analyze.slimming.planning.density import Evidence, GroupEvidence
from dst_analyze.slimming.planning.evidence import null_evidence, sweep_evidence
from dst_analyze.slimming.planning.plan_types import Limits, SlimPlan
from dst_analyze.slimming.planning.plan_widths import cost_of, plan_of, plan_widths
from dst_analyze.slimming.planning.ranked import ranked_layers
from dst_analyze.slimming.proof.candidates import Candidate
from dst_analyze.slimming.proof.trainings import CandidateRun, train_and_score, trained
from dst_analyze.sweep.engines.resources import torch_threads
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.run_sweep import run_sweep
from dst_analyze.sweep.training.trial import Task

NETS = {
    "demo": ("dst_analyze/examples/demo.py", None),
    "lenet_5": ("experiments/nets.py:lenet_5", "mnist"),
    "vgg": ("experiments/nets.py:vgg", "npz:{shared}/data/cifar10-20k.npz"),
    "resnet": ("experiments/nets.py:small_resnet", "npz:{shared}/data/cifar10-20k.npz"),
}
SIZES = ("params=0.5", "params=0.25", "params=0.1", "macs=0.5")
CONTENDERS = (*RULES, "cost", "fan-in", "uniform", "random", "torch-pruning")
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Proof:
    """One net with its sweep: what each contender of a size is, by seed."""

    task: Task
    coupling: Coupling
    record: SweepRecord

    def plan(self, name: str, size: str, seed: int) -> SlimPlan | None:
        if name == "dense":
            return None
        what, share = size.split("=")
        asked = {what: float(share)}
        traced = self.task.traced
        ranked = ranked_layers(rank_layers(self.record))
        masks, null = sweep_evidence(self.coupling, self.record, ranked), null_evidence(self.coupling, self.record)
        if name == "torch-pruning":
            widths = by_magnitude(self.task, self.coupling, asked, seed)
            return plan_of(traced, self.coupling, widths, masks, rule=name, asked=asked, limits=Limits(round_to=1))
        flat = partial(flat_evidence, self.coupling)
        equal, draw = dict.fromkeys(masks, 1.0), np.random.default_rng(seed)
        rule, evidence = {
            **{rule: (rule, masks) for rule in RULES},
            "cost": ("balance", flat(equal)),
            "beyond-null": ("density", flat({g: masks[g].density / null[g].density for g in masks})),
            "fan-in": ("density", null),
            "uniform": ("density", flat(equal)),
            "random": ("density", flat({g: float(draw.uniform(0.1, 1)) for g in masks})),
        }[name]
        return plan_widths(traced, self.coupling, evidence, rule=rule, limits=Limits(round_to=1), asked=asked)


def flat_evidence(coupling: Coupling, densities: Mapping[str, float]) -> Evidence:
    """As if all channels of a group were alike."""
    return {g.name: GroupEvidence.equal(g.width, densities[g.name]) for g in coupling.removable}


@dataclass(frozen=True)
class Again:
    """The nets that stand in the results, by the widths they have there."""

    task: Task
    coupling: Coupling
    known: list[dict[str, Any]]

    def plan(self, name: str, size: str, seed: int) -> SlimPlan | None:
        if name == "dense":
            return None
        found = {json.dumps(row["widths"]) for row in self.known if (row["contender"], row["size"]) == (name, size)}
        if len(found) != 1:
            sys.exit(f"{name} at {size} has {len(found)} different widths in the results: one is needed")
        what, share = size.split("=")
        evidence = flat_evidence(self.coupling, dict.fromkeys((g.name for g in self.coupling.removable), 1.0))
        asked, widths, traced = {what: float(share)}, json.loads(found.pop()), self.task.traced
        return plan_of(traced, self.coupling, widths, evidence, rule=name, asked=asked, limits=Limits(round_to=1))


def by_magnitude(task: Task, coupling: Coupling, asked: Mapping[str, float], seed: int) -> dict[str, int]:
    """The widths that Torch-Pruning's global magnitude pruning leaves of the dense model, trained first."""
    import torch_pruning as tp

    dense = dense_model(task, coupling, seed)
    [(what, share)] = asked.items()
    cost = cost_of(task.traced, coupling, what)
    example = task.traced.inputs.tensors()
    low, high = 0.0, 1.0
    for _ in range(12):
        ratio = (low + high) / 2
        model = copy.deepcopy(dense)
        outputs = [module for module in model.modules() if isinstance(module, nn.Linear) and module.out_features == 10]
        tp.pruner.BasePruner(
            model, example, tp.importance.GroupMagnitudeImportance(p=2), global_pruning=True, pruning_ratio=ratio,
            max_pruning_ratio=0.95, ignored_layers=outputs,
        ).step()  # fmt: skip
        shapes = {name: p.shape for name, p in model.named_parameters()}
        widths = {}
        for group in coupling.removable:
            member = next(m for m in group.members if m.role == "produces")
            before = coupling.parameters[member.name].shape[member.dim]
            widths[group.name] = max(1, round(group.width * shapes[member.name][member.dim] / before))
        low, high = (low, ratio) if cost.of(widths) < share * cost.of({}) else (ratio, high)
    return widths


_TRAINED: dict[int, nn.Module] = {}


def forget_trained() -> None:
    """Drop the trained dense models, before another net is proven."""
    _TRAINED.clear()


def dense_model(task: Task, coupling: Coupling, seed: int) -> nn.Module:
    """The dense model trained on the task; once per seed, as a run of this script is of one net at a time."""
    if seed in _TRAINED:
        return _TRAINED[seed]
    with torch_threads(task.threads):
        _TRAINED[seed] = trained(task, coupling, Candidate("dense", "", None), seed).eval()
    return _TRAINED[seed]


def score_of(task: Task, coupling: Coupling, name: str, plan: SlimPlan | None, seed: int) -> float | None:
    """The score of a model trained from scratch; None if it diverged."""
    return train_and_score(task, coupling, CandidateRun(Candidate(name, "", plan), seed, coupling=coupling)).score


def prove(net: str, out: Path, options: argparse.Namespace) -> None:
    spec, data = NETS[net]
    forget_trained()
    length = options.sweep_steps or options.steps
    folder = out.with_name(f"{out.stem}-{net}-{length}")
    asked = {
        "model": str(ROOT / spec),
        "data": data.format(shared=options.shared) if data else None,
        "data_root": f"{options.shared}/data",
    }
    recipe = {"steps": options.steps, "schedule": options.schedule, "amp": options.amp}
    task = plan_sweep(**asked, **recipe, out=folder / "none").task
    coupling, known = couple_channels(task.traced), rows(out)
    swept = {"net": net, "sweep": length}
    setting = swept | recipe
    if options.again:
        proof: Proof | Again = Again(task, coupling, [row for row in known if swept.items() <= row.items()])
    else:
        record = run_sweep(**asked, steps=length, seeds=options.sweep_seeds, out=folder, resume=True, jobs=1)
        print(net, {alpha: record.remaining(alpha) for alpha in record.alphas}, flush=True)
        proof = Proof(task, coupling, record)
    for size, name, seed in jobs(options):
        key = setting | {"size": size, "contender": name, "seed": seed}
        if any(key.items() <= row.items() for row in known):
            continue
        plan = proof.plan(name, size, seed)
        with torch_threads(task.threads):
            score = score_of(task, proof.coupling, name, plan, seed)
        row = {**key, "score": score}
        if plan is not None:
            widths = {group.group: group.new_width for group in plan.groups}
            row |= {"params": plan.reached["params"], "macs": plan.reached["macs"], "widths": widths}
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)


def jobs(options: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Size, contender and seed of each training; the dense net comes first with each seed."""
    for seed in range(options.first_seed, options.seeds):
        yield "dense", "dense", seed
        yield from ((size, name, seed) for size in options.sizes for name in options.only)


def rows(out: Path) -> list[dict[str, Any]]:
    return [{"amp": False, **json.loads(line)} for line in out.read_text().splitlines()] if out.exists() else []


def show(out: Path) -> None:
    frame = pd.DataFrame(rows(out))
    by = ["net", "sweep", "steps", "schedule", "amp", "size", "contender"]
    table = frame.groupby(by)["score"].agg(["mean", "std", "count"])
    print((100 * table[["mean", "std"]]).round(2).assign(seeds=table["count"]).to_string())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=NETS, action="append", default=None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shared", default="../shared")
    parser.add_argument("--seeds", type=int, default=3, help="those below this number")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="nets that stand in the results")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--sweep-steps", type=int, help="of the sweep; those of the trainings unless given")
    parser.add_argument("--schedule", default="onecycle", help="of the trainings")
    parser.add_argument("--amp", action="store_true", help="trainings in bfloat16, for time")
    parser.add_argument("--sweep-seeds", type=int, default=2)
    parser.add_argument("--sizes", nargs="*", default=list(SIZES))
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for net in [] if options.table else options.net or NETS:
        prove(net, options.out, options)
    show(options.out)


if __name__ == "__main__":
    main()
