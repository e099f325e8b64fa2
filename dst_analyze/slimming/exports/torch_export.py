"""`slim_model.pt2`: the slim model as torch.export has it, with a dynamic batch dimension where it can have one."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import fx
from torch.export import Dim, ExportedProgram

from dst_analyze.model.isolation import preserved
from dst_analyze.model.user_errors import headline
from dst_analyze.run.files.paths import SLIM_PT2
from dst_analyze.slimming.exports.checks import (
    at_batch_size,
    batched,
    example_of,
    largest_difference,
    working_sizes,
)
from dst_analyze.slimming.exports.result import Exported, NotExportedError, SlimResult

_TRACES = ("stack_trace", "from_node")
"""What a node says of the program that exported it: paths of this machine, and numbers that change with every run."""


@dataclass(frozen=True)
class Program:
    """The slim model in eval mode, as a program of torch.export."""

    model: fx.GraphModule
    program: ExportedProgram
    inputs: tuple[tuple[torch.Tensor, ...], ...]  # to compare outputs with
    sizes: tuple[int, ...]
    note: str = ""  # why the batch size is fixed

    @property
    def batch_symbol(self) -> str:
        """The name that torch has given the batch dimension; empty if it is fixed."""
        names = set(self.program.graph_signature.user_inputs)
        values = (node.meta["val"] for node in self.program.graph.nodes if node.name in names)
        sizes: Iterator[object] = (value.shape[0] for value in values if isinstance(value, torch.Tensor) and value.ndim)
        return next((str(size) for size in sizes if isinstance(size, torch.SymInt)), "")


def export_program(model: fx.GraphModule) -> Program:
    """Return the program of a slim model: for any batch size, else for that of the example."""
    example = example_of(model)
    model = copy.deepcopy(model).cpu().eval()
    sizes = working_sizes(model, example)
    if len(sizes) > 1:
        inputs = tuple(at_batch_size(example, size) for size in sizes)
        shapes = tuple({0: Dim("batch")} if has else None for has in batched(example))
        try:
            return Program(model, _exported(model, at_batch_size(example, 4), shapes), inputs, sizes)
        except Exception as error:
            note = f"for batches of {len_of(example)} only: {headline(error)}"
    else:
        note = f"for batches of {len_of(example)} only, as the slim model"
    try:
        program = _exported(model, example, None)
    except Exception as error:
        raise NotExportedError(f"torch.export: {headline(error)}") from error
    return Program(model, program, (example,), (len_of(example),), note)


def len_of(example: tuple[torch.Tensor, ...]) -> int:
    """Return the batch size of an example."""
    return next((len(tensor) for tensor in example if tensor.ndim), 1)


def write_pt2(result: SlimResult) -> Exported:
    """Return `slim_model.pt2`, loaded again and compared with the slim model."""
    program = export_program(result.model)
    with quiet_export():
        data = _as_bytes(program.program)
        try:
            loaded = torch.export.load(io.BytesIO(data)).module()
        except Exception as error:
            raise NotExportedError(f"torch.export.load: {headline(error)}") from error
    try:
        difference = largest_difference(program.model, lambda inputs: loaded(*inputs), program.inputs)
    except NotExportedError:
        raise
    except Exception as error:
        raise NotExportedError(f"the exported program does not run: {headline(error)}") from error
    return Exported({SLIM_PT2: data}, difference=difference, batch_sizes=program.sizes, note=program.note)


@contextmanager
def quiet_export() -> Iterator[None]:
    """Let torch export without its warnings, which are about its own code."""
    with preserved(), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def _exported(model: fx.GraphModule, inputs: tuple[torch.Tensor, ...], shapes: object) -> ExportedProgram:
    with quiet_export():
        dynamic = (shapes,) if shapes is not None and _takes_varargs(model) else shapes
        program = torch.export.export(model, inputs, dynamic_shapes=dynamic, strict=False)  # type: ignore[arg-type]
    for node in program.graph.nodes:
        for key in _TRACES:
            node.meta.pop(key, None)
    return program


def _takes_varargs(model: fx.GraphModule) -> bool:
    return any(node.op == "placeholder" and str(node.target).startswith("*") for node in model.graph.nodes)


def _as_bytes(program: ExportedProgram) -> bytes:
    """Return the file without the example: it may be the user's data, and torch would keep it as a pickle."""
    program._example_inputs = None
    buffer = io.BytesIO()
    try:
        torch.export.save(program, buffer)
    except Exception as error:
        raise NotExportedError(f"torch.export.save: {headline(error)}") from error
    return buffer.getvalue()
