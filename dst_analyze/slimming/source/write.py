"""`write_source`: write a slim model as a readable Python file, with its weights in safetensors beside it.

Names from the model are written as attributes only if they are plain identifiers, and otherwise as quoted literals,
like all other values: no name in a model can become code.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import fx, nn

from dst_analyze.run.files.atomic_io import write_bytes
from dst_analyze.slimming.attention import HeadAttention
from dst_analyze.slimming.conditions import Branch
from dst_analyze.slimming.source.constructors import WITH_PARTS, Imports, construct
from dst_analyze.slimming.source.example_inputs import example_lines
from dst_analyze.slimming.source.literals import attribute, identifier, is_listed, is_plain, literal, wrapped
from dst_analyze.slimming.source.statements import forward_lines

_INDENT = " " * 4


def write_source(slim: fx.GraphModule, path: str | Path) -> Path:
    """Write a slim model as a Python file with ``build_model()``, and its weights beside it.

    Args:
        slim: The model, of `slim_model`.
        path: The Python file to write; the weights get its name with the suffix ".safetensors".

    Returns:
        The path of the Python file.

    Raises:
        SourceError: A part of the model cannot be written as source, such as a class of the running script.

    Example:
        >>> import pandas as pd, tempfile, torch
        >>> from dst_analyze import rank_layers, slim_model, suggest_widths, trace_model, write_source
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
        >>> table = pd.DataFrame({"layer": ["0", "2"] * 2, "alpha": [1, 1, 2, 2], "remaining": [0.4, 0.8, 0.2, 0.7]})
        >>> plan = suggest_widths(trace_model(net, torch.randn(1, 4)), rank_layers(table))
        >>> write_source(slim_model(net, plan), f"{tempfile.mkdtemp()}/slim.py").name
        'slim.py'
    """
    path = Path(path)
    source, weights = source_and_weights(slim)
    write_bytes(path.with_suffix(".safetensors"), weights)
    write_bytes(path, source)
    return path


def source_and_weights(slim: fx.GraphModule) -> tuple[bytes, bytes]:
    """Return the contents of the file, and of the one with its weights."""
    tensors = {
        name: tensor.detach().cpu().contiguous().clone()
        for name, tensor in (
            *slim.named_parameters(remove_duplicate=False),
            *slim.named_buffers(remove_duplicate=False),
        )
    }
    return source_of_model(slim).encode(), save(tensors)


def source_of_model(slim: fx.GraphModule) -> str:
    """Return the text of the Python file of a slim model."""
    name = identifier(re.sub(r"\W", "_", type(slim).__name__))
    imports = Imports()
    layers, body = _Layers(slim, imports).lines(), forward_lines(slim, imports)
    helpers = list(_helpers(layers, slim))
    count = sum(parameter.numel() for parameter in slim.parameters())
    heading = [
        f'"""{name}: {count:,} parameters.',
        "",
        "Written by dst-analyze. `build_model()` gives the model, its weights from the safetensors file beside it.",
        '"""',
    ]
    own = [
        f"class {name}(nn.Module):",
        f"{_INDENT}def __init__(self) -> None:",
        f"{_INDENT * 2}super().__init__()",
        *layers,
        "",
        *body,
    ]
    functional = any("F." in line for line in (*body, *helpers))
    top = [*heading, "", *imports.standard(), "", *imports.lines(functional), "", f"WEIGHTS = {_WEIGHTS}"]
    parts = ["\n".join(top), *helpers, "\n".join(own), _builder(slim, name), example_lines(slim)]
    return "\n\n\n".join(part for part in parts if part) + "\n"


_WEIGHTS = 'Path(__file__).with_suffix(".safetensors")'


# --- layers -----------------------------------------------------------------------------------------------------


class _Layers:
    """The lines of ``__init__``: every submodule and tensor in its order, with a comment where a width changed."""

    def __init__(self, slim: fx.GraphModule, imports: Imports) -> None:
        self._slim, self._imports = slim, imports
        self._was = slim.meta.get("was", {})
        self._persistent = set(slim.state_dict())
        self._seen: dict[int, str] = {}
        self._ties: list[str] = []

    def lines(self) -> list[str]:
        """Return the lines, with tied parameters last."""
        indent = _INDENT * 2
        lines: list[str] = []
        for name, value in _children(self._slim):
            if isinstance(value, Branch):  # a method
                continue
            if is_plain(name):
                lines += self._part(f"self.{name} = ", value, "", name, indent)
            else:
                lines += self._part(f"setattr(self, {literal(name)}, ", value, ")", name, indent)
        return [*lines, *(f"{indent}{tie}" for tie in self._ties)]

    def _part(self, before: str, value: Any, after: str, path: str, indent: str) -> list[str]:
        if type(value) is nn.Module:
            return self._container(before, value, after, path, indent)
        code, note = self._tensor(value, path) if isinstance(value, torch.Tensor) else self._layer(value, path)
        whole, end = (before + code + after, "") if after == ")" else (before + code, after)
        line = wrapped(whole, indent, len(end)) + end
        if not note:
            return [indent + line]
        if len(indent + line) + len(note) + 2 <= 120 and "\n" not in line:
            return [f"{indent}{line}  {note}"]
        return [f"{indent}{note}", indent + line]

    def _container(self, before: str, value: nn.Module, after: str, path: str, indent: str) -> list[str]:
        """Return the lines of a container: a Sequential (never called) for numbered parts, else a Block."""
        lines: list[str] = []
        for name, child in _children(value):
            key, end = ("", ",") if is_listed(value) else (f"{name}=", ",")
            if not is_listed(value) and not is_plain(name):
                key, end = f"**{{{literal(name)}: ", "},"
            lines += self._part(key, child, end, f"{path}.{name}", indent + _INDENT)
        kind = "nn.Sequential" if is_listed(value) else "Block"
        return [f"{indent}{before}{kind}(", *lines, f"{indent}){after}"]

    def _layer(self, value: nn.Module, path: str) -> tuple[str, str]:
        for own, parameter in value.named_parameters():
            self._tie(f"{path}.{own}", parameter)
        was = ", ".join(f"{key}={literal(old)}" for key, old in sorted(self._was.get(path, {}).items()))
        return construct(value, self._imports), f"# was {was}" if was else ""

    def _tensor(self, tensor: torch.Tensor, path: str) -> tuple[str, str]:
        shape, kind = literal(tuple(tensor.shape)), str(tensor.dtype)
        was = self._was.get(path, {}).get("shape")
        note = f"# was {literal(was)}" if was else ""
        made = f"torch.zeros({shape})" if kind == "torch.float32" else f"torch.zeros({shape}, dtype={kind})"
        if not isinstance(tensor, nn.Parameter):
            return f"nn.Buffer({made}{'' if path in self._persistent else ', persistent=False'})", note
        self._tie(path, tensor)
        if tensor.is_floating_point() and tensor.numel() > 1:  # a reasonable initialisation without the weights file
            made = f"torch.randn({shape}) * {float(tensor.detach().float().std()):.3g}"
        return f"nn.Parameter({made})", note

    def _tie(self, path: str, tensor: torch.Tensor) -> None:
        """Record a parameter; one that was seen under another name becomes an assignment that ties both."""
        first = self._seen.setdefault(id(tensor), path)
        if first != path:
            self._ties.append(f"{attribute('self', path, self._slim)} = {attribute('self', first, self._slim)}")


def _children(module: nn.Module) -> list[tuple[str, Any]]:
    """Return the parameters, buffers and submodules of a container by name."""
    tensors = [*module._parameters.items(), *module._buffers.items()]
    return [(name, value) for name, value in (*tensors, *module._modules.items()) if value is not None]


_BLOCK = '''class Block(nn.Module):
    """A named part of the model; what it does is written in the model's forward."""

    def __init__(self, /, **parts: object) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)'''
_WITH_PARTS = '''def with_parts(module: nn.Module, **parts: nn.Module) -> nn.Module:
    """Return a layer with some of its children replaced."""
    for name, part in parts.items():
        setattr(module, name, part)
    return module'''

_DEPTH = '''class StochasticDepth(nn.Module):
    """Drops its input at random while training: whole batches, or row by row."""

    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.p == 0.0:
            return x
        rows = x.shape[0] if self.mode == "row" else 1
        kept = torch.empty([rows] + [1] * (x.ndim - 1), dtype=x.dtype, device=x.device).bernoulli_(1.0 - self.p)
        return x * (kept / (1.0 - self.p) if self.p < 1.0 else kept)'''


def _helpers(lines: list[str], slim: fx.GraphModule) -> Iterator[str]:
    text = "\n".join(lines)
    if "Block(" in text:
        yield _BLOCK
    if f"{WITH_PARTS}(" in text:
        yield _WITH_PARTS
    if "StochasticDepth(" in text:
        yield _DEPTH
    if any(isinstance(module, HeadAttention) for module in slim.modules()):
        yield inspect.getsource(HeadAttention).rstrip()


# --- what the file offers ---------------------------------------------------------------------------------------


def _builder(slim: fx.GraphModule, name: str) -> str:
    still = [literal(own) for own, parameter in slim.named_parameters() if not parameter.requires_grad]
    lines = [
        "def build_model(weights: Path | None = WEIGHTS) -> nn.Module:",
        '    """Return the model with its weights; with None, with new ones."""',
        f"    model = {name}()",
        "    if weights is not None:",
        "        tensors = load_file(weights)",
        "        for name, tensor in (*model.named_parameters(), *model.named_buffers()):",
        "            if tensor.shape != tensors[name].shape:",
        '                raise ValueError(f"{name} is {list(tensors[name].shape)} in {weights}")',
        "            tensor.data = tensors[name].clone()  # into memory that is aligned, as the file need not be",
    ]
    if still:
        lines += [
            *wrapped(f"    for name in ({', '.join(still)},):", "").split("\n"),
            "        model.get_parameter(name).requires_grad_(False)",
        ]
    return "\n".join([*lines, "    return model"])
