"""Agreement of ranking methods: with each other, and of each with itself across its settings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dst_analyze.baselines.values import ABOUT, METHODS, Baselines
from dst_analyze.html import html_table
from dst_analyze.ranking.formats.serialize import agreement
from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.statistics.measures import kendalls_tau, kendalls_w, ranks, redundancy
from dst_analyze.run.derived import is_whole
from dst_analyze.run.files.paths import BASELINES
from dst_analyze.run.reader import read_json
from dst_analyze.run.record import SweepRecord

_FAR = 1 / 3  # of all ranks: so far from the sweep's, a method disagrees with it


@dataclass(frozen=True)
class RankingMethod:
    """One ranking method; ``itself`` is Kendall's W over its settings (alphas, shares kept), NaN for one setting."""

    name: str
    order: np.ndarray  # by layer, 1 for the most redundant
    settings: int
    itself: float
    steps: int
    """Steps of training, over all settings and seeds."""

    @property
    def about(self) -> str:
        """What the method measures, as a phrase."""
        return ABOUT[self.name]


@dataclass(frozen=True, repr=False, eq=False)
class MethodComparison:
    """Rankings of the same layers by several methods, the sweep's first; ``layers`` are those that all methods rank."""

    layers: tuple[str, ...]
    methods: tuple[RankingMethod, ...]
    tau: pd.DataFrame
    """Kendall's tau-b between any two methods; NaN where one of them gives all layers the same rank."""

    @property
    def measured(self) -> tuple[str, ...]:
        """The methods that `--baselines` measured."""
        return tuple(method.name for method in self.methods if method.name in METHODS)

    @property
    def table(self) -> pd.DataFrame:
        """One row per layer, in the sweep's order: its rank in each method."""
        table = pd.DataFrame({"layer": self.layers, **{method.name: method.order for method in self.methods}})
        return table.sort_values(["sweep", "layer"], kind="stable").reset_index(drop=True)

    @property
    def disagreements(self) -> dict[str, tuple[str, ...]]:
        """For each layer, the methods whose rank is a third of all ranks or more from the sweep's."""
        sweep, *others = self.methods
        border = max(2.0, _FAR * len(self.layers))
        found = {
            layer: tuple(other.name for other in others if abs(other.order[at] - sweep.order[at]) >= border)
            for at, layer in enumerate(self.layers)
        }
        return {layer: methods for layer, methods in found.items() if methods}

    @property
    def verdict(self) -> str:
        """A sentence on which methods are consistent across settings, and which agree with the sweep."""
        sweep, *others = self.methods
        parts = [] if np.isnan(sweep.itself) else [f"the sweep agrees with itself over alphas to W {sweep.itself:.2f}"]
        for method in others:
            tau = float(self.tau.at[sweep.name, method.name])
            close = "ranks all layers the same" if np.isnan(tau) else f"agrees with the sweep to tau {tau:.2f}"
            within = "" if np.isnan(method.itself) else f" and with itself over its settings to W {method.itself:.2f}"
            parts.append(f"{method.name} {close}{within}")
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]}."

    def __repr__(self) -> str:
        return f"MethodComparison({self.verdict!r})"

    @property
    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The heads and rows of a text table: each method's agreement with the others and itself, and its cost."""
        names = [method.name for method in self.methods]
        rows = [
            [
                method.name,
                *(agreement(self.tau.at[method.name, other]) for other in names),
                agreement(method.itself),
                f"{method.steps:,}",
            ]
            for method in self.methods
        ]
        return ["ranked by", *(f"tau to {name}" for name in names), "W over its settings", "steps of training"], rows

    def _repr_html_(self) -> str:
        heads, rows = self.cells
        described = [[*row, method.about] for row, method in zip(rows, self.methods, strict=True)]
        return html_table("Ways to rank the layers", [*heads, "what"], described, [self.verdict], words=1)


def read_method_comparison(record: SweepRecord, ranking: Ranking) -> MethodComparison | None:
    """Return the comparison of a run folder; None if it holds no baselines, or damaged ones."""
    if not is_whole(record, BASELINES):
        return None
    return compare_methods(record, ranking, read_json(record.folder / BASELINES, Baselines))


def compare_methods(record: SweepRecord, ranking: Ranking, found: Baselines) -> MethodComparison:
    """Return the sweep's ranking compared with the baselines and with untrained ones: initial weights, size, depth."""
    table = ranking.table.set_index("layer")
    known = [set(measurement.values) for measurement in found.measured]
    layers = [
        layer
        for layer in record.layers["layer"]
        if layer in table.index and not np.isnan(table.at[layer, "redundancy"]) and all(layer in v for v in known)
    ]
    table = table.loc[layers]
    params = table["params"].to_numpy(float)
    scores = {"sweep": table["redundancy"].to_numpy(float)}
    methods = [RankingMethod("sweep", ranks(scores["sweep"]), *_sweep_agreement(record, ranking, layers))]
    for method in found.methods:
        rows = _by_setting(found, method, layers, params)
        scores[method] = np.mean([ranks(row) for row in rows], axis=0) * -1.0
        steps = found.steps * found.seeds(method)
        methods.append(RankingMethod(method, ranks(scores[method]), len(rows), _concordance(rows), steps))
    free = {
        "initialisation": table["null_redundancy"].to_numpy(float),
        "size": params,
        "depth": np.arange(len(layers), dtype=float),  # layers are in network order
    }
    for name, score in free.items():
        scores[name] = score
        methods.append(RankingMethod(name, ranks(score), 1, float("nan"), 0))
    names = [method.name for method in methods]
    between = [[kendalls_tau(scores[one], scores[other]) for other in names] for one in names]
    return MethodComparison(tuple(layers), tuple(methods), pd.DataFrame(between, index=names, columns=names))


def _sweep_agreement(record: SweepRecord, ranking: Ranking, layers: list[str]) -> tuple[int, float, int]:
    """Return the sweep's number of settings, its agreement over them, and its training steps."""
    by_alpha = ranking.by_alpha.pivot(index="alpha", columns="layer", values="rank")[layers].dropna()
    rows = -by_alpha.to_numpy(float)
    steps = sum(t.steps for t in record.trials if t.alpha is not None and not t.control)
    return len(rows), _concordance(rows), steps


def _by_setting(found: Baselines, method: str, layers: list[str], params: np.ndarray) -> np.ndarray:
    """Return the redundancy of each layer at each setting, averaged over seeds."""
    rows: dict[float, list[np.ndarray]] = {}
    for measurement in found.measured:
        if measurement.method == method:
            values = np.array([measurement.values[layer] for layer in layers])
            score = redundancy(values[None], params)[0] if method == "magnitude" else -values
            rows.setdefault(measurement.setting, []).append(score)
    return np.array([np.mean(seeds, axis=0) for seeds in rows.values()])


def _concordance(rows: np.ndarray) -> float:
    return kendalls_w(ranks(rows)) if len(rows) > 1 and rows.shape[1] > 1 else float("nan")
