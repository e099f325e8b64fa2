"""How long a ranking takes: 1,000 layers x 10 alphas x 5 seeds with 1,000 bootstrap draws, beside smaller ones.

    OMP_NUM_THREADS=1 python benchmarks/ranking_speed.py [--repeats 3]

The bar is 2 seconds for the largest. As absolute times mean little on a shared machine, the time per ratio is shown
beside that of the sizes below it: a ranking that is vectorised costs less per ratio the larger it is.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import pandas as pd

from dst_analyze import rank_layers

BAR = 2.0
SIZES = ((10, 3, 1), (100, 5, 3), (1000, 10, 5))


def frame(layers: int, alphas: int, seeds: int) -> pd.DataFrame:
    """Ratios with a pattern in them and noise about it, with a null and everything else that a record has."""
    rng = np.random.default_rng(0)
    trial, layer = np.divmod(np.arange(alphas * seeds * layers), layers)
    alpha, seed = np.divmod(trial, seeds)
    own = rng.normal(0, 0.5, layers)[layer] - 0.2 * (1 + alpha)
    return pd.DataFrame(
        {
            "layer": [f"block{n // 10}.conv{n % 10}" for n in layer],
            "alpha": 1e-6 * 2.0**alpha,
            "seed": seed,
            "remaining": np.clip(np.exp(own + rng.normal(0, 0.2, len(own))), 0, 1),
            "null": np.clip(np.exp(own / 2), 0, 1),
            "params": 1000 + 10 * layer,
            "macs": 50_000,
            "group": [f"stage{n // 100}" for n in layer],
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    print(f"{'layers x alphas x seeds':>24} {'seconds':>8} {'microseconds per ratio':>23}")
    for size in SIZES:
        given, taken = frame(*size), []
        for _ in range(repeats):
            started = time.perf_counter()
            rank_layers(given, draws=1000)
            taken.append(time.perf_counter() - started)
        seconds = statistics.median(taken)
        print(f"{' x '.join(map(str, size)):>24} {seconds:8.2f} {1e6 * seconds / len(given):23.1f}")
    print(f"bar for the last: {BAR:.1f} s, {'held' if seconds < BAR else 'MISSED'}")


if __name__ == "__main__":
    main()
