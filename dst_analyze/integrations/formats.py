"""The formats of a slim model by name, and `export_model`, which writes one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from torch import fx

from dst_analyze.errors import ModelError, OptionError
from dst_analyze.integrations.onnx import check_onnx, write_onnx
from dst_analyze.run.files.atomic_io import write_bytes
from dst_analyze.slimming.exports.explorer import write_explorer
from dst_analyze.slimming.exports.hub import write_hub
from dst_analyze.slimming.exports.result import Export, Exporter, NotExportedError, SlimResult
from dst_analyze.slimming.exports.sparse import write_sparse
from dst_analyze.slimming.exports.torch_export import write_pt2

FORMATS: Mapping[str, Exporter] = MappingProxyType(
    {"onnx": write_onnx, "export": write_pt2, "hub": write_hub, "sparse": write_sparse, "explorer": write_explorer}
)
_CHECKS: dict[str, Callable[[], None]] = {"onnx": check_onnx}


def exporters_of(formats: str | Iterable[str]) -> dict[str, Exporter]:
    """Return the exporters of formats, given one by one or separated by commas.

    Raises:
        OptionError: A format is unknown, or a package that it needs is not installed.
    """
    given = [formats] if isinstance(formats, str) else list(formats)
    names = [name.strip() for text in given for name in text.split(",") if name.strip()]
    for name in names:
        if name not in (*FORMATS, "source"):
            raise OptionError(
                f"there is no format {name!r}", place="--format", hint=f"formats: source, {', '.join(FORMATS)}"
            )
        _CHECKS.get(name, lambda: None)()
    return {name: FORMATS[name] for name in dict.fromkeys(names) if name != "source"}


def export_model(slim: fx.GraphModule, path: str | Path) -> Export:
    """Write a slim model as ONNX or for torch.export, and compare the outputs of both.

    Args:
        slim: The model, of `slim_model`.
        path: The file to write: "name.onnx" (needs ``pip install 'dst-analyze[onnx]'``) or "name.pt2".

    Returns:
        What was written, with the largest difference of an output and the batch sizes that were tried.

    Raises:
        OptionError: The path ends otherwise, or a package is not installed.
        ModelError: The model cannot be exported; the cause is the exporter's reason.

    Example:
        >>> import pandas as pd, tempfile, torch
        >>> from dst_analyze import export_model, rank_layers, slim_model, suggest_widths, trace_model
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
        >>> table = pd.DataFrame({"layer": ["0", "2"] * 2, "alpha": [1, 1, 2, 2], "remaining": [0.4, 0.8, 0.2, 0.7]})
        >>> plan = suggest_widths(trace_model(net, torch.randn(1, 4)), rank_layers(table))
        >>> export_model(slim_model(net, plan), f"{tempfile.mkdtemp()}/slim.pt2").batch_sizes
        (1, 3)
    """
    path = Path(path)
    names = {".onnx": "onnx", ".pt2": "export"}
    if path.suffix not in names:
        raise OptionError(
            f"there is no format for files named *{path.suffix}",
            place=str(path),
            hint=f"name it *{' or *'.join(names)}",
        )
    name = names[path.suffix]
    exporter = exporters_of(name)[name]
    try:
        exported = exporter(SlimResult(slim, plan=slim.meta.get("plan")))
    except NotExportedError as error:
        raise ModelError(f"the model cannot be exported: {error.cause}", place=str(path)) from error
    (data,) = exported.files.values()
    write_bytes(path, data)
    return Export(
        format=name,
        files=(str(path),),
        difference=exported.difference,
        batch_sizes=exported.batch_sizes,
        note=exported.note,
    )
