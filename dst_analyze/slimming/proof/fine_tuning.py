"""What users do with a trained net: the suggestion's widths with its weights, trained on."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from dst_analyze.channels.groups import Coupling
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.planning.plan_widths import unit_magnitudes
from dst_analyze.slimming.proof.candidates import TensorCallAdapter
from dst_analyze.slimming.surgery.build import slim
from dst_analyze.sweep.training.own_loop.fit_function import train_plain
from dst_analyze.sweep.training.trial import Task


def trainings_of(task: Task) -> int:
    """Return how many trainings a fine-tuned model takes: a dense one comes first, unless its weights were given."""
    return 1 if task.source.weights is not None else 2


def fine_tuned(task: Task, coupling: Coupling, plan: SlimPlan, seed: int) -> nn.Module:
    """Return the slim model with weights of a trained dense model, trained for as long as a model from scratch.

    With given weights (``--weights``) the channels are the plan's. Without, the dense model is trained with the same
    seed, and of each group the channels with the largest weights stay: the plan's are those of the sweep's weights.
    """
    if task.source.weights is not None:
        dense, removal = task.source.build(), dict(plan.removal)
    else:
        dense = train_plain(task, task.source.untrained, seed).cpu()
        removal = smallest_units(coupling, plan, dense)
    with torch.no_grad():
        built = TensorCallAdapter(slim(task.traced, removal, coupling=coupling, weights=dense))
    return train_plain(task, lambda: built, seed)


def smallest_units(coupling: Coupling, plan: SlimPlan, dense: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return as many units of each group as a plan removes: those with the smallest weights in a trained model."""
    weights = {name: value.detach() for name, value in dense.named_parameters(remove_duplicate=False)}
    found = {}
    for name, removed in plan.removal.items():
        order = np.argsort(unit_magnitudes(coupling, coupling.group(name), weights), kind="stable")
        found[name] = tuple(sorted(order[: len(removed)].tolist()))
    return found
