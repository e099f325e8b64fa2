"""Conditions on a ranking, such as ``redundant>30%``: what `dst-analyze rank --fail-if` checks."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from dst_analyze.errors import DataError, OptionError
from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.verdict import AVERAGE, NEEDED, REDUNDANT, UNCLEAR

SPARE = "spare"
MEASURES = (REDUNDANT, NEEDED, AVERAGE, UNCLEAR, SPARE)
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_FORM = re.compile(rf"\s*({'|'.join(MEASURES)})\s*(>=|<=|>|<)\s*(\d+(?:\.\d+)?)\s*(%?)\s*")
_HINT = "give a label, a comparison and a share of the weights or a number of layers: 'redundant>30%', 'unclear>=4'"


@dataclass(frozen=True)
class Condition:
    """A label's share of the weights, or its number of layers, compared with a limit.

    ``spare`` is the share of all ranked weights that can go at no measurable loss of score.
    """

    measure: str
    comparison: str
    limit: float
    percent: bool

    @classmethod
    def parsed(cls, text: str) -> Condition:
        """Return the condition that a text states.

        Raises:
            OptionError: The text is no condition.
        """
        found = _FORM.fullmatch(text)
        if found is None:
            raise OptionError(f"{text!r} is not a condition", place="--fail-if", hint=_HINT)
        measure, comparison, limit, percent = found.groups()
        if measure == SPARE and not percent:
            raise OptionError("spare weights are a share", place="--fail-if", hint="give a percentage: 'spare>40%'")
        if percent and float(limit) > 100:
            raise OptionError(f"no share is above 100 %: {text!r}", place="--fail-if", hint=_HINT)
        return cls(measure, comparison, float(limit), bool(percent))

    def holds(self, ranking: Ranking) -> bool:
        """Return whether the condition is true of a ranking."""
        return _COMPARED[self.comparison](self.value(ranking), self.limit)

    def value(self, ranking: Ranking) -> float:
        """Return what is compared: a percentage of the weights, or a number of layers.

        Raises:
            DataError: The ranking does not know it.
        """
        table = ranking.table
        if self.measure == SPARE:
            known = table["spare"].notna()
            if not known.any():
                raise DataError(
                    "it is not known which weights can go at no loss of score",
                    place="--fail-if",
                    hint="a sweep with scores and a reference knows it; a table of ratios does not",
                )
            return self._share((table["spare"] * table["params"])[known], table)
        chosen = table["label"] == self.measure
        return self._share(table["params"][chosen], table) if self.percent else float(chosen.sum())

    def _share(self, weights: pd.Series, table: pd.DataFrame) -> float:
        total = float(table["params"].sum())
        if math.isnan(total) or table["params"].isna().any() or not total:
            raise DataError(
                "the sizes of the layers are not known, so there is no share of the weights",
                place="--fail-if",
                hint="give a number of layers, as in 'redundant>3', or a column params",
            )
        return 100 * float(weights.sum()) / total

    def said(self, ranking: Ranking) -> str:
        """Return the condition with the value that it was compared with."""
        unit = " % of the weights" if self.percent else " layers"
        return f"{self.measure} {self.value(ranking):.3g}{unit} {self.comparison} {self.limit:g}{' %' * self.percent}"
