"""Which rule for widths is best? Random widths of four nets are trained, and rules compared on what that shows.

    OMP_NUM_THREADS=1 python experiments/width_surfaces.py [--only middle] [--draws 40]
    OMP_NUM_THREADS=1 python experiments/width_surfaces.py --rules [--runs reports]

Each draw is a net whose groups all have widths at random around a common level, trained from scratch; a line of
results/width_surfaces.jsonl. A Gaussian process over the logs of the widths then foretells the accuracy of any widths,
so that a rule costs nothing to try. ``--rules`` shows, for rules w = W · g · (u^c (d W^k)^a / price)^e of the plain
sweep's densities, the points of accuracy above uniform widths within the same budget. RUNS has the sweeps:
`wins/NET` of wins.py, `flaws/NET-flawed-0` of flaws.py, `plain/NET` of the plain command.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from showcase import RUNS
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel
from sklearn.model_selection import KFold, cross_val_predict
from slim_proof import score_of
from wins import task_of

from dst_analyze import couple_channels, rank_layers, read_run
from dst_analyze.channels.groups import Coupling, Group
from dst_analyze.slimming.planning.budget import RULES, Budget, WidthRule, Widths, widths_for
from dst_analyze.slimming.planning.density import Evidence, GroupEvidence
from dst_analyze.slimming.planning.evidence import equal_evidence, sweep_evidence
from dst_analyze.slimming.planning.plan_types import Limits
from dst_analyze.slimming.planning.plan_widths import cost_of, plan_of
from dst_analyze.slimming.planning.ranked import ranked_layers
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.training.trial import Task

HERE = Path(__file__).parent
RESULTS = HERE / "results/width_surfaces.jsonl"
NETS = {
    "small-vit": "wins/small-vit",
    "resnet-14": "wins/resnet-14",
    "residual_sgd": "plain/residual_sgd",
    "middle": "flaws/middle-flawed-0",
}
"""The nets, with the folder of their sweep in RUNS."""
LEVELS, APART = (0.12, 0.8), 1.0
"""The common levels of a draw, and how far a group's log may lie from it."""
BUDGETS: tuple[dict[str, float], ...] = (
    {"params": 0.1}, {"params": 0.25}, {"params": 0.5}, {"macs": 0.25}, {"params": 0.25, "macs": 0.25},
)  # fmt: skip
EXPONENTS = list(product((0.0, 1.0, 1.5, 2.0), (-1 / 3, 0.0, 0.5), (1.0,), (0.5, 0.6)))


def task(net: str, options: argparse.Namespace) -> Task:
    if net in RUNS:
        return task_of(net, options)
    folder = "flaws" if net == "middle" else "plain"
    return plan_sweep(str(HERE / folder / f"{net}.py"), out=options.runs / "none").task


def draw_widths(coupling: Coupling, draw: int) -> Widths:
    rng = np.random.default_rng(draw)
    level = np.exp(rng.uniform(*np.log(LEVELS)))
    found = {}
    for group in coupling.removable:
        width = round(group.width * level * np.exp(rng.uniform(-APART, APART)))
        found[group.name] = int(np.clip(width, max(1, group.floor), group.width))
    return found


def train(net: str, options: argparse.Namespace) -> None:
    here, known = task(net, options), {(row["net"], row["draw"]) for row in read()}
    coupling = couple_channels(here.traced)
    for draw in range(options.draws):
        if (net, draw) in known:
            continue
        widths = draw_widths(coupling, draw)
        limits, evidence = Limits(round_to=1), equal_evidence(coupling)
        plan = plan_of(here.traced, coupling, widths, evidence, rule="balance", asked={"params": 0.5}, limits=limits)
        score = score_of(here, coupling, str(draw), plan, draw)
        with RESULTS.open("a") as file:
            file.write(json.dumps({"net": net, "draw": draw, "widths": widths, "score": score}) + "\n")


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


class Surface:
    """The accuracy of a net by its widths, in points, as a Gaussian process foretells it from random draws."""

    def __init__(self, net: str) -> None:
        rows = [row for row in read() if row["net"] == net and row["score"] is not None]
        self.names = list(rows[0]["widths"])
        self._points = self._logs([row["widths"] for row in rows])
        scores = np.array([100 * row["score"] for row in rows])
        self._mean, self._spread = scores.mean(), scores.std()
        self._targets = (scores - self._mean) / self._spread
        length = RBF(np.full(len(self.names), 3.0), (0.5, 50))
        kernel = ConstantKernel(1.0) * length + DotProduct(1.0) + WhiteKernel(0.1)
        self._process = GaussianProcessRegressor(kernel, n_restarts_optimizer=1, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a length at its bound
            self._process.fit(self._points, self._targets)

    def _logs(self, widths: list[Widths]) -> Any:
        return np.log([[each[name] for name in self.names] for each in widths])

    def __call__(self, widths: Widths) -> float:
        return float(self._process.predict(self._logs([widths]))[0] * self._spread + self._mean)

    @property
    def explained(self) -> float:
        """The share of the variance that is foretold for draws left out."""
        process = GaussianProcessRegressor(self._process.kernel_, optimizer=None)
        folds = KFold(10, shuffle=True, random_state=0)
        found = cross_val_predict(process, self._points, self._targets, cv=folds)
        return float(1 - np.square(found - self._targets).mean() / self._targets.var())


def rule_of(a: float, k: float, c: float, e: float) -> WidthRule:
    def share(group: Group, evidence: GroupEvidence, price: float, generosity: float) -> float:
        width = group.width * group.per_unit
        return float(generosity * (group.uses**c * (evidence.density * width**k) ** a / price) ** e)

    return WidthRule(share, priced=True)


def gains(net: str, options: argparse.Namespace) -> pd.DataFrame:
    """Return the points of accuracy above uniform widths, by rule and budget."""
    here, surface = task(net, options), Surface(net)
    coupling, record = couple_channels(here.traced), read_run(options.runs / NETS[net])
    swept: Evidence = sweep_evidence(coupling, record, ranked_layers(rank_layers(record)))
    costs = {axis: cost_of(here.traced, coupling, axis) for axis in ("params", "macs")}
    print(f"{net}: {surface.explained:.2f} of the variance is foretold", flush=True)

    def accuracy(rule: WidthRule, evidence: Evidence, asked: dict[str, float]) -> float:
        budgets = [Budget(costs[axis], share) for axis, share in asked.items()]
        return surface(widths_for(coupling.removable, evidence, rule, Limits(), budgets))

    rows = []
    for asked in BUDGETS:
        uniform = accuracy(RULES["density"], equal_evidence(coupling), asked)
        rules = {"balance": RULES["balance"]}
        rules |= {", ".join(f"{value:.2g}" for value in each): rule_of(*each) for each in EXPONENTS}
        for name, rule in rules.items():
            gain = accuracy(rule, swept, asked) - uniform
            rows.append({"rule": name, "net": net, "budget": json.dumps(asked), "gain": gain})
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NETS))
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--rules", action="store_true", help="train nothing; compare rules")
    parser.add_argument("--runs", type=Path, default=Path("reports"), help="where the sweeps are")
    parser.add_argument("--data", default="../shared/data", help="folder of MNIST/ and cifar10-20k.npz")
    options = parser.parse_args()
    options.runs = options.runs.resolve()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    names = options.only.split(",")
    if not options.rules:
        for net in names:
            train(net, options)
        return
    frame = pd.concat([gains(net, options) for net in names])
    table = frame.pivot_table(index="rule", columns="net", values="gain")
    table["mean"], table["least"] = table[names].mean(axis=1), table[names].min(axis=1)
    print("rule (a, k, c, e), points of accuracy above uniform widths\n")
    print(table.sort_values("mean", ascending=False).round(2).to_string())
    print("\n" + frame.pivot_table(index="rule", columns="budget", values="gain").round(2).to_string())


if __name__ == "__main__":
    main()
