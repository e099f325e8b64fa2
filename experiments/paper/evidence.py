"""The tables of docs/experiments, from the run folders that `run.py` has made; what is not there yet is left out.

python experiments/paper/evidence.py --runs paper
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev

import pandas as pd
from run import EXPERIMENTS

from dst_analyze import read_run
from dst_analyze.baselines.agreement import read_method_comparison
from dst_analyze.ranking.load import rank_run
from dst_analyze.run.record import SweepRecord, alpha_label
from dst_analyze.slimming.planning.density import late_ratios


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation of shares, in percent."""
    shown = f"{100 * mean(values):.2f}"
    return f"{shown} ± {100 * stdev(values):.2f}" if len(values) > 1 else shown


def layer_ratios(record: SweepRecord, alpha: float) -> pd.Series:
    """What remains of each layer, in network order: the median of the last quarter, then the mean of seeds."""
    read = late_ratios(record, "remaining")
    return pd.DataFrame([read[trial.key] for trial in record.at(alpha)]).mean()[list(record.layers["layer"])]


def percents(ratios: pd.Series) -> str:
    return " ".join(f"{100 * ratio:.3g}" for ratio in ratios)


def table_1(runs: dict[str, SweepRecord]) -> str:
    rows = []
    for name, record in runs.items():
        paper = EXPERIMENTS[name].paper
        if paper is None:
            continue
        (target,) = record.targets
        trials = record.at(target.alpha)
        resets = sum(sum(trial.resets.values()) for trial in trials)
        dense = [t.score for t in record.trials if t.alpha is None and t.score is not None]
        rows.append(
            [
                name,
                f"{paper[1]:.2f} at {paper[0]:.2f}",
                f"{spread([t.score for t in trials if t.score is not None])} at "
                f"{spread([t.remaining for t in trials if t.remaining is not None])}",
                spread(dense),
                alpha_label(target.alpha),
                str(len(trials)),
                percents(layer_ratios(record, target.alpha)),
                str(resets),
            ]
        )
    heads = ["net", "paper: accuracy at % remaining", "ours", "ours, dense", "alpha", "seeds", "layers, %", "resets"]
    return table(heads, rows)


def pattern(record: SweepRecord) -> str:
    ratios = {alpha: layer_ratios(record, alpha) for alpha in record.alphas}
    rows = [
        [layer, *(f"{100 * ratios[alpha][layer]:.1f}" for alpha in record.alphas)]
        for layer in ratios[record.alphas[0]].index
    ]
    kept, scores = (
        [f"{100 * value:.1f}" if value is not None else "" for value in map(read, record.alphas)]
        for read in (record.remaining, record.score)
    )
    dense = "" if record.dense.score is None else f", dense {100 * record.dense.score:.1f}"
    rows += [["the model", *kept], [f"accuracy{dense}", *scores]]
    found = rank_run(record)
    low, high = found.interval
    said = f"\n\nKendall's W {found.agreement:.2f} (95 % interval {low:.2f} to {high:.2f}), verdict: {found.verdict}."
    return table(["layer", *map(alpha_label, record.alphas)], rows) + said


def ways(record: SweepRecord) -> str:
    found = read_method_comparison(record, rank_run(record))
    return "not measured" if found is None else table(*found.cells)


def rates(runs: dict[str, SweepRecord]) -> str:
    """The output layer's ratio just before the learning rate falls, and at the end."""
    rows = []
    for name, record in runs.items():
        output = str(record.layers["layer"].iloc[-1])
        for alpha in record.alphas:
            frame = record.frame[(record.frame["alpha"] == alpha) & (record.frame["layer"] == output)]
            before = frame[frame["step"] <= record.manifest.steps // 2]
            lowest = before.groupby("seed")["remaining"].min().mean()
            last, end = (part.groupby("seed")["remaining"].last().mean() for part in (before, frame))
            score = record.score(alpha)
            rows.append(
                [
                    name,
                    alpha_label(alpha),
                    *(f"{100 * ratio:.1f}" for ratio in (lowest, last, end)),
                    "" if score is None else f"{100 * score:.2f}",
                ]
            )
    return table(["run", "alpha", "lowest before the decay", "just before it", "at the end", "accuracy"], rows)


def thresholds(runs: dict[str, SweepRecord]) -> str:
    rows = []
    for name, record in runs.items():
        for alpha in record.alphas:
            trials = record.at(alpha)
            rows.append(
                [
                    name.removeprefix("thresholds-"),
                    alpha_label(alpha),
                    spread([t.remaining for t in trials if t.remaining is not None]),
                    spread([t.score for t in trials if t.score is not None]),
                    percents(layer_ratios(record, alpha)),
                    str(sum(sum(t.resets.values()) for t in trials)),
                ]
            )
    return table(["threshold", "alpha", "remaining, %", "accuracy", "layers, %", "resets"], rows)


def sections(runs: dict[str, SweepRecord]) -> Iterator[tuple[str, str]]:
    def named(start: str) -> dict[str, SweepRecord]:
        return {name: record for name, record in runs.items() if name.startswith(start)}

    yield "Table 1", table_1(runs)
    for name in ("vgg", "wide-resnet"):
        if name in runs:
            yield f"The pattern of {name}", pattern(runs[name])
            yield f"Ways to rank {name}", ways(runs[name])
    yield "Learning rates", rates({**named("rate-"), **named("vgg")})
    yield "Thresholds", thresholds(named("thresholds-"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("paper"))
    options = parser.parse_args()
    there = {
        name: read_run(options.runs / name) for name in EXPERIMENTS if (options.runs / name / "report.html").exists()
    }
    for title, text in sections(there):
        print(f"## {title}\n\n{text}\n")


if __name__ == "__main__":
    main()
