"""`write_source`: a slim model as a readable Python file that builds it, and its weights in safetensors beside it.

Names from the model are written as attributes only where they are plain identifiers; everywhere else, and for every
other value, as quoted literals: nothing a model is called can become code.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import fx, nn

from dst_analyze.slimming.attention import HeadAttention
from dst_analyze.slimming.constructors import Imports, construct
from dst_analyze.slimming.statements import forward_lines
from dst_analyze.slimming.writing import attribute, identifier, is_plain, literal, wrapped

_INDENT = " " * 4


def write_source(slim: fx.GraphModule, path: str | Path) -> Path:
    """Write ``path`` and the weights beside it; the file's ``build_model()`` gives the model back."""
    path = Path(path)
    path.write_text(source_of_model(slim, path.stem), encoding="utf-8")
    tensors = {
        name: tensor.detach().cpu().contiguous().clone()
        for name, tensor in (
            *slim.named_parameters(remove_duplicate=False),
            *slim.named_buffers(remove_duplicate=False),
        )
    }
    save_file(tensors, path.with_suffix(".safetensors"))
    return path


def source_of_model(slim: fx.GraphModule, stem: str = "slim_model") -> str:
    """The file's text."""
    name = identifier(re.sub(r"\W", "_", type(slim).__name__) or "SlimModel")
    imports = Imports()
    layers = [line for line in _init_lines(slim, imports)]
    body = forward_lines(slim, imports)
    count = sum(parameter.numel() for parameter in slim.parameters())
    parts = [
        f'"""{name}: {count:,} parameters. Written by dst-analyze; the weights are in the safetensors file beside it."""',
        "\n".join(["from pathlib import Path", "", *imports.lines()]),
        'WEIGHTS = Path(__file__).with_suffix(".safetensors")',
        *_helpers(layers, slim),
        "\n".join(
            [
                f"class {name}(nn.Module):",
                f"{_INDENT}def __init__(self) -> None:",
                f"{_INDENT * 2}super().__init__()",
                *(line for line in layers),
                "",
                *body,
            ]
        ),
        _builder(slim, name),
        _example(slim),
    ]
    return "\n\n\n".join(part for part in parts if part) + "\n"


# --- layers -----------------------------------------------------------------------------------------------------


def _init_lines(slim: fx.GraphModule, imports: Imports) -> Iterator[str]:
    seen: dict[int, str] = {}
    ties: list[str] = []
    indent = _INDENT * 2
    for name, value in _children(slim):
        text = _expression(value, name, slim, imports, indent, seen, ties)
        if is_plain(name):
            yield f"{indent}self.{name} = {text}"
        else:
            yield f"{indent}setattr(self, {literal(name)}, {text})"
    yield from (f"{indent}{tie}" for tie in ties)


def _children(module: nn.Module) -> list[tuple[str, Any]]:
    """What a container holds: parameters, buffers, modules."""
    tensors = [*module._parameters.items(), *module._buffers.items()]
    return [(name, value) for name, value in (*tensors, *module._modules.items()) if value is not None]


def _expression(
    value: Any, path: str, slim: fx.GraphModule, imports: Imports, indent: str, seen: dict[int, str], ties: list[str]
) -> str:
    """A value's constructor, with comments where a width changed; containers nest over lines of their own."""
    if isinstance(value, torch.Tensor):
        return _tensor(value, path, slim, seen, ties)
    if type(value) is not nn.Module:
        for own, parameter in value.named_parameters():
            _tie(f"{path}.{own}", parameter, slim, seen, ties)
        was = slim.meta.get("was", {}).get(path, {})
        note = ", ".join(f"{key} was {old}" for key, old in sorted(was.items()))
        return wrapped(construct(value, imports), indent) + (f"  # {note}" if note else "")
    inner = indent + _INDENT
    children = _children(value)
    listed = [name for name, _ in children] == [str(i) for i in range(len(children))] and not value._parameters
    lines = []
    for name, child in children:
        text = _expression(child, f"{path}.{name}", slim, imports, inner, seen, ties)
        code, mark, note = text.rpartition("  # ")
        if not mark or "\n" in note:
            code, mark, note = text, "", ""
        key = "" if listed else f"{name}=" if is_plain(name) else ""
        if key or listed:
            lines.append(f"{inner}{key}{code},{mark}{note}")
        else:
            lines.append(f"{inner}**{{{literal(name)}: {code}}},{mark}{note}")
    if listed:
        return "\n".join(["nn.ModuleList([", *lines, f"{indent}])"])
    return "\n".join(["Block(", *lines, f"{indent})"])


def _tensor(tensor: torch.Tensor, path: str, slim: fx.GraphModule, seen: dict[int, str], ties: list[str]) -> str:
    shape, kind = literal(tuple(tensor.shape)), str(tensor.dtype)
    made = f"torch.zeros({shape})" if kind == "torch.float32" else f"torch.zeros({shape}, dtype={kind})"
    if not isinstance(tensor, nn.Parameter):
        persistent = path in slim.state_dict()
        return f"nn.Buffer({made}{'' if persistent else ', persistent=False'})"
    _tie(path, tensor, slim, seen, ties)
    if tensor.is_floating_point() and tensor.numel() > 1:  # without its weights the file still gives a fair start
        made = f"torch.randn({shape}) * {float(tensor.detach().float().std()):.3g}"
    was = slim.meta.get("was", {}).get(path, {}).get("shape")
    return f"nn.Parameter({made})" + (f"  # shape was {literal(was)}" if was else "")


def _tie(path: str, tensor: torch.Tensor, slim: fx.GraphModule, seen: dict[int, str], ties: list[str]) -> None:
    """A parameter seen before under another name is the same one here too."""
    first = seen.setdefault(id(tensor), path)
    if first != path:
        ties.append(f"{attribute('self', path, slim)} = {attribute('self', first, slim)}")


_BLOCK = '''class Block(nn.Module):
    """A named part of the model; what it does is written in the model's forward."""

    def __init__(self, **parts: object) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)'''
_DEPTH = '''class StochasticDepth(nn.Module):
    """Leaves its input out at random while training: whole batches, or row by row."""

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
    if "StochasticDepth(" in text:
        yield _DEPTH
    if any(isinstance(module, HeadAttention) for module in slim.modules()):
        yield inspect.getsource(HeadAttention).rstrip()


# --- what the file offers ---------------------------------------------------------------------------------------


def _builder(slim: fx.GraphModule, name: str) -> str:
    still = [literal(own) for own, parameter in slim.named_parameters() if not parameter.requires_grad]
    lines = [
        "def build_model(weights: Path | None = WEIGHTS) -> nn.Module:",
        '    """The model with its weights; with None, as it is initialised."""',
        f"    model = {name}()",
        "    if weights is not None:",
        "        tensors = load_file(weights)",
        "        for name, tensor in (*model.named_parameters(), *model.named_buffers()):",
        "            if tensor.shape != tensors[name].shape:",
        '                raise ValueError(f"{name} is {list(tensors[name].shape)} in the file, {list(tensor.shape)} here")',
        "            tensor.data = tensors[name]",
    ]
    if still:
        lines += [
            *wrapped(f"    for name in ({', '.join(still)},):", "").split("\n"),
            "        model.get_parameter(name).requires_grad_(False)",
        ]
    return "\n".join([*lines, "    return model"])


def _example(slim: fx.GraphModule) -> str:
    """Inputs of the example's shapes: noise, or zeros where numbers have a meaning."""
    shapes = slim.meta.get("inputs")
    if not shapes:
        return ""
    made = [
        f"torch.randn({literal(shape)}{'' if dtype == torch.float32 else f', dtype={dtype}'})"
        if dtype.is_floating_point
        else f"torch.zeros({literal(shape)}, dtype={dtype})"
        for shape, dtype in shapes
    ]
    return "\n".join(
        [
            "def example_inputs() -> tuple[torch.Tensor, ...]:",
            wrapped(f"    return ({', '.join(made)},)", "    "),
        ]
    )
