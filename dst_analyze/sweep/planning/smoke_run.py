"""A smoke run (`--fast-dev-run`): every stage once with tiny numbers, to find errors before a long run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal

from dst_analyze.sweep.data.batches import Batches
from dst_analyze.sweep.planning.plan import Plan, plan_sweep
from dst_analyze.sweep.training.trial import ModelSpec

STEPS, BATCHES, ALPHAS = 4, 2, 2
SUFFIX = "-fast-dev-run"
_STRONG = (1e-6, 1e-5)  # the default alphas


@dataclass(frozen=True)
class FewBatches:
    """The first batches of some data, repeated."""

    batches: Batches

    @property
    def per_epoch(self) -> int:
        return BATCHES

    def stream(self, seed: int) -> Iterator[Any]:
        return cycle(list(islice(self.batches.stream(seed), BATCHES)))

    def once(self) -> Iterator[Any]:
        return islice(self.batches.once(), BATCHES)

    def describe(self) -> str:
        return f"{BATCHES} batches of {self.batches.describe()}"


def plan_fast(model: ModelSpec, *, out: Path | None, options: Mapping[str, Any]) -> Plan:
    """Return the plan of a smoke run, in a separate folder that replaces only earlier smoke runs."""
    alphas = options.get("alphas", "auto")
    tiny = {
        **options,
        "alphas": _fast_alphas(alphas, quick=bool(options.get("quick"))),
        "target_remaining": (),
        "steps": STEPS,
        "epochs": None,
        "max_epochs": None,
        "until_stable": False,
        "seeds": 1,
    }
    named = None if out is None else out.with_name(out.name + SUFFIX)
    plan = plan_sweep(model, out=named, existing="force", **tiny)
    task, test = plan.task, plan.task.test_data
    train = FewBatches(task.train_data)
    few = replace(task, train_data=train, test_data=train if test is task.train_data else FewBatches(test))
    # No request: workers would make the plan again and read all the data.
    return replace(plan, task=few, out=named or plan.out.with_name(plan.out.name + SUFFIX), request=None)


def _fast_alphas(asked: Literal["auto"] | Sequence[float], *, quick: bool) -> Literal["auto"] | Sequence[float]:
    """Return few alphas in place of those asked for, and of a search for them; a quick run has its own."""
    if asked == "auto":
        return "auto" if quick else _STRONG
    return asked[:ALPHAS]
