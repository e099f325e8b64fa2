"""What the models of a proof cost: the time of a forward pass, and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from dst_analyze.channels.groups import Coupling
from dst_analyze.model.isolation import in_mode
from dst_analyze.slimming.proof.candidates import Candidate, build_candidate
from dst_analyze.slimming.proof.timing import milliseconds
from dst_analyze.sweep.training.objective import main_output
from dst_analyze.sweep.training.trial import Task, seeded


def measure_costs(task: Task, coupling: Coupling, found: Sequence[Candidate]) -> Iterator[tuple[float, int]]:
    """Yield the milliseconds of a forward pass over one batch, and the bytes of memory, of each candidate."""
    objective = task.objective(task.traced.model)
    batch = None if task.own_loop else task.device.moved(next(iter(task.train_data.once())))
    inputs = task.traced.inputs if task.own_loop else objective.inputs(batch)

    def loss(model: nn.Module) -> torch.Tensor:
        outputs = inputs.call(model)
        return main_output(outputs).float().sum() if task.own_loop else objective.loss(outputs, batch)

    with seeded(0):
        models = [build_candidate(c, task.traced, coupling, task.source).to(task.device.name) for c in found]
    for model, taken in zip(models, milliseconds(models, inputs.call, task.device), strict=True):
        yield round(taken, 4), _memory(model, loss)


def _memory(model: nn.Module, loss: Callable[[nn.Module], torch.Tensor]) -> int:
    """Return the bytes of weights and of what autograd saves for the backward pass of one batch."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with seeded(0), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss(in_mode(model, training=True))
    return sum(saved.values()) + sum(p.numel() * p.element_size() for p in model.parameters())
