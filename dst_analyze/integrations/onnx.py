"""`slim_model.onnx`: the slim model in ONNX, with a dynamic batch dimension, checked in onnxruntime.

Netron shows the properties that the model and its nodes carry: label, redundancy and widths of each layer.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch

from dst_analyze.errors import OptionError
from dst_analyze.model.user_errors import headline
from dst_analyze.run.files.paths import SLIM_ONNX
from dst_analyze.slimming.exports.checks import largest_difference
from dst_analyze.slimming.exports.layer_notes import layer_notes, layer_of, summary_properties
from dst_analyze.slimming.exports.result import Exported, NotExportedError, SlimResult
from dst_analyze.slimming.exports.torch_export import Program, export_program, quiet_export
from dst_analyze.version import __version__

_NEEDED = ("onnx", "onnxscript", "onnxruntime")
_LAYER, _SCOPES = "dst_analyze.layer", "pkg.torch.onnx.name_scopes"
_SHOWN = ("namespace", _SCOPES, "pkg.torch.onnx.class_hierarchy")
"""What a node keeps of the exporter's properties; the others name files of this machine."""


def check_onnx() -> None:
    """Raise if a package that ONNX needs is not installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise OptionError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            place="--format onnx",
            hint="pip install 'dst-analyze[onnx]'",
        )


def write_onnx(result: SlimResult) -> Exported:
    """Return `slim_model.onnx`, run in onnxruntime and compared with the slim model."""
    check_onnx()
    program = export_program(result.model)
    data = _as_bytes(program, result)
    run = _session(data)
    try:
        difference = largest_difference(program.model, run, program.inputs)
    except NotExportedError:
        raise
    except Exception as error:
        raise NotExportedError(f"onnxruntime: {headline(error)}") from error
    return Exported({SLIM_ONNX: data}, difference=difference, batch_sizes=program.sizes, note=program.note)


def _as_bytes(program: Program, result: SlimResult) -> bytes:
    symbol = program.batch_symbol
    try:
        with quiet_export(), _quiet_logs():
            names = _output_names(program)
            exported = torch.onnx.export(program.program, dynamo=True, verbose=False, output_names=names)
            assert exported is not None
            model: Any = exported.model_proto
    except Exception as error:
        raise NotExportedError(f"torch.onnx: {_cause(error)}") from error
    _name_batch(model, symbol)
    _add_properties(model, result)
    try:
        data: bytes = model.SerializeToString(deterministic=True)
    except Exception as error:  # of more than two gigabytes
        raise NotExportedError(f"the ONNX file cannot be written: {headline(error)}") from error
    return data


def _output_names(program: Program) -> list[str] | None:
    """Return names for the outputs: the keys of a dict of tensors, or "output"; None to keep torch's."""
    spec = program.program.call_spec.out_spec
    count = len(program.program.graph_signature.user_outputs)
    if count == 1 and spec is not None and spec.is_leaf():
        return ["output"]
    if spec is not None and spec.type is dict and spec.num_leaves == len(spec.context) == count:
        return [str(key) for key in spec.context]
    return None


def _cause(error: BaseException) -> str:
    """Return the first line of the error that the exporter wraps in its own."""
    while error.__cause__ is not None:
        error = error.__cause__
    return headline(error)


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Keep warnings of the exporter's own packages from the terminal."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _session(data: bytes) -> Any:
    """Return a function that runs the file in onnxruntime on tensors."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise NotExportedError(f"onnxruntime: {headline(error)}") from error
    names = [value.name for value in session.get_inputs()]

    def run(inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        given = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
        return [torch.as_tensor(value) for value in session.run(None, given)]

    return run


# --- what Netron shows ------------------------------------------------------------------------------------------


def _name_batch(model: Any, symbol: str) -> None:
    """Name the batch dimension "batch", where torch has a number of its own."""
    if not symbol:
        return
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == symbol:
                dim.dim_param = "batch"


def _add_properties(model: Any, result: SlimResult) -> None:
    notes = layer_notes(result)
    model.producer_name, model.producer_version = "dst-analyze", __version__
    for name, text in summary_properties(result).items():
        model.metadata_props.add(key=name, value=text)
    for node in model.graph.node:
        kept = {entry.key: entry.value for entry in node.metadata_props if entry.key in _SHOWN}
        layer = _layer_of_node(node, kept, notes)
        if layer:
            kept |= {_LAYER: layer, **notes[layer].properties()}
        del node.metadata_props[:]
        for name, text in kept.items():
            node.metadata_props.add(key=name, value=text)
        node.doc_string = ""


def _layer_of_node(node: Any, kept: dict[str, str], notes: Any) -> str:
    """Return the layer that a node computes: by its weight, else by the module that called it."""
    found = (layer_of(name, notes) for name in node.input)
    if layer := next(filter(None, found), ""):
        return str(layer)
    try:
        scopes = ast.literal_eval(kept.get(_SCOPES, "[]"))
    except (SyntaxError, ValueError):
        return ""
    return next((scope for scope in reversed(scopes) if scope in notes), "") if isinstance(scopes, list) else ""
