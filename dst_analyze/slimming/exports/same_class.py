"""A model of the original's class with slim widths: filled with the slim weights, and compared with the slim model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx, nn

from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.user_errors import headline
from dst_analyze.slimming.exports.checks import (
    TOLERANCE,
    at_batch_size,
    example_of,
    outputs_of,
    relative_difference,
    working_sizes,
)


class MismatchError(Exception):
    """A model of the class is not the slim model; the message says how they differ."""


Named = dict[str, torch.Tensor]


def tensors_of(module: nn.Module) -> Named:
    """Return all parameters and buffers by all their names."""
    return dict(_named(module))


def _named(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def fill_from(built: nn.Module, slim: nn.Module, model: nn.Module) -> None:
    """Give a model the tensors of the slim model, and the original's where the slim model has none.

    Raises:
        MismatchError: A tensor has another shape.
    """
    given, own = tensors_of(slim), tensors_of(model)
    same: dict[int, list[str]] = {}
    tensors = tensors_of(built)
    for name, tensor in tensors.items():
        same.setdefault(id(tensor), []).append(name)
    with torch.no_grad():
        for names in same.values():  # tied weights have several names, of which a graph may have one
            tensor = tensors[names[0]]
            sources = [given[name] for name in names if name in given] or [own[name] for name in names if name in own]
            fitting = [source for source in sources if source.shape == tensor.shape]
            if not fitting:
                shapes = f"{list(tensor.shape)} where it is {list(sources[0].shape)}" if sources else "not in"
                raise MismatchError(f"{names[0]} is {shapes} in the slim model")
            tensor.copy_(fitting[0].to(tensor))


def compare_class(slim: fx.GraphModule, built: nn.Module, inputs: Inputs) -> tuple[float, tuple[int, ...]]:
    """Return the largest difference of the outputs of both in eval mode, and the batch sizes that were tried.

    Raises:
        MismatchError: The outputs are others, or the class does not run with these widths.
    """
    modes = slim.training, built.training
    try:
        slim.eval()
        built.eval()
        example = example_of(slim)
        sizes, worst = working_sizes(slim, example), 0.0
        for size in sizes:
            given = at_batch_size(example, size)
            expected = outputs_of(lambda tensors: slim(*tensors), given)
            found = outputs_of(_caller(built, inputs), given)
            if len(expected) > len(found):
                raise MismatchError("the class has other outputs than the slim model")
            for one, two in zip(expected, found, strict=False):
                worst = max(worst, relative_difference(one, two) if one.shape == two.shape else float("inf"))
    except MismatchError:
        raise
    except Exception as error:
        raise MismatchError(f"the class does not run with these widths: {headline(error)}") from error
    finally:
        slim.train(modes[0])
        built.train(modes[1])
    if not worst <= TOLERANCE:
        raise MismatchError(f"the class computes something else with these widths: outputs differ by {worst:.2g}")
    return worst, sizes


def _caller(built: nn.Module, inputs: Inputs) -> Any:
    """Return a function that calls a model on tensors in the way of the example."""

    def call(given: tuple[torch.Tensor, ...]) -> Any:
        left = iter(given)
        output = inputs.map(lambda _: next(left)).call(built)
        return output.to_tuple() if hasattr(output, "to_tuple") else output  # a ModelOutput is no plain tuple

    return call
