"""How many seeds and alphas are enough? Tau to the long run of every part of a sweep that has several of them.

    python experiments/enough.py [--shared ../shared]

Reads what short_sweep.py has kept. A part has some of the sweep's alphas and some of its seeds; in the table stands the
mean over all parts with as many of each.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pandas as pd
from short_sweep import LONG, RESULTS, SHUFFLED, SWEEPS, Order, Sweep, long_run, readings, sizes_of, tau


def parts(frame: pd.DataFrame, sweep: Sweep) -> Iterator[tuple[int, int, pd.DataFrame]]:
    """How many alphas, how many seeds, what was read with them."""
    for many, several in product(range(1, len(sweep.alphas) + 1), range(1, len(sweep.seeds) + 1)):
        for alphas, seeds in product(combinations(sweep.alphas, many), combinations(sweep.seeds, several)):
            yield many, several, frame[frame["alpha"].isin(alphas) & frame["seed"].isin(seeds)]


def rows(sweep: Sweep, shared: str, folder: Path) -> Iterator[dict[str, Any]]:
    frame, reference = readings(sweep, folder), readings(long_run(sweep.net), folder)
    if frame is None or reference is None:
        return
    sizes = sizes_of(sweep.net, shared)
    end = Order.of(reference, sizes).found
    for alphas, seeds, part in parts(frame, sweep):
        key = {"layers": len(sizes), "net": sweep.net, "recipe": sweep.recipe, "alphas": alphas, "seeds": seeds}
        yield {**key, "tau": tau(Order.of(part, sizes).found, end)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", default="../shared")
    parser.add_argument("--readings", type=Path, default=RESULTS / "readings")
    options = parser.parse_args()
    warmed = [sweep for sweep in SWEEPS if sweep.recipe not in (LONG, SHUFFLED) and "warm_up" not in sweep.options]
    found = pd.DataFrame(row for sweep in warmed for row in rows(sweep, options.shared, options.readings))
    by = ["layers", "net", "recipe", "alphas", "seeds"]
    print(found.groupby(by)["tau"].mean().unstack(["alphas", "seeds"]).sort_index(axis=1).round(2).to_string())


if __name__ == "__main__":
    main()
