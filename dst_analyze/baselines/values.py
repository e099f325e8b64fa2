"""Measurements of the baseline ranking methods, as the run folder stores them. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from pydantic import Field

from dst_analyze.errors import OptionError
from dst_analyze.run.config import Count, Json, Number, Size

Method = Literal["magnitude", "sensitivity"]
METHODS: tuple[Method, ...] = get_args(Method)
SETTINGS: dict[Method, tuple[float, ...]] = {"magnitude": (0.5, 0.2, 0.1, 0.05), "sensitivity": (0.5, 0.2, 0.1)}
"""Shares of the weights that are kept: of the whole model for magnitude, of one layer at a time for sensitivity."""
ABOUT: dict[str, str] = {
    "sweep": "this ranking",
    "magnitude": "what is left of each layer when the smallest weights of the trained dense model go",
    "sensitivity": "how far the loss of the trained dense model rises when the smallest weights of one layer go",
    "initialisation": "what is left of each layer when the smallest of the initial weights go",
    "size": "the number of weights, largest first",
    "depth": "the place in the network, last first",
}


_MOST = 20_000  # measurements: of two methods at three settings, with three thousand seeds


class Measurement(Json):
    """One method at one setting and seed: for each layer the share of weights kept, or the rise in loss."""

    method: Method
    setting: float = Field(gt=0, le=1)
    seed: Count
    values: dict[str, Number]


class Baselines(Json):
    """All measurements of a run: ``steps`` of dense training per seed, losses on ``samples`` samples."""

    schema_version: Literal[1] = 1
    steps: Size
    samples: Count
    measured: tuple[Measurement, ...] = Field(max_length=_MOST)

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods that were measured."""
        found = {measurement.method for measurement in self.measured}
        return tuple(method for method in METHODS if method in found)

    def of(self, method: Method) -> list[Measurement]:
        """Return the measurements of one method."""
        return [measurement for measurement in self.measured if measurement.method == method]

    def seeds(self, method: Method) -> int:
        """Return the number of seeds that a method was measured with."""
        return len({measurement.seed for measurement in self.of(method)})

    def covers(self, methods: Iterable[Method], seeds: Iterable[int], steps: int) -> bool:
        """Return True if all of these methods, seeds and steps were measured."""
        there = {(measurement.method, measurement.seed) for measurement in self.measured}
        wanted = {(method, seed) for method in methods for seed in seeds}
        return self.steps == steps and wanted <= there


def methods_of(text: str | None) -> tuple[Method, ...]:
    """Return the methods that a comma-separated option names, in the order of `METHODS`; none for None."""
    if text is None:
        return ()
    asked = [name.strip() for name in text.split(",")]
    for name in asked:
        if name not in METHODS:
            raise OptionError(
                f"there is no ranking method called {name!r}",
                place=f"--baselines {text}",
                hint=f"choose from {', '.join(METHODS)}",
            )
    return tuple(method for method in METHODS if method in asked)
