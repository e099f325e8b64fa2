"""Weight magnitudes before training, and the share of each layer that equal thresholds would keep."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

_SAMPLE = 1 << 14  # weights sampled of a larger layer: shares are then accurate to about 0.4 %


class Magnitudes:
    """The magnitudes of each layer's weights, sorted."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        self.layers = {name: _sorted_sample(weight) for name, weight in weights.items()}
        self.means = {name: float(values.mean()) if len(values) else 0.0 for name, values in self.layers.items()}
        self.sizes = sizes = {name: weight.numel() for name, weight in weights.items()}
        values = np.concatenate(list(self.layers.values()))
        counts = np.concatenate([np.full(len(v), sizes[name] / len(v)) for name, v in self.layers.items()])
        order = np.argsort(values, kind="stable")
        self._values, self._below = values[order], np.cumsum(counts[order]) / sum(sizes.values())

    def kept(self, threshold: float, most: float = math.inf) -> dict[str, float]:
        """Return each layer's share of weights above a threshold, capped at ``most`` times its mean magnitude.

        A threshold that is not positive prunes nothing.
        """
        if threshold <= 0:
            return dict.fromkeys(self.layers, 1.0)
        limits = {name: min(threshold, most * mean) if mean else threshold for name, mean in self.means.items()}
        return {n: 1 - np.searchsorted(v, limits[n], side="right") / len(v) for n, v in self.layers.items()}

    def model_kept(self, threshold: float, most: float = math.inf) -> float:
        """Return the share of all weights above a threshold, capped as in `kept`."""
        kept = self.kept(threshold, most)
        return float(sum(kept[name] * size for name, size in self.sizes.items()) / sum(self.sizes.values()))

    def threshold_keeping(self, ratio: float) -> float:
        """Return the lowest threshold, common to all layers, that keeps at most this share of all weights."""
        if ratio >= 1:
            return 0.0
        at = int(np.searchsorted(self._below, 1 - ratio - 1e-9))
        return float(self._values[min(at, len(self._values) - 1)])

    def null(self, ratio: float) -> dict[str, float]:
        """Return each layer's share under the null: its initial weights alone decide, and the model keeps ``ratio``.

        Under the null all thresholds travel equally far, so one threshold for all layers gives the shares.
        """
        return self.kept(self.threshold_keeping(ratio))


def _sorted_sample(weight: torch.Tensor) -> np.ndarray:
    flat = weight.detach().abs().flatten()
    if flat.numel() > _SAMPLE:
        chosen = torch.randint(flat.numel(), (_SAMPLE,), generator=torch.Generator().manual_seed(0))
        flat = flat[chosen.to(flat.device)]
    return flat.sort().values.float().cpu().numpy()
