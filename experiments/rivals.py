"""The models that a suggestion is trained against in experiments: widths for the same budget by other evidence.

Those of the initial weights, of depth, of size and of magnitude follow the suggestion's own rule and differ in their
evidence only. *Uniform* and *random* thin by a share, *ERK* and *Torch-Pruning* are published allocations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from slim_proof import by_magnitude, dense_model, flat_evidence

from dst_analyze.channels.groups import Coupling
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.density import from_ratios
from dst_analyze.slimming.planning.evidence import equal_evidence, null_evidence
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.planning.plan_widths import plan_of, plan_widths
from dst_analyze.slimming.proof.trainings import magnitude_ratios
from dst_analyze.sweep.engines.resources import torch_threads
from dst_analyze.sweep.training.trial import Task


def rivals(
    task: Task, coupling: Coupling, record: SweepRecord, plan: SlimPlan, axis: str = "params"
) -> Iterator[tuple[str, SlimPlan]]:
    """Yield the rivals of a plan that do not depend on a seed, at what the plan has reached of an ``axis``."""
    traced, limits, equal = task.traced, plan.limits, equal_evidence(coupling)
    budgets = {name: {name: plan.reached[name]} for name in ("params", "macs")}
    layers = [layer.name for layer in traced.layers]

    def thinned(evidence: Any, rule: str = plan.rule) -> SlimPlan:
        return plan_widths(traced, coupling, evidence, rule=rule, limits=limits, asked=budgets[axis])

    yield from uniform_rivals(task, coupling, plan)
    yield "initial weights", thinned(null_evidence(coupling, record))
    yield "depth", thinned(by_order(coupling, layers))
    by_size = sorted(traced.layers, key=lambda layer: layer.params)
    yield "size", thinned(by_order(coupling, [layer.name for layer in by_size]))
    yield "ERK", thinned(from_ratios(coupling, [erk(task)]), "sqrt")
    with torch_threads(task.threads):
        dense = dense_model(task, coupling, 0)
        yield "magnitude", thinned(from_ratios(coupling, list(magnitude_ratios(traced, dense).values())))
        widths = by_magnitude(task, coupling, budgets[axis], 0)
        yield (
            "torch-pruning",
            plan_of(traced, coupling, widths, equal, rule="torch-pruning", asked=budgets[axis], limits=limits),
        )


def uniform_rivals(task: Task, coupling: Coupling, plan: SlimPlan) -> Iterator[tuple[str, SlimPlan]]:
    """Yield the nets of one share of all channels with as many parameters as a plan, and with as many MACs."""
    for name, axis in (("uniform, parameters", "params"), ("uniform, MACs", "macs")):
        asked = {axis: plan.reached[axis]}
        equal = equal_evidence(coupling)
        yield name, plan_widths(task.traced, coupling, equal, rule="density", limits=plan.limits, asked=asked)


def random_rival(task: Task, coupling: Coupling, plan: SlimPlan, axis: str, seed: int) -> SlimPlan:
    """Return widths drawn at random for a seed, at what the plan has reached of an axis."""
    draw = np.random.default_rng(seed)
    chance = flat_evidence(coupling, {group.name: float(draw.uniform(0.1, 1)) for group in coupling.removable})
    asked = {axis: plan.reached[axis]}
    return plan_widths(task.traced, coupling, chance, rule="density", limits=plan.limits, asked=asked)


def by_order(coupling: Coupling, names: Sequence[str]) -> Any:
    """Return densities that fall evenly (in log) from 1 to a tenth along an order of the layers."""
    return from_ratios(coupling, [dict(zip(names, np.geomspace(1.0, 0.1, len(names)).tolist(), strict=True))])


def erk(task: Task) -> dict[str, float]:
    """Return each layer's density by Erdos-Renyi-Kernel (RigL): the sum of its weight's axes over their product."""
    shapes = {layer.name: task.traced.model.get_parameter(layer.parameter).shape for layer in task.traced.layers}
    raw = {name: sum(shape) / np.prod(shape) for name, shape in shapes.items()}
    return {name: float(value / max(raw.values())) for name, value in raw.items()}
