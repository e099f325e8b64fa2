"""Where would --until-stable have ended trials of full length, and how far was their order then that of their end?

    python experiments/until_stable.py reports/paper-vgg-16 reports/vgg-16-narrow reports/resnet-14 ...

Reads run folders, trains nothing. A line for each earliest end, window and agreement that is tried: the mean length of
the trials, and Kendall's tau of the order where they would have ended to the median of their last quarter.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd

from dst_analyze import read_run
from dst_analyze.run.record import last_quarter
from dst_analyze.sweep.training import early_stop

EARLIEST, WINDOWS, AGREEING = (1 / 5, 1 / 2, 3 / 5, 7 / 10), (1 / 4, 1 / 3), (0.9, 0.95)


def courses(run: Path) -> list[tuple[pd.DataFrame, pd.Series, pd.Series]]:
    """Of every trial: layers by step, the model by step, and the layers at the end."""
    record = read_run(run)
    sizes = record.layers.set_index("layer")["params"]
    found = []
    for _, trial in record.frame[~record.frame["control"]].groupby(["alpha", "seed"]):
        ratios = trial.pivot(index="step", columns="layer", values="remaining")[sizes.index]
        end = last_quarter(trial).groupby("layer")["remaining"].median()[sizes.index]
        found.append((ratios, (ratios * sizes).sum(axis=1) / sizes.sum(), end))
    return found


def ended(ratios: pd.DataFrame, model: pd.Series) -> int | None:
    """The step at which the rule, as it is set, would have ended a trial."""
    rule = early_stop.Stability(int(ratios.index[-1]))
    return next((step for step in ratios.index if rule.reached(step, model[step], list(ratios.loc[step]))), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    trials = [trial for run in parser.parse_args().runs for trial in courses(run)]
    rows = []
    for earliest, window, agreeing in itertools.product(EARLIEST, WINDOWS, AGREEING):
        with mock.patch.multiple(early_stop, EARLIEST=earliest, WINDOW=window, AGREEING=agreeing):
            ends = [ended(ratios, model) for ratios, model, _ in trials]
        lengths = [
            (end or ratios.index[-1]) / ratios.index[-1] for end, (ratios, _, _) in zip(ends, trials, strict=True)
        ]
        taus = [
            early_stop.agreement(ratios.loc[end].to_numpy(), last.to_numpy())
            for end, (ratios, _, last) in zip(ends, trials, strict=True)
            if end is not None
        ]
        rows.append([earliest, window, agreeing, np.mean(lengths), len(taus), min(taus), np.quantile(taus, 0.1)])
    heads = ["earliest", "window", "agreeing", "mean length", "ended", "smallest tau", "tau in nine of ten"]
    print(f"{len(trials)} trials\n{pd.DataFrame(rows, columns=heads).round(2).to_string(index=False)}")


if __name__ == "__main__":
    main()
