"""The size of a suggestion if none is asked for: the share that a sweep's masks let one expect to be enough.

Single weights leave at no measurable loss long before whole channels do. A net of a share r of the rows and a share r
of the columns of each weight has r² of the weights; masks that leave a share k thin out both ways, so the slim net is
expected to need √k of the parameters. So it is with the MACs: early layers, which have many, keep more, and a budget of
the parameters alone would keep them whole. The constants are the rule: experiments that calibrate it change them here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd
from pydantic import Field

from dst_analyze.ranking.result import Ranking
from dst_analyze.run.config import Json, Number, Share, Size
from dst_analyze.text import listed, size_text

POWER = 0.5
"""The size that is expected to be enough: the share of single weights left, to this power."""
LEAST, MOST = 0.10, 0.75
"""Bounds of the expectation."""
FALLBACK = 0.5
"""The size if the masks say nothing about it."""
_LEAST_POWER = 0.05

Basis = Literal["masks", "pruning", "proof", "no free alpha", "no score", "rehearsal"]
RungStanding = Literal["level", "below", "open"]


@dataclass(frozen=True)
class AlphaResult:
    """What one alpha left of the ranked layers' weights, and whether that cost no measurable loss of score."""

    alpha: float
    remaining: float
    loss: float  # of score against the dense model; NaN if it is not known
    free: bool
    macs: float = math.nan  # what it left of their MACs; NaN if these are not known


class TriedSize(Json):
    """A size that was trained beside the dense model; ``lead`` is negative if it scores worse."""

    share: Share
    params: Size
    standing: RungStanding
    lead: Number | None
    low: Number | None
    high: Number | None
    seeds: Size


class SizeTarget(Json):
    """How the size of a plan was chosen, where the user has not asked for one.

    ``share`` is that of the parameters, ``macs`` that of the MACs, the same if it is None; ``left`` is the share of
    single weights that the strongest ``alpha`` without measurable loss has left. ``tried`` are the sizes that were
    trained, in this order.
    """

    basis: Basis
    share: Share
    macs: Share | None = None
    left: Share | None = None
    alpha: Number | None = None
    tried: tuple[TriedSize, ...] = Field(default=(), max_length=100)

    def at(self, share: float) -> dict[str, float]:
        """Return the shares of parameters and MACs of a size: as far apart, in proportion of their logs, as here."""
        if self.macs is None or share == self.share:
            return {"params": share, "macs": share if self.macs is None else self.macs}
        return {"params": share, "macs": round(share ** (math.log(self.macs) / math.log(self.share)), 2)}

    @property
    def is_expected(self) -> bool:
        """True if nothing was trained at this size."""
        return self.basis != "proof"

    @property
    def level(self) -> bool:
        """True if a net of this size was shown to be level with the dense model."""
        return any(size.standing == "level" and size.share == self.share for size in self.tried)

    @property
    def clause(self) -> str:
        """Why the plan has its size, in a clause."""
        size = size_text(self.share)
        if self.basis == "proof" and self.level:
            return f"{size} is the smallest size tried that is level with the dense model"
        if self.basis == "proof":
            return f"no size tried is shown to be level with the dense model, of them {size} is suggested"
        if self.basis in _EVIDENCE:
            if self.macs not in (None, self.share):
                size = f"{size} of the parameters and {size_text(self.macs)} of the MACs"
            return f"{_EVIDENCE[self.basis]} that {size} is enough"
        return f"{size} is a default, {_WHY[self.basis]}"

    @property
    def sentence(self) -> str:
        """Why the plan has its size, in a sentence."""
        more = ""
        if self.basis in _EVIDENCE and self.left is not None:
            more = f" (they leave {size_text(self.left)} of the single weights at no measurable loss); not proven"
        elif self.basis == "proof":
            more = f" ({self._tried})"
        return f"{self.clause[:1].upper()}{self.clause[1:]}{more}."

    @property
    def _tried(self) -> str:
        words = {"level": "level", "below": "below it", "open": "not decided"}
        found: dict[str, list[str]] = {}
        for size in self.tried:
            found.setdefault(words[size.standing], []).append(size_text(size.share))
        return "; ".join(f"{listed(sizes)} {standing}" for standing, sizes in found.items())


_EVIDENCE = {"masks": "the sweep's masks suggest", "pruning": "the weights that magnitude pruning leaves suggest"}
_WHY = {
    "no free alpha": "as no alpha kept the dense model's score",
    "no score": "as there is no score to compare the masks by",
    "rehearsal": "as this was a rehearsal",
}


def expected_target(results: Sequence[AlphaResult], *, quick: bool = False) -> SizeTarget:
    """Return the size that the results of a sweep let one expect to be enough.

    Args:
        results: The alphas of a sweep; those without any ratio are left out.
        quick: Nothing was trained after pruning.

    Returns:
        The expected share with what it rests on, or the fallback.
    """
    free = [result for result in results if result.free]
    if not free:
        scored = any(not math.isnan(result.loss) for result in results)
        return SizeTarget(basis="no free alpha" if scored else "no score", share=FALLBACK)
    strongest = max(free, key=lambda result: result.alpha)
    share = round(min(max(strongest.remaining**POWER, LEAST), MOST), 2)
    macs = None
    if 0 < strongest.macs <= 1 and 0 < strongest.remaining < 1:
        power = math.log(strongest.macs) / math.log(strongest.remaining)
        macs = round(share ** min(max(power, _LEAST_POWER), 1.0), 2)
    basis: Basis = "pruning" if quick else "masks"
    return SizeTarget(basis=basis, share=share, macs=macs, left=round(strongest.remaining, 4), alpha=strongest.alpha)


def alpha_results(ranking: Ranking) -> list[AlphaResult]:
    """Return what each alpha of a ranking left of all weights, and at what loss; weakest first."""
    params, macs = (ranking.table.set_index("layer")[name] for name in ("params", "macs"))
    free = ranking.table["spare_alpha"].dropna()
    strongest = float(free.iloc[0]) if len(free) else -math.inf
    found = []
    for alpha, rows in ranking.by_alpha.groupby("alpha"):
        weights = rows["layer"].map(params).fillna(1.0)
        known = rows["gone"].notna()
        if not known.any():
            continue
        loss, free = float(rows["loss"].iloc[0]), float(alpha) <= strongest
        left = [_left(rows["gone"], weight.where(known)) for weight in (weights, rows["layer"].map(macs))]
        found.append(AlphaResult(float(alpha), left[0], loss, free, left[1]))
    return found


def _left(gone: pd.Series, weights: pd.Series) -> float:
    """Return the weighted share that is left, from 0 to 1; NaN if no weight is known."""
    whole = float(weights.sum())
    return min(max(1 - float((gone * weights).sum()) / whole, 0.0), 1.0) if whole else math.nan
