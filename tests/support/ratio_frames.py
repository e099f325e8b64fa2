"""Frames of remaining ratios, as `rank_layers` takes them."""

import math

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

PATTERN = {"a": 0.9, "b": 0.7, "c": 0.4, "d": 0.2, "e": 0.1}


ratio_arrays = arrays(
    float, st.tuples(st.integers(1, 6), st.integers(2, 7)), elements=st.sampled_from(np.linspace(0, 1, 8))
)


def frame_of(pattern, *, alphas=(1e-5, 1e-4, 1e-3), seeds=3, noise=0.0, rng=0, **columns):
    """Ratios that follow a pattern and fall with alpha."""
    random = np.random.default_rng(rng)
    rows = [
        {
            "layer": layer,
            "alpha": alpha,
            "seed": seed,
            "remaining": ratio ** (1 + i) * math.exp(random.normal(0, noise)),
        }
        for i, alpha in enumerate(alphas)
        for seed in range(seeds)
        for layer, ratio in pattern.items()
    ]
    return pd.DataFrame(rows).assign(remaining=lambda f: f["remaining"].clip(0, 1), **columns)


def as_frame(ratios, names=None):
    names = names or [f"layer{n}" for n in range(ratios.shape[1])]
    return pd.DataFrame(
        [
            {
                "layer": name,
                "alpha": 10.0 ** -(t % 3 + 1),
                "seed": t // 3,
                "remaining": ratios[t, n],
                "params": 10 * (n + 1),
            }
            for t in range(len(ratios))
            for n, name in enumerate(names)
        ]
    )
